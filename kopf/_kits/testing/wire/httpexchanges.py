"""
What HTTP is about: whole requests come in, whole answers or streams go out.

It is what machines need of HTTP/1.1, no more. A web framework takes more time to be imported than the sandbox as a
whole, and for a request more than everything else that is done for it. See `httpconnections` for the order of things.
"""

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import httptools

if TYPE_CHECKING:
    from kopf._kits.testing.wire.httpconnections import Connection

Headers = Iterable[tuple[str, str]]


class Dropped(Exception):
    """The connection is to be broken off."""


class Response(NamedTuple):
    """An answer; its headers are those besides the length."""

    status: int
    body: bytes = b''
    headers: Headers = ()


class Request:
    """One request with its body; there is no body (None) if it is too large."""

    __slots__ = ('_connection', '_fields', '_headers', 'body', 'method', 'path', 'query_string', 'version')

    def __init__(
        self,
        connection: 'Connection',
        method: str,
        version: str,
        url: bytes,
        fields: list[tuple[bytes, bytes]],
    ) -> None:
        if not url.startswith((b'/', b'*')) and method != 'CONNECT':  # as proxies are asked
            parts = httptools.parse_url(url)
            url = (parts.path or b'/') + (b'?' + parts.query if parts.query else b'')
        path, _, self.query_string = url.decode('ascii', 'replace').partition('?')
        self.method = method
        self.version = version
        self.path = unquote(path) if '%' in path else path
        self.body: bytes | None = b''
        self._fields = fields
        self._headers: dict[str, str] | None = None
        self._connection = connection

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers by their names in lower case; those that are repeated come as lines."""
        if self._headers is None:
            self._headers = {}
            for name, value in self._fields:
                key, text = name.decode('latin-1').lower(), value.decode('utf-8', 'surrogateescape')
                self._headers[key] = f'{self._headers[key]}\n{text}' if key in self._headers else text
        return self._headers

    def get_header(self, name: bytes) -> str:
        """Give one header by its name in lower case, without making all of them; nothing if there is none."""
        length = len(name)
        for field, value in self._fields:
            if len(field) == length and field.lower() == name:
                return value.decode('utf-8', 'surrogateescape')
        return ''

    def get_sent_headers(self) -> dict[str, str]:
        """Give the headers by their names as they were sent; the first ones of those that are repeated."""
        return {
            name.decode('latin-1'): value.decode('utf-8', 'surrogateescape') for name, value in reversed(self._fields)
        }

    @property
    def query(self) -> dict[str, str]:
        """The parameters; the first ones of those that are repeated."""
        query: dict[str, str] = {}
        for name, value in parse_qsl(self.query_string, keep_blank_values=True):
            query.setdefault(name, value)
        return query

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get('content-type', 'application/octet-stream').partition(';')[0].strip().lower()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate, if it has shown one and it was verified."""
        return self._connection.get_extra_info('peercert') or None

    def stream(self, headers: Headers) -> 'Connection':
        """Begin an endless answer with the status 200; ConnectionError if there is nobody to hear it."""
        self._connection.begin_stream(headers, chunked=self.version != '1.0')
        return self._connection


Handler = Callable[[Request], Awaitable[Response | None]]
"""Gives the answer to a request, or None if it was a stream; raises `Dropped` to break off."""


def refuse(status: int, reason: str) -> Response:
    """Make the answer to what is no proper request."""
    return Response(status, f'{reason}\n'.encode(), [('Content-Type', 'text/plain; charset=utf-8')])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """
    What is served, and what is borne of clients.

    :param handle: answers the requests.
    :param refuse: makes the answers to what is no proper request: of the status and the reason.
    :param get_max_body: tells how large bodies may be at a path (bytes). Requests with larger ones come without them.
    :param max_head: how large the URL and the headers may be altogether (bytes).
    :param idle_timeout: how long to wait for the next request (seconds); None is forever, here and below.
    :param request_timeout: how long a request may take to come in (seconds).
    :param answer_timeout: how long the client may take for its next step in reading an answer (seconds).
    :param abandons: whether the handling of requests is cancelled if their clients are gone.
    """

    handle: Handler
    get_max_body: Callable[[str], int]
    refuse: Callable[[int, str], Response] = refuse
    max_head: int = 64 * 1024
    idle_timeout: float | None = None
    request_timeout: float | None = None
    answer_timeout: float | None = None
    abandons: bool = False


@functools.lru_cache(maxsize=256)
def format_head(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Make the head of an answer, but for the length and the end."""
    from http import HTTPStatus

    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # made up
        phrase = ''
    lines = [f'HTTP/1.1 {status} {phrase}', *(f'{name}: {value}' for name, value in headers), '']
    return '\r\n'.join(lines).encode('utf-8', 'surrogateescape')


@functools.lru_cache(maxsize=1)
def format_date(seconds: int) -> bytes:
    """Make the header with the date."""
    from email.utils import formatdate

    return b'Date: %b\r\n' % formatdate(seconds, usegmt=True).encode()
