"""A new kind of handlers: nothing else is touched than what the documentation's "Architecture" names, step by step."""

import concurrent.futures
import dataclasses
import logging
from typing import Any, ClassVar

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.instruments import Instruments
from kopf._cogs.structs.meters import Meters
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Execution, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.engines.recorders import Recorder
from kopf._core.engines.timelines import Timelines
from kopf._core.intents import declarations, filters, mistakes
from kopf._core.intents.causes import ResourceCause
from kopf._core.intents.handlers import KINDS, ResourceHandler
from kopf._core.intents.options import RetriedOptions
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.role_rules import Rule, list_handler_rules
from kopf._core.reactor.resource_selection import resolve_tables
from kopf._kits.checking.call_records import CallRecord
from kopf._kits.checking.courses import Facts, describe
from kopf._kits.checking.plans import Target

KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', verbs=frozenset({'list', 'watch'}))


# Step 2: the cause.


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AuditCause(ResourceCause):
    auditor: str

    ARGUMENTS: ClassVar[Any] = {**ResourceCause.ARGUMENTS, 'auditor': 'auditor'}


# Step 1: the class. It needs the cause, which is in a module below.


class AuditOptions(RetriedOptions, total=False):
    depth: int | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AuditHandler(ResourceHandler):
    depth: int | None = None

    slot = 'auditing'
    kind = 'Audit'
    decorators = '@audit'
    options = AuditOptions
    cause = AuditCause


# Step 3: the decorator.


def audit(arg1=None, arg2=None, arg3=None, /, **options):
    return declarations.declare(AuditHandler, 'audit', (arg1, arg2, arg3), options)


@pytest.fixture
def registry():
    KINDS.append(AuditHandler)
    yield kopf.OperatorRegistry()
    KINDS.remove(AuditHandler)


def build(registry):
    tables, _ = resolve_tables(registry, [KEX])
    return tables.get(KEX)


def make_cause(**labels):
    body = Body({'metadata': {'name': 'name1', 'uid': 'uid1', 'labels': labels}})
    return AuditCause(
        logger=logging.getLogger(), memo=None, resource=KEX, body=body, patch=Patch(), indices={}, auditor='me'
    )


def test_handlers_are_kept_in_the_slot_of_their_kind(registry):
    @audit('kopfexamples', depth=3, registry=registry)
    def fn(**_): ...

    (handler,) = registry.auditing
    assert isinstance(handler, AuditHandler) and str(handler) == f"Audit {handler.id!r}"
    assert (handler.fn, handler.depth) == (fn, 3)
    assert list(registry.of(AuditHandler)) == list(registry.iter_handlers()) == [handler]
    assert registry._auditing is registry.auditing  # as those of all other kinds


def test_operators_are_told_of_new_handlers(registry):
    told = []
    registry.listeners.append(lambda: told.append(len(registry.auditing)))
    audit('kopfexamples', registry=registry)(print)
    assert told == [1]


def test_handlers_are_copied_to_other_registries(registry):
    audit('kopfexamples', registry=registry)(print)
    other = kopf.OperatorRegistry()
    other.extend(registry)
    assert list(other.auditing) == list(registry.auditing)


@pytest.mark.parametrize(
    'options, message',
    [
        ({'dept': 3}, "unexpected keyword argument 'dept'. Did you mean depth="),
        ({'depth': '3'}, "depth= must be a number"),
        ({'labels': 'x'}, "labels= must be a mapping"),
    ],
)
def test_options_are_checked(registry, options, message):
    with pytest.raises(TypeError, match=message):
        audit('kopfexamples', registry=registry, **options)
    with pytest.raises(ValueError, match="depth= must not be negative"):
        audit('kopfexamples', registry=registry, depth=-1)


def test_arguments_are_checked(registry):
    audit('kopfexamples', registry=registry)(lambda auditor, spec, retry: None)
    mistakes.check_registry(registry)
    kopf.on.event('kopfexamples', registry=registry)(lambda auditor, **_: None)
    with pytest.raises(mistakes.DeclarationError, match="asks for 'auditor'.* It is given to: @audit"):
        mistakes.check_registry(registry)


def test_objects_are_watched_and_not_patched(registry):
    assert build(registry) is None
    audit('kopfexamples', field='status.audit', label_selector='a=b', registry=registry)(print)
    table = build(registry)
    assert isinstance(table, HandlerTable) and not table.managing
    assert table.of(AuditHandler) == tuple(registry.auditing)
    assert table.extra_fields == {('status', 'audit')}
    assert str(table.label_selector) == 'a=b'
    assert not (table.indexing or table.watching or table.spawning or table.changing)


