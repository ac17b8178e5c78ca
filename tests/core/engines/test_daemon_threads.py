"""The threads of sync daemons: their number, their queue, and the warning about it."""

import contextvars
import logging
import threading
import weakref

import pytest

from kopf._cogs.configs.configuration import BackgroundSettings
from kopf._core.engines.daemon_threads import DaemonThreads


@pytest.fixture
def threads():
    return DaemonThreads(BackgroundSettings(max_threads=2))


def test_each_call_has_a_thread_of_its_own(threads):
    together = threading.Barrier(3)
    futures = [threads.submit(together.wait) for _ in range(3)]  # calls in the same thread would never meet
    assert sorted(future.result(5) for future in futures) == [0, 1, 2]


def test_threads_do_not_hold_up_the_process(threads):
    assert threads.submit(lambda: threading.current_thread().daemon).result(5)


@pytest.mark.parametrize('error', [ValueError('boo'), SystemExit(1)])
def test_errors_are_passed_to_the_caller(threads, error):
    def fn():
        raise error

    assert threads.submit(fn).exception(5) is error


def test_arguments_and_results_are_passed(threads):
    var = contextvars.ContextVar('var', default=0)
    assert threads.submit(lambda *args, **kwargs: (args, kwargs, var.get()), 1, x=2).result(5) == ((1,), {'x': 2}, 0)


def test_daemons_above_the_limit_wait_for_a_place(threads, caplog):
    entered = []

    def make(name):
        return lambda: entered.append(name) or True

    for name in 'abcd':
        threads.reserve(make(name), name)
    assert entered == ['a', 'b']
    threads.release()
    assert entered == ['a', 'b', 'c']
    threads.release()
    assert entered == ['a', 'b', 'c', 'd']

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert 'settings.background.max_threads' in warnings[0]
    assert 'c and others' in warnings[0]


def test_a_daemon_that_does_not_start_takes_no_place(threads):
    entered = []
    threads.reserve(lambda: False, 'gone')
    for name in 'ab':
        threads.reserve(lambda name=name: entered.append(name) or True, name)
    threads.reserve(lambda: False, 'gone while waiting')
    threads.reserve(lambda: entered.append('c') or True, 'c')
    assert entered == ['a', 'b']
    threads.release()
    assert entered == ['a', 'b', 'c']


def test_a_daemon_that_is_stopped_while_it_waits_is_freed(threads):
    class Waiting:
        def enter(self):
            raise AssertionError

    for name in 'ab':
        threads.reserve(lambda: True, name)
    waiting = Waiting()
    threads.reserve(waiting.enter, 'c')
    freed = weakref.ref(waiting)
    threads.cancel(waiting.enter)
    threads.cancel(waiting.enter)  # any other one does not wait
    del waiting
    assert freed() is None
    threads.release()
