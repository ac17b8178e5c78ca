"""The clock of handlers and records: it runs evenly, whatever is done to the wall clock of the machine."""

import concurrent.futures
import datetime
import time

import pytest

from kopf._cogs.helpers import clocks

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def set_clock(monkeypatch):
    """Return a function that sets the wall clock forward or back."""

    def set_clock(change):
        monkeypatch.setattr(clocks, 'read_wall_clock', lambda: datetime.datetime.now(datetime.UTC) + change)

    return set_clock


@pytest.fixture
def sleep(monkeypatch):
    """Return a function that lets the monotonic clocks go on."""

    def sleep(seconds, *, suspended=0.0):
        monotonic, gettime = time.monotonic, time.clock_gettime
        monkeypatch.setattr(time, 'monotonic', lambda: monotonic() + seconds)
        monkeypatch.setattr(time, 'clock_gettime', lambda clock: gettime(clock) + seconds + suspended)

    return sleep


@pytest.mark.parametrize('change', [HOUR, -HOUR])
def test_time_goes_on_evenly_when_the_wall_clock_is_set(set_clock, change):
    before = clocks.utcnow()
    set_clock(change)
    assert datetime.timedelta(0) <= clocks.utcnow() - before < HOUR / 2
    assert abs(clocks.get_shift() - change) < HOUR / 2


def test_corrections_of_less_than_a_second_are_ignored(set_clock):
    set_clock(clocks.utcnow() - clocks.read_wall_clock() + datetime.timedelta(seconds=0.5))
    assert clocks.get_shift() == clocks.NO_SHIFT


def test_time_is_that_of_the_monotonic_clock(sleep):
    before = clocks.utcnow()
    sleep(60)
    assert datetime.timedelta(seconds=60) <= clocks.utcnow() - before < HOUR


@pytest.mark.skipif(clocks._CLOCK is None, reason="there is no clock that goes on in suspensions")
def test_suspensions_are_measured_by_the_clock_that_goes_on(sleep):
    before = clocks.get_suspended_time()
    sleep(60, suspended=30)
    assert clocks.get_suspended_time() - before == pytest.approx(30, abs=0.2)


def test_a_restart_takes_the_wall_clock_as_it_is(set_clock):
    set_clock(HOUR)
    try:
        clocks.restart()
        assert clocks.get_shift() == clocks.NO_SHIFT
    finally:
        set_clock(clocks.NO_SHIFT)
        clocks.restart()


def test_the_monotonic_time_includes_suspensions_in_threads_without_a_loop(sleep):
    before = clocks.read_time()
    sleep(10, suspended=30)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        assert executor.submit(clocks.read_time).result() - before == pytest.approx(40, abs=0.3)
