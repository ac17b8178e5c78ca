"""
Telling the outside world that the operator lives: an HTTP server for the probes of Kubernetes.

The server has a thread and an event loop of its own: when the operator's loop is stuck, there must be somebody to say
so. The liveness endpoint runs the probe handlers and shows their results; it fails if some of them fail, and if the
operator does not do its work for long. The readiness endpoint tells if it has begun to. Every request is answered.
Specified in the documentation's "Probes".
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import orjson

from kopf._cogs.aiokits.loop_monitors import LoopMonitor, rouse
from kopf._cogs.aiokits.loops import end
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions.execution import Execution, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents.causes import Activity, ActivityCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)


class ProbesError(ExplainedError, OSError):
    """The endpoint of the probes can't be listened at; the text says why, and what to do about it."""


READINESS_PATH = '/readyz'
SLACK = 1.0
"""For how long the operator's loop may be late itself when it watches the time (in seconds)."""

EXIT_TIMEOUT = 2.0
"""For how long the probes may take to end when they are cancelled (in seconds)."""


class EndpointError(ValueError):
    """The URL of the endpoint makes no sense."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where to listen: on all interfaces if there is no host."""

    host: str | None
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """
        Read the URL, e.g. ``http://:8080/healthz``.

        :raises EndpointError: if it is not such a URL.
        """
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise EndpointError(f"Wrong port in the liveness endpoint {url!r}: {error}") from error
        if parts.scheme != 'http' or not parts.netloc:
            raise EndpointError(f"The liveness endpoint must be like http://0.0.0.0:8080/healthz, not {url!r}.")
        return cls(parts.hostname or None, 80 if port is None else port, parts.path or '/')


class Condition(Protocol):
    """The operator, as it is judged by the probes. It is asked in another thread."""

    def find_failures(self) -> Iterable[str]:
        """Give the reasons why the operator does not do its work for long."""

    def find_delays(self) -> Iterable[str]:
        """Give the reasons why the operator is not ready yet."""


class Finding(NamedTuple):
    """What one probe handler has returned, or why it has failed."""

    result: object = None
    failure: str | None = None


class Probes:
    """The probe handlers; their results are kept for a while, so that many requests do not make much work."""

    def __init__(
        self,
        handlers: Sequence[ActivityHandler],
        context: OperatorContext,
    ) -> None:
        self._handlers = handlers
        self._settings = context.settings
        self._cause = ActivityCause(
            activity=Activity.PROBE,
            settings=context.settings,
            memo=context.memo,
            indices=context.indices,
            logger=logging.getLogger(f'kopf.activities.{Activity.PROBE.value}'),
        )
        self._findings: dict[HandlerId, Finding] = {}
        self._expiry: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def collect(self) -> dict[HandlerId, Finding]:
        """
        Give the results, new or kept ones.

        :raises TimeoutError: if the handlers do not end in time; they go on, and the next call waits for them.
        """
        if self._task is None and (self._expiry is None or self._expiry <= time.monotonic()):
            self._task = asyncio.create_task(self._run(), name='probes')
        if self._task is not None:
            async with asyncio.timeout(self._settings.probing.timeout):
                await asyncio.shield(self._task)
        return self._findings

    async def _run(self) -> None:
        try:
            findings = await asyncio.gather(*map(self._probe, self._handlers))
            self._findings = {handler.id: finding for handler, finding in zip(self._handlers, findings, strict=True)}
            self._expiry = time.monotonic() + self._settings.probing.cache_lifetime
        finally:
            self._task = None

    async def _probe(self, handler: ActivityHandler) -> Finding:
        # Once: those who ask can't wait for the next attempt, and will ask again.
        execution = self._settings.execution
        rules = Execution(executor=execution.executor, default_backoff=self._settings.probing.cache_lifetime)
        state = HandlerState(started=utcnow())
        outcome = await run_handler(handler, self._cause, state, rules)
        finding = Finding(outcome.result, outcome.message)
        del outcome  # see `Outcome.without_exception`
        return finding

    async def close(self) -> None:
        """Stop the handlers that still run."""
        if self._task is not None:
            await end({self._task}, timeout=EXIT_TIMEOUT, what="The probes")


