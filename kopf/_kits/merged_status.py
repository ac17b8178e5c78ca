"""
The probes and the metrics of several processes as if they were of one: see `supervising`.

Each process serves its own on a Unix socket. A probe succeeds if it succeeds in each process. The metrics get a label
``process`` with the number of the process.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kopf._cogs.structs.ids import HandlerId
from kopf._core.engines.metrics import load_prometheus
from kopf._core.engines.probing import READINESS_PATH, make_response
from kopf._core.engines.status_server import Respond
from kopf._core.reactor.status_runtime import ServerPlan, parse_liveness_endpoint, parse_metrics_endpoint

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

TIMEOUT = 30.0
"""How long a process may take to respond (in seconds); the processes have shorter timeouts of their own."""


@contextlib.asynccontextmanager
async def serve_merged(addresses: Sequence[str], *, liveness: str | None, metrics: str | None) -> AsyncIterator[None]:
    """
    Serve the merged endpoints while the context lasts.

    Args:
        addresses: the paths of the Unix sockets of the processes.
        liveness: the URL of the probes, if any.
        metrics: the URL of the metrics, if any.

    Raises:
        StatusServerError: if a server cannot listen, or if both endpoints are the same.
        MetricsError: if there can be no metrics.
    """
    plan = ServerPlan()
    if liveness is not None:
        endpoint = parse_liveness_endpoint(liveness)
        plan.add(endpoint, MergedProbes(addresses).get_routes(endpoint.path), "the probes")
    if metrics is not None:
        endpoint = parse_metrics_endpoint(metrics)
        plan.add(endpoint, MergedMetrics(addresses, load_prometheus()).get_routes(endpoint.path), "the metrics")
    async with contextlib.AsyncExitStack() as stack:
        await plan.start(stack)
        yield


async def _fetch_all(addresses: Iterable[str], request: 'web.Request') -> 'list[_Answer]':
    return await asyncio.gather(*(_fetch(address, request) for address in addresses))


class _Answer:
    """The response of one process, or the reason why there is none."""

    def __init__(self, response: 'aiohttp.ClientResponse | None' = None, text: str = '', reason: str = '') -> None:
        self.response = response
        self.text = text
        self.reason = reason


async def _fetch(address: str, request: 'web.Request') -> _Answer:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(address), timeout=timeout) as session,
            session.get(f'http://process{request.path_qs}') as response,
        ):
            return _Answer(response, await response.text())
    except TimeoutError:
        return _Answer(reason=f"does not respond within {TIMEOUT:g} seconds")
    except (aiohttp.ClientConnectionError, OSError):
        return _Answer()


class MergedProbes:
    """The probes of all processes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def get_routes(self, path: str) -> dict[str, Respond]:
        """Return the routes: for liveness at this path, for readiness at a fixed one."""
        return {READINESS_PATH: self._answer_readiness, path: self._answer_liveness}

    async def _answer_liveness(self, request: 'web.Request') -> 'web.Response':
        # The supervisor starts an absent process again. A restart of the whole pod would only end the others.
        return await self._answer(request, needs_all=False)

    async def _answer_readiness(self, request: 'web.Request') -> 'web.Response':
        return await self._answer(request, needs_all=True)

    async def _answer(self, request: 'web.Request', *, needs_all: bool) -> 'web.Response':
        import orjson

        results: dict[HandlerId, Any] = {}
        reasons: list[str] = []
        for number, answer in enumerate(await _fetch_all(self._addresses, request), 1):
            if answer.response is None:
                if answer.reason or needs_all:
                    reasons.append(f"The process {number} {answer.reason or 'is not running'}.")
                continue
            content = orjson.loads(answer.text)
            if answer.response.status >= 400:
                reasons.extend(f"Process {number}: {reason}" for reason in content.get('reasons', ['it has failed']))
                content = content.get('probes', {})
            results[HandlerId(str(number))] = content
        return make_response(results, reasons)


class MergedMetrics:
    """
    The metrics of all processes.

    Args:
        addresses: the paths of the Unix sockets of the processes.
        prometheus: the library.
    """

    def __init__(self, addresses: Sequence[str], prometheus: Any) -> None:
        self._addresses = addresses
        self._prometheus = prometheus

    def get_routes(self, path: str) -> dict[str, Respond]:
        """Return the routes: the metrics at this path."""
        return {path: self._respond}

    async def _respond(self, request: 'web.Request') -> 'web.StreamResponse':
        from aiohttp import web

        answers = await _fetch_all(self._addresses, request)
        texts = {
            number: answer.text
            for number, answer in enumerate(answers, 1)
            if answer.response is not None and answer.response.status < 400
        }
        if not texts:
            return web.Response(status=503, text="No process has metrics at the moment.\n")
        encode, content_type = self._prometheus.exposition.choose_encoder(request.headers.get('Accept', ''))
        response = web.Response(body=encode(_MergedRegistry(texts)), headers={'Content-Type': content_type})
        response.enable_compression()
        return response


class _MergedRegistry:
    """The families of metrics of all processes, as a registry of the library that can be encoded."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Any]:
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Any] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                samples = [
                    sample._replace(labels={**sample.labels, 'process': str(number)}) for sample in family.samples
                ]
                family.samples = []
                families.setdefault(family.name, family).samples.extend(samples)
        return families.values()
