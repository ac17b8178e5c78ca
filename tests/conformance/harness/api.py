"""
A minimal client of the API server, and its audit log: with nothing but the standard library.
"""

import contextlib
import http.client
import json
import pathlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

MERGE_PATCH = 'application/merge-patch+json'


class ApiError(Exception):
    """An API response with an error status."""

    def __init__(self, status: int, body: Any) -> None:
        message = body.get('message', '')
        super().__init__(f'{status}: {message}')
        self.status, self.body, self.message = status, body, message


class Api:
    """A minimal JSON client of the API server, one connection per thread."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token, self.local = port, token, threading.local()
        self.context = ssl._create_unverified_context()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = 'application/json', ok: Iterable[int] = ()
    ) -> Any:
        """Return the decoded answer; raise `ApiError` for statuses from 400 that are not ``ok``."""
        headers = {'Authorization': f'Bearer {self.token}', 'Content-Type': content_type}
        payload = None if body is None else json.dumps(body)
        try:
            status, text = self._exchange(method, path, payload, headers)
        except (http.client.HTTPException, OSError):  # the server has closed a kept connection
            status, text = self._exchange(method, path, payload, headers)
        try:
            data = json.loads(text)
        except ValueError:
            data = {'kind': 'Status', 'message': text.decode(errors='replace')}
        if status >= 400 and status not in ok:
            raise ApiError(status, data)
        return data

    def _exchange(self, method: str, path: str, payload: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = getattr(self.local, 'connection', None)
        if connection is None:
            connection = self.local.connection = http.client.HTTPSConnection(
                '127.0.0.1', self.port, context=self.context, timeout=30
            )
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (http.client.HTTPException, OSError):
            connection.close()
            self.local.connection = None
            raise


class AuditLog:
    """Follows audit.log and sorts the requests by user."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.lock, self.rest = path, threading.Lock(), b''
        self.by_user: dict[str, list[dict[str, Any]]] = {}
        self.offset = path.stat().st_size if path.exists() else 0

    def of(self, user: str) -> list[dict[str, Any]]:
        """Return all requests of the user since the log is followed."""
        with self.lock:
            if self.path.exists():
                if self.path.stat().st_size < self.offset:
                    self.offset = 0
                with self.path.open('rb') as file:
                    file.seek(self.offset)
                    data = file.read()
                self.offset += len(data)
                *lines, self.rest = (self.rest + data).split(b'\n')
                for line in lines:
                    entry = json.loads(line)
                    self.by_user.setdefault(entry['user']['username'], []).append(entry)
            return list(self.by_user.get(user, ()))


def wait(predicate: Callable[[], Any], timeout: float, what: str) -> Any:
    """Poll until the predicate returns something true; return that."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(ApiError):
            value = predicate()
            if value:
                return value
        if time.monotonic() > deadline:
            raise TimeoutError(f'waited {timeout:g} s for {what}')
        time.sleep(0.05)


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return int(listener.getsockname()[1])
