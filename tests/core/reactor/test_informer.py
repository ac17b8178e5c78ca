"""Indexing before handling: what handlers wait for, what becomes of deletions, failures, and dropped watches."""

import asyncio
import gc
import logging
import threading
import time
import types
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

import kopf
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.errors import APIError, APIForbiddenError, APINotFoundError
from kopf._cogs.structs.references import Resource
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.registries import HandlerTable, OperatorRegistry
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.informer import MAX_FORBIDDEN, Informer
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.processing import Processor
from kopf._core.reactor.shard_sinks import ShardSink
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

SERVICES = Resource('', 'v1', 'services', kind='Service', namespaced=True)
PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)
KEXES = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
REFUSAL = APIForbiddenError('no', status=403)


class Scope:
    """What the operator has for one resource: a sink, and the watch that would feed it."""

    def __init__(self, sink: EventSink, title: str) -> None:
        self.sink = sink
        self.records: dict[str, ObjectRecord] = {}
        self.watch = cast(
            ResourceWatch,
            types.SimpleNamespace(
                namespace='ns', records=self.records, get_known=self.records.values, __str__=lambda: title
            ),
        )

    def feed(self, name: str, type: Any = None, *, listed_since: float | None = None, **body: Any) -> ObjectRecord:
        record = self.records.get(name) or ObjectRecord(name, 'ns', name, initial=type is None)
        self.records[name] = record
        if type == 'DELETED':
            del self.records[name]
        raw: Any = {'metadata': {'name': name, 'namespace': 'ns', 'uid': name}, **body}
        self.sink.receive(record, {'type': type, 'object': raw}, listed_since=listed_since)
        return record

    def listed(self) -> None:
        self.sink.listed(self.watch)


class Setup:
    """An operator without its network: events are fed by the tests."""

    def __init__(self) -> None:
        self.registry = OperatorRegistry()
        self.settings = kopf.OperatorSettings()
        self.indexers = OperatorIndexers()
        self.indexing_gate = IndexingGate()
        self.workers = WorkerPool(self.settings, self.indexing_gate)
        self.memo = kopf.Memo()

    def serve(
        self, resource: Resource, *, initial: bool = True, owns: Callable[[ObjectRecord], bool] | None = None
    ) -> Scope:
        self.indexers.ensure(self.registry.indexing)
        selectors = {selector for selector in self.registry.iter_selectors() if selector.check(resource)}
        table = HandlerTable.build(self.registry, resource, selectors)
        context = OperatorContext(
            settings=self.settings, lifecycle=kopf.lifecycles.all_at_once, memo=self.memo, indices=self.indexers.indices
        )
        processor = Processor(
            context,
            client=cast(ApiClient, None),
            table=table,
            workers=self.workers,
        )
        if not table.indexing:
            return Scope(processor, str(resource))
        informer = Informer(
            processor if owns is None else ShardSink(processor, owns),
            table=table,
            indexers=self.indexers,
            context=context,
            indexing_gate=self.indexing_gate,
        )
        informer.expect(str(resource), initial=initial)
        return Scope(informer, str(resource))

    def get(self, name: str) -> dict[Any, list[Any]]:
        return {key: sorted(store) for key, store in self.indexers.indices[name].items()}


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    await setup.indexing_gate.close()
    await setup.workers.close()


async def settle() -> None:
    """Let everything happen that does not need any time."""
    for _ in range(20):
        await asyncio.sleep(0)


def declare(setup: Setup, seen: list[Any], **options: Any) -> asyncio.Event:
    """Declare an index of pods that waits for the event returned, and a handler of both resources."""
    going = asyncio.Event()

    @kopf.index('pods', registry=setup.registry, id='idx', **options)
    async def idx(name: str, spec: Any, **_: Any) -> Any:
        await going.wait()
        return {spec.get('key', 'key'): name}

    @kopf.on.event('pods', registry=setup.registry)
    @kopf.on.event('kopfexamples', registry=setup.registry)
    async def handle(name: str, event: Any, idx: Any, **_: Any) -> None:
        seen.append((name, event['type'], sorted(value for store in idx.values() for value in store)))

    return going