class ProbeServer:
    """
    The server of the probes; an async context manager.

    :param endpoint: where to listen.
    :param probes: what to show.
    :param condition: what to judge.
    :param monitor: who knows whether the operator's loop goes on.
    :param settings: the settings of the operator.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        probes: Probes,
        condition: Condition,
        monitor: LoopMonitor[Any],
        settings: OperatorSettings,
    ) -> None:
        self._endpoint = endpoint
        self._probes = probes
        self._condition = condition
        self._settings = settings
        self._monitor = monitor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._closing: Callable[[], object] = lambda: None
        self._closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.port = endpoint.port
        """The port where it listens in fact, also if the endpoint's is 0."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name='kopf-probes', daemon=True).start()
        try:
            self.port = await asyncio.wrap_future(self._listening)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing()
        await self._probes.close()
        await asyncio.wrap_future(self._closed)

    # In the thread of the server.

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._listening.done():
                self._listening.set_exception(error)
            else:
                logger.exception("The server of probes has failed: %s", error)
        finally:
            self._closed.set_result(None)

    async def _serve(self) -> None:
        from aiohttp import web

        loop, closing = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            with contextlib.suppress(RuntimeError):  # it is over already
                loop.call_soon_threadsafe(closing.set)

        self._closing = close
        app = web.Application()
        app.router.add_get(self._endpoint.path, self._answer_liveness)
        if self._endpoint.path != READINESS_PATH:
            app.router.add_get(READINESS_PATH, self._answer_readiness)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._endpoint.host, self._endpoint.port).start()
            except OSError as error:
                raise ProbesError(
                    error.errno,
                    f"The probes cannot be answered at {self._endpoint.host}:{self._endpoint.port}: {error.strerror}. "
                    f"Choose what is free on this machine for the liveness endpoint.",
                ) from None
            self._listening.set_result(runner.addresses[0][1])
            await closing.wait()
        finally:
            await runner.cleanup()

    async def _answer_liveness(self, request: 'web.Request') -> 'web.Response':
        reasons = list(self._find_reasons(self._condition.find_failures))
        findings: Mapping[HandlerId, Finding] = {}
        if not self._is_stuck():
            try:
                findings = await self._collect()
            except TimeoutError:
                reasons.append(f"The probes have not ended in {self._settings.probing.timeout:g} seconds.")
            except Exception as error:
                logger.exception("The probes could not be run: %r", error)
                reasons.append(f"The probes could not be run: {error!r}")
        reasons.extend(
            f"The probe {key!r} has failed: {finding.failure}"
            for key, finding in findings.items()
            if finding.failure is not None
        )
        results = {key: finding.result for key, finding in findings.items() if finding.result is not None}
        return make_response(results, reasons)

    async def _answer_readiness(self, request: 'web.Request') -> 'web.Response':
        return make_response({}, list(self._find_reasons(self._condition.find_delays)))

    async def _collect(self) -> Mapping[HandlerId, Finding]:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(self._probes.collect(), self._loop)
        # The operator's loop watches the time, unless it is stuck.
        async with asyncio.timeout(self._settings.probing.timeout + SLACK):
            return await asyncio.wrap_future(future)

    def _find_reasons(self, fn: Callable[[], Iterable[str]]) -> Iterable[str]:
        if self._is_stuck():
            culprit = self._monitor.culprit or "e.g. an async handler that makes synchronous calls"
            yield (
                f"The event loop of the operator is stuck for {self._monitor.silence:.0f} seconds: "
                f"something blocks it, {'namely ' if self._monitor.culprit else ''}{culprit}."
            )
        yield from fn()

    def _is_stuck(self) -> bool:
        limit = self._settings.probing.stuck_loop_limit
        rouse()  # for the next time
        return limit is not None and self._monitor.silence > limit


def make_response(results: Mapping[HandlerId, Any], reasons: Sequence[str]) -> 'web.Response':
    """Make the response: the results if everything is good, otherwise what is wrong, too."""
    from aiohttp import web

    content: Mapping[Any, Any] = {'reasons': reasons, 'probes': results} if reasons else results
    return web.Response(status=503 if reasons else 200, text=_encode(content), content_type='application/json')


def _encode(content: Mapping[Any, Any]) -> str:
    """The content as JSON, whatever the probes have returned: an operator is not ill of what they look like."""
    try:
        return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # e.g. integers above 64 bits, half characters, tuples as keys
        pass
    try:
        return json.dumps(content, default=str, skipkeys=True)
    except (ValueError, RecursionError):  # containers that contain themselves
        return json.dumps({key: str(value) for key, value in content.items()})
