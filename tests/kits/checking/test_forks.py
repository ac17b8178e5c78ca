"""Copies of the process."""

import os
import time

import pytest
from forkserver import run_process

from kopf._kits.checking.forks import ForkFailed, ForkPool


def run(pool, *functions, seconds=30):
    """Run the functions in copies; return their results by their numbers."""
    return dict(pool.run(iter(list(enumerate(functions))), time.monotonic() + seconds))


def fail():
    raise ValueError("no way")


def test_results_come_from_other_processes():
    results = run(ForkPool(2, 10), os.getpid, os.getpid, lambda: {"a": [1]})
    assert len({os.getpid(), results[0], results[1]}) == 3
    assert results[2] == {"a": [1]}


def test_what_copies_change_is_gone():
    changed = []
    assert run(ForkPool(1, 10), lambda: changed.append(1), lambda: len(changed)) == {0: None, 1: 0}
    assert changed == []


def test_errors_are_results():
    results = run(ForkPool(2, 10), fail, lambda: os._exit(3), lambda: 1)
    assert isinstance(results[0], ForkFailed) and "ValueError: no way" in str(results[0])
    assert isinstance(results[1], ForkFailed) and "ended unexpectedly (status 768)" in str(results[1])
    assert results[2] == 1


def test_copies_that_do_not_end_are_killed():
    results = run(ForkPool(2, 1.5), lambda: time.sleep(60), lambda: 1)
    assert "did not end within 1.5 s" in str(results[0]) and results[1] == 1


def test_at_the_deadline_all_ends():
    started = time.monotonic()
    assert run(ForkPool(2, 60), lambda: time.sleep(60), lambda: 1, lambda: time.sleep(60), seconds=2) == {1: 1}
    assert time.monotonic() - started < 10


def test_tasks_can_follow_from_results():
    tasks = [("first", lambda: 1)]

    class Tasks:
        def __iter__(self):
            return self

        def __next__(self):
            if not tasks:
                raise StopIteration
            return tasks.pop()

    seen = []
    for tag, _ in ForkPool(2, 10).run(Tasks(), time.monotonic() + 30):
        seen.append(tag)
        if tag == "first":
            tasks.extend([("second", lambda: 2), ("third", lambda: 3)])
    assert sorted(seen) == ["first", "second", "third"]


def test_one_function_can_be_called_alone():
    assert ForkPool(1, 10).call(lambda: 5, None) == 5


@pytest.fixture
def count_frozen(tmp_path):
    """Return a function that counts the frozen objects of a new process, before and after copies of it are made."""

    def count(preparation):
        (tmp_path / "program.py").write_text(
            f"""
import gc, os
from kopf._kits.checking.forks import ForkPool
gc.{preparation}()
print(gc.get_freeze_count())
for _ in range(2):
    ForkPool(1, 10).call(lambda: ForkPool(1, 10).call(os.getpid, None), None)
    print(gc.get_freeze_count())
"""
        )
        process = run_process(["python", tmp_path / "program.py"])
        assert process.returncode == 0, process.stderr
        return [int(number) for number in process.stdout.split()]

    return count


def test_what_the_program_has_frozen_stays_frozen(count_frozen):
    before, *after = count_frozen("freeze")
    assert all(0 < before <= number for number in after)


def test_what_was_frozen_for_copies_alone_is_collected_again(count_frozen):
    assert count_frozen("unfreeze") == [0, 0, 0]
