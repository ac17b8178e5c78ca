"""
The protocol for looking into a running operator: JSON over HTTP, with a token.

It is read-only, and is served in the thread of the status server, so that a stuck operator responds, too. ``kopf top``
uses it; the paths have a version, so that other tools can rely on them. Nothing of the contents of objects is shown,
only their identity and their state. Specified in the documentation's "Look into a running operator".
"""

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from kopf._core.engines.status_server import Respond

if TYPE_CHECKING:
    from aiohttp import web

LOCAL_HOSTS = ('127.0.0.1', 'localhost', '[::1]')
"""The hosts that requests can name. Pages of other hosts in a browser must not reach the operator."""

DEFAULT_LIMIT = 100
"""How many objects are listed at most, unless the request has another limit."""


class Inspection(Protocol):
    """The facts about an operator. The methods are called in the thread of the server."""

    async def describe(self, limit: int) -> Mapping[str, Any]:
        """Return what the operator does now; at most so many objects that wait."""

    def list_objects(self, filters: Mapping[str, str], limit: int) -> Mapping[str, Any]:
        """Return the objects with these values of ``resource``, ``namespace``, ``name`` and ``state``."""


class InspectionResponder:
    """Responds to the requests with the token."""

    def __init__(self, inspection: Inspection, token: str) -> None:
        self._inspection = inspection
        self._token = token

    def get_routes(self) -> dict[str, Respond]:
        """Return the routes of the protocol."""
        return {'/v1/now': self._respond_now, '/v1/objects': self._respond_objects}

    async def _respond_now(self, request: 'web.Request') -> 'web.StreamResponse':
        if (refusal := self._refuse(request)) is not None:
            return refusal
        return _make_response(await self._inspection.describe(_get_limit(request)))

    async def _respond_objects(self, request: 'web.Request') -> 'web.StreamResponse':
        if (refusal := self._refuse(request)) is not None:
            return refusal
        filters = {name: value for name, value in request.query.items() if name != 'limit'}
        if unknown := sorted(filters.keys() - {'resource', 'namespace', 'name', 'state'}):
            return _make_response({'error': f"There is no filter {unknown[0]!r}."}, status=400)
        return _make_response(self._inspection.list_objects(filters, _get_limit(request)))

    def _refuse(self, request: 'web.Request') -> 'web.Response | None':
        """Return the response to a request that is not permitted."""
        host = request.host.rpartition(':')[0] if not request.host.endswith(']') else request.host
        if (host or request.host) not in LOCAL_HOSTS:
            return _make_response({'error': "Only local requests are permitted."}, status=403)
        given = request.headers.get('Authorization', '').removeprefix('Bearer ')
        if not hmac.compare_digest(given.encode(errors='surrogateescape'), self._token.encode()):
            return _make_response({'error': "The token is missing or wrong."}, status=401)
        return None


def _get_limit(request: 'web.Request') -> int:
    text = request.query.get('limit', '')
    return int(text) if text.isdecimal() else DEFAULT_LIMIT


def _make_response(content: Mapping[str, Any], status: int = 200) -> 'web.Response':
    from aiohttp import web

    return web.Response(status=status, body=orjson.dumps(content, default=str), content_type='application/json')
