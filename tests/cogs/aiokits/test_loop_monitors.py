"""Event loops that stand still, as seen from aside."""

import asyncio
import threading
import time

import pytest

from kopf._cogs.aiokits import loop_monitors


class Inspector:
    def __init__(self, limit):
        self.limit = limit
        self.found, self.reports, self.reported = [], [], threading.Event()

    def get_limit(self):
        return self.limit

    def find(self, frame, task):
        self.found.append((frame.f_code.co_name, task))
        return frame.f_code.co_name

    def report(self, culprit, seconds, *, is_over):
        self.reports.append((culprit, seconds, is_over))
        self.reported.set()


@pytest.fixture(autouse=True)
def interval(monkeypatch):
    monkeypatch.setattr(loop_monitors, 'INTERVAL', 0.02)
    monkeypatch.setattr(loop_monitors, 'DOZE', 0.2)


def block(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


async def until(predicate):
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0.01)


async def test_who_blocks_is_reported_with_the_time():
    inspector = Inspector(0.1)
    async with loop_monitors.LoopMonitor(inspector) as monitor:
        while not inspector.found:  # once is enough, unless the machine is very slow
            await asyncio.sleep(0.05)
            block(0.5)
        await until(lambda: inspector.reports)
        assert monitor.culprit is None
    assert inspector.found == [('block', asyncio.current_task())]
    [(culprit, seconds, is_over)] = inspector.reports
    assert culprit == 'block' and is_over and seconds > 0.1


async def test_what_does_not_end_is_reported_in_the_middle(monkeypatch):
    monkeypatch.setattr(loop_monitors, 'PATIENCE', 2.0)
    inspector = Inspector(0.1)
    async with loop_monitors.LoopMonitor(inspector) as monitor:
        await asyncio.sleep(0.05)
        deadline = time.monotonic() + 60
        while not inspector.reports and time.monotonic() < deadline:
            pass
        assert monitor.silence >= 0.2
        assert monitor.culprit is not None
        await until(lambda: monitor.silence < 0.1)
    assert [is_over for _, _, is_over in inspector.reports] == [False]


async def test_loops_that_are_busy_or_idle_are_not_blocked():
    inspector = Inspector(0.5)

    async def work():
        block(0.008)

    async with loop_monitors.LoopMonitor(inspector):
        await asyncio.gather(*[work() for _ in range(100)])  # 0.8 s in one iteration of the loop
        await asyncio.sleep(0.3)
    assert inspector.found == []


async def test_blocking_callbacks_are_found_though_they_are_no_tasks():
    inspector = Inspector(0.1)
    async with loop_monitors.LoopMonitor(inspector):
        asyncio.get_running_loop().call_soon(block, 1.2)
        await until(lambda: inspector.reports)
    assert inspector.found == [('block', None)]


async def test_idle_loops_are_woken_up_rarely(monkeypatch):
    loop, questions = asyncio.get_running_loop(), []
    call_soon_threadsafe = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, 'call_soon_threadsafe', lambda fn: questions.append(fn) or call_soon_threadsafe(fn))
    async with loop_monitors.LoopMonitor(Inspector(0.1)):
        await asyncio.sleep(0.4)
    assert len(questions) <= 2  # of up to 20 looks


async def test_the_monitor_does_not_doze_off_when_a_task_has_just_begun(monkeypatch):
    monkeypatch.setattr(loop_monitors, 'DOZE', 99)
    async with loop_monitors.LoopMonitor(Inspector(None)) as monitor:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(monitor._doze()))
        thread.start()
        thread.join(5)  # blocks the loop, and has not roused the monitor
    assert answers == [True]


@pytest.mark.parametrize(
    'begin',
    [
        pytest.param(lambda: block(1.0), id='task'),
        pytest.param(lambda: asyncio.get_running_loop().call_soon(block, 1.0), id='callback'),
    ],
)
async def test_who_dozes_can_be_roused(monkeypatch, begin):
    monkeypatch.setattr(loop_monitors, 'DOZE', 99)
    inspector = Inspector(0.1)
    async with loop_monitors.LoopMonitor(inspector) as monitor:
        await until(lambda: monitor in loop_monitors._dozing)
        loop_monitors.rouse()
        begin()
        await until(lambda: inspector.reports)
    assert [culprit for culprit, _, _ in inspector.reports] == ['block']


async def test_no_limit_means_no_reports_but_the_silence_is_known():
    inspector = Inspector(None)
    async with loop_monitors.LoopMonitor(inspector) as monitor:
        await asyncio.sleep(0.05)
        block(0.3)
        assert monitor.silence > 0.1
    assert inspector.found == []


def test_the_thread_ends_with_the_loop():
    async def main():
        await loop_monitors.LoopMonitor(Inspector(0.1)).__aenter__()  # as if it was not closed

    asyncio.run(main())
    deadline = time.monotonic() + 60
    while any(thread.name == 'kopf-monitor' for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
