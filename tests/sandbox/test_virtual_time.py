"""Virtual time as users see it: whole operators against the sandbox, in the process of the test."""

import asyncio
import contextlib
import datetime
import logging
import os
import pathlib
import random
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import kopf
from kopf._cogs.helpers import clocks
from kopf.testing import Operator, OperatorFailed, Sandbox, VirtualTimeError, WaitTimeout

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
CRD = EXAMPLES / "crd.yaml"

virtual = pytest.mark.kopf_sandbox(virtual_time=True, crds=CRD)


@pytest.fixture
def write(tmp_path):
    """Write the handlers of an operator to a file; return its path."""

    def write(text, name="handlers.py"):
        path = tmp_path / name
        path.write_text("import kopf\n" + textwrap.dedent(text))
        return path

    return write


TIMER = """
    @kopf.timer('kopfexamples', interval=60)
    def tick(patch, status, **_):
        patch.status['ticks'] = status.get('ticks', 0) + 1
"""


@virtual
def test_an_hour_of_a_timer_takes_no_hour(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(3600)
        assert kopf_sandbox.get("kex", "x")["status"] == {"ticks": 60}
    assert operator.returncode == 0
    assert "Timer 'tick' succeeded" in operator.output


@virtual
def test_waiting_moves_the_clock_to_the_moment_when_the_state_is_there(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)):
        kopf_sandbox.create("kex", "x")
        started = time.time()
        kopf_sandbox.wait_for("kex", "x", lambda body: body["status"]["ticks"] == 11, timeout=1000)
        assert 600 <= time.time() - started < 601
        with pytest.raises(WaitTimeout, match="is not as expected after 50 s"):
            kopf_sandbox.wait_for("kex", "x", lambda body: body["status"]["ticks"] == 12, timeout=50)


@virtual
def test_clocks_of_handlers_and_tests_are_the_same(kopf_sandbox, kopf_operator, write):
    handlers = """
        import datetime
        import time

        @kopf.on.create('kopfexamples')
        def create_fn(patch, meta, **_):
            begun = time.monotonic()
            time.sleep(1000)
            patch.status['slept'] = round(time.monotonic() - begun)
            patch.status['now'] = datetime.datetime.now(datetime.UTC).isoformat()
            patch.status['unix'] = time.time()
    """
    with kopf_operator(write(handlers)):
        kopf_sandbox.create("kex", "x")
        before = time.monotonic()
        time.sleep(1001)
        assert 1001 <= time.monotonic() - before < 1002
        status = kopf_sandbox.get("kex", "x")["status"]
    now = datetime.datetime.fromisoformat(status["now"])
    assert status["slept"] == 1000
    assert now == datetime.datetime.fromtimestamp(status["unix"], datetime.UTC)
    assert datetime.timedelta(seconds=0.5) < datetime.datetime.now(datetime.UTC) - now < datetime.timedelta(seconds=3)
    assert now.year == 2030


@virtual
def test_delayed_retries_take_no_time(kopf_sandbox, kopf_operator, write):
    handlers = """
        @kopf.on.create('kopfexamples', backoff=600)
        async def create_fn(retry, **_):
            if retry < 5:
                raise Exception('not yet')
            return retry
    """
    with kopf_operator(write(handlers)):
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.wait_for("kex", "x", lambda body: body["status"]["create_fn"] == 5, timeout=3002)


@virtual
def test_daemons_wait_in_virtual_time(kopf_sandbox, kopf_operator, write):
    handlers = """
        @kopf.daemon('kopfexamples')
        def in_thread(stopped, **_):
            while not stopped.wait(100):
                print('in a thread')
            print('the thread has ended')

        @kopf.daemon('kopfexamples')
        async def in_loop(stopped, **_):
            while not await stopped.wait(100):
                print('in the loop')
            print('the task has ended')
    """
    with kopf_operator(write(handlers)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(1050)
        assert operator.output.count("in a thread") == operator.output.count("in the loop") == 10
        kopf_sandbox.delete("kex", "x")
        kopf_sandbox.wait_gone("kex", "x")
    assert "the thread has ended" in operator.output and "the task has ended" in operator.output


@virtual
def test_rest_comes_when_the_operator_writes_nothing_any_more(kopf_sandbox, kopf_operator, write):
    handlers = """
        @kopf.on.create('kopfexamples')
        def create_fn(retry, **_):
            if retry < 3:
                raise kopf.TemporaryError('not yet', delay=30)
    """
    with kopf_operator(write(handlers)) as operator:
        kopf_sandbox.create("kex", "x")
        started = time.monotonic()
        kopf_sandbox.rest(quiet=40)
        assert "1 succeeded" in operator.output
        assert 130 <= time.monotonic() - started < 132


@virtual
def test_operators_that_never_rest_are_explained(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)):
        kopf_sandbox.create("kex", "x")
        with pytest.raises(WaitTimeout) as caught:
            kopf_sandbox.rest(quiet=90, timeout=600)
    assert "do not come to rest: they have written something in the last 90 s of 600 s" in str(caught.value)
    assert str(caught.value).endswith("PATCH /apis/kopf.dev/v1/namespaces/default/kopfexamples/x: 200")
    assert "Timer 'tick' succeeded" in caught.value.logs[0]


