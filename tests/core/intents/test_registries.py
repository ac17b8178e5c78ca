"""What is declared, where it is kept, and what of it concerns a resource."""

import contextvars
import functools

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.causes import Activity, Reason
from kopf._core.intents.registries import HandlerTable, get_callable_id, make_handler_id

KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample')
POD = Resource('', 'v1', 'pods', kind='Pod')

CHANGING = ['create', 'update', 'resume', 'delete']


def fn(**_):
    pass


class Class:
    def method(self, **_):
        pass

    @staticmethod
    def static(**_):
        pass

    def __call__(self, **_):
        pass


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


def build(registry, resource=KEX):
    return HandlerTable.build(
        registry, resource, {selector for selector in registry.iter_selectors() if selector.check(resource)}
    )


# Decorators.


@pytest.mark.parametrize(
    'decorator, attribute',
    [
        (kopf.on.event, 'watching'),
        (kopf.index, 'indexing'),
        (kopf.daemon, 'spawning'),
        (functools.partial(kopf.timer, interval=1), 'spawning'),
        (kopf.on.validate, 'webhooks'),
        (kopf.on.mutate, 'webhooks'),
        *((getattr(kopf.on, name), 'changing') for name in CHANGING),
    ],
)
def test_handlers_are_kept_by_their_kinds(registry, decorator, attribute):
    options = {'labels': {'x': 'y'}, 'param': 123}
    assert decorator('kopfexamples', registry=registry, id='id', **options)(fn) is fn
    handlers = {
        name: list(getattr(registry, name))
        for name in ('watching', 'indexing', 'spawning', 'changing', 'webhooks', 'conversions', 'activities')
    }
    (handler,) = handlers.pop(attribute)
    assert not any(handlers.values())
    assert (handler.id, handler.fn, handler.param, handler.labels) == ('id', fn, 123, {'x': 'y'})
    assert handler.selector.check(KEX) and not handler.selector.check(POD)


@pytest.mark.parametrize(
    'decorator, activity',
    [
        (kopf.on.startup, Activity.STARTUP),
        (kopf.on.cleanup, Activity.CLEANUP),
        (kopf.on.login, Activity.AUTHENTICATION),
        (kopf.on.probe, Activity.PROBE),
    ],
)
def test_activities_are_registered_by_their_decorators(registry, decorator, activity):
    decorator(registry=registry, retries=3)(fn)
    (handler,) = registry.activities.get_handlers(activity)
    assert (handler.id, handler.fn, handler.retries) == ('fn', fn, 3)
    assert not any(registry.activities.get_handlers(other) for other in Activity if other is not activity)


def test_decorators_can_be_stacked(registry):
    kopf.on.create('kopfexamples', registry=registry)(kopf.on.resume('kopfexamples', registry=registry)(fn))
    assert [(handler.id, handler.reason, handler.initial) for handler in registry.changing] == [
        ('fn', None, True),
        ('fn', Reason.CREATE, False),
    ]


@pytest.mark.parametrize(
    'options, message',
    [
        ({'unknown': 1}, 'unknown'),
        ({'labels': 'x=y'}, 'labels'),
        ({'when': 123}, 'when'),
        ({'value': 1}, 'value= has no effect without field='),
        ({'cancellation_timeout': 1}, 'cancellation_timeout'),
    ],
)
def test_wrong_options_are_refused(registry, options, message):
    with pytest.raises(TypeError, match=message):
        kopf.on.create('kopfexamples', registry=registry, **options)(fn)
    assert not list(registry.changing)


@pytest.mark.parametrize('decorator', [kopf.on.create, kopf.on.event, kopf.daemon])
@pytest.mark.parametrize('option', ['labels', 'annotations'])
def test_ambiguous_filters_are_refused(registry, decorator, option):
    with pytest.raises(ValueError, match=r'kopf\.PRESENT or kopf\.ABSENT'):
        decorator('kopfexamples', registry=registry, **{option: {'x': None}})(fn)


def test_values_are_for_both_sides(registry):
    with pytest.raises(TypeError, match='either value= or old=/new='):
        kopf.on.update('kopfexamples', registry=registry, field='spec.x', value=1, old=2)(fn)


def test_fields_are_named(registry):
    with pytest.raises(TypeError, match='must name a field'):
        kopf.on.field('kopfexamples', registry=registry, field=None)(fn)


# Ids.


@pytest.mark.parametrize(
    'function, expected',
    [
        (fn, 'fn'),
        (functools.partial(fn), 'fn'),
        (functools.partial(functools.partial(fn)), 'fn'),
        (Class().method, 'Class.method'),
        (Class.static, 'Class.static'),
    ],
)
def test_ids_follow_from_functions(function, expected):
    assert get_callable_id(function) == expected


