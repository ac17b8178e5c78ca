"""
A blocking HTTP client: no more than the benchmark needs, so that it takes little of the processor.
"""

import json
import socket
import ssl
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any


class Client:
    """A blocking HTTP/1.1 keep-alive client: no more than the benchmark needs."""

    def __init__(self, base: str, cafile: str, token: str = '') -> None:
        self.url = urllib.parse.urlsplit(base)
        self.context = ssl.create_default_context(cafile=cafile)
        self.context.check_hostname = False
        self.head = f"Host: {self.url.netloc}\r\nAccept: application/json\r\nAuthorization: Bearer {token}\r\n"
        self.connect()

    def connect(self) -> None:
        raw = socket.create_connection((self.url.hostname, self.url.port), timeout=120)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = self.context.wrap_socket(raw, server_hostname=self.url.hostname)
        self.file = self.socket.makefile("rb", 1 << 16)

    def send(
        self, method: str, path: str, body: Any = None, kind: str = 'application/json'
    ) -> tuple[int, Iterator[bytes]]:
        """Send a request; return the status and an iterator over the pieces of the response's body."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self.head}Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + data)
            first = self.file.readline()
        except (ConnectionError, ssl.SSLError):
            first = b""
        if not first:  # the server closes connections that were idle for minutes
            self.connect()
            self.socket.sendall(head.encode() + data)
            first = self.file.readline()
        status = int(first.split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return status, self.pieces(headers)

    def pieces(self, headers: dict[bytes, bytes]) -> Iterator[bytes]:
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            while size := int(self.file.readline(), 16):
                yield self.file.read(size)
                self.file.readline()
            self.file.readline()
        else:
            yield self.file.read(int(headers.get(b"content-length", b"0")))

    def request(
        self, method: str, path: str, body: Any = None, kind: str = 'application/json', fine: Iterable[int] = ()
    ) -> tuple[int, bytes]:
        status, pieces = self.send(method, path, body, kind)
        data = b"".join(pieces)
        if status >= 400 and status not in fine:
            raise RuntimeError(f"{method} {path}: {status} {data[:300]!r}")
        return status, data

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path)[1])

    def watch(self, path: str, version: str) -> Iterator[bytes]:
        """The lines of a watch stream, unparsed."""
        status, pieces = self.send("GET", f"{path}?watch=true&resourceVersion={version}")
        if status != 200:
            raise RuntimeError(f"watch of {path}: {status}")
        rest = b""
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
