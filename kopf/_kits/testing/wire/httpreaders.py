"""
Parsing of requests from the bytes of a connection, and refusals of malformed ones.

The library llhttp (httptools) parses the syntax. It buffers incomplete tokens without a limit, so this module limits
the sizes. The output is a queue, because clients may send more requests before the first one is answered (pipelining).
"""

from collections import deque
from typing import TYPE_CHECKING

import httptools

from kopf._kits.testing.wire.httpexchanges import Dropped, Request, Response, Service

if TYPE_CHECKING:
    from kopf._kits.testing.wire.httpconnections import Connection

_FRAMING = 8
"""How many bytes of framing are accepted per byte of content in a chunked body."""


class Reader:
    """
    The parser of the requests of one connection.

    Args:
        connection: The connection that the requests belong to.
        service: The limits.
    """

    def __init__(self, connection: 'Connection', service: Service) -> None:
        self.queue: deque[tuple[Request | Response, bool]] = deque()
        """The requests, or the refusals of malformed ones, each with whether other requests can follow it."""
        self.number = 0
        """How many requests have begun."""
        self.partial = False
        """Whether the last request is still incomplete."""
        self.awaited = False
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self.deaf = False
        """Whether all further bytes are ignored."""
        self.abrupt = False
        """Whether the client may still be sending when it gets the refusal."""
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
        """Parse the bytes received."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered like any other request, but as the last one
            request, _ = self.queue.pop()
            self.queue.append((request, False))
            self.deaf = self.abrupt = True
        except httptools.HttpParserError as error:
            if not self.deaf:  # otherwise, the exception is one of the callbacks below, which has stopped the parser
                self.refuse(400, f"The request is not HTTP: {error}")
        if self.partial and not self.deaf and self._received > self._service.max_head + self._size * _FRAMING:
            self.refuse(431, f"The headers are larger than {self._service.max_head} bytes.")

    def refuse(self, status: int, reason: str) -> None:
        """Queue a refusal, and ignore all further bytes."""
        self.queue.append((self._service.refuse(status, reason), False))
        self.deaf = self.abrupt = True

    def stop(self) -> None:
        """Ignore all further bytes, and drop the queue."""
        self.deaf = True
        self.queue.clear()

    def close(self) -> None:
        """Break the reference cycles of parser, requests and connection, so that they need no garbage collection."""
        self.stop()
        self._reset()
        del self._parser, self._connection

    # The parser calls these methods.

    def on_message_begin(self) -> None:
        self.number += 1
        self.partial = True
        self._received = 0  # do not count the received bytes in which a message begins, which are in memory anyway

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is None:  # ignore trailers after the body: they could override the headers
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
            raise Dropped  # this stops the parser, which passes the exception on
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
