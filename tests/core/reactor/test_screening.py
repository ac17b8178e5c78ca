"""Which events of a resource are kept for workers, also in pauses."""

import asyncio
import time
import types

import pytest

import kopf
from kopf._core.engines.stoppers import DaemonStoppingReason
from kopf._core.reactor import screening
from kopf._core.reactor.echoes import Expectation
from kopf._core.reactor.indexing_gate import IndexingGate
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.screening import EventScreen
from kopf._core.reactor.stale_events import StaleEventFilter
from kopf._core.reactor.workers import WorkerPool


class Reconciler:
    """Compares the states of objects with the one that is handled."""

    handled = 'v1'

    def is_settled(self, record, raw):
        return raw['spec'] == self.handled


class Daemons:
    """The daemons of an object."""

    gone = False

    def __init__(self):
        self.calls = []

    def update(self, raw, *, asked_at):
        self.calls.append(raw['spec'])

    def stop(self, reason):
        self.calls.append(reason)

    def reappear(self):
        self.calls.append('reappear')


class Screened:
    """A screen, and what it is given."""

    def __init__(self, *, observing=False, managing=True):
        self.settings = kopf.OperatorSettings()
        self.workers = WorkerPool(self.settings, IndexingGate())
        self.received = []
        self.screen = EventScreen(
            types.SimpleNamespace(watching=['handler'] if observing else [], managing=managing),
            reconciler=Reconciler(),
            stale_events=StaleEventFilter(self.settings, self.receive),
            workers=self.workers,
        )
        self.records = {name: ObjectRecord(name, None, name, initial=False) for name in 'abc'}
        self.watch = types.SimpleNamespace(records=self.records, get_known=lambda: list(self.records.values()))

    def receive(self, record, event, *, listed_since):
        self.received.append((record.name, event['object']['spec']))

    def keep(self, spec, type='MODIFIED', *, name='a', version='5', **metadata):
        raw = make(spec, name=name, version=version, **metadata)
        return self.screen.keep(self.records[name], {'type': type, 'object': raw}, listed_since=None)


def make(spec, *, name='a', version='5', **metadata):
    return {'metadata': {'name': name, 'resourceVersion': version, **metadata}, 'spec': spec}


@pytest.fixture
async def screened():
    return Screened()


async def test_an_event_of_an_object_at_rest_is_kept_only_if_its_state_is_not_handled(screened):
    assert not screened.keep('v1')
    assert screened.records['a'].pending is None
    assert screened.keep('v2')
    assert screened.records['a'].take_pending()['object']['spec'] == 'v2'


async def test_deletions_are_always_kept(screened):
    assert screened.keep('v1', 'DELETED')


@pytest.mark.parametrize('observing, managing, kept', [(True, False, True), (False, False, False), (True, True, True)])
async def test_handlers_of_raw_events_get_all_events(observing, managing, kept):
    screened = Screened(observing=observing, managing=managing)
    assert screened.keep('v1') == kept
    assert screened.keep('v1', 'DELETED') == kept


async def test_a_stale_state_is_dropped_even_if_it_is_not_handled(screened):
    raw = {'metadata': {'resourceVersion': '10'}}
    screened.records['a'].expect(Expectation.after_patch(raw, None, timeout=60))
    assert not screened.keep('v0', version='9')
    assert screened.keep('v0', version='11')


async def test_events_of_a_busy_object_are_kept_for_its_worker(screened):
    screened.records['a'].assign_worker()
    assert screened.keep('v1')


async def test_events_of_an_object_with_a_known_state_are_kept_as_it_has_a_timer_or_a_cycle(screened):
    screened.records['a'].accept({'metadata': {}, 'spec': 'v1'})
    assert screened.keep('v1')


async def test_daemons_get_the_newest_state_at_once_and_are_stopped_by_deletions(screened):
    screened.records['a'].attach_daemons(daemons := Daemons())
    assert not screened.keep('v1')
    daemons.gone = True
    assert not screened.keep('v1')
    assert screened.keep('v2', deletionTimestamp='...')
    reason = DaemonStoppingReason.RESOURCE_DELETED
    assert daemons.calls == ['v1', 'v1', 'reappear', 'v2', 'reappear', reason]


