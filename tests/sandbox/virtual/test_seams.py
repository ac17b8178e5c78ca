"""What the standard library does in virtual time."""

import _thread
import datetime
import os
import queue
import random
import secrets
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from time import time as imported_by_name

import pytest

from kopf._kits.testing.virtual.simulations import Simulation


@pytest.fixture
def simulation():
    simulation = Simulation(seed=7)
    simulation.open()
    yield simulation
    simulation.close()


def test_all_clocks_move_together(simulation):
    def read():
        return [
            time.time(),
            time.time_ns() / 10**9,
            time.monotonic() + 1893455000,
            time.monotonic_ns() / 10**9 + 1893455000,
            time.perf_counter() + 1893455000,
            time.clock_gettime(time.CLOCK_REALTIME),
            time.clock_gettime(time.CLOCK_MONOTONIC) + 1893455000,
            time.mktime(time.localtime()),
            time.mktime(time.strptime(time.ctime())),
            time.mktime(time.strptime(time.asctime())),
            time.mktime(time.strptime(time.strftime('%Y-%m-%d %H:%M:%S'), '%Y-%m-%d %H:%M:%S')),
            datetime.datetime.now().timestamp(),
            datetime.datetime.now(datetime.UTC).timestamp(),
            datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp(),
            datetime.datetime.today().timestamp(),
        ]

    assert read() == pytest.approx([1893456000] * 15, abs=1.0)
    time.sleep(86400)
    assert read() == pytest.approx([1893456000 + 86400] * 15, abs=1.0)
    time.sleep(0.123456789)
    assert time.clock_gettime_ns(time.CLOCK_REALTIME) == time.time_ns()
    assert time.gmtime()[:3] == (2030, 1, 2)
    assert datetime.date.today() == datetime.datetime.now().date()
    assert time.strftime('%Y', time.gmtime(0)) == '1970' and time.gmtime(0).tm_year == 1970


def test_dates_keep_their_types(simulation):
    class Own(datetime.datetime):
        pass

    assert type(datetime.datetime.now()) is datetime.datetime
    assert type(Own.now()) is Own and Own.now().year == 2030


def test_other_threads_keep_real_time(simulation):
    found = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def look():
        found.append((time.time(), datetime.datetime.now(), os.urandom(8)))
        ended.release()

    _thread.start_new_thread(look, ())  # past the seam
    assert ended.acquire(timeout=10)
    now, date, _ = found[0]
    assert abs(now - imported_by_name()) < 60
    assert date.year < 2030


def draw():
    return [
        random.random(),
        random.Random().random(),
        random.SystemRandom().random(),
        uuid.uuid4(),
        uuid.uuid1(),
        secrets.token_hex(),
        secrets.choice(range(10**9)),
        os.urandom(4),
    ]


def test_the_same_seed_gives_the_same_random_numbers():
    before = random.getstate()
    drawn = []
    for seed in [1, 1, 2]:
        simulation = Simulation(seed)
        simulation.open()
        random.seed()
        drawn.append(draw())
        simulation.close()
    assert drawn[0] == drawn[1]
    assert all(first != other for first, other in zip(drawn[0], drawn[2], strict=True) if type(first) is not uuid.UUID)
    assert random.getstate() == before
    assert draw() != draw()


def test_threads_run_one_at_a_time_and_between_two_waits(simulation):
    steps = []

    def work(name):
        for number in range(3):
            steps.append(f'{name} begins {number}')
            steps.append(f'{name} ends {number}')
            time.sleep(10)

    threads = [threading.Thread(target=work, args=(name,)) for name in 'ab']
    for thread in threads:
        thread.start()
    assert steps == []
    for thread in threads:
        thread.join()
    assert time.monotonic() == pytest.approx(1030, abs=1)
    assert len(steps) == 12
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert first.replace('begins', 'ends') == second


def test_threads_wait_for_each_other(simulation):
    inbox: queue.Queue[int] = queue.Queue()
    outbox: queue.SimpleQueue[int] = queue.SimpleQueue()
    ready, numbers = threading.Event(), []

    def multiply():
        ready.wait()
        while number := inbox.get():
            time.sleep(1)
            outbox.put(number * 2)

    thread = threading.Thread(target=multiply)
    thread.start()
    ready.set()
    for number in [1, 2, 3, 0]:
        inbox.put(number)
    numbers = [outbox.get() for _ in range(3)]
    thread.join()
    assert numbers == [2, 4, 6]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda number: time.sleep(number) or number, [3, 1, 2])) == [3, 1, 2]


def test_waits_expire_in_virtual_time(simulation):
    event, found = threading.Event(), []
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=100)
    assert not event.wait(1000)
    assert not threading.Semaphore(0).acquire(timeout=1000)
    assert time.monotonic() == pytest.approx(3100, abs=0.1)
    thread = threading.Thread(target=lambda: found.append(event.wait(50)))
    thread.start()
    thread.join(10)
    assert thread.is_alive() and found == []
    thread.join()
    assert found == [False]
    timer = threading.Timer(100, event.set)
    timer.start()
    assert event.wait(101)
    assert event.wait(0) is not True or event.is_set()


def test_waiting_threads_end_with_the_world():
    simulation, ended = Simulation(), []
    simulation.open()

    def work():
        try:
            threading.Event().wait()
        finally:
            ended.append(time.time())

    thread = threading.Thread(target=work)
    thread.start()
    simulation.advance(1)
    simulation.close()
    thread.join(10)
    assert not thread.is_alive() and len(ended) == 1


def test_temporary_files_can_be_made(simulation):
    with tempfile.NamedTemporaryFile() as file:
        assert os.path.exists(file.name)
