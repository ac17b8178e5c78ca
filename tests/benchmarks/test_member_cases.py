import importlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def member_cases(monkeypatch):
    """Return the module, imported as bench.py does it. The modules beside it have common names: forget them."""
    monkeypatch.syspath_prepend(str(ROOT / 'benchmarks'))
    before = set(sys.modules)
    yield importlib.import_module('member_cases')
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], '__file__', '')).startswith(str(ROOT / 'benchmarks')):
            del sys.modules[name]


@pytest.mark.parametrize(
    'ranges, count', [('', 0), ('7', 1), ('0-63', 64), ('0-63,70', 65), ('0-0,2-3,255', 4)], ids=repr
)
def test_buckets_of_ranges_are_counted(member_cases, ranges, count):
    assert member_cases.count_buckets(ranges) == count


def test_the_measured_time_ends_when_the_last_object_is_handled_for_the_first_time(member_cases):
    calls = [{'name': 'a', 'time': 1}, {'name': 'b', 'time': 5}, {'name': 'a', 'time': 9}]
    assert member_cases.find_end(calls) == 5


def test_a_member_that_has_handled_nothing_has_a_share_of_nothing(member_cases):
    calls = [{'member': 1}, {'member': 1}, {'member': 2}]
    assert sorted(member_cases.count_shares(calls, 3)) == [0, 1, 2]


def test_calls_are_awaited_until_each_object_was_handled_and_repeated_calls_are_kept(member_cases):
    class Process:
        reports = [{'name': 'a'}, {'name': 'a'}, {'name': 'b'}]

        def wait(self, event, timeout):
            assert event == 'handled'
            return self.reports.pop(0)

        def drain(self, quiet):
            return [{'event': 'start'}, {'event': 'handled', 'name': 'b'}]

    calls = member_cases.await_calls(Process(), 2)
    assert [call['name'] for call in calls] == ['a', 'a', 'b', 'b']


def test_members_are_measured_with_one_process_and_with_several(member_cases):
    plans = importlib.import_module('plans')
    labels = {variant for case, variant, *_ in plans.plan(plans.SCALES['full']) if case == 'members'}
    kinds = ('on.update', 'on.update computing', 'reconcile', 'reconcile computing')
    expected = {f'{kind} P={processes}' for kind in kinds for processes in (1, 2, 4)}
    # What the API server saves shows where the handlers do nothing.
    assert labels == expected | {
        f'{kind} P={number} helped' for kind in ('on.update', 'reconcile') for number in (2, 4)
    }
