"""
The responses to the liveness and readiness probes of Kubernetes.

The thread of the status server makes them, so that a stuck operator also responds: with a failure. The liveness
endpoint runs the probe handlers and returns their results. It fails if a handler fails, or if the operator has not
worked for long. The readiness endpoint succeeds when the operator has begun to work. Specified in the documentation's
"Answer liveness probes".
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from kopf._cogs.aiokits.loop_monitors import LoopMonitor, rouse
from kopf._cogs.aiokits.loops import end
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions.execution import run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState
from kopf._core.engines.status_server import Respond
from kopf._core.intents.causes import Activity, ActivityCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ActivityHandler

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)


READINESS_PATH = '/readyz'
TIMEOUT_MARGIN = 1.0
"""The time by which the server's loop waits longer for probe handlers than the operator's loop (in seconds)."""

EXIT_TIMEOUT = 2.0
"""How long the exiting operator waits for the cancelled probe handlers (in seconds)."""


class Condition(Protocol):
    """The health of the operator. The methods are called in the thread of the server."""

    def find_failures(self) -> Iterable[str]:
        """Return the reasons why the operator has not worked for long, so that it must be restarted."""

    def find_delays(self) -> Iterable[str]:
        """Return the reasons why the operator is not ready yet."""

    def find_warnings(self) -> Collection[str]:
        """Return the reasons why the operator works only in part, such as missing permissions."""


class ProbeResult(NamedTuple):
    """The result of one probe handler, or the reason of its failure."""

    result: object = None
    failure: str | None = None


class Probes:
    """The probe handlers with a cache of their results, so that frequent requests do not run them each time."""

    def __init__(
        self,
        handlers: Sequence[ActivityHandler],
        context: OperatorContext,
    ) -> None:
        self._handlers = handlers
        self._context, self._settings = context, context.settings
        self._cause = ActivityCause(
            activity=Activity.PROBE,
            settings=context.settings,
            memo=context.memo,
            indices=context.indices,
            logger=logging.getLogger(f'kopf.activities.{Activity.PROBE.value}'),
        )
        self._findings: dict[HandlerId, ProbeResult] = {}
        self._expiry: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def collect(self) -> dict[HandlerId, ProbeResult]:
        """
        Return the results, from the cache if they are recent.

        Raises:
            TimeoutError: if the handlers do not end in time. They continue, and the next call waits for them.
        """
        if self._closed:
            return self._findings
        if self._task is None and (self._expiry is None or self._expiry <= time.monotonic()):
            self._task = asyncio.create_task(self._run(), name='probes')
        if self._task is not None:
            async with asyncio.timeout(self._settings.probing.timeout):
                # Why shield them? The timeout of one request must not cancel the handlers: the next request waits for
                # them.
                await asyncio.shield(self._task)
        return self._findings

    async def _run(self) -> None:
        try:
            findings = await asyncio.gather(*map(self._probe, self._handlers))
            self._findings = {handler.id: finding for handler, finding in zip(self._handlers, findings, strict=True)}
            self._expiry = time.monotonic() + self._settings.probing.cache_lifetime
        finally:
            self._task = None

    async def _probe(self, handler: ActivityHandler) -> ProbeResult:
        # Why no retries? The kubelet does not wait for a retry, and sends the next request anyway.
        rules = self._context.make_rules(executor=self._context.probe_threads)
        rules = rules._replace(find_backoff=lambda: self._settings.probing.cache_lifetime)
        state = HandlerState(started=utcnow())
        outcome = await run_handler(handler, self._cause, state, rules)
        finding = ProbeResult(outcome.result, outcome.message)
        del outcome  # see `Outcome.without_exception`
        return finding

    async def close(self) -> None:
        """Cancel the running handlers, and run none any more."""
        self._closed = True
        if self._task is not None:
            await end({self._task}, timeout=EXIT_TIMEOUT, what="The probes")


class ProbeResponder:
    """
    Responds to the requests of Kubernetes, in the loop of the status server.

    Args:
        probes: the probe handlers.
        condition: the health of the operator.
        monitor: the monitor of the operator's event loop, which is the running loop now.
        settings: the settings of the operator.
    """

    def __init__(
        self,
        *,
        probes: Probes,
        condition: Condition,
        monitor: LoopMonitor[Any],
        settings: OperatorSettings,
    ) -> None:
        self._probes = probes
        self._condition = condition
        self._settings = settings
        self._monitor = monitor
        self._loop = asyncio.get_running_loop()

    def get_routes(self, path: str) -> dict[str, Respond]:
        """Return the routes: for liveness at this path, for readiness at a fixed one."""
        return {READINESS_PATH: self._answer_readiness, path: self._answer_liveness}

    async def _answer_liveness(self, request: 'web.Request') -> 'web.Response':
        reasons = list(self._find_reasons(self._condition.find_failures))
        findings: Mapping[HandlerId, ProbeResult] = {}
        # A stuck loop cannot run the handlers: without this check, the kubelet would time out before it gets a
        # response.
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
        # A response with warnings succeeds: an operator that can do a part of its work must get its webhooks' requests.
        warnings = self._condition.find_warnings()
        return make_response({}, list(self._find_reasons(self._condition.find_delays)), warnings)

    async def _collect(self) -> Mapping[HandlerId, ProbeResult]:
        future = asyncio.run_coroutine_threadsafe(self._probes.collect(), self._loop)
        # Normally, `collect` times out first. This timeout is for the case that the operator's loop becomes stuck.
        async with asyncio.timeout(self._settings.probing.timeout + TIMEOUT_MARGIN):
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
        rouse()  # the monitor sleeps when there is nothing to watch; the next request needs its measurements
        return limit is not None and self._monitor.silence > limit


def make_response(
    results: Mapping[HandlerId, Any], reasons: Sequence[str], warnings: Collection[str] = ()
) -> 'web.Response':
    """Return the response: the results of the handlers, the reasons of the failure if there are any, and warnings."""
    from aiohttp import web

    content: Mapping[Any, Any] = {'reasons': reasons, 'probes': results} if reasons else results
    if warnings:
        content = {**content, 'warnings': warnings}
    return web.Response(status=503 if reasons else 200, text=_encode(content), content_type='application/json')


def _encode(content: Mapping[Any, Any]) -> str:
    """Return the content as JSON. Results that JSON does not support are converted to strings."""
    try:
        return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # e.g. integers above 64 bits, half characters, tuples as keys
        pass
    try:
        return json.dumps(content, default=str, skipkeys=True)
    except (ValueError, RecursionError):  # containers that contain themselves
        return json.dumps({key: str(value) for key, value in content.items()})