@virtual
def test_handlers_can_be_those_of_the_test(kopf_sandbox, kopf_operator):
    registry, settings, seen = kopf.OperatorRegistry(), kopf.OperatorSettings(), []
    settings.posting.enabled = False

    @kopf.on.create("kopfexamples", registry=registry)
    def create_fn(name, logger, **_):
        logger.info("no Event is made of it")
        seen.append(name)

    with kopf_operator(registry=registry, settings=settings):
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.rest()
    assert seen == ["x"]
    assert kopf_sandbox.list("events") == []


@virtual
def test_two_operators_share_the_sandbox(kopf_sandbox, kopf_operator, write):
    first = kopf_operator(write("@kopf.on.event('kex')\ndef first(logger, **_): logger.info('the first')", "a.py"))
    second = kopf_operator(write("@kopf.on.event('kex')\ndef second(logger, **_): logger.info('the second')", "b.py"))
    with first, second:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.rest()
    assert "the first" in first.output and "the second" not in first.output
    assert "the second" in second.output and "the first" not in second.output


@virtual
def test_a_restarted_operator_goes_on(kopf_sandbox, kopf_operator, write):
    handlers = write("""
        @kopf.on.create('kopfexamples')
        def create_fn(retry, **_):
            if retry < 1:
                raise kopf.TemporaryError('not yet', delay=1000)

        @kopf.on.resume('kopfexamples')
        def resume_fn(**_):
            pass
    """)
    with kopf_operator(handlers):
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(500)
    with kopf_operator(handlers) as second:
        kopf_sandbox.advance(490)
        assert "'create_fn'" not in second.output
        kopf_sandbox.advance(20)
        assert "Handler 'create_fn' succeeded" in second.output


@virtual
def test_faults_work_as_in_real_time(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)):
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(90)
        kopf_sandbox.faults.refuse_connections(600)
        kopf_sandbox.advance(300)
        assert kopf_sandbox.get("kex", "x")["status"]["ticks"] == 2
        kopf_sandbox.advance(600)
        assert kopf_sandbox.get("kex", "x")["status"]["ticks"] > 2
        assert kopf_sandbox.faults.drop_watches() > 0
        kopf_sandbox.faults.error(500, times=2, verb="patch")
        kopf_sandbox.advance(300)
        assert [seen.status for seen in kopf_sandbox.requests if seen.verb == "patch"].count(500) == 2


@virtual
def test_webhooks_are_called_in_memory(kopf_sandbox, kopf_operator, write):
    handlers = """
        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
            settings.admission.managed = 'sizes.example.com'

        @kopf.on.validate('kopfexamples')
        def check_size(name, spec, **_):
            print(f'checks {name}')
            if spec.get('size', 0) > 10:
                raise kopf.AdmissionError("It is too large.", code=422)
    """
    with kopf_operator(write(handlers)) as operator:
        kopf_sandbox.create("kex", "small", spec={"size": 10})
        assert "checks small" in operator.output
        with pytest.raises(kopf.testing.Refusal, match="It is too large."):
            kopf_sandbox.create("kex", "large", spec={"size": 11})


@virtual
@pytest.mark.parametrize("keyword", ["async def", "def"])
def test_webhooks_can_apply_objects_while_many_patches_wait_for_them(kopf_sandbox, kopf_operator, write, keyword):
    handlers = f"""
        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
            settings.admission.managed = 'sizes.example.com'
            settings.networking.max_connections = 2

        @kopf.on.validate('kopfexamples', operations=['UPDATE'])
        {keyword} note(name, **_):
            applied = kopf.apply({{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {{'name': name}}}})
            {"await applied" if keyword == "async def" else ""}

        @kopf.on.create('kopfexamples')
        async def create(name, **_):
            print(f'creates {{name}}')
    """
    with kopf_operator(write(handlers)) as operator:
        for number in range(10):
            kopf_sandbox.create("kex", f"obj{number}")
        kopf_sandbox.advance(5)
        assert operator.output.count("creates obj") == 10
        assert len(kopf_sandbox.list("configmaps")) >= 10


