"""The transitions of object records: what each of them keeps, and what it drops."""

import asyncio

import pytest

from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import State
from kopf._core.intents.cycles import Cycle
from kopf._core.reactor.object_records import ObjectRecord, identify, is_deleted


@pytest.fixture
def record():
    return ObjectRecord('uid', 'ns', 'obj', initial=True)


def make_event(type=None, **metadata):
    return {'type': type, 'object': {'metadata': {'name': 'obj', 'uid': 'uid', **metadata}}}


def make_timer():
    return asyncio.get_running_loop().call_later(999, lambda: None)


@pytest.mark.parametrize('value', [0.1, 2**63, 2**99, '\u00e9\U0001f600', '\ud800', None, [{}]])
def test_a_serialized_event_is_restored_as_it_was(record, value):
    record.put_pending(event := {'type': None, 'object': {'spec': {'field': value}}})
    record.fold_pending()
    record.fold_pending()
    assert record.take_pending() == event
    assert record.pending is None and record.take_pending() is None


@pytest.mark.parametrize('folded', [False, True], ids=['as it is', 'serialized'])
def test_a_pending_deletion_is_recognized(record, folded):
    for event, vanishing, deleted in [
        (make_event('MODIFIED'), False, False),
        (make_event('MODIFIED', deletionTimestamp='2020-01-01T00:00:00Z'), False, True),
        (make_event('DELETED'), True, True),
    ]:
        record.put_pending(event)
        if folded:
            record.fold_pending()
        assert record.is_vanishing is vanishing
        assert record.is_being_deleted is deleted


@pytest.mark.parametrize('folded', [False, True], ids=['as it is', 'serialized'])
def test_a_pending_deletion_is_kept_until_it_is_taken(record, folded):
    def put(*types):
        for number, type in enumerate(types):
            record.put_pending(make_event(type, resourceVersion=str(number)))
            if folded:
                record.fold_pending()

    def take_all():
        while (event := record.take_pending()) is not None:
            yield event['type'], event['object']['metadata']['resourceVersion']

    put('DELETED', 'ADDED', 'MODIFIED')
    assert not record.is_vanishing and not record.is_being_deleted
    assert list(take_all()) == [('DELETED', '0'), ('MODIFIED', '2')]
    put('DELETED', 'ADDED', 'DELETED')
    assert record.is_vanishing
    assert list(take_all()) == [('DELETED', '2')]
    put('ADDED', 'MODIFIED')
    assert list(take_all()) == [('MODIFIED', '1')]
    put('DELETED', 'ADDED')
    record.change_hands(redefined=True)
    assert list(take_all()) == [('DELETED', '0')]


def test_a_deletion_timestamp_in_the_newest_state_counts_as_deletion(record):
    assert not record.is_being_deleted
    record.accept(make_event(deletionTimestamp='2020-01-01T00:00:00Z')['object'])
    assert record.is_being_deleted
    record.put_pending(make_event('ADDED'))  # a newer state
    assert not record.is_being_deleted


def test_the_memo_is_created_once(record):
    memos = iter([{'number': 1}, {'number': 2}])
    assert record.get_memo(lambda: next(memos)) is record.get_memo(lambda: next(memos))
    assert next(memos) == {'number': 2}


def test_a_requeue_is_taken_once(record):
    assert not record.has_work
    record.requeue()
    assert record.has_work
    assert [record.take_requeue(), record.take_requeue()] == [True, False]
    assert not record.has_work


async def test_a_new_timer_replaces_the_former_one(record):
    first, second = make_timer(), make_timer()
    record.wake_by(first)
    record.wake_by(second)
    assert first.cancelled() and not second.cancelled()
    record.cancel_wakeup()
    assert second.cancelled() and record.wakeup is None


def test_an_accepted_state_is_not_outdated_any_more(record):
    record.accept({'metadata': {}})
    record.mark_outdated()
    record.accept(newer := {'metadata': {'resourceVersion': '2'}})
    assert record.body is newer and not record.outdated