@pytest.mark.parametrize('known_to', ['worker', 'daemon', 'nothing'])
async def test_running_handlers_are_told_of_the_deletion_at_once(screened, known_to):
    record = screened.records['a']
    flag = screened.workers.background.deletions.get_flag(record.uid, raised=False)
    if known_to == 'worker':
        record.assign_worker()
    elif known_to == 'daemon':
        record.attach_daemons(Daemons())
    screened.keep('v2')
    assert not flag.is_set()
    screened.keep('v2', deletionTimestamp='...')
    assert flag.is_set() == (known_to != 'nothing')


async def test_a_list_that_was_requested_after_a_patch_makes_older_versions_doubtful(screened):
    record, raw = screened.records['a'], make('v0', version='9')
    record.expect(Expectation.after_patch(make('v1', version='10'), None, timeout=60))
    assert not screened.screen.keep(record, {'type': None, 'object': raw}, listed_since=time.monotonic() + 1)
    assert record.expected.unsure['object'] is raw


async def test_in_a_pause_only_deletions_of_known_objects_are_kept(screened):
    del screened.records['c']
    screened.screen.begin_pause(screened.watch)
    screened.workers.paused = True
    screened.records['c'] = ObjectRecord('c', None, 'c', initial=False)
    assert not screened.keep('v2', name='a')
    assert screened.keep('v2', 'DELETED', name='b')
    assert not screened.keep('v2', 'ADDED', name='c')
    assert not screened.keep('v2', 'DELETED', name='c')
    assert [record.initial for record in screened.records.values()] == [False, False, True]
    screened.screen.end_pause(screened.watch, screened.receive)
    assert not screened.keep('v2', 'DELETED', name='a'), "it was known only in the former pause"


async def test_the_last_changes_of_a_pause_come_first_after_it_but_only_for_objects_that_still_exist(
    screened, monkeypatch
):
    monkeypatch.setattr(screening, 'MAX_RECENT', 2)
    screened.workers.keep_warm()
    screened.workers.paused = True
    for name in 'aabbca':
        screened.keep('v2', name=name)
    screened.workers.paused = False
    del screened.records['c']
    screened.screen.end_pause(screened.watch, screened.receive)
    assert screened.received == []  # the workers are resumed later
    await asyncio.sleep(0)
    assert screened.received == [('a', 'v2')]
    assert screened.records['a'].outdated  # so that the newest state is requested before any handlers are called
    screened.screen.end_pause(screened.watch, screened.receive)
    await asyncio.sleep(0)
    assert screened.received == [('a', 'v2')]


@pytest.mark.parametrize('trouble', ['paused', 'unverified', 'disowned', 'deleted'])
async def test_the_last_changes_of_a_pause_do_not_come_if_their_objects_must_wait(screened, trouble):
    screened.workers.keep_warm()
    screened.workers.paused = True
    screened.keep('v2')
    if trouble == 'deleted':
        screened.keep('v2', 'DELETED')
    screened.workers.paused = trouble == 'paused'
    if trouble == 'unverified':
        record = screened.records['a']
        record.accept({'metadata': {}, 'spec': 'v1'})
        record.keep_patch(kopf.Patch({'status': {}}))
        record.begin_cycle(types.SimpleNamespace(state=types.SimpleNamespace(in_memory_only=True)))
        record.forget_plans(working=False)
        assert record.unverified
    if trouble == 'disowned':
        screened.screen.disown([screened.records['a']])
    screened.screen.end_pause(screened.watch, screened.receive)
    await asyncio.sleep(0)
    assert screened.received == []


async def test_without_handlers_of_changes_no_newest_state_is_requested_after_a_pause():
    screened = Screened(observing=True, managing=False)
    screened.workers.keep_warm()
    screened.workers.paused = True
    screened.keep('v2')
    screened.workers.paused = False
    screened.screen.end_pause(screened.watch, screened.receive)
    await asyncio.sleep(0)
    assert screened.received == [('a', 'v2')]
    assert not screened.records['a'].outdated