@virtual
@pytest.mark.parametrize("options", [[], ["--namespace=def*"], ["--leader-election"], ["--shards=auto"]])
def test_webhooks_and_schedules_wait_for_their_indices(kopf_sandbox, kopf_operator, write, options):
    handlers = """
        import asyncio

        @kopf.on.startup()
        def configure(settings, **_):
            settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
            settings.admission.managed = 'sizes.example.com'
            settings.leadership.namespace = settings.sharding.namespace = 'default'

        @kopf.on.leading()
        async def lead(**_):
            await asyncio.sleep(3)

        @kopf.index('configmaps')
        def sizes(name, **_):
            return {name: 1}

        @kopf.on.validate('kopfexamples')
        def check(name, sizes, **_):
            print(f'{name} is checked with {len(sizes)} sizes')

        @kopf.on.validate('kopfexamples')
        def other(name, **_):
            print(f'{name} is checked without sizes')

        @kopf.on.schedule(interval=3600)
        def tick(sizes, **_):
            print(f'tick with {len(sizes)} sizes')
    """
    file = write(handlers)
    for name in "abc":
        kopf_sandbox.create("configmaps", name)
    for seconds in 4, 40:
        # The watch that streams the list is given up soon, and then the list is requested.
        kopf_sandbox.faults.delay(seconds, times=None, resource="configmaps")
        operator = kopf_operator(file, *options)
        operator.start()
        with contextlib.nullcontext() if seconds == 4 else pytest.raises(kopf.testing.Refusal, match="not complete"):
            kopf_sandbox.create("kex", f"x{seconds}")
        assert ("tick with" in operator.output) == (seconds == 4)
        operator.wait_for_output("tick with 3 sizes", timeout=600)
        kopf_sandbox.faults.clear()
        assert f"x{seconds} is checked without sizes" in operator.output
        assert "with 0 sizes" not in operator.output
        operator.stop()


@virtual
def test_operators_that_do_not_start_say_why(kopf_sandbox, kopf_operator, write):
    level = logging.getLogger().level
    with pytest.raises(OperatorFailed, match="exited with the code 1:\n(.*\n)*.*ZeroDivisionError"):
        kopf_operator(write("1 / 0")).start()
    with pytest.raises(OperatorFailed, match="exited with the code 2:\n(.*\n)*.*No such option"):
        kopf_operator(write(TIMER), "--nonsense").start()
    assert logging.getLogger().level == level
    failing = "@kopf.on.startup()\ndef start(**_): raise kopf.PermanentError('no way')"
    with pytest.raises(OperatorFailed, match="exited with the code 1:\n(.*\n)*.*no way"):
        kopf_operator(write(failing)).start()


# What is impossible in virtual time.


def check_refusal(kopf_sandbox, kopf_operator, path, message):
    with pytest.raises(VirtualTimeError, match=message), kopf_operator(path):
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(60)


@virtual
@pytest.mark.parametrize(
    "code, message",
    [
        (
            "socket.create_connection(('10.0.0.1', 1))",
            "A connection to 10.0.0.1:1 was attempted by a socket. In virt",
        ),
        ("socket.getaddrinfo('example.com', 443)", "The address of example.com was looked up. In virtual time, there"),
        (
            "lock.acquire() and lock.acquire(timeout=1)",
            r"The thread 'kopf-handlers-[0-9]+' has not come to an end .* \(.*handlers.py:10 in create_fn\)",
        ),
    ],
    ids=["socket", "name", "endless"],
)
def test_handlers_in_threads_are_told_what_is_impossible(
    kopf_sandbox, kopf_operator, write, monkeypatch, code, message
):
    monkeypatch.setattr("kopf._kits.testing.virtual.turns.PATIENCE", 0.2)
    path = write(f"""
        import _thread
        import socket

        lock = _thread.allocate_lock()

        @kopf.on.create('kopfexamples')
        def create_fn(**_):
            {code}
    """)
    check_refusal(kopf_sandbox, kopf_operator, path, message)


