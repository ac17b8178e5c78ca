"""
A reverse proxy between an operator and a real cluster, with the same faults on request as the sandbox.

The operator gets a kubeconfig with the address of the proxy and a token for the proxy only. Only the proxy has the
credentials for the cluster. It refuses writes outside of the namespace of the course. In the log of requests, it
replaces the name of this namespace by the one that plans use.
"""

import asyncio
import hmac
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict

from kopf._kits.checking.clusters import Cluster, explain_scope
from kopf._kits.testing.serving.faults import Controls, Fault, Faults, SeenRequest
from kopf._kits.testing.serving.routes import Place, locate
from kopf._kits.testing.serving.server import apply_fault
from kopf._kits.testing.wire.httpexchanges import Dropped
from kopf._kits.testing.wire.statuses import Refusal
from kopf._kits.testing.wire.tls import Authority

T = TypeVar('T')

HOST = '127.0.0.1'

READING = frozenset({'GET', 'HEAD', 'OPTIONS'})

QUESTIONS = frozenset(
    {
        'selfsubjectaccessreviews',
        'selfsubjectreviews',
        'selfsubjectrulesreviews',
        'subjectaccessreviews',
        'tokenreviews',
    }
)
"""The resources whose creation only asks the API a question, and changes nothing."""

_CONNECTION = {'connection', 'content-length', 'host', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade'}
"""The headers that concern one connection only, so they are not passed on."""


class ClusterProxy(Controls):
    """
    The proxy of one course; it listens while the context lasts.

    Args:
        cluster: the cluster; the proxy lives in its event loop.
        namespace: the namespace of the course.
        alias: its name in plans and reports.
        kubeconfig: the file to write for the operator.
    """

    def __init__(self, cluster: Cluster, namespace: str, alias: str, kubeconfig: Path) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._alias = alias
        self._kubeconfig = kubeconfig
        self._token = secrets.token_urlsafe(32)
        self._authority = Authority()
        self._changed = asyncio.Event()
        self._thread = 0
        self._stack = AsyncExitStack()
        self.faults = Faults(self)
        self.requests: list[SeenRequest] = []
        self.refused = ''
        """Why the proxy has refused a write of the operator; empty if it has refused none."""

    def __enter__(self) -> Self:
        port = self._cluster.run(self._open())
        self._kubeconfig.touch(mode=0o600)
        self._kubeconfig.write_bytes(self._make_kubeconfig(port))
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.run(self._stack.aclose())

    async def _open(self) -> int:
        self._thread = threading.get_ident()
        # When a client disconnects, its requests are cancelled, so that late requests of a killed operator have no
        # effect.
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        self._stack.push_async_callback(runner.cleanup)
        await runner.setup()
        context: ssl.SSLContext = self._authority.context()
        await web.TCPSite(runner, HOST, 0, ssl_context=context).start()
        return int(runner.addresses[0][1])

    def _make_kubeconfig(self, port: int) -> bytes:
        context = {'cluster': 'cluster', 'user': 'operator', 'namespace': self._namespace}
        authority = _encode(self._authority.certificate)
        cluster = {'server': f'https://{HOST}:{port}', 'certificate-authority-data': authority}
        config = {
            'apiVersion': 'v1',
            'kind': 'Config',
            'current-context': 'check',
            'clusters': [{'name': 'cluster', 'cluster': cluster}],
            'users': [{'name': 'operator', 'user': {'token': self._token}}],
            'contexts': [{'name': 'check', 'context': context}],
        }
        return orjson.dumps(config)

    # Controls for faults.

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the loop's thread and wait for it."""
        if threading.get_ident() == self._thread:
            return function()

        async def run() -> T:
            return function()

        return self._cluster.run(run())

    def wake(self) -> None:
        """Wake up all watches, so that they check the rules."""
        self._changed.set()
        self._changed = asyncio.Event()

    # Requests.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = SeenRequest(
            request.method,
            request.path.replace(f'/namespaces/{self._namespace}/', f'/namespaces/{self._alias}/'),
            dict(request.query),
            request.headers.get('User-Agent', ''),
            request.headers.get('Content-Type', ''),
        )
        try:
            response = await self._answer(request, seen)
        except Refusal as refusal:
            response = web.json_response(refusal.as_status(), status=refusal.code, headers=refusal.headers)
        except (Dropped, OSError, aiohttp.ClientError):
            seen.status = seen.status or 500
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # the request is not sent to the cluster
        seen.status = seen.status or response.status
        return response

    async def _answer(self, request: web.BaseRequest, seen: SeenRequest) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get('Authorization', ''), f'Bearer {self._token}'):
            raise Refusal(401, 'Unauthorized', 'Unauthorized')
        if request.path.startswith(('/api/', '/apis/')):
            self._understand(request, seen)
        seen.body = await request.content.read()  # request.read() limits the size
        self.requests.append(seen)
        if (rule := self.faults.take(seen)) is None:
            return await self._forward(request, seen)
        if rule.action == 'call' and rule.late:
            try:
                return await self._forward(request, seen)
            finally:  # refusals are answers, too
                await apply_fault(rule)
        if rule.action != 'lose':
            await apply_fault(rule)
            return await self._forward(request, seen)
        await self._forward(request, seen)
        raise Dropped

    def _understand(self, request: web.BaseRequest, seen: SeenRequest) -> None:
        """Note the kind, the object and the verb of the request; refuse a write outside of the course's namespace."""
        place = locate(request.method, request.rel_url.raw_path, seen.query)
        seen.verb = place.verb if place.plural else request.method.lower()
        seen.group, seen.version, seen.resource = place.group, place.version, place.plural
        seen.name, seen.subresource = place.name, place.subresource
        seen.namespace = self._alias if place.namespace == self._namespace else place.namespace
        is_write = request.method not in READING and place.plural and place.plural not in QUESTIONS
        if is_write and place.namespace != self._namespace:
            self.refused = self.refused or self._explain(request.method, place)
            raise Refusal(403, 'Forbidden', self.refused)

    def _explain(self, method: str, place: Place) -> str:
        if not place.namespace:
            return explain_scope(f'The operator writes to {place.plural} ({method}), which')
        return (
            f'The operator writes to {place.plural} in the namespace {place.namespace} ({method}), but each run on a '
            'cluster is confined to a namespace of its own, as it must not disturb others. Check this in the sandbox, '
            'without --cluster.'
        )

    async def _forward(self, request: web.BaseRequest, seen: SeenRequest) -> web.StreamResponse:
        """Send the request to the cluster, and pass its response on."""
        headers = [*_pass_on(request.headers.items(), {'authorization'})]
        async with await self._cluster.send(request.method, request.raw_path, headers, seen.body or None) as answer:
            passed = [*_pass_on(answer.headers.items(), set())]
            if answer.status == 200 and (seen.verb == 'watch' or 'follow' in seen.query):
                return await self._stream(request, seen, answer, passed)
            body = await answer.read()
            seen.status = answer.status
            return web.Response(status=answer.status, reason=answer.reason, body=body, headers=CIMultiDict(passed))

    async def _stream(
        self,
        request: web.BaseRequest,
        seen: SeenRequest,
        answer: aiohttp.ClientResponse,
        headers: list[tuple[str, str]],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=CIMultiDict(headers))
        await response.prepare(request)
        seen.status = answer.status
        await self._await_thaw(seen)
        async for data in answer.content.iter_any():
            await self._await_thaw(seen)
            await response.write(data)
        return response

    async def _await_thaw(self, seen: SeenRequest) -> None:
        """Wait while the watch is frozen: plans contain no other faults of watches."""
        while (rule := self.faults.take(seen, watching=True)) is not None:
            await self._await_end(rule)

    async def _await_end(self, rule: Fault) -> None:
        while self.faults.is_frozen(rule):
            await self._changed.wait()


def _pass_on(headers: Any, more: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the headers without those that concern one connection only, and without these ``more`` ones."""
    for name, value in headers:
        if name.lower() not in _CONNECTION | more and not name.lower().startswith(('proxy-', 'sec-')):
            yield name, value


def _encode(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()
