"""Short forms of the simulation: some seeds, and that a seed always gives the same run. `.ci/run` runs more seeds."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*args):
    command = [sys.executable, '-m', 'tests.faults.simulation', *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    print(done.stdout, done.stderr)
    return done


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize('start', [1, 101])
def test_nothing_is_lost_or_done_twice_or_stuck_whatever_happens(start):
    done = run(f'--start={start}', '--seeds=3')
    assert done.returncode == 0
    assert '3 of 3 runs: nothing lost, nothing done twice, nothing stuck' in done.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_children_and_conditions_are_what_the_last_states_demand_whatever_happens():
    done = run('--start=301', '--seeds=3', '--set=applying=true', '--set=conditions=true')
    assert '3 of 3 runs: nothing lost, nothing done twice, nothing stuck' in done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize('mode', [pytest.param(mode, marks=pytest.mark.long) for mode in ['election', 'shards']])
def test_replicas_and_members_lose_nothing_and_do_nothing_twice_whatever_happens(mode):
    options = ['--set=clocks=false', '--set=peering=', f'--set=electing={mode}']
    done = run('--start=1037', '--seeds=2', *options)
    assert '2 of 2 runs: nothing lost, nothing done twice, nothing stuck' in done.stdout


@pytest.mark.long
def test_the_same_seed_gives_the_same_run():
    first, second = [run('--start=7').stdout.split()[1] for _ in range(2)]
    assert first == second


@pytest.mark.long
def test_objects_that_are_not_handled_are_found():
    # Some: a single seed can have no object that counts, and each change of the code gives it another run.
    done = run('--start=1', '--seeds=3', '--set=selecting=settings', '--set=blind=true')
    assert done.returncode == 1
    assert 'not at rest' in done.stdout
