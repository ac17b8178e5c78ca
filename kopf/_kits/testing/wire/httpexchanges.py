"""
Requests and responses of HTTP, and the service that handles them.

This is the small part of HTTP/1.1 that API clients need. Why not a web framework? Importing it would take longer than
importing the whole sandbox, and its share of a request would take longer than all other work for the request. See
`httpconnections` for the order of events.
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
    """Raised by a handler to break off the connection."""


class Response(NamedTuple):
    """A response; ``Content-Length`` is added to its headers when it is sent."""

    status: int
    body: bytes = b''
    headers: Headers = ()


class Request:
    """One request with its body; the body is None if it is too large."""

    __slots__ = ('_connection', '_fields', '_headers', 'body', 'method', 'path', 'query_string', 'version')

    def __init__(
        self,
        connection: 'Connection',
        method: str,
        version: str,
        url: bytes,
        fields: list[tuple[bytes, bytes]],
    ) -> None:
        if not url.startswith((b'/', b'*')) and method != 'CONNECT':  # the absolute form, as clients send it to proxies
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
        """The headers by their names in lower case; the values of repeated headers are joined by line breaks."""
        if self._headers is None:
            self._headers = {}
            for name, value in self._fields:
                key, text = name.decode('latin-1').lower(), value.decode('utf-8', 'surrogateescape')
                self._headers[key] = f'{self._headers[key]}\n{text}' if key in self._headers else text
        return self._headers

    def get_header(self, name: bytes) -> str:
        """Return one header by its lower-case name, without decoding the others; empty if it is absent."""
        length = len(name)
        for field, value in self._fields:
            if len(field) == length and field.lower() == name:
                return value.decode('utf-8', 'surrogateescape')
        return ''

    def get_sent_headers(self) -> dict[str, str]:
        """Return the headers by their names as sent; of repeated ones, the first."""
        return {
            name.decode('latin-1'): value.decode('utf-8', 'surrogateescape') for name, value in reversed(self._fields)
        }

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of repeated ones, the first."""
        query: dict[str, str] = {}
        for name, value in parse_qsl(self.query_string, keep_blank_values=True):
            query.setdefault(name, value)
        return query

    @property
    def content_type(self) -> str:
        """The media type of the body, without its parameters."""
        return self.headers.get('content-type', 'application/octet-stream').partition(';')[0].strip().lower()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's verified certificate, if it has presented one."""
        return self._connection.get_extra_info('peercert') or None

    def stream(self, headers: Headers) -> 'Connection':
        """
        Start a streaming response with the status 200.

        Raises:
            ConnectionError: The client has closed the connection.
        """
        self._connection.begin_stream(headers, chunked=self.version != '1.0')
        return self._connection


Handler = Callable[[Request], Awaitable[Response | None]]
"""Returns the response to a request, or None if it was streamed; raises `Dropped` to break off the connection."""


def refuse(status: int, reason: str) -> Response:
    """Return the response to a malformed request."""
    return Response(status, f'{reason}\n'.encode(), [('Content-Type', 'text/plain; charset=utf-8')])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """
    The handler of a server and its limits.

    Args:
        handle: The handler of requests.
        refuse: Creates the responses to malformed requests from a status and a reason.
        get_max_body: Returns the maximum size of a body at a path (bytes). Larger bodies are dropped: the request comes
            without one.
        max_head: The maximum size of the URL and the headers together (bytes).
        idle_timeout: How long to wait for the next request (seconds); None means forever, here and below.
        request_timeout: How long the client may take to send a request (seconds).
        answer_timeout: How long the client may take for its next step in reading a response (seconds).
        abandons: Whether the handling of a request is cancelled if its client disconnects.
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
    """Return the head of a response without its length and the final empty line."""
    from http import HTTPStatus

    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:  # not a registered status
        phrase = ''
    lines = [f'HTTP/1.1 {status} {phrase}', *(f'{name}: {value}' for name, value in headers), '']
    return '\r\n'.join(lines).encode('utf-8', 'surrogateescape')


@functools.lru_cache(maxsize=1)
def format_date(seconds: int) -> bytes:
    """Return the ``Date`` header."""
    from email.utils import formatdate

    return b'Date: %b\r\n' % formatdate(seconds, usegmt=True).encode()
