"""Which arguments a function can look at: those that it names, and any if it does something with its kwargs."""

import functools

import pytest

import kopf
from kopf._core.intents.dependencies import find_arguments
from kopf._core.intents.registries import OperatorRegistry


def find(fn, **options):
    registry = OperatorRegistry()
    kopf.on.event('pods', registry=registry, **options)(fn)
    return find_arguments(list(registry.watching))


class Callable:
    def __call__(self, name, **_):
        pass

    def method(self, name, **_):
        pass

    def open_method(self, name, **kwargs):
        return kwargs


def unused(name, my_index=None, **kwargs):
    return name


def nested(name, **kwargs):
    def inner():
        return kwargs

    return inner


def with_subhandlers(name, **_):
    @kopf.subhandler()
    def sub(my_index, **_):
        pass


@pytest.mark.parametrize(
    'fn, expected',
    [
        (unused, {'name', 'my_index', 'kwargs'}),
        (lambda name, **_: name, {'name', '_'}),
        (lambda name: name, {'name'}),
        (lambda: None, set()),
        (functools.partial(unused, my_index=1), {'name', 'my_index', 'kwargs'}),
        (Callable().method, {'name', '_'}),
    ],
)
def test_named_dependencies_are_found(fn, expected):
    assert find(fn, id='fn') == expected


@pytest.mark.parametrize(
    'fn',
    [
        lambda **kwargs: kwargs['my_index'],
        lambda **_: print(_),
        lambda **kwargs: print(**kwargs),
        lambda **kwargs: locals(),
        nested,
        with_subhandlers,
        Callable(),
        Callable().open_method,
        functools.wraps(unused)(lambda *args, **kwargs: unused(*args, **kwargs)),
    ],
)
def test_any_if_the_kwargs_can_be_read(fn):
    assert find(fn, id='fn') is None


def test_filters_depend_on_their_arguments():
    assert find(lambda: None, id='fn', when=lambda my_index, **_: True) == {'my_index', '_'}
    assert find(lambda: None, id='fn', labels={'x': lambda value, *, my_index: True}) == {'value', 'my_index'}
    assert find(lambda: None, id='fn', when=lambda **kwargs: 'my_index' in kwargs) is None
