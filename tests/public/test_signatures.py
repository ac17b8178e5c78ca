"""The parameters that users see in `help`, `inspect.signature` and notebooks: all of them, not only ``**options``."""

import asyncio
import inspect
import typing

import pytest

import kopf
from kopf._core.intents.signatures import list_descriptions

DECORATORS = [
    fn
    for name, fn in vars(kopf.on).items()
    if inspect.isfunction(fn) and fn.__module__ == 'kopf.on' and not name.startswith('_')
]
"""All decorators, found and not listed, so that a new one is not forgotten."""
OPERATOR = (
    'lifecycle indexers registry settings memories insights identity standalone priority peering_name '
    'leader_election shards lease_name '
    'liveness_endpoint metrics_endpoint tracing inspect scanning clusterwide namespaces namespace stop_flag '
    'ready_flag vault instruments memo _command'
).split()
CREATE = (
    'arg1 arg2 arg3 group version kind plural singular shortcut category id param errors timeout retries backoff '
    'labels annotations when field value registry label_selector'
).split()


@pytest.mark.parametrize('fn', [kopf.operator, kopf.run, kopf.spawn_tasks], ids=lambda fn: fn.__name__)
def test_options_of_operators_are_in_the_signature(fn):
    parameters = inspect.signature(fn).parameters
    assert [name for name in parameters if name != 'loop'] == OPERATOR
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    defaults = {name: each.default for name, each in parameters.items() if each.default is not None}
    assert defaults == {'clusterwide': False, 'inspect': False, 'namespaces': (), 'tracing': False}


def test_options_of_a_decorator_are_in_its_signature():
    parameters = inspect.signature(kopf.on.create).parameters
    assert sorted(parameters) == sorted(CREATE)
    assert parameters['retries'].annotation == int | None
    assert parameters['retries'].default is None


@pytest.mark.parametrize('fn', DECORATORS, ids=lambda fn: fn.__name__)
def test_every_decorator_shows_the_options_that_it_takes(fn):
    parameters = inspect.signature(fn).parameters
    options = {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    declared = typing.get_type_hints(fn)['options'].__args__[0]
    assert set(declared.__annotations__) <= options
    assert {'id', 'param'} <= options
    assert set(parameters) <= set(list_descriptions(fn.__doc__ or ''))


def test_the_decorators_of_all_kinds_are_found():
    kinds = 'startup probe schedule index event daemon timer create update reconcile validate mutate convert register'
    assert set(kinds.split()) <= {fn.__name__ for fn in DECORATORS}


def test_unknown_options_are_refused_though_they_are_not_in_the_signature():
    with pytest.raises(TypeError, match="unexpected keyword argument 'retrys'"):
        kopf.on.create('kopfexamples', retrys=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'namespaced'"):
        asyncio.run(kopf.operator(namespaced=True))


def test_help_shows_the_options(capsys):
    help(kopf.on.timer)
    assert 'interval: float | None = None' in capsys.readouterr().out