def test_ids_follow_from_lines_of_lambdas():
    assert get_callable_id(lambda **_: None).startswith(f'lambda:{__file__}:')


def test_ids_of_the_nameless():
    with pytest.raises(ValueError, match='id='):
        get_callable_id(Class())


@pytest.mark.parametrize(
    'options, expected',
    [
        ({}, 'fn'),
        ({'id': 'x'}, 'x'),
        ({'field': ('a', 'b')}, 'fn/a.b'),
        ({'parent': 'p/q'}, 'p/q/fn'),
        ({'id': 'x', 'field': ('a',), 'parent': 'p'}, 'p/x/a'),
    ],
)
def test_ids_of_handlers_have_suffixes(options, expected):
    assert make_handler_id(fn, **{'id': None, **options}) == expected


# Registries.


def test_the_default_registry_belongs_to_its_context():
    def check():
        registry = kopf.OperatorRegistry()
        kopf.set_default_registry(registry)
        kopf.on.create('kopfexamples')(fn)
        assert [handler.fn for handler in registry.changing] == [fn]
        return registry

    registry = contextvars.copy_context().run(check)
    assert kopf.get_default_registry() is not registry


def test_no_default_registry_means_an_empty_one():
    def check():
        kopf.set_default_registry(None)
        kopf.on.create('kopfexamples')(fn)
        assert len(kopf.get_default_registry().changing) == 1

    contextvars.copy_context().run(check)


def test_what_is_watched_and_what_is_patched(registry):
    kopf.on.event('a', registry=registry)(fn)
    kopf.index('b', registry=registry)(fn)
    kopf.on.create('c', registry=registry)(fn)
    kopf.daemon('d', registry=registry)(fn)
    kopf.on.validate('e', registry=registry)(fn)
    kopf.on.convert('f', registry=registry)(fn)
    assert [selector.any_name for selector in registry.iter_selectors()] == ['b', 'a', 'd', 'c']
    assert [selector.any_name for selector in registry.iter_selectors(patched=True)] == ['d', 'c']
    assert [selector.any_name for selector in registry.iter_selectors(watched=False)] == ['e', 'f']


# Tables.


def test_tables_have_only_what_is_for_the_resource(registry):
    kopf.on.create('kopfexamples', id='kex', registry=registry)(fn)
    kopf.on.create('pods', id='pod', registry=registry)(fn)
    kopf.on.create(kopf.EVERYTHING, id='all', registry=registry)(fn)
    assert build(registry).changing_ids == ('kex', 'all')
    assert build(registry, POD).changing_ids == ('pod', 'all')


def test_tables_can_be_empty(registry):
    table = build(registry)
    assert not table.managing and not table.watching and not table.changing


@pytest.mark.parametrize(
    'decorator, managing', [(kopf.on.event, False), (kopf.index, False), (kopf.on.create, True), (kopf.daemon, True)]
)
def test_tables_of_what_is_managed(registry, decorator, managing):
    decorator('kopfexamples', registry=registry)(fn)
    assert build(registry).managing is managing


def test_tables_know_who_resumes_and_who_holds(registry):
    kopf.on.resume('kopfexamples', id='resume', registry=registry)(fn)
    kopf.on.delete('kopfexamples', id='delete', registry=registry)(fn)
    kopf.on.delete('kopfexamples', id='optional', optional=True, registry=registry)(fn)
    table = build(registry)
    assert table.resuming_ids == {'resume'}
    assert [handler.id for handler in table.finalizing] == ['delete']


def test_tables_know_the_fields(registry):
    kopf.on.field('kopfexamples', field='status.phase', registry=registry)(fn)
    kopf.on.update('kopfexamples', field='spec.x', registry=registry)(fn)
    kopf.on.event('kopfexamples', field='status.event', registry=registry)(fn)
    kopf.daemon('kopfexamples', field='status.daemon', registry=registry)(fn)
    kopf.timer('kopfexamples', field='status.timer', interval=1, registry=registry)(fn)
    kopf.index('kopfexamples', field='status.index', registry=registry)(fn)
    assert build(registry).extra_fields == {
        ('status', 'phase'),
        ('spec', 'x'),
        ('status', 'event'),
        ('status', 'daemon'),
        ('status', 'timer'),
    }


def test_tables_are_equal_until_the_handlers_differ(registry):
    kopf.on.create('kopfexamples', id='a', registry=registry)(fn)
    before = build(registry)
    assert before == build(registry)
    kopf.on.create('kopfexamples', id='b', registry=registry)(fn)
    assert before != build(registry)
