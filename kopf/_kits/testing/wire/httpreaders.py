"""
Making requests of the bytes that come over a connection, and refusing what are none.

The syntax is parsed by llhttp (httptools). It keeps what it has not understood yet for as long as it takes, so the
limits of size are here. What comes out is a queue, as clients may send more requests before the first is answered.
"""

from collections import deque
from typing import TYPE_CHECKING

import httptools

from kopf._kits.testing.wire.httpexchanges import Dropped, Request, Response, Service

if TYPE_CHECKING:
    from kopf._kits.testing.wire.httpconnections import Connection

_FRAMING = 8
"""How many bytes of syntax are borne for each byte of a body that comes in chunks."""


class Reader:
    """
    Reads the requests of one connection.

    :param connection: what the requests belong to.
    :param service: what is borne of clients.
    """

    def __init__(self, connection: 'Connection', service: Service) -> None:
        self.queue: deque[tuple[Request | Response, bool]] = deque()
        """The requests, or refusals in their place; each with whether others can follow."""
        self.number = 0
        """How many requests have begun to come in."""
        self.partial = False
        """Whether the last one of them has not come to its end."""
        self.awaited = False
        """Whether its client waits for permission to send the body."""
        self.deaf = False
        """Whether nothing that comes in is of interest any more."""
        self.abrupt = False
        """Whether the client may be in the middle of something, nevertheless."""
        self._connection = connection
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self._request: Request | None = None
        self._url = b''
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._max_size = self._size = self._received = 0

    def feed(self, data: bytes) -> None:
        """Take in what has come."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # the request is answered as any other; it is the last one of this syntax
            request, _ = self.queue.pop()
            self.queue.append((request, False))
            self.deaf = self.abrupt = True
        except httptools.HttpParserError as error:
            if not self.deaf:  # else it is our own
                self.refuse(400, f"The request is not HTTP: {error}")
        if self.partial and not self.deaf and self._received > self._service.max_head + self._size * _FRAMING:
            self.refuse(431, f"The headers are larger than {self._service.max_head} bytes.")

    def refuse(self, status: int, reason: str) -> None:
        """Take in nothing more."""
        self.queue.append((self._service.refuse(status, reason), False))
        self.deaf = self.abrupt = True

    def stop(self) -> None:
        """Take in nothing more, and forget what has come."""
        self.deaf = True
        self.queue.clear()

    def close(self) -> None:
        """Let nothing be left to the garbage collector: parsers and requests refer to where they belong."""
        self.stop()
        self._reset()
        del self._parser, self._connection

    # For the parser.

    def on_message_begin(self) -> None:
        self.number += 1
        self.partial = True
        self._received = 0  # all that comes with the first part is in memory anyway

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is None:  # what follows the body is of no interest, and could deceive
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        size, length, expects = len(self._url), 0, False
        for name, value in self._fields:
            size += len(name) + len(value)
            if len(name) == 14 and name.lower() == b'content-length':
                length = int(value)
            elif len(name) == 6 and name.lower() == b'expect':
                expects = value.lower() == b'100-continue'
        if size > self._service.max_head:
            self.refuse(431, f"The headers are larger than {self._service.max_head} bytes.")
            raise Dropped  # the parser has nothing more to do
        if (version := self._parser.get_http_version()) not in ('1.1', '1.0'):
            self.refuse(400, f"HTTP {version} is not served here.")
            raise Dropped
        self._request = Request(self._connection, self._parser.get_method().decode(), version, self._url, self._fields)
        self._max_size = self._service.get_max_body(self._request.path)
        if length > self._max_size:
            self._overflow(self._request)
        self.awaited = expects and version != '1.0'

    def on_body(self, body: bytes) -> None:
        assert self._request is not None
        self.awaited = False
        self._size += len(body)
        if self._size > self._max_size:
            self._overflow(self._request)
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        assert self._request is not None
        self._request.body = self._chunks[0] if len(self._chunks) == 1 else b''.join(self._chunks)
        keeps = self._parser.should_keep_alive()
        self.queue.append((self._request, keeps))
        self.deaf = not keeps
        self.partial = self.awaited = False
        self._reset()

    def _overflow(self, request: Request) -> None:
        request.body = None
        self.queue.append((request, False))
        self.deaf = self.abrupt = True
        raise Dropped
