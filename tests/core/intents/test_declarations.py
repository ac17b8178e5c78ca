"""Decorators: what is registered, and which mistakes are found at once."""

import functools
import re
import sys
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf._core.intents.declarations import make_subhandler
from kopf._core.intents.handlers import (
    ChangingHandler,
    DaemonHandler,
    IndexingHandler,
    ReconcilingHandler,
    TimerHandler,
    WatchingHandler,
    WebhookHandler,
)
from kopf._core.intents.registries import OperatorRegistry, set_default_registry

ON_OBJECTS: dict[str, Any] = {
    'event': kopf.on.event,
    'create': kopf.on.create,
    'update': kopf.on.update,
    'resume': kopf.on.resume,
    'delete': kopf.on.delete,
    'index': kopf.on.index,
    'daemon': kopf.on.daemon,
    'timer': kopf.on.timer,
    'reconcile': kopf.on.reconcile,
    'validate': kopf.on.validate,
    'mutate': kopf.on.mutate,
}
ON_ACTIVITIES: dict[str, Any] = {
    'startup': kopf.on.startup,
    'cleanup': kopf.on.cleanup,
    'login': kopf.on.login,
    'probe': kopf.on.probe,
}
CLASSES = {
    'event': WatchingHandler,
    'index': IndexingHandler,
    'daemon': DaemonHandler,
    'timer': TimerHandler,
    'reconcile': ReconcilingHandler,
    'validate': WebhookHandler,
    'mutate': WebhookHandler,
}


@pytest.fixture
def registry() -> OperatorRegistry:
    return OperatorRegistry()


def fn(**_: Any) -> None: ...


async def async_fn(*_: Any, **__: Any) -> Any: ...


class Holder:
    @staticmethod
    def fn(**_: Any) -> Any: ...


@pytest.mark.parametrize('name', ON_OBJECTS)
def test_objects_handlers_are_registered(registry: OperatorRegistry, name: str) -> None:
    decorated = ON_OBJECTS[name]('kopf.dev', 'v1', 'kopfexamples', registry=registry, id='x', param=123)(fn)
    (handler,) = registry.iter_resource_handlers()
    assert decorated is fn
    assert type(handler) is CLASSES.get(name, ChangingHandler)
    assert (handler.id, handler.fn, handler.param) == ('x', fn, 123)


@pytest.mark.parametrize('name', ON_ACTIVITIES)
def test_activities_handlers_are_registered(registry: OperatorRegistry, name: str) -> None:
    decorated = ON_ACTIVITIES[name](registry=registry, retries=3, timeout=4, backoff=5)(fn)
    (handler,) = registry.activities
    assert decorated is fn
    assert (handler.id, handler.retries, handler.timeout, handler.backoff) == ('fn', 3, 4, 5)


def test_default_registry_is_used() -> None:
    previous, chosen = kopf.get_default_registry(), OperatorRegistry()
    set_default_registry(chosen)
    try:
        kopf.on.event('kopfexamples')(fn)
    finally:
        set_default_registry(previous)
    assert [handler.id for handler in chosen.watching] == ['fn']


@pytest.mark.parametrize('decorated, id', [(fn, 'fn'), (functools.partial(fn), 'fn'), (Holder.fn, 'Holder.fn')])
def test_ids_come_from_names(registry: OperatorRegistry, decorated: Any, id: str) -> None:
    kopf.on.event('kopfexamples', registry=registry)(decorated)
    assert [handler.id for handler in registry.watching] == [id]


@pytest.mark.parametrize('name', ON_OBJECTS)
@pytest.mark.parametrize('field', ['spec.x', ('spec', 'x'), ['spec', 'x']])
def test_fields_are_parts_of_ids_except_in_indices(registry: OperatorRegistry, name: str, field: Any) -> None:
    ON_OBJECTS[name]('kopfexamples', registry=registry, field=field)(fn)
    (handler,) = registry.iter_resource_handlers()
    assert handler.field == ('spec', 'x')
    assert handler.id == ('fn' if name == 'index' else 'fn/spec.x')