@virtual
@pytest.mark.parametrize(
    "code, message",
    [
        (
            "await asyncio.open_connection('example.com', 80)",
            "A connection to example.com:80 was attempted. In virtual",
        ),
        ("await asyncio.create_subprocess_shell('true')", "A subprocess was started. This is impossible in"),
        ("threading.Event().wait()", "A coroutine waits for a thread, and so blocks the event loop forever"),
        ("while True: await asyncio.sleep(0)", "The time does not go on: the loop has made 1000 steps without a wait"),
    ],
    ids=["connection", "process", "blocked", "endless"],
)
def test_coroutines_are_told_what_is_impossible(kopf_sandbox, kopf_operator, write, monkeypatch, code, message):
    monkeypatch.setattr("kopf._kits.testing.virtual.virtual_loops.MAX_ITERATIONS", 1000)
    path = write(f"""
        import asyncio
        import threading

        @kopf.on.create('kopfexamples')
        async def create_fn(**_):
            {code}
    """)
    check_refusal(kopf_sandbox, kopf_operator, path, message)


def test_there_is_one_world_at_a_time():
    with Sandbox(virtual_time=True), pytest.raises(VirtualTimeError, match="only one sandbox with virtual_time=True"):
        Sandbox(virtual_time=True).__enter__()


async def test_tests_with_virtual_time_are_no_coroutines():
    with pytest.raises(VirtualTimeError, match="write def instead of async def"):
        Sandbox(virtual_time=True).__enter__()
    with pytest.raises(VirtualTimeError, match="write def instead of async def"):
        async with Sandbox(virtual_time=True):
            pass


@virtual
def test_coroutines_are_run_in_the_loop_of_virtual_time(kopf_sandbox):
    async def main():
        await kopf_sandbox.aio.create("kex", "x", spec={"field": "value"})
        await asyncio.gather(*[asyncio.sleep(3600) for _ in range(3)])
        with pytest.raises(kopf.testing.Refusal, match="not found"):
            await kopf_sandbox.aio.get("kex", "y")
        return (await kopf_sandbox.aio.get("kex", "x"))["spec"]

    started = time.monotonic()
    assert kopf_sandbox.run(main()) == {"field": "value"}
    assert 3600 <= time.monotonic() - started < 3601


@virtual
def test_there_is_no_other_loop_for_asynchronous_calls(kopf_sandbox):
    with pytest.raises(VirtualTimeError, match="write def instead of async def"):
        asyncio.run(kopf_sandbox.aio.list("pods"))


def test_real_time_cannot_be_advanced(kopf_sandbox):
    with pytest.raises(RuntimeError, match=r"must be Sandbox\(virtual_time=True\)"):
        kopf_sandbox.advance(1)


def test_processes_take_neither_registries_nor_settings(kopf_sandbox, kopf_operator):
    with pytest.raises(TypeError, match="for operators in a sandbox with virtual_time=True only"):
        kopf_operator(registry=kopf.OperatorRegistry())


def test_real_time_is_back_afterwards():
    before = time.time(), random.getstate()
    threads = threading.active_count()
    with Sandbox(virtual_time=True) as sandbox:
        sandbox.advance(10**6)
    assert 0 <= time.time() - before[0] < 60
    assert datetime.datetime.now().year < 2030
    assert random.getstate() == before[1]
    assert threading.active_count() == threads
    assert clocks.get_shift() == clocks.NO_SHIFT and clocks.utcnow().year < 2030
    assert "virtual" not in repr([time.sleep, time.monotonic, threading.Thread.start, os.urandom])
    with Sandbox() as sandbox:
        sandbox.create("configmaps", "x")
    with pytest.raises(RuntimeError, match="not running any more"):
        sandbox.advance(1) if sandbox.simulation else sandbox.get("configmaps", "x")


# Determinism.

RUNS = int(os.environ.get("RUNS", "3"))
"""How often the plan is repeated: ``RUNS=100 pytest -k each_run tests/sandbox/test_virtual_time.py`` is thorough, as in .ci/run."""