async def test_matching_handlers_are_run(registry):
    @audit('kopfexamples', labels={'audited': 'yes'}, registry=registry)
    async def fn(name, auditor, retry):
        return f"{name} is audited by {auditor}, attempt {retry}"

    # Step 4: the engine.
    (handler,) = build(registry).of(AuditHandler)
    assert not filters.prematch(handler, make_cause(audited='no'))
    assert filters.prematch(handler, cause := make_cause(audited='yes'))
    with concurrent.futures.ThreadPoolExecutor() as executor:
        outcome = await run_handler(
            handler, cause, HandlerState(started=utcnow()), Execution(find_executor=lambda: executor)
        )
    assert outcome.final and outcome.result == "name1 is audited by me, attempt 0"


# The other users of handlers read the facts of the kind: the metrics, the inspector, the roles, ``kopf check``.


async def attempt(handler, *listeners, meters=None):
    instruments = Instruments(listeners)
    if meters is not None:
        instruments.measure(meters)
    with concurrent.futures.ThreadPoolExecutor() as executor:
        rules = Execution(find_executor=lambda: executor, instruments=instruments)
        return await run_handler(handler, make_cause(), HandlerState(started=utcnow()), rules)


def declare(registry, monkeypatch, fn=lambda **_: None, **facts):
    """Declare a handler of a kind with these facts."""
    for name, fact in facts.items():
        monkeypatch.setattr(AuditHandler, name, fact)
    audit('kopfexamples', registry=registry)(fn)
    (handler,) = registry.auditing
    return handler


@pytest.mark.parametrize('frequent, type_', [(True, 'frequent'), (False, 'handler')])
async def test_frequent_calls_have_a_timeline_of_their_own(registry, monkeypatch, frequent, type_):
    timelines = Timelines(100)
    await attempt(declare(registry, monkeypatch, frequent=frequent), Recorder(timelines))
    assert [entry['type'] for entry in timelines.read('uid1').entries] == [type_]


@pytest.mark.parametrize('reconciles', [True, False])
async def test_errors_in_steps_are_errors_of_reconciliations(registry, monkeypatch, reconciles):
    meters = Meters()
    await attempt(declare(registry, monkeypatch, lambda **_: 1 / 0, reconciles=reconciles), meters=meters)
    meters.get(KEX).note_reconciliation(0, 'success', 'uid1')
    assert meters.get(KEX).results['error'] == int(reconciles)


@pytest.mark.parametrize('concurrent, overlaps', [(True, 0), (False, 1)])
async def test_only_concurrent_handlers_may_run_at_once_for_one_object(registry, monkeypatch, concurrent, overlaps):
    record = CallRecord()
    recorder = record.add()

    async def fn(**_):
        calls.append(None)
        if len(calls) == 1:
            await attempt(handler, recorder)

    calls = []
    handler = declare(registry, monkeypatch, fn, concurrent=concurrent)
    await attempt(handler, recorder)
    assert len(record.overlaps) == overlaps


def test_permissions_follow_from_the_facts_of_the_kind(registry, monkeypatch):
    configures = {'auditsinks.example.com': ('create',), 'customresourcedefinitions.apiextensions.k8s.io': ('get',)}
    handler = declare(registry, monkeypatch, modifies=True, configures=configures)
    assert list(list_handler_rules(handler, lambda selector, where: [KEX])) == [
        Rule('example.com', 'auditsinks', ('create',), clusterwide=True),
        Rule(
            'apiextensions.k8s.io',
            'customresourcedefinitions',
            ('get',),
            clusterwide=True,
            names=('kopfexamples.kopf.dev',),
        ),
        Rule('kopf.dev', 'kopfexamples', ('get', 'list', 'watch', 'patch')),
    ]
    monkeypatch.setattr(AuditHandler, 'watches', False)
    assert len(list(list_handler_rules(handler, lambda selector, where: [KEX]))) == 2


@pytest.mark.parametrize('is_periodic', [True, False])
@pytest.mark.parametrize('handles_updates', [True, False])
def test_checks_try_what_the_kind_handles(registry, monkeypatch, is_periodic, handles_updates):
    declare(registry, monkeypatch, is_periodic=is_periodic, handles_updates=handles_updates)
    kinds = {'kopfexamples': (KEX, None)}
    facts = Facts()
    describe(facts, registry, kinds)
    assert facts.is_periodic is is_periodic
    assert facts.updated == ({'kopfexamples': [()]} if is_periodic or handles_updates else {})


@pytest.mark.parametrize('concurrent', [True, False])
def test_objects_are_handled_unless_their_handlers_only_answer_questions(registry, monkeypatch, concurrent):
    declare(registry, monkeypatch, concurrent=concurrent)
    facts = Facts(
        created=[(web := Target(resource='webs', name='w'), {}), (kex := Target(resource='kopfexamples', name='x'), {})]
    )
    kinds = {'kopfexamples': (KEX, None)}
    describe(facts, registry, kinds)
    assert facts.parents == ([web, kex] if concurrent else [kex])  # all, if none is handled
