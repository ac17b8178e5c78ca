import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def speedups():
    return runpy.run_path(str(ROOT / 'benchmarks' / 'results.py'))['speedups']


CPU = 'cpu of a member, times one process'


def measured(variant, rate, cpu=1, *, runner='ours', case='members'):
    return {
        'case': case,
        'variant': variant,
        'runner': runner,
        'repeat': 0,
        'metrics': {'changes/s ↑': rate, 'cpu ms/change of a member': cpu},
    }


def test_several_processes_are_compared_with_one_of_the_same_kind_and_environment(speedups):
    results = [
        measured('on.update P=1', 100, 10),
        measured('on.update P=2', 180, 6),
        measured('on.update P=4', 300, 3),
        measured('on.update P=4 helped', 320, 2),
        measured('on.update computing P=1', 10),
        measured('on.update computing P=2', 19),
        measured('on.update P=1', 50, runner='other'),
        measured('on.update P=2', 60, runner='other'),
        measured('on.update', 1, case='churn'),
    ]
    ratios = {(row['variant'], row['runner']): row['metrics'] for row in speedups(results)}
    assert ratios == {
        ('on.update P=2', 'ours'): {'times one process ↑': 1.8, CPU: 0.6},
        ('on.update P=4', 'ours'): {'times one process ↑': 3.0, CPU: 0.3},
        ('on.update P=4 helped', 'ours'): {'times one process ↑': 3.2, CPU: 0.2},
        ('on.update computing P=2', 'ours'): {'times one process ↑': 1.9, CPU: 1},
        ('on.update P=2', 'other'): {'times one process ↑': 1.2, CPU: 1},
    }


def test_the_medians_of_repetitions_are_compared(speedups):
    results = [*(measured('reconcile P=1', rate) for rate in (1, 10, 11)), measured('reconcile P=2', 20)]
    assert [row['metrics']['times one process ↑'] for row in speedups(results)] == [2.0]


def test_several_processes_without_one_to_compare_with_have_no_ratio(speedups):
    assert list(speedups([measured('reconcile P=2', 20)])) == []
