"""Meters: what is counted of the work on objects."""

import pytest

from kopf._cogs.structs import meters as meters_module
from kopf._cogs.structs.instruments import ObjectKey
from kopf._cogs.structs.meters import BOUNDS, Meters, ResourceMeter, get_counts, name_handler, name_resource
from kopf._cogs.structs.references import Resource

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples')


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(meters_module, 'monotonic', clock.monotonic)
    return clock


@pytest.mark.parametrize(
    'seconds, bucket', [(0, 0), (0.0049, 0), (0.006, 1), (0.5, 3), (60, 6), (61, 7)], ids=lambda value: str(value)
)
def test_durations_are_counted_up_to_the_upper_bounds(seconds, bucket, clock):
    meter = ResourceMeter()
    meter.note_reconciliation(clock.now - seconds, 'success', 'uid')
    meter.take('a')
    clock.now += seconds
    meter.leave('a')
    for durations in (meter.get_handling(), meter.get_working()):
        assert get_counts(durations) == [int(number == bucket) for number in range(len(BOUNDS) + 1)]
        assert durations[-1] == pytest.approx(seconds)


def test_queued_objects_are_measured_until_they_are_taken(clock):
    meter = ResourceMeter()
    meter.queue('a')
    assert (meter.count_adds(), len(meter.waiting)) == (1, 1)
    clock.now += 2
    meter.take('a')
    assert (meter.count_adds(), len(meter.waiting), len(meter.running)) == (1, 0, 1)
    assert meter.get_queueing()[-1] == 2
    clock.now += 3
    meter.leave('a')
    assert (len(meter.running), meter.get_working()[-1]) == (0, 3)


def test_objects_that_get_a_worker_at_once_have_waited_for_no_time(clock):
    meter = ResourceMeter()
    meter.take('a')
    assert (meter.count_adds(), meter.get_queueing()[0], meter.get_queueing()[-1]) == (1, 1, 0)


def test_objects_that_leave_the_queue_are_not_measured(clock):
    meter = ResourceMeter()
    meter.queue('a')
    meter.leave('a')
    assert not meter.waiting and sum(meter.get_queueing()) == sum(meter.get_working()) == 0


def test_a_failed_handler_makes_the_reconciliation_of_its_object_fail(clock):
    meters = Meters()
    meter = meters.get(RESOURCE)
    meters.note_failure(ObjectKey(RESOURCE, 'default', 'x', 'uid1'))
    meter.note_reconciliation(clock.now - 1, 'requeue_after', 'uid2')
    meter.note_reconciliation(clock.now - 1, 'requeue_after', 'uid1')
    meter.note_reconciliation(clock.now - 1, 'success', 'uid1')
    assert meter.get_results() == {'success': 1, 'error': 1, 'requeue': 0, 'requeue_after': 1}
    assert meter.get_handling()[-1] == 3


def test_each_run_of_a_worker_that_only_observes_is_a_reconciliation(clock):
    meter = ResourceMeter()
    for uid in ('uid1', 'uid2', 'uid1'):
        meter.take('a')
        clock.now += 2
        if uid == 'uid2':
            meter.note_error(uid)
        meter.leave('a', uid)
    assert meter.get_results() == {'success': 2, 'error': 1, 'requeue': 0, 'requeue_after': 0}
    assert meter.get_handling()[-1] == meter.get_working()[-1] == 6 and sum(get_counts(meter.get_handling())) == 3


def test_handlers_without_an_object_do_not_make_reconciliations_fail(clock):
    meters = Meters()
    meters.note_failure(None)
    meters.get(RESOURCE).note_reconciliation(clock.now, 'success', 'uid')
    assert meters.get(RESOURCE).results['error'] == 0


def test_successes_are_found_by_the_ids_of_handlers_but_not_of_the_many_sub_handlers(clock):
    meters = Meters()
    meters.note_attempt('fn', None, 'retried', clock.now - 1)
    meters.note_attempt('fn/a', 'fn', 'succeeded', clock.now - 1)
    assert meters.successes == {}
    meters.note_attempt('fn', None, 'succeeded', clock.now - 1)
    assert meters.successes == {'fn': [1, 1]} and meters.successes['fn'] is meters.handlers['fn', 'succeeded']


def test_versions_of_a_resource_share_a_meter():
    meters = Meters()
    assert meters.get(RESOURCE) is meters.get(Resource('kopf.dev', 'v2', 'kopfexamples'))
    assert meters.get(RESOURCE) is not meters.get(Resource('other', 'v1', 'kopfexamples'))


def test_names_of_resources_have_no_version():
    assert name_resource(RESOURCE) == 'kopfexamples.kopf.dev'
    assert name_resource(Resource('', 'v1', 'pods')) == 'pods'


@pytest.mark.parametrize(
    'id, parent, name',
    [
        ('fn', None, 'fn'),
        ('fn/spec.field', None, 'fn/spec.field'),
        ('fn/sub', 'fn', 'fn/*'),
        ('fn/sub/sub', 'fn/sub', 'fn/*'),
        ('other', 'fn', 'other'),
    ],
)
def test_subhandlers_share_a_name(id, parent, name):
    assert name_handler(id, parent) == name