BUSY = """
import asyncio
import random
import time
import uuid

@kopf.on.create('kopfexamples')
def in_thread(name, spec, retry, namespace, **_):
    time.sleep(random.random())
    if random.random() < 0.5:
        raise kopf.TemporaryError('not yet', delay=random.randint(1, 5))
    return str(uuid.uuid4())

@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
async def in_loop(body, **_):
    await asyncio.gather(*[asyncio.sleep(random.random()) for _ in range(3)])
    kopf.info(body, reason='Slept', message=str(random.random()))

@kopf.index('configmaps')
def by_name(name, **_):
    return {name: name}

@kopf.on.reconcile('kopfexamples', interval=100)
async def level(patch, name, by_name, **_):
    if random.random() < 0.6:
        raise Exception('backed off with a jitter')
    patch.status['level'] = [name, *by_name]

@kopf.timer('kopfexamples', interval=40, initial_delay=lambda **_: random.random())
def tick(patch, **_):
    patch.status['tick'] = random.random()

@kopf.daemon('kopfexamples', cancellation_timeout=1)
def daemon(stopped, logger, **_):
    while not stopped.wait(random.random() * 100):
        logger.info('%s', random.random())

@kopf.on.delete('kopfexamples')
def delete_fn(**_):
    time.sleep(random.random())
"""


def run_plan(path, seed=0):
    """Run a plan; return the log of its requests, and the output of the operator."""
    with Sandbox(virtual_time=True, crds=CRD, seed=seed) as sandbox:
        sandbox.faults.error(500, times=1, verb="patch")
        with Operator(sandbox, path, "--verbose") as operator:
            for number in range(3):
                sandbox.create("kex", f"x{number}", spec={"field": number})
            sandbox.advance(20)
            sandbox.patch("kex", "x1", {"spec": {"field": "changed"}})
            sandbox.faults.drop_watches()
            sandbox.faults.lose(times=1, verb="patch")
            sandbox.advance(20)
            sandbox.delete("kex", "x2")
            sandbox.advance(100)
    log = "\n".join(
        f"{seen.time!r} {seen.verb} {seen.path} {seen.query} {seen.body!r} {seen.status}" for seen in sandbox.requests
    )
    return log, operator.output


def test_the_same_plan_gives_the_same_requests_in_each_run(write):
    path = write(BUSY)
    log, output = run_plan(path)
    assert log.count("\n") > 40 and "Daemon 'daemon'" in output and "backed off" in output
    garbage = []
    for number in range(RUNS):
        garbage.append([object() for _ in range(number * 37)])  # objects get other addresses
        assert run_plan(path) == (log, output)


@pytest.mark.long
def test_another_seed_gives_another_order(write):
    path = write(BUSY)
    assert len({run_plan(path, seed)[0] for seed in range(3)}) == 3


@pytest.mark.long
def test_the_same_plan_gives_the_same_requests_in_each_process(write):
    code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import hashlib
import test_virtual_time
log, output = test_virtual_time.run_plan({str(write(BUSY))!r})
print(hashlib.sha256((log + output).encode()).hexdigest())
"""
    digests = set()
    for seed in ["0", "1"]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


# Kills.

CAREFUL = """
@kopf.on.create('kopfexamples')
def create_fn(name, patch, **_):
    patch.status['created'] = patch.status.get('created', 0) + 1

@kopf.on.update('kopfexamples', field='spec')
async def update_fn(spec, patch, **_):
    patch.status['seen'] = spec['field']

@kopf.daemon('kopfexamples')
def daemon(stopped, name, **_):
    stopped.wait()
    print('never said by the dead')

@kopf.on.delete('kopfexamples')
def delete_fn(**_):
    pass
