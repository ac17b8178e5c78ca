"""Callbacks of users, alone and combined: each is called with the arguments that it takes."""

import pytest

import kopf
from kopf._core.intents.callbacks import iter_parts, read_names, restrict


def is_small(value, **_):
    return value < 3


def is_named(name):
    return name == 'x'


def is_spec_set(spec, **_):
    return bool(spec)


@pytest.mark.parametrize(
    'combine, values',
    [
        (lambda *fns: kopf.all_(fns), [False, False, False, True]),
        (lambda *fns: kopf.any_(fns), [False, True, True, True]),
        (lambda *fns: kopf.none_(fns), [True, False, False, False]),
    ],
    ids=['all', 'any', 'none'],
)
def test_combinations_judge_by_the_results_of_their_parts(combine, values):
    fn = combine(is_named, is_spec_set)
    cases = [('y', {}), ('x', {}), ('y', {'a': 1}), ('x', {'a': 1})]
    assert [fn(name=name, spec=spec, body={}) for name, spec in cases] == values


def test_negations_pass_what_the_function_does_not():
    assert [kopf.not_(is_named)(name=name, spec={}) for name in 'xy'] == [False, True]


def test_combinations_of_values_pass_the_value_on():
    fn = kopf.all_([is_small, kopf.not_(is_small)])
    assert fn(2, name='x') is False
    assert kopf.any_([is_small])(2, name='x') is True


def test_parts_of_nested_combinations_are_found():
    assert list(iter_parts(kopf.any_([kopf.not_(is_named), is_spec_set]))) == [is_named, is_spec_set]


def test_names_of_all_parts_are_read_unless_one_takes_any_arguments():
    assert read_names(kopf.not_(is_named)) == ('name',)
    assert read_names(kopf.all_([is_named, is_spec_set])) is None


def test_restricted_functions_ignore_the_other_arguments():
    assert restrict(is_named)(name='x', spec={}) is True


@pytest.mark.parametrize(
    'fns, message',
    [(is_named, "takes a list of functions"), (['text'], "takes only functions")],
    ids=['function', 'text'],
)
def test_combinations_of_what_is_no_list_of_functions_are_refused(fns, message):
    with pytest.raises(TypeError, match=message):
        kopf.all_(fns)


def test_async_functions_are_refused():
    async def fn(**_):
        return True

    with pytest.raises(TypeError, match="can't take async functions"):
        kopf.any_([fn])
