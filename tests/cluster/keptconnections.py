"""
Connections to a server that are kept between requests.

`urllib` opens one for each request: to agree on the keys of TLS takes ten times as long as to answer a request, on both
sides, which are one process when the server is the sandbox.
"""

import contextlib
import http.client
import ssl
import urllib.parse
import weakref
from collections.abc import Mapping
from email.message import Message
from typing import NamedTuple


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Message
    text: str


class KeptConnections:
    """
    The connections to one server; threads can use them at the same time.

    Args:
        server: the URL of the server.
        context: the options of TLS.
        proxy: the URL of the proxy to use, if any.
    """

    def __init__(self, server: str, context: ssl.SSLContext, proxy: str | None = None) -> None:
        self._server = urllib.parse.urlsplit(server)
        self._proxy = urllib.parse.urlsplit(proxy).netloc if proxy else None
        self._context = context
        self._idle: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Send a request; return the response, whatever its status is."""
        while True:
            is_kept, connection = bool(self._idle), self._idle.pop() if self._idle else self._open()
            try:
                connection.request(method, self._server.path + path, data, dict(headers))
                response = connection.getresponse()
                answer = Answer(response.status, response.headers, response.read().decode(errors="replace"))
            except (ConnectionError, ssl.SSLEOFError):
                connection.close()
                if not is_kept:
                    raise
                # The server has closed it since the last request, e.g. because it was started again.
            except BaseException:
                connection.close()
                raise
            else:
                self._idle.append(connection)  # http.client opens it again if the server has ended it
                return answer

    def _open(self) -> http.client.HTTPConnection:
        netloc = self._proxy or self._server.netloc
        if self._server.scheme != "https":
            return http.client.HTTPConnection(netloc, timeout=60)
        connection = http.client.HTTPSConnection(netloc, context=self._context, timeout=60)
        if self._proxy:
            connection.set_tunnel(self._server.netloc)
        return connection


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        with contextlib.suppress(OSError):
            connections.pop().close()