"""


def run_with_kill(path, number=0, late=False):
    """Run a plan in which the operator is killed at its n-th change of the object; return the states in between."""
    states = []
    with Sandbox(virtual_time=True, crds=CRD) as sandbox:
        operators = [Operator(sandbox, path)]

        def rest():
            sandbox.rest()
            if operators[-1].returncode is not None:
                operators.append(Operator(sandbox, path))
                operators[-1].start()
                sandbox.rest()
            states.append([(body["spec"], body.get("status")) for body in sandbox.list("kex")])

        def count():
            counted.append(1)
            if len(counted) == number:
                operators[0].kill()

        counted = []
        operators[0].start()
        sandbox.faults.call(count, times=None, late=late, verb="patch")
        sandbox.create("kex", "x", spec={"field": 1})
        rest()
        sandbox.patch("kex", "x", {"spec": {"field": 2}})
        rest()
        sandbox.delete("kex", "x")
        rest()
        operators[-1].stop()
    return states, len(counted), [operator.output for operator in operators]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_operator_that_is_killed_at_any_request_comes_to_the_same_end(write, late):
    path = write(CAREFUL)
    reference, count, _ = run_with_kill(path)
    assert reference == [
        [({"field": 1}, {"created": 1})],
        [({"field": 2}, {"created": 1, "seen": 2})],
        [],
    ]
    assert count > 3
    for number in range(1, count + 1):
        states, _, (killed, _) = run_with_kill(path, number, late)
        assert states == reference
        assert "stopping" not in killed


@virtual
def test_nothing_of_a_killed_operator_goes_on(kopf_sandbox, kopf_operator, write):
    handlers = """
        import time

        @kopf.timer('kopfexamples', interval=10)
        async def tick(**_):
            print('ticks')

        @kopf.daemon('kopfexamples')
        def daemon(**_):
            while True:
                time.sleep(10)
                print('sleeps')
    """
    with kopf_operator(write(handlers)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(25)
        operator.kill()
        before, made = operator.output, len(kopf_sandbox.requests)
        assert "ticks" in before and "sleeps" in before
        kopf_sandbox.advance(1000)
    assert operator.output == before
    assert operator.returncode == -9
    assert len(kopf_sandbox.requests) == made


@virtual
@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_threads_of_the_event_loop_are_not_shared_by_operators(kopf_sandbox, kopf_operator, write, way):
    handlers = """
        import asyncio

        @kopf.on.event('kopfexamples')
        async def see(name, **_):
            print(await asyncio.to_thread(str.upper, f'{name} is seen'))
    """
    with kopf_operator(write(handlers)) as first:
        kopf_sandbox.create("kex", "x")
        first.wait_for_output("X IS SEEN")
        if way == "killed":
            first.kill()
        else:
            first._control.freeze(1000)
        with kopf_operator(write(handlers)) as second:
            second.wait_for_output("X IS SEEN")


@virtual
def test_a_suspended_operator_does_nothing_and_then_goes_on(kopf_sandbox, kopf_operator, write):
    handlers = """
        import time

        @kopf.timer('kopfexamples', interval=10)
        async def tick(**_):
            print('ticks')

        @kopf.daemon('kopfexamples')
        def daemon(stopped, **_):
            while not stopped:
                time.sleep(10)
                print('sleeps')
    """
    with kopf_operator(write(handlers)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(25)
        operator._control.freeze(100)
        before, made = operator.output, len(kopf_sandbox.requests)
        kopf_sandbox.patch("kex", "x", {"spec": {"field": 1}})
        kopf_sandbox.advance(99)
        assert operator.output == before and len(kopf_sandbox.requests) == made
        kopf_sandbox.advance(12)
        assert operator.output.count("ticks") > before.count("ticks")
        assert operator.output.count("sleeps") > before.count("sleeps")
    assert operator.returncode == 0


@virtual
def test_an_operator_that_is_suspended_twice_goes_on_after_the_later_end(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(25)
        for seconds in (50, 100, 10):
            operator._control.freeze(seconds)
            kopf_sandbox.advance(1)
        before = operator.output
        kopf_sandbox.advance(97)
        assert operator.output == before
        kopf_sandbox.advance(15)
        assert operator.output != before


@virtual
def test_a_suspended_operator_can_be_killed(kopf_sandbox, kopf_operator, write):
    with kopf_operator(write(TIMER)) as operator:
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.advance(25)
        operator._control.freeze(100)
        kopf_sandbox.advance(1)
        operator.kill()
        made = len(kopf_sandbox.requests)
        kopf_sandbox.advance(1000)
        assert len(kopf_sandbox.requests) == made


def test_the_end_of_the_sandbox_does_not_wait_for_killed_operators(write, caplog):
    with Sandbox(virtual_time=True, crds=CRD) as sandbox:
        with Operator(sandbox, write(TIMER)) as operator:
            sandbox.create("kex", "x")
            sandbox.faults.call(operator.kill, verb="patch")
            sandbox.advance(25)
            assert operator.returncode == -9
        clock, before = sandbox.simulation.clock, sandbox.simulation.clock.now
    assert clock.now < before + 5
    assert "are left" not in caplog.text


def test_processes_are_killed(kopf_sandbox, kopf_operator, write):
    kopf_sandbox.apply(CRD)
    with kopf_operator(write(TIMER)) as operator:
        kopf_sandbox.faults.call(operator.kill, verb="patch")
        kopf_sandbox.create("kex", "x")
        kopf_sandbox.wait_for("kex", "x", lambda _: operator.returncode is not None)
    assert operator.returncode == -9
