"""
The protocol for inspecting a running operator: JSON over HTTP, with a token.

The protocol is read-only. The thread of the status server responds, so that it also responds when the event loop of the
operator is blocked. ``kopf top`` and the inspector use the protocol; the paths have a version, so that other tools can
rely on them. The responses contain only the last diffs of objects, and no diffs of Secrets. Specified in the
documentation's "Look into a running operator".
"""

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from kopf._core.engines import inspector_page
from kopf._core.engines.live_updates import Changes, LiveUpdates
from kopf._core.engines.status_server import Respond

if TYPE_CHECKING:
    from aiohttp import web

LOCAL_HOSTS = ('127.0.0.1', 'localhost', '[::1]')
"""The permitted hosts in the ``Host`` header. Web pages with names that resolve to this machine are refused."""

DEFAULT_LIMIT = 100
"""The maximal number of listed objects, unless the request has another limit."""

FILTERS = frozenset({'resource', 'namespace', 'name', 'state'})


class Inspection(Changes, Protocol):
    """The source of the facts about an operator. The status server calls the methods in its thread."""

    async def describe(self, limit: int) -> Mapping[str, Any]:
        """Return the current state of the operator, with at most this number of waiting objects."""

    def list_objects(self, filters: Mapping[str, str], limit: int) -> Mapping[str, Any]:
        """Return at most this number of objects, filtered by ``resource``, ``namespace``, ``name`` and ``state``."""

    async def describe_timeline(self, uid: str, after: int) -> Mapping[str, Any]:
        """Return the object, its running handlers, and its timeline after the entry with this number."""


class InspectionResponder:
    """
    Responds to local requests: with the files of the inspector's page, and with facts if the request has the token.

    Args:
        inspection: the source of the facts.
        token: the token that requests for facts must have in the ``Authorization`` header.
    """

    def __init__(self, inspection: Inspection, token: str) -> None:
        self._inspection = inspection
        self._token = token
        self._updates = LiveUpdates(inspection)

    def get_routes(self) -> dict[str, Respond]:
        """Return the routes of the protocol, and of the page."""
        routes = {
            '/v1/now': self._respond_now,
            '/v1/objects': self._respond_objects,
            '/v1/timeline': self._respond_timeline,
            '/v1/updates': self._respond_updates,
        }
        guarded = {path: self._guard(respond, needs_token=True) for path, respond in routes.items()}
        for path, type_, content in inspector_page.iter_files():
            guarded[path] = self._guard(inspector_page.make_response(content, type_), needs_token=False)
        return guarded

    async def close(self) -> None:
        """End the streams of updates."""
        await self._updates.close()

    def _guard(self, respond: Respond, *, needs_token: bool) -> Respond:
        async def respond_if_permitted(request: 'web.Request') -> 'web.StreamResponse':
            refusal = self._refuse(request, needs_token=needs_token)
            return await respond(request) if refusal is None else refusal

        return respond_if_permitted

    async def _respond_now(self, request: 'web.Request') -> 'web.StreamResponse':
        return _make_response(await self._inspection.describe(_get_number(request, 'limit', DEFAULT_LIMIT)))

    async def _respond_objects(self, request: 'web.Request') -> 'web.StreamResponse':
        filters = {name: value for name, value in request.query.items() if name != 'limit'}
        if unknown := sorted(filters.keys() - FILTERS):
            return _make_response({'error': f"There is no filter {unknown[0]!r}."}, status=400)
        return _make_response(self._inspection.list_objects(filters, _get_number(request, 'limit', DEFAULT_LIMIT)))

    async def _respond_timeline(self, request: 'web.Request') -> 'web.StreamResponse':
        uid = request.query.get('uid')
        if not uid:
            return _make_response({'error': "The uid of the object is missing."}, status=400)
        return _make_response(await self._inspection.describe_timeline(uid, _get_number(request, 'after', 0)))

    async def _respond_updates(self, request: 'web.Request') -> 'web.StreamResponse':
        from aiohttp import web

        if self._updates.is_full:
            return _make_response({'error': "Too many pages of the inspector are open."}, status=503)
        response = web.StreamResponse(headers=inspector_page.HEADERS | {'Content-Type': 'text/event-stream'})
        await response.prepare(request)
        await self._updates.send(response)
        return response

    def _refuse(self, request: 'web.Request', *, needs_token: bool) -> 'web.Response | None':
        """Return the error response if the request is not permitted; otherwise, ``None``."""
        host = request.host.rpartition(':')[0] if not request.host.endswith(']') else request.host
        if (host or request.host) not in LOCAL_HOSTS:
            return _make_response({'error': "Only local requests are permitted."}, status=403)
        given = request.headers.get('Authorization', '').removeprefix('Bearer ')
        if needs_token and not hmac.compare_digest(given.encode(errors='surrogateescape'), self._token.encode()):
            return _make_response({'error': "The token is missing or wrong."}, status=401)
        return None


def _get_number(request: 'web.Request', name: str, default: int) -> int:
    text = request.query.get(name, '')
    return int(text) if text.isdecimal() else default


def _make_response(content: Mapping[str, Any], status: int = 200) -> 'web.Response':
    from aiohttp import web

    return web.Response(
        status=status,
        body=orjson.dumps(content, default=str),
        content_type='application/json',
        headers=inspector_page.HEADERS,
    )
