"""The endpoints of probes: the responses of a healthy operator, of a failing, and of a stuck one."""

import asyncio
import contextlib
import json
import logging
import threading
import time
import urllib.error
import urllib.request

import pytest

import kopf
from kopf._cogs.aiokits import loop_monitors
from kopf._core.engines.blocking import BlockingReporter
from kopf._core.engines.probing import ProbeResponder, Probes
from kopf._core.engines.status_server import Endpoint, StatusServer
from kopf._core.intents.causes import Activity
from kopf._core.intents.contexts import OperatorContext


class Condition:
    """An operator with problems."""

    def __init__(self):
        self.failures, self.delays, self.warnings = [], [], []

    def find_failures(self):
        return self.failures

    def find_delays(self):
        return self.delays

    def find_warnings(self):
        return self.warnings


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.type = response.headers.get_content_type()
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)


def ask_now(port, path='/healthz'):
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=60) as response:
            return Answer(response)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error)


async def ask(server, path='/healthz'):
    return await asyncio.to_thread(ask_now, server.port, path)


@pytest.fixture
def settings():
    return kopf.OperatorSettings()


@pytest.fixture
async def monitor(settings, monkeypatch):
    monkeypatch.setattr(loop_monitors, 'INTERVAL', 0.05)
    async with loop_monitors.LoopMonitor(BlockingReporter(settings)) as monitor:
        yield monitor


@pytest.fixture
def condition():
    return Condition()


@pytest.fixture
def serve(registry, settings, condition, monitor):
    @contextlib.asynccontextmanager
    async def serve(url='http://127.0.0.1:0/healthz'):
        context = OperatorContext(settings=settings, memo=kopf.Memo(x='y'))
        probes = Probes(registry.activities.get_handlers(Activity.PROBE), context)
        responder = ProbeResponder(condition=condition, settings=settings, probes=probes, monitor=monitor)
        endpoint = Endpoint.parse(url)
        async with StatusServer(
            endpoint.host, endpoint.port, responder.get_routes(endpoint.path), purpose="the probes"
        ) as server:
            yield server
            await probes.close()

    return serve


async def test_without_probes_the_operator_is_alive_with_an_empty_response(serve):
    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.type, answer.json) == (200, 'application/json', {})
        assert (await ask(server, '/other')).status == 404


async def test_results_of_probes_are_in_the_response(registry, serve):
    @kopf.on.probe(registry=registry, id='named')
    def named(**_):
        return {'nested': [1, None]}

    @kopf.on.probe(registry=registry, id='unnamed')
    async def unnamed(memo, **_):
        return memo.x

    @kopf.on.probe(registry=registry, id='silent')
    async def silent(**_):
        return None

    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (200, {'named': {'nested': [1, None]}, 'unnamed': 'y'})


async def test_results_of_any_type_are_shown(registry, serve):
    @kopf.on.probe(registry=registry, id='anything')
    async def anything(**_):
        return {1: complex(1, 2)}

    async with serve() as server:
        assert (await ask(server)).json == {'anything': {'1': '(1+2j)'}}


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    'result, shown',
    [
        (10**30, 10**30),
        ('\ud800', '\ud800'),
        ({(1, 2): 3, 'x': 1j}, {'x': '1j'}),
        (CYCLE, '[[...]]'),
    ],
    ids=['integer', 'surrogate', 'keys', 'cycle'],
)
async def test_results_that_json_hardly_knows_are_shown(registry, serve, result, shown):
    @kopf.on.probe(id='odd', registry=registry)
    def odd(**_):
        return result

    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (200, {'odd': shown})


@pytest.mark.parametrize('lifetime, count', [(1000, 1), (0, 3)])
async def test_results_are_kept_for_a_while(registry, settings, serve, lifetime, count):
    settings.probing.cache_lifetime = lifetime
    calls = []

    @kopf.on.probe(registry=registry, id='counter')
    async def counter(**_):
        calls.append(1)
        return len(calls)

    async with serve() as server:
        answers = [(await ask(server)).json for _ in range(3)]
    assert answers[-1] == {'counter': count}
    assert len(calls) == count


async def test_simultaneous_requests_share_the_results(registry, serve):
    started, go = asyncio.Event(), asyncio.Event()
    calls = []

    @kopf.on.probe(registry=registry, id='slow')
    async def slow(**_):
        calls.append(1)
        started.set()
        await go.wait()

    async with serve() as server:
        requests = [asyncio.create_task(ask(server)) for _ in range(3)]
        await started.wait()
        go.set()
        assert [answer.status for answer in await asyncio.gather(*requests)] == [200, 200, 200]
    assert len(calls) == 1