@pytest.mark.parametrize('name', [*ON_OBJECTS, *ON_ACTIVITIES])
def test_unknown_options_are_named(registry: OperatorRegistry, name: str) -> None:
    args = ['kopfexamples'] if name in ON_OBJECTS else []
    decorator = {**ON_OBJECTS, **ON_ACTIVITIES}[name]
    with pytest.raises(TypeError, match=f"{name} .*'nonsense'"):
        decorator(*args, registry=registry, nonsense=1)


@pytest.mark.parametrize(
    'name, option',
    [
        ('create', 'old'),
        ('delete', 'new'),
        ('event', 'retries'),
        ('index', 'interval'),
        ('daemon', 'interval'),
        ('timer', 'cancellation_timeout'),
        ('startup', 'labels'),
        ('resume', 'optional'),
        ('update', 'deleted'),
        *((name, option) for name in ('validate', 'mutate') for option in ('errors', 'timeout', 'retries', 'backoff')),
    ],
)
def test_options_of_other_decorators_are_refused(registry: OperatorRegistry, name: str, option: str) -> None:
    args = ['kopfexamples'] if name in ON_OBJECTS else []
    with pytest.raises(TypeError, match=option):
        {**ON_OBJECTS, **ON_ACTIVITIES}[name](*args, registry=registry, **{option: 1})


@hypothesis.given(
    name=st.sampled_from(sorted(ON_OBJECTS)),
    options=st.fixed_dictionaries(
        {},
        optional={
            'field': st.sampled_from([None, (), 'spec.x', ['spec']]),
            'value': st.sampled_from([None, '', 0, 'x', kopf.PRESENT]),
            'old': st.sampled_from([None, 'x', kopf.ABSENT]),
            'new': st.sampled_from([None, 'x', kopf.PRESENT]),
        },
    ),
)
def test_combinations_of_field_filters(name: str, options: dict[str, Any]) -> None:
    registry = OperatorRegistry()
    given = {option for option in ('value', 'old', 'new') if options.get(option) is not None}
    wrong = (
        (name != 'update' and {'old', 'new'} & set(options))
        or (given and not options.get('field'))
        or ('value' in given and len(given) > 1)
    )
    if wrong:
        with pytest.raises(TypeError):
            ON_OBJECTS[name]('kopfexamples', registry=registry, **options)
        assert not list(registry.iter_resource_handlers())
    else:
        ON_OBJECTS[name]('kopfexamples', registry=registry, **options)(fn)
        assert len(list(registry.iter_resource_handlers())) == 1


@hypothesis.given(
    name=st.sampled_from(sorted(ON_OBJECTS)),
    option=st.sampled_from(['labels', 'annotations']),
    pattern=st.one_of(
        st.text(),
        st.integers(),
        st.lists(st.text()),
        st.dictionaries(st.text(), st.sampled_from([None, 'x', '', kopf.PRESENT, kopf.ABSENT])),
    ),
)
def test_patterns_of_metadata_are_checked(name: str, option: str, pattern: Any) -> None:
    def declare() -> None:
        ON_OBJECTS[name]('kopfexamples', registry=OperatorRegistry(), **{option: pattern})

    if not isinstance(pattern, dict):
        with pytest.raises(TypeError, match=option):
            declare()
    elif None in pattern.values():
        with pytest.raises(ValueError, match='PRESENT'):
            declare()
    else:
        declare()


@pytest.mark.parametrize(
    'name, options, reason',
    [
        ('create', {'errors': 'PERMANENT'}, 'errors= must be one of kopf.ErrorsMode'),
        ('startup', {'errors': True}, 'errors= must be one of kopf.ErrorsMode'),
        ('create', {'backoff': '5'}, "backoff= must be a number, not '5'"),
        ('startup', {'timeout': 'PT1M'}, 'timeout= must be a number'),
        ('create', {'retries': -1}, 'retries= must not be negative'),
        ('timer', {'interval': 'hourly'}, 'interval= must be a number'),
        ('timer', {'idle': -1}, 'idle= must not be negative'),
        ('timer', {'interval': float('nan')}, 'interval= must not be negative'),
        ('daemon', {'cancellation_timeout': True}, 'cancellation_timeout= must be a number'),
        ('daemon', {'initial_delay': 'later'}, 'initial_delay= must be a number'),
        ('daemon', {'initial_delay': async_fn}, 'initial_delay= must not be an async function'),
        ('event', {'when': async_fn}, 'when= must not be an async function'),
        ('event', {'labels': {'a': async_fn}}, 'labels= must not be an async function'),
        ('index', {'annotations': {'a': 123}}, "annotations={'a': 123} never matches"),
        ('create', {'field': 'spec.x', 'value': async_fn}, 'value= must not be an async function'),
        ('update', {'field': 'spec.x', 'new': async_fn}, 'new= must not be an async function'),
    ],
)
def test_values_of_options_are_checked(registry: OperatorRegistry, name: str, options: Any, reason: str) -> None:
    args = ['kopfexamples'] if name in ON_OBJECTS else []
    with pytest.raises((TypeError, ValueError), match=f'{name}: {re.escape(reason)}'):
        {**ON_OBJECTS, **ON_ACTIVITIES}[name](*args, registry=registry, **options)


