"""Copies of the process."""

import gc
import os
import time

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


def count_frozen(freeze):
    """Return how many objects are frozen before a copy of this process is made, and after it."""
    freeze()
    before = gc.get_freeze_count()
    ForkPool(1, 10).call(os.getpid, None)
    return before, gc.get_freeze_count()


def test_what_the_program_has_frozen_stays_frozen():
    before, after = ForkPool(1, 20).call(lambda: count_frozen(gc.freeze), None)
    assert 0 < before <= after


def test_what_was_frozen_for_copies_alone_is_collected_again():
    assert ForkPool(1, 20).call(lambda: count_frozen(gc.unfreeze), None) == (0, 0)