@pytest.mark.parametrize(
    'error', [kopf.TemporaryError("oops", delay=1000), kopf.PermanentError("oops"), Exception("oops")], ids=repr
)
async def test_failing_probes_are_answered(registry, serve, error):
    @kopf.on.probe(registry=registry, id='failing')
    async def failing(**_):
        raise error

    @kopf.on.probe(registry=registry, id='fine')
    async def fine(**_):
        return 1

    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (
            503,
            {'reasons': ["The probe 'failing' has failed: oops"], 'probes': {'fine': 1}},
        )


async def test_ignored_errors_of_probes_are_no_failures(registry, serve):
    @kopf.on.probe(registry=registry, id='failing', errors=kopf.ErrorsMode.IGNORED)
    async def failing(**_):
        raise ValueError("oops")

    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (200, {})


async def test_hanging_probes_are_answered(registry, settings, serve):
    settings.probing.timeout = 0.05

    @kopf.on.probe(registry=registry, id='hanging')
    async def hanging(**_):
        await asyncio.Event().wait()

    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (
            503,
            {'reasons': ["The probes have not ended in 0.05 seconds."], 'probes': {}},
        )


async def test_failures_of_the_operator_fail_the_liveness_but_not_the_readiness(condition, serve):
    condition.failures = ["It is broken."]
    async with serve() as server:
        answer = await ask(server)
        assert (answer.status, answer.json) == (503, {'reasons': ["It is broken."], 'probes': {}})
        assert (await ask(server, '/readyz')).status == 200


async def test_an_operator_that_is_not_ready_fails_the_readiness_but_not_the_liveness(condition, serve):
    condition.delays = ["It is not there yet."]
    async with serve() as server:
        answer = await ask(server, '/readyz')
        assert (answer.status, answer.json['reasons']) == (503, ["It is not there yet."])
        assert (await ask(server)).status == 200
        condition.delays = []
        assert (await ask(server, '/readyz')).status == 200


async def test_what_an_operator_lacks_is_in_the_response_and_does_not_fail_it(condition, serve):
    condition.warnings = ["It lacks something."]
    async with serve() as server:
        answer = await ask(server, '/readyz')
        assert (answer.status, answer.json) == (200, {'warnings': ["It lacks something."]})
        condition.delays = ["It is not there yet."]
        answer = await ask(server, '/readyz')
        assert (answer.status, answer.json['warnings']) == (503, ["It lacks something."])


@pytest.mark.parametrize('limit, status', [(0.1, 503), (None, 200)])
async def test_stuck_loop_is_reported_from_aside(settings, serve, monkeypatch, limit, status):
    settings.probing.stuck_loop_limit = limit
    settings.probing.timeout = 0.05
    settings.execution.blocking_limit = 0.1
    monkeypatch.setattr('kopf._core.engines.probing.TIMEOUT_MARGIN', 0.1)
    answers = []
    async with serve() as server:

        def check():
            time.sleep(0.5)
            answers.append(ask_now(server.port, '/readyz'))

        thread = threading.Thread(target=check)
        thread.start()
        thread.join()  # here the event loop is blocked
    assert [answer.status for answer in answers] == [status]
    if status == 503:
        assert "is stuck" in answers[0].json['reasons'][0]
        assert "test_probing.py, line" in answers[0].json['reasons'][0]


async def test_requests_are_in_the_access_log(serve, caplog):
    caplog.set_level(logging.INFO, logger='aiohttp.access')
    async with serve() as server:
        await ask(server)
    assert "GET /healthz" in caplog.text


async def test_no_probes_are_run_when_the_operator_is_ending(registry, settings):
    calls = []
    kopf.on.probe(registry=registry, id='probe')(lambda **_: calls.append(1))
    probes = Probes(registry.activities.get_handlers(Activity.PROBE), OperatorContext(settings=settings))
    await probes.close()
    assert await probes.collect() == {} and not calls


async def test_errors_are_freed_without_the_garbage_collector(registry, settings, failing):
    kopf.on.probe(registry=registry, id='failing')(failing.fn)
    probes = Probes(registry.activities.get_handlers(Activity.PROBE), OperatorContext(settings=settings))
    findings = await probes.collect()
    assert findings['failing'].failure == "boo"
    assert failing.errors and not failing.remaining


async def test_sync_probes_do_not_wait_for_the_threads_of_other_handlers(registry, settings):
    kopf.on.probe(registry=registry, id='probe')(lambda **_: 'alive')
    settings.execution.max_workers, release = 1, threading.Event()
    settings.execution.executor.submit(release.wait)
    probes = Probes(registry.activities.get_handlers(Activity.PROBE), OperatorContext(settings=settings))
    try:
        async with asyncio.timeout(10):
            findings = await probes.collect()
    finally:
        release.set()
    assert findings['probe'].result == 'alive'
