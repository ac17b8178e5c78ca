"""The pool is as good as the standard one, but does not hold the process."""

import concurrent.futures
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool, waiting


@pytest.fixture
def pool():
    with DaemonicThreadPool(3) as pool:
        yield pool


def test_results_and_errors_come_from_the_threads(pool):
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 7, 0).result(60)
    assert list(pool.map(str, range(5))) == ['0', '1', '2', '3', '4']


def test_as_many_threads_as_allowed_and_no_more(pool):
    barrier, release = threading.Barrier(4), threading.Event()
    futures = [pool.submit(lambda: (barrier.wait(60), release.wait(60))) for _ in range(3)]
    barrier.wait(60)  # all three are running
    extra = pool.submit(threading.current_thread)
    assert not extra.running()
    release.set()
    assert extra.result(60).daemon
    concurrent.futures.wait(futures, 60)


def test_threads_are_reused(pool):
    names = set()
    for _ in range(20):
        names.add(pool.submit(lambda: threading.current_thread().name).result(60))
    assert len(names) <= 3


def test_free_threads_are_counted_whatever_has_waited(pool):
    release = threading.Event()
    futures = [pool.submit(release.wait, 5) for _ in range(20)]
    futures[10].cancel()
    release.set()
    concurrent.futures.wait(futures, 60)
    pool._max_workers = 5  # as the settings do it
    barrier = threading.Barrier(5)
    assert sum(future.result(60) for future in [pool.submit(barrier.wait, 60) for _ in range(5)]) == 10


def test_cancelled_calls_are_not_run(pool):
    release = threading.Event()
    running = [pool.submit(release.wait, 5) for _ in range(3)]
    waiting = pool.submit(pytest.fail, 'must not run')
    assert waiting.cancel()
    release.set()
    concurrent.futures.wait(running, 60)
    assert pool.submit(int).result(60) == 0


def test_threads_that_cannot_be_started_are_started_later(monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    with DaemonicThreadPool(2) as pool:
        with monkeypatch.context() as patching:
            patching.setattr(threading.Thread, 'start', fail)
            for _ in range(3):
                with pytest.raises(RuntimeError, match='new thread'):
                    pool.submit(int)
        barrier = threading.Barrier(2)
        futures = [pool.submit(barrier.wait, 60) for _ in range(2)]
        assert {future.result(60) for future in futures} == {0, 1}


def test_functions_wait_for_the_other_threads_if_no_more_can_be_started(monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    with DaemonicThreadPool(2) as pool:
        release = threading.Event()
        running = pool.submit(release.wait, 60)
        with monkeypatch.context() as patching:
            patching.setattr(threading.Thread, 'start', fail)
            waiting = pool.submit(int)
        release.set()
        assert running.result(60)
        assert waiting.result(60) == 0


def test_threads_that_wait_do_not_count_in_elastic_pools():
    def descend(level):
        with waiting():
            if level == 3:
                barrier.wait(60)  # all of them wait at the same time
            return pool.submit(descend, level - 1).result(60) if level else 'done'

    before, barrier = threading.active_count(), threading.Barrier(10)
    with DaemonicThreadPool(2, is_elastic=True) as pool:
        futures = [pool.submit(descend, 3) for _ in range(10)]
        assert {future.result(60) for future in futures} == {'done'}
        while threading.active_count() > before + 2:  # those beyond the limit end
            pass
        barrier, release = threading.Barrier(3), threading.Event()
        futures = [pool.submit(lambda: (barrier.wait(60), release.wait(60))) for _ in range(2)]
        barrier.wait(60)  # both are running
        extra = pool.submit(int)
        assert not extra.running() and not extra.done()
        release.set()
        assert extra.result(60) == 0


def test_threads_that_wait_count_in_other_pools():
    entered, release = threading.Event(), threading.Event()

    def wait():
        with waiting():
            entered.set()
            release.wait(60)

    with DaemonicThreadPool(1) as pool:
        pool.submit(wait)
        entered.wait(60)
        extra = pool.submit(int)
        assert not extra.running() and not extra.done()
        release.set()
        assert extra.result(60) == 0


def test_waiting_is_nothing_special_outside_of_pools():
    with waiting():
        pass


def test_shutdown_waits_for_all():
    pool, done = DaemonicThreadPool(1), []
    for number in range(3):
        pool.submit(done.append, number)
    pool.shutdown()
    assert done == [0, 1, 2]
    with pytest.raises(RuntimeError, match='shut down'):
        pool.submit(int)


def test_a_shutdown_can_leave_threads_running():
    pool, release = DaemonicThreadPool(1), threading.Event()
    running, waiting = pool.submit(release.wait, 5), pool.submit(int)
    while not running.running():
        pass
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    release.set()
    assert running.result(60)


def test_forgotten_pools_end_their_threads():
    pool = DaemonicThreadPool(2)
    threads = [pool.submit(threading.current_thread).result(60) for _ in range(2)]
    del pool
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_process_does_not_wait():
    code = (
        "import threading; from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool; "
        "DaemonicThreadPool(1).submit(threading.Event().wait); print('end')"
    )
    assert subprocess.run([sys.executable, '-c', code], timeout=60, stdout=subprocess.PIPE).stdout == b'end\n'


def test_errors_are_freed_without_the_garbage_collector(pool):
    class Boo(Exception):
        pass

    def fail():
        raise Boo

    gc.disable()
    try:
        future = pool.submit(fail)
        reference = weakref.ref(future.exception(5))
        del future
        with pool:  # the threads have ended, and hold nothing
            pass
        assert reference() is None
    finally:
        gc.enable()