@pytest.mark.parametrize(
    'options',
    [
        {'initial_delay': fn},
        {'initial_delay': 0},
        {'idle': 0.5, 'interval': 0},
        {'retries': 0, 'timeout': 0},
        {'interval': None, 'errors': None, 'when': None},
    ],
)
def test_right_values_of_options_are_accepted(registry: OperatorRegistry, options: Any) -> None:
    kopf.timer('kopfexamples', registry=registry, **options)(fn)
    assert len(registry.spawning) == 1


@pytest.mark.parametrize('when', [True, 'x', 123])
def test_when_must_be_callable(registry: OperatorRegistry, when: Any) -> None:
    with pytest.raises(TypeError, match='when'):
        kopf.on.event('kopfexamples', registry=registry, when=when)


@pytest.mark.parametrize('name', ON_OBJECTS)
@pytest.mark.parametrize('field', ['', 'spec.', '.spec', 'spec..x', ['']])
def test_names_in_fields_are_not_empty(registry: OperatorRegistry, name: str, field: Any) -> None:
    with pytest.raises(ValueError, match='field'):
        ON_OBJECTS[name]('kopfexamples', registry=registry, field=field)


@pytest.mark.parametrize('field', [None, ()])
def test_field_handlers_need_fields(registry: OperatorRegistry, field: Any) -> None:
    with pytest.raises(TypeError, match='field'):
        kopf.on.field('kopfexamples', field=field, registry=registry)


@pytest.mark.parametrize('mock', [Mock(), MagicMock(), AsyncMock()])
def test_mocks_have_no_ids_but_can_be_given_some(registry: OperatorRegistry, mock: Any) -> None:
    with pytest.raises(ValueError, match=r"Cannot get id of <\w+ .*>. Give one by the option id="):
        kopf.on.create('kopfexamples', registry=registry)(mock)
    kopf.on.create('kopfexamples', registry=registry, id='x')(mock)
    assert [(handler.id, handler.fn) for handler in registry.changing] == [('x', mock)]


def test_mocks_can_pass_for_functions(registry: OperatorRegistry) -> None:
    mock = Mock(spec=fn)
    kopf.on.create('kopfexamples', registry=registry, id='x', when=kopf.all_([mock]), annotations={'x': mock})(mock)
    assert [(handler.id, handler.fn) for handler in registry.changing] == [('x', mock)]


def test_any_operation_can_be_asked_for(registry: OperatorRegistry) -> None:
    kopf.on.mutate('kopfexamples', registry=registry, operation='*')(fn)  # type: ignore[arg-type]
    assert [list(handler.operations or ()) for handler in registry.webhooks] == [
        ['CREATE', 'UPDATE', 'DELETE', 'CONNECT']
    ]


def test_operations_of_webhooks_are_collected(registry: OperatorRegistry) -> None:
    kopf.on.validate('kopfexamples', registry=registry, operation='CREATE', operations=('UPDATE', 'CREATE'))(fn)
    assert [sorted(handler.operations or ()) for handler in registry.webhooks] == [['CREATE', 'UPDATE']]
    with pytest.raises(TypeError, match='operation'):
        kopf.on.validate('kopfexamples', registry=registry, operations='CREATE')  # type: ignore[arg-type]


