"""The states of objects, and how long their watches have been silent."""

import types

import pytest

from kopf._cogs.structs.packed_objects import ParsedCache
from kopf._cogs.structs.references import Resource
from kopf._core.engines.levels import ObjectLevel
from kopf._core.engines.planning import Plan
from kopf._core.reactor import census as census_module
from kopf._core.reactor.census import STATES, Census, find_state
from kopf._core.reactor.object_records import ObjectRecord

NAME = 'kopfexamples.kopf.dev'


class Timer:
    def cancel(self):
        pass


class Watch:
    def __init__(self, *records, version='v1', last_event_at=0.0):
        self.resource = Resource('kopf.dev', version, 'kopfexamples')
        self.records = {record.uid: record for record in records}
        self.last_event_at = last_event_at


def make_census(*watches, working=()):
    orchestrator = types.SimpleNamespace(get_watches=lambda: watches)
    workers = types.SimpleNamespace(find_working=lambda: set(working))
    return Census(orchestrator, workers)


def make_record(uid='uid', **transitions):
    record = ObjectRecord(uid, 'default', 'x', initial=False)
    for name, args in transitions.items():
        getattr(record, name)(*args)
    return record


@pytest.mark.parametrize(
    'transitions, is_working, state',
    [
        ({}, False, 'resting'),
        ({'wake_by': [Timer()]}, False, 'waiting'),
        ({'assign_worker': []}, False, 'queued'),
        ({'assign_worker': []}, True, 'handling'),
        ({'hold_off': [None], 'wake_by': [Timer()]}, False, 'throttled'),
    ],
)
def test_the_state_follows_from_the_record(transitions, is_working, state):
    assert find_state(make_record(**transitions), is_working=is_working) == state
    assert state in STATES


@pytest.mark.parametrize(
    'plan, state',
    [
        ({}, 'resting'),
        ({'due_at': 100.0}, 'resting'),  # the interval of the handler
        ({'is_waiting': True}, 'queued'),  # for the other objects of the handler
        ({'message': "a child is not ready"}, 'waiting'),
    ],
)
def test_the_state_follows_from_the_plans_of_level_triggered_handlers(plan, state):
    level = ObjectLevel(None, None, {'metadata': {}}, ParsedCache())
    level.move(None, [Plan(level)])
    for name, value in plan.items():
        setattr(level.plans[0], name, value)
    assert find_state(make_record(attach_level=[level]), is_working=False) == state


def test_objects_of_all_namespaces_and_versions_are_counted_together():
    resting, working = make_record('1'), make_record('2', assign_worker=[])
    census = make_census(Watch(resting), Watch(working, version='v2'), Watch(), working=[working])
    assert census.count_objects() == {(NAME, state): int(state in ('resting', 'handling')) for state in STATES}


def test_the_quietest_watch_of_a_resource_counts(monkeypatch):
    monkeypatch.setattr(census_module, 'time', types.SimpleNamespace(monotonic=lambda: 100.0))
    census = make_census(Watch(last_event_at=90.0), Watch(last_event_at=70.0), Watch(last_event_at=95.0))
    assert census.measure_silences() == {NAME: 30.0}