def test_an_adopted_state_does_not_replace_a_known_one(record):
    record.accept(known := {'metadata': {}})
    record.adopt({'metadata': {'resourceVersion': '1'}})
    assert record.body is known


def test_a_handled_change_also_ends_the_resuming(record):
    record.begin_cycle(object())
    record.end_cycle(followup := object())
    assert record.cycle is followup and not record.initial


def test_an_empty_patch_is_not_kept(record):
    record.keep_patch(Patch({'spec': {}}))
    assert record.in_memory_only
    record.keep_patch(Patch())
    assert record.pending_patch is None and not record.in_memory_only


async def test_plans_are_dropped_after_a_pause_but_the_identity_stays(record):
    timer = make_timer()
    record.wake_by(timer)
    record.put_pending(make_event('MODIFIED'))
    record.requeue()
    record.keep_patch(Patch({'spec': {}}))
    record.begin_cycle(object())
    record.forget_plans(working=False)
    assert timer.cancelled() and not record.has_work and not record.in_memory_only and record.cycle is None
    assert (record.uid, record.namespace, record.name, record.initial) == ('uid', 'ns', 'obj', True)


async def test_progress_and_patch_are_kept_after_a_pause_for_the_worker_that_still_runs(record):
    record.put_pending(make_event('MODIFIED'))
    record.requeue()
    record.keep_patch(patch := Patch({'spec': {}}))
    record.begin_cycle(cycle := Cycle(State(), known={}, base={}))
    cycle.note_external(object())
    record.forget_plans(working=True)
    assert cycle.external is None  # it can be another one by the next pause
    assert record.cycle is cycle and record.pending_patch is patch and not record.has_work


@pytest.mark.parametrize(
    'type, redefined, kept',
    [('MODIFIED', False, True), ('MODIFIED', True, False), ('DELETED', True, True)],
    ids=['same version', 'other version', 'deletion'],
)
def test_a_new_processor_gets_pending_events_of_its_version_and_all_deletions(record, type, redefined, kept):
    record.put_pending(event := make_event(type))
    record.change_hands(redefined=redefined)
    assert record.take_pending() == (event if kept else None)


async def test_a_new_processor_tries_a_throttled_object_at_once(record):
    timer = make_timer()
    record.hold_off(object())
    record.wake_by(timer)
    record.change_hands(redefined=False)
    assert timer.cancelled() and not record.throttled and record.throttle is None


def test_a_record_is_in_use_while_a_worker_has_it(record):
    assert not record.in_use
    record.assign_worker()
    assert record.in_use
    record.free_worker()
    assert not record.in_use


@pytest.mark.parametrize(
    'metadata, key',
    [
        ({'uid': 'uid', 'namespace': 'ns', 'name': 'obj'}, 'uid'),
        ({'namespace': 'ns', 'name': 'obj'}, 'ns/obj'),
        ({'name': 'obj'}, '/obj'),
    ],
    ids=['with a uid', 'in a namespace', 'cluster-scoped'],
)
def test_objects_are_identified_by_the_uid_if_they_have_one(metadata, key):
    assert identify({'metadata': metadata}) == key


def test_events_of_objects_marked_for_deletion_count_as_deleted():
    assert is_deleted(make_event('DELETED'))
    assert is_deleted(make_event('MODIFIED', deletionTimestamp='2020-01-01T00:00:00Z'))
    assert not is_deleted(make_event('MODIFIED'))


def test_an_event_that_is_put_back_comes_before_what_has_come_meanwhile(record):
    record.put_back(make_event('MODIFIED'))
    assert record.take_pending() == make_event('MODIFIED')
    record.put_pending(make_event('ADDED'))
    record.put_back(make_event('MODIFIED'))
    assert record.take_pending() == make_event('ADDED') and record.take_pending() is None
    record.put_pending(make_event('ADDED'))
    record.put_back(make_event('DELETED'))
    assert record.take_pending() == make_event('DELETED') and record.take_pending() == make_event('ADDED')