async def test_no_handlers_until_all_is_listed_and_indexed(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    tasks = len(asyncio.all_tasks())
    for number in range(100):
        kexes.feed(f'kex{number}')
    await settle()
    assert len(asyncio.all_tasks()) == tasks  # waiting index functions have no tasks
    pods.feed('pod1')
    pods.feed('pod2')
    pods.listed()
    await settle()
    assert seen == []
    going.set()
    await settle()
    assert len(seen) == 102
    assert all(names == ['pod1', 'pod2'] for _, _, names in seen)
    assert len(asyncio.all_tasks()) == tasks


async def test_no_handlers_while_indexed_objects_are_still_listed(setup: Setup) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    pods = setup.serve(PODS)
    pods.feed('pod1')
    await settle()
    assert seen == []
    pods.feed('pod2')
    pods.listed()
    await settle()
    assert seen == [('pod1', None, ['pod1', 'pod2']), ('pod2', None, ['pod1', 'pod2'])]


async def test_new_events_while_waiting_are_indexed_and_only_the_newest_is_handled(setup: Setup) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    pods = setup.serve(PODS)
    pods.feed('pod1')
    await settle()
    pods.feed('pod1', 'MODIFIED', spec={'key': 'new'})
    await settle()
    assert setup.get('idx') == {'new': ['pod1']}
    pods.listed()
    await settle()
    assert seen == [('pod1', 'MODIFIED', ['pod1'])]


async def test_slow_indexing_of_live_events_does_not_hold_others(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    pods.listed()
    pods.feed('pod1', 'ADDED')
    kexes.feed('kex1')
    await settle()
    assert seen == [('kex1', None, [])]
    going.set()
    await settle()
    assert seen[1:] == [('pod1', 'ADDED', ['pod1'])]


async def test_gate_closes_again_for_new_resources(setup: Setup) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    kexes = setup.serve(KEXES)
    kexes.feed('kex1')
    await settle()
    assert len(seen) == 1
    pods = setup.serve(PODS)
    kexes.feed('kex2')
    await settle()
    assert len(seen) == 1
    pods.listed()
    await settle()
    assert len(seen) == 2


async def test_resumed_watches_are_waited_for_with_their_objects(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    pods.listed()
    pods.sink.paused(pods.watch)
    pods.sink.resumed(pods.watch)
    kexes.feed('kex1')
    pods.feed('pod1')
    pods.listed()
    await settle()
    assert seen == []
    going.set()
    await settle()
    assert sorted(seen) == [('kex1', None, ['pod1']), ('pod1', None, ['pod1'])]


@pytest.mark.parametrize('began', ['before the pause', 'in the pause', 'not at all'])
async def test_states_from_before_the_end_of_a_pause_are_not_handled_after_their_indexing(
    setup: Setup, began: str
) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods = setup.serve(PODS)
    pods.listed()
    if began == 'before the pause':
        record = pods.feed('pod1', 'ADDED')
        await settle()
    pods.sink.paused(pods.watch)
    setup.workers.pause()
    if began != 'before the pause':
        record = pods.feed('pod1', 'ADDED')
        if began == 'in the pause':
            await settle()
        pods.feed('pod1', 'MODIFIED')
    pods.sink.resumed(pods.watch)
    setup.workers.resume()
    pods.listed()
    going.set()
    await settle()
    assert seen == []
    # Another operator can have handled a new object in the pause, so it is resumed, not only noticed.
    assert record.initial is (began != 'before the pause')
    pods.feed('pod1')  # from the list after the pause
    await settle()
    assert seen == [('pod1', None, ['pod1'])]


@pytest.mark.parametrize('later', [None, 'MODIFIED', 'DELETED'])
async def test_only_deletions_from_before_the_end_of_a_pause_are_passed_on(setup: Setup, later: Any) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods = setup.serve(PODS)
    pods.listed()
    pods.feed('pod1', 'ADDED')
    await settle()
    pods.sink.paused(pods.watch)
    setup.workers.pause()
    if later is not None:
        record = pods.feed('pod1', later)
        pods.records['pod1'] = record  # a watch also knows deleted objects that are still being indexed
    pods.sink.resumed(pods.watch)
    setup.workers.resume()
    going.set()
    await settle()
    pods.listed()
    await settle()
    assert [type for _, type, _ in seen] == (['DELETED'] if later == 'DELETED' else [])
    pods.feed('pod1')  # as a list brings it
    await settle()
    assert seen[-1] == ('pod1', None, ['pod1'])


async def test_limit_of_workers_holds_when_the_gate_opens(setup: Setup) -> None:
    running = most = 0
    setup.settings.queueing.worker_limit = 3

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(**_: Any) -> Any: ...

    @kopf.on.event('kopfexamples', registry=setup.registry)
    async def handle(**_: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    for number in range(10):
        kexes.feed(f'kex{number}')
    pods.listed()
    for _ in range(5):
        await settle()
    assert (most, running) == (3, 0)


async def test_deletions_are_removed_before_they_are_handled(setup: Setup) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    pods = setup.serve(PODS)
    pods.feed('pod1')
    pods.listed()
    await settle()
    pods.feed('pod1', 'DELETED')
    assert setup.get('idx') == {}
    await settle()
    assert seen[-1] == ('pod1', 'DELETED', [])


async def test_deletions_while_indexing_leave_nothing(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods = setup.serve(PODS)
    pods.listed()
    record = pods.feed('pod1', 'ADDED')
    await settle()
    pods.feed('pod1', 'DELETED')
    going.set()
    await settle()
    assert setup.get('idx') == {}
    assert seen[-1] == ('pod1', 'DELETED', [])
    assert record.indexing is None


async def test_successors_of_the_same_identity_are_not_removed(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods = setup.serve(PODS)
    pods.listed()
    pods.feed('pod1', 'ADDED', spec={'key': 'old'})
    await settle()
    pods.feed('pod1', 'DELETED')  # as when it leaves and comes back to the selection of the watch
    pods.feed('pod1', 'ADDED', spec={'key': 'new'})
    going.set()
    await settle()
    assert setup.get('idx') == {'new': ['pod1']}


async def test_slow_handlers_do_not_delay_the_indexing(setup: Setup) -> None:
    going = asyncio.Event()

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(spec: Any, **_: Any) -> Any:
        return spec['key']

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(**_: Any) -> None:
        await going.wait()

    pods = setup.serve(PODS)
    pods.listed()
    pods.feed('pod1', spec={'key': 1})
    await settle()
    pods.feed('pod1', 'MODIFIED', spec={'key': 2})
    await settle()
    assert setup.get('idx') == {None: [2]}
    going.set()


@pytest.mark.parametrize('error, limit', [(REFUSAL, MAX_FORBIDDEN), (APINotFoundError('no', status=404), 2)])
async def test_refused_lists_are_waited_for_only_for_a_while(
    setup: Setup, caplog: Any, error: APIError, limit: int
) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    kexes.feed('kex1')
    for _ in range(limit - 1):
        pods.sink.refused(pods.watch, error)
    await settle()
    assert seen == []
    pods.sink.refused(pods.watch, error)
    await settle()
    assert seen == [('kex1', None, [])]
    assert [record.levelname for record in caplog.records if 'do not wait' in record.message] == ['ERROR']
    pods.feed('pod1')
    pods.listed()
    await settle()
    assert setup.get('idx') == {'key': ['pod1']}


async def test_dropped_watches_are_not_waited_for_and_leave_nothing(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods, kexes = setup.serve(PODS), setup.serve(KEXES)
    kexes.feed('kex1')
    pods.feed('pod1')
    await settle()
    pods.sink.dropped(pods.watch)
    going.set()
    await settle()
    assert [name for name, _, _ in seen] == ['kex1']
    assert setup.get('idx') == {}


@pytest.mark.looptime
async def test_waiting_is_reported(setup: Setup, caplog: Any) -> None:
    declare(setup, [])
    pods = setup.serve(PODS)
    for number in (1, 2):
        pods.feed(f'pod{number}')
        await asyncio.sleep(30.5)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [str(PODS) in text and f'{number} objects' in text for number, text in enumerate(warnings, 1)] == [True] * 2


# What comes later, or fails.


def declare_users(setup: Setup, seen: list[Any]) -> None:
    """Declare an index of pods, a user of it, and a handler of another resource that is not."""

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, **_: Any) -> Any:
        return name

    @kopf.on.event('kopfexamples', registry=setup.registry)
    async def use(name: str, idx: Any, **_: Any) -> None:
        seen.append((name, sorted(idx.get(None, ()))))

    @kopf.on.event('services', registry=setup.registry)
    async def other(name: str, **_: Any) -> None:
        seen.append(name)


async def test_only_users_wait_for_what_comes_later(setup: Setup) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    services, kexes, pods = setup.serve(SERVICES), setup.serve(KEXES), setup.serve(PODS, initial=False)
    kexes.feed('kex')
    services.feed('svc')
    pods.feed('pod1')
    await settle()
    assert seen == ['svc'] and not setup.indexing_gate.is_complete
    pods.listed()
    await settle()
    assert seen == ['svc', ('kex', ['pod1'])] and setup.indexing_gate.is_complete


async def test_only_users_wait_for_a_list_that_fails(setup: Setup, caplog: Any) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    services, kexes, pods = setup.serve(SERVICES), setup.serve(KEXES), setup.serve(PODS)
    kexes.feed('kex')
    services.feed('svc')
    pods.sink.failed(pods.watch, Exception("glitch"))
    await settle()
    assert seen == []  # once does not count
    pods.sink.failed(pods.watch, Exception("boo"))
    await settle()
    assert seen == ['svc']
    assert "Only the handlers that can use the indices 'idx' wait for" in caplog.text and "boo" in caplog.text
    pods.feed('pod1')
    pods.listed()
    await settle()
    assert seen == ['svc', ('kex', ['pod1'])]


@pytest.mark.parametrize('complete', [True, False])
async def test_only_users_wait_for_a_complete_index_after_a_pause(setup: Setup, complete: bool) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    services, kexes, pods = setup.serve(SERVICES), setup.serve(KEXES), setup.serve(PODS)
    if complete:
        pods.listed()
    pods.sink.paused(pods.watch)
    pods.sink.resumed(pods.watch)
    kexes.feed('kex')
    services.feed('svc')
    await settle()
    assert seen == (['svc'] if complete else [])
    pods.listed()
    await settle()
    assert sorted(seen, key=str) == [('kex', []), 'svc']


@pytest.mark.looptime
async def test_handlers_of_other_namespaces_wait_only_for_a_while_after_a_pause(setup: Setup) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    kexes, pods = setup.serve(KEXES), setup.serve(PODS)
    pods.watch.namespace = 'other'
    pods.listed()
    pods.sink.paused(pods.watch)
    pods.sink.resumed(pods.watch)
    kexes.feed('kex')
    await asyncio.sleep(29)
    assert seen == []
    await asyncio.sleep(2)
    assert seen == [('kex', [])] and not setup.indexing_gate.is_complete


async def test_objects_that_wait_for_an_index_can_go(setup: Setup) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    kexes, pods = setup.serve(KEXES), setup.serve(PODS, initial=False)
    record = kexes.feed('kex')
    await setup.workers.release([record])
    assert not record.has_worker
    pods.listed()
    await settle()
    assert seen == []


async def test_those_in_the_queue_wait_when_the_gate_closes_again(setup: Setup) -> None:
    seen: list[Any] = []
    declare_users(setup, seen)
    setup.settings.queueing.worker_limit = 0
    kexes, services = setup.serve(KEXES), setup.serve(SERVICES)
    kexes.feed('kex')
    services.feed('svc')
    pods = setup.serve(PODS, initial=False)
    setup.settings.queueing.worker_limit = None
    setup.workers.resume()
    await settle()
    assert seen == ['svc']
    pods.listed()
    await settle()
    assert seen == ['svc', ('kex', [])]


@pytest.mark.looptime
async def test_exclusions_end_by_themselves(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, spec: Any, retry: int, **_: Any) -> Any:
        calls.append(retry)
        if not retry:
            raise kopf.TemporaryError("boo", delay=0.01)
        return spec['key']

    pods = setup.serve(PODS)
    record = pods.feed('pod1', spec={'key': 1})
    pods.listed()
    await settle()
    assert setup.indexing_gate.is_complete  # an excluded object is not waited for
    assert setup.get('idx') == {}
    pods.feed('pod1', 'MODIFIED', spec={'key': 2})
    while not setup.get('idx'):
        await asyncio.sleep(1)
    assert setup.get('idx') == {None: [2]}  # as of the newest state
    assert calls == [0, 1]
    assert record.indexing is None


@pytest.mark.parametrize('delay', [0, None, -1])
async def test_handlers_wait_for_what_is_tried_again_at_once(setup: Setup, delay: Any) -> None:
    seen = []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, retry: int, **_: Any) -> Any:
        if retry < 3:
            raise kopf.TemporaryError("boo", delay=delay)
        return name

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(idx: Any, **_: Any) -> None:
        seen.append(sorted(idx.get(None, ())))

    pods = setup.serve(PODS)
    record = pods.feed('pod1')
    pods.listed()
    await settle()
    assert seen == [['pod1']]
    assert record.indexing is None


@pytest.mark.looptime
async def test_functions_that_always_ask_to_be_called_at_once_do_not_spin(setup: Setup) -> None:
    calls = []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(spec: Any, **_: Any) -> Any:
        calls.append(spec['key'])
        raise kopf.TemporaryError("boo", delay=0)

    pods = setup.serve(PODS)
    pods.feed('pod1', spec={'key': 1})
    pods.listed()
    await asyncio.sleep(100)
    assert setup.indexing_gate.is_complete
    assert 5 < len(calls) <= 5 + 7 + 10  # five at once, then with growing pauses up to ten seconds
    calls.clear()
    pods.feed('pod1', 'MODIFIED', spec={'key': 2})
    await asyncio.sleep(0.1)
    assert calls == [2]


@pytest.mark.looptime
@pytest.mark.parametrize('type', ['MODIFIED', 'DELETED'])
async def test_an_event_that_the_sink_fails_to_take_is_passed_on_again(
    setup: Setup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    going, taken = asyncio.Event(), []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, **_: Any) -> Any:
        await going.wait()
        return name

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(**_: Any) -> None:
        pass

    def receive(record: ObjectRecord, event: Any, *, listed_since: float | None) -> None:
        taken.append((record.name, event['type'], asyncio.get_running_loop().time()))
        if len(taken) < 3:
            raise ValueError("boo")

    setup.settings.queueing.error_delays = [1, 2]
    pods = setup.serve(PODS)
    monkeypatch.setattr(cast(Informer, pods.sink).processor, 'receive', receive)
    record = pods.feed('pod1')
    pods.listed()
    if type == 'DELETED':
        await asyncio.sleep(0)
        pods.feed('pod1', type)
    going.set()
    await asyncio.sleep(10)
    last = None if type == 'MODIFIED' else type
    assert [(kind, round(time)) for _, kind, time in taken] == [(None, 0), (last, 1), (last, 3)]
    assert "An event of <ns/pod1> of pods.v1 could not be processed; trying again in 1 seconds." in caplog.text
    assert "ValueError: boo" in caplog.text
    assert not setup.indexing_gate.failure.done() and setup.indexing_gate.is_complete
    assert record.indexing is None


@pytest.mark.looptime
async def test_a_deletion_that_the_sink_fails_to_take_at_once_is_passed_on_again_before_newer_events(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    declare(setup, seen).set()
    taken: list[Any] = []

    def receive(record: ObjectRecord, event: Any, *, listed_since: float | None) -> None:
        taken.append(event['type'])
        if event['type'] == 'DELETED' and taken.count('DELETED') < 4:
            raise ValueError("boo")

    setup.settings.queueing.error_delays = [1]
    pods = setup.serve(PODS)
    monkeypatch.setattr(cast(Informer, pods.sink).processor, 'receive', receive)
    record = pods.feed('pod1')
    pods.listed()
    await settle()
    pods.feed('pod1', 'DELETED')
    assert taken == [None, 'DELETED'] and record.in_use  # the watch must find the record if the object is back
    await asyncio.sleep(1.5)
    assert taken == [None, 'DELETED', 'DELETED'] and record.in_use
    pods.records['pod1'] = record
    pods.feed('pod1', 'ADDED')
    await asyncio.sleep(10)
    assert taken == [None, 'DELETED', 'DELETED', 'DELETED', 'DELETED', 'ADDED']
    assert setup.get('idx') == {'key': ['pod1']}
    assert record.indexing is None


@pytest.mark.parametrize('is_listed', [True, False])
async def test_an_object_taken_over_is_served_although_it_changes_while_it_is_indexed(
    setup: Setup, is_listed: bool
) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    owned: set[str] = set()
    pods = setup.serve(PODS, owns=lambda record: record.name in owned)
    pods.listed()
    record = pods.feed('pod1', 'ADDED')
    await settle()
    owned.add('pod1')
    cast(Informer, pods.sink).relisting(pods.watch, lambda record: True)
    if is_listed:  # otherwise, it does not match the selectors for a while
        pods.feed('pod1', None, listed_since=time.monotonic())  # waits, as the previous state is still being indexed
    pods.listed()
    pods.feed('pod1', 'MODIFIED')
    going.set()
    await settle()
    assert [(name, type) for name, type, _ in seen] == [('pod1', 'MODIFIED')]
    assert record.initial  # each next member resumes it


async def test_handlers_see_a_deletion_during_indexing_although_the_object_is_back(setup: Setup) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    pods = setup.serve(PODS)
    pods.listed()
    record = pods.feed('pod1', 'ADDED')
    await settle()
    pods.feed('pod1', 'DELETED')
    pods.records['pod1'] = record
    pods.feed('pod1', 'ADDED')
    pods.feed('pod1', 'MODIFIED')
    going.set()
    await settle()
    # Where Python has eager tasks, the handler begins with the first event before the deletion is passed on.
    assert [type for _, type, _ in seen][-2:] == ['DELETED', 'MODIFIED']
    assert record.indexing is None


@pytest.mark.parametrize('type', ['MODIFIED', 'DELETED'])
async def test_only_deletions_during_indexing_are_passed_on_by_the_next_watch(setup: Setup, type: str) -> None:
    seen: list[Any] = []
    going = declare(setup, seen)
    former = setup.serve(PODS)
    record = former.feed('pod1', 'ADDED')
    await settle()
    former.feed('pod1', type)
    latter = setup.serve(PODS)
    former.sink.retire(latter.sink, [record])  # type: ignore[attr-defined]
    latter.listed()
    going.set()
    await settle()
    assert [type for _, type, _ in seen] == (['DELETED'] if type == 'DELETED' else [])  # the rest is listed anew
    assert setup.get('idx') == {}
    assert record.indexing is None


@pytest.mark.parametrize('resource', [PODS, KEXES], ids=['indexed', 'not indexed'])
@pytest.mark.parametrize('is_running', [True, False])
async def test_deletions_that_the_sink_has_failed_to_take_are_passed_on_by_the_next_watch(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, resource: Resource, is_running: bool
) -> None:
    def receive(record: ObjectRecord, event: Any, *, listed_since: float | None) -> None:
        if event['type'] == 'DELETED':
            raise ValueError("boo")

    seen: list[Any] = []
    going = declare(setup, seen)
    setup.settings.queueing.error_delays = [600]
    former = setup.serve(PODS)
    monkeypatch.setattr(cast(Informer, former.sink).processor, 'receive', receive)
    if not is_running:
        going.set()
    record = former.feed('pod1', 'ADDED')
    await settle()
    former.feed('pod1', 'DELETED')
    assert record.in_use
    latter = setup.serve(resource)
    former.sink.retire(latter.sink, [record])  # type: ignore[attr-defined]
    latter.listed()
    going.set()
    await settle()
    assert [type for _, type, _ in seen] == ['DELETED']
    assert setup.get('idx') == {}
    assert record.indexing is None


async def test_objects_that_cannot_be_indexed_concern_no_others(setup: Setup, caplog: Any) -> None:
    class Key:
        hashed = 0

        def __hash__(self) -> int:
            self.hashed += 1
            if self.hashed > 1:
                raise ValueError("boo")
            return 1

    seen: list[Any] = []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, **_: Any) -> Any:
        return {Key() if name == 'bad' else name: name}

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(name: str, **_: Any) -> None:
        seen.append(name)

    pods = setup.serve(PODS)
    pods.feed('bad')
    pods.feed('good')
    pods.listed()
    await settle()
    assert sorted(seen) == ['bad', 'good'] and setup.get('idx') == {'good': ['good']}
    assert not setup.indexing_gate.failure.done()
    assert "<ns/bad> of pods.v1 could not be indexed." in caplog.text


async def test_exclusions_end_with_the_object(setup: Setup) -> None:
    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(**_: Any) -> Any:
        raise kopf.TemporaryError("boo", delay=1000)

    pods = setup.serve(PODS)
    record = pods.feed('pod1')
    await settle()
    assert record.indexing is not None and record.indexing.timer is not None
    timer = record.indexing.timer
    pods.feed('pod1', 'DELETED')
    assert timer.cancelled()
    assert record.indexing is None


async def test_functions_that_run_at_the_end_are_cancelled(setup: Setup, caplog: Any) -> None:
    declare(setup, [], errors=kopf.ErrorsMode.TEMPORARY)
    setup.serve(PODS).feed('pod1')
    await settle()
    await setup.indexing_gate.close()
    assert [record.message for record in caplog.records] == ["Indexer 'idx' is cancelled. Will escalate."]


async def test_sync_functions_fill_indices_in_order(setup: Setup) -> None:
    @kopf.index('pods', registry=setup.registry, id='idx')
    def idx(name: str, **_: Any) -> Any:
        return name

    done = asyncio.Event()
    setup.indexing_gate.listeners.append(done.set)
    pods = setup.serve(PODS)
    for number in range(10):
        pods.feed(f'pod{number}')
    pods.listed()
    await done.wait()
    assert setup.get('idx') == {None: [f'pod{number}' for number in range(10)]}


# Memos.


async def test_memo_is_shared_by_all_handlers_of_the_object(setup: Setup) -> None:
    setup.memo.common = []
    memos: dict[str, list[Any]] = {}

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, memo: kopf.Memo, **_: Any) -> None:
        memos.setdefault(name, []).append(memo)
        memo.indexed = True

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(name: str, memo: kopf.Memo, **_: Any) -> None:
        memos[name].append(memo)

    pods = setup.serve(PODS)
    pods.listed()
    for name in ('pod1', 'pod2', 'pod1'):
        pods.feed(name)
        await settle()
    assert [len(found) for found in memos.values()] == [4, 2]
    first, second = memos['pod1'][0], memos['pod2'][0]
    assert all(memo is first for memo in memos['pod1'])
    assert first is not second and first == second == {'common': [], 'indexed': True}
    assert first.common is second.common is setup.memo.common
    assert 'indexed' not in setup.memo


async def test_memos_of_custom_classes_decide_how_they_are_copied(setup: Setup) -> None:
    class Shared:
        def __copy__(self) -> 'Shared':
            return self

    memos: list[Any] = []
    setup.memo = cast(Any, Shared())

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(memo: Shared, **_: Any) -> None:
        memos.append(memo)

    pods = setup.serve(PODS)
    pods.feed('pod1')
    pods.feed('pod2')
    await settle()
    assert memos == [setup.memo, setup.memo]


async def test_memos_that_cannot_be_copied_are_shared_with_one_warning(setup: Setup, caplog: Any) -> None:
    memos: list[Any] = []
    setup.memo = cast(Any, threading.Lock())

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(memo: Any, **_: Any) -> None:
        memos.append(memo)

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(memo: Any, **_: Any) -> None:
        memos.append(memo)

    pods = setup.serve(PODS)
    pods.feed('pod1')
    pods.feed('pod2')
    pods.listed()
    await settle()
    assert memos == [setup.memo] * 4 and not setup.indexing_gate.failure.done()
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert warning.startswith("All objects share the memo of the operator, as it cannot be copied: TypeError(")
    assert "Define lock.__copy__(), which can return self to share it without this warning." in warning


async def test_memo_is_freed_with_the_object(setup: Setup) -> None:
    class Resident:
        pass

    residents: list[weakref.ref[Resident]] = []

    @kopf.index('pods', registry=setup.registry, id='idx')
    async def idx(name: str, memo: kopf.Memo, **_: Any) -> Any:
        memo.resident = Resident()
        residents.append(weakref.ref(memo.resident))
        return name

    @kopf.on.event('pods', registry=setup.registry)
    async def handle(memo: kopf.Memo, **_: Any) -> None:
        assert memo.resident

    pods = setup.serve(PODS)
    pods.listed()
    pods.feed('pod1')
    await settle()
    gc.collect()
    assert residents[0]() is not None
    pods.feed('pod1', 'DELETED')
    await settle()
    gc.collect()
    assert residents[0]() is None