@pytest.mark.parametrize(
    'args, kwargs',
    [
        ((), {}),
        (('a', 'b', 'c', 'd'), {}),
        (('kopf.dev', 'v1', 'kopfexamples'), {'plural': 'kopfexamples'}),
    ],
)
def test_wrong_resources_are_refused(registry: OperatorRegistry, args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        kopf.on.event(*args, registry=registry, **kwargs)
    assert not list(registry.watching)


@pytest.mark.parametrize('declare', [kopf.on.subhandler(), kopf.on.register])
def test_subhandlers_are_for_inside_of_handlers(declare: Any) -> None:
    with pytest.raises(LookupError, match='inside'):
        declare(fn)


def test_declarations_of_subhandlers_are_cheap(registry: OperatorRegistry) -> None:
    # Hundreds of them can be declared in each attempt of their parent: with 400, in 400 attempts.
    kopf.on.create('kopfexamples', registry=registry)(fn)
    (parent,) = registry.changing
    make_subhandler(fn, parent, {'id': 'first'})
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event) if event in ('call', 'c_call') else None)
    try:
        make_subhandler(fn, parent, {'id': 'second'})
    finally:
        sys.setprofile(None)
    assert len(calls) < 250


def test_finalizers_are_for_deletions_and_background_handlers(registry: OperatorRegistry) -> None:
    kopf.on.delete('kopfexamples', registry=registry, id='a')(fn)
    kopf.on.delete('kopfexamples', registry=registry, id='b', optional=True)(fn)
    kopf.on.create('kopfexamples', registry=registry, id='c')(fn)
    kopf.daemon('kopfexamples', registry=registry, id='d')(fn)
    requiring = [handler.id for handler in (*registry.changing, *registry.spawning) if handler.requires_finalizer]
    assert requiring == ['a', 'd']


@pytest.mark.parametrize(
    'options, error, reason',
    [
        ({'owns': 'pods'}, TypeError, "owns= must be a list of resources, even if there is only one"),
        ({'owns': [5]}, TypeError, "owns= names resources as 'deployments', 'apps/v1/deployments'"),
        ({'owns': ['a/b/c/d']}, TypeError, "owns= contains 'a/b/c/d': Too many positional arguments for a resource"),
        ({'owns': ['']}, TypeError, "owns= contains '': The name of a resource must not be an empty string"),
        ({'owns': ('apps', 'v1', 'deployments')}, TypeError, "write owns=[('apps', 'v1', 'deployments')]"),
        ({'watches': ['pods']}, TypeError, "watches= must be a mapping of resources to functions"),
        ({'watches': {'pods': 'x'}}, TypeError, "watches={'pods': ...} must be a function"),
        ({'watches': {'pods': AsyncMock()}}, TypeError, "watches= must not be an async function"),
        ({'interval': 0}, ValueError, "interval= must be above zero"),
        ({'timeout': 0}, ValueError, "timeout= must be above zero"),
        ({'timeout': 'x'}, TypeError, "timeout= must be a number"),
        ({'concurrency': 1.5}, ValueError, "concurrency= must be a whole number above zero"),
        ({'concurrency': float('inf')}, ValueError, "concurrency= must be a whole number above zero"),
        ({'backoff': 5}, TypeError, "backoff= must be the first and the longest delay"),
        ({'backoff': (5, 1)}, ValueError, "backoff= must be above zero and not descend"),
        ({'backoff': (0, 1)}, ValueError, "backoff= must be above zero and not descend"),
    ],
)
def test_options_of_level_triggered_handlers(
    registry: OperatorRegistry, options: Any, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=re.escape(reason)):
        kopf.on.reconcile('kopfexamples', registry=registry, **options)
    assert not list(registry.reconciling)


def test_resources_of_level_triggered_handlers(registry: OperatorRegistry) -> None:
    kopf.on.reconcile('kopfexamples', registry=registry, owns=['apps/v1/deployments', ('v1', 'pods')])(fn)
    [handler] = registry.reconciling
    assert [
        (source.selector.group, source.selector.version, source.selector.any_name) for source in handler.sources
    ] == [
        ('apps', 'v1', 'deployments'),
        ('', 'v1', 'pods'),
    ]
