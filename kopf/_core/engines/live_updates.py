"""
Live updates of the inspector: server-sent events about the objects that have changed since the last events.

There are at most four messages a second; all pages get the same ones. While no page is open, nothing is computed. If a
page reads too slowly, its queue is dropped to bound the memory, and a message makes the page request its state again.
The messages:

- ``state``: the page must request the list of objects, because it was opened just now or was too slow;
- ``objects``: the objects that have changed, and the uids of deleted ones, by resources;
- ``operator``: once a second, the facts about the operator that can be computed without iterating over all objects.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""The interval of checks for changed objects (in seconds)."""

CHECKS_PER_DESCRIPTION = 4
"""The number of checks after which the operator as a whole is described again."""

MAX_OBJECTS = 1000
"""The maximal number of objects in a message; the others are in the next messages."""

MAX_QUEUED = 16
"""The maximal number of messages that wait for a slow page."""

MAX_PAGES = 8
"""The maximal number of open pages."""


class Changes(Protocol):
    """The source of the updates: see `inspection.OperatorInspection`."""

    def follow(self) -> None:
        """Begin to record which objects change."""

    def unfollow(self) -> None:
        """Stop recording which objects change."""

    def take_changed(self, limit: int) -> Collection[str]:
        """Return the uids of some objects that have changed since the last call."""

    def get_known(self) -> Mapping[str, frozenset[str]]:
        """Return the uids of all objects by the names of their resources."""

    def describe_objects(self, uids: Collection[str]) -> list[dict[str, Any]]:
        """Return the objects with these uids, except for unknown ones."""

    async def describe_operator(self) -> Mapping[str, Any]:
        """Return the facts that can be computed without iterating over all objects."""


class LiveUpdates:
    """Sends the updates to all open pages, in the loop of the server."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._known: dict[str, set[str]] = {}
        self._pending: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Return whether no further page can be opened."""
        return len(self._pages) >= MAX_PAGES

    async def send(self, response: 'web.StreamResponse') -> None:
        """Send the updates to a page until the page or the server is closed."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED)
        queue.put_nowait(format_message('state', {}))
        self._pages.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name='inspector')
        try:
            while (message := await queue.get()) is not None:
                await response.write(message)
        except ConnectionError:
            pass  # the page is closed
        finally:
            self._pages.discard(queue)
            if not self._pages:
                await self._stop()

    async def close(self) -> None:
        """End all streams, as the server stops."""
        for queue in self._pages:
            _replace(queue, None)
        await self._stop()

    async def _stop(self) -> None:
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            self._changes.unfollow()  # before the `await`, because another page can be opened meanwhile
            await asyncio.wait({task})

    async def _run(self) -> None:
        try:
            await self._send_changes()
        except Exception:
            logger.exception("The inspector has failed; its pages are disconnected.")
            for queue in self._pages:
                _replace(queue, None)

    async def _send_changes(self) -> None:
        self._changes.follow()
        self._known = {name: set(uids) for name, uids in self._changes.get_known().items()}
        self._pending = set()
        number = 0
        while True:
            is_due = number % CHECKS_PER_DESCRIPTION == 0
            if is_due:
                self._publish('operator', await self._changes.describe_operator())
            self._publish_objects(compares=is_due)
            number += 1
            await asyncio.sleep(INTERVAL)

    def _publish_objects(self, *, compares: bool) -> None:
        """Send the changed objects; compare the uids, too, because objects at rest can appear and disappear."""
        gone: dict[str, list[str]] = {}
        if compares:
            known = self._changes.get_known()
            for name in [*known, *(self._known.keys() - known.keys())]:
                before, now = self._known.get(name, set()), known.get(name, frozenset())
                self._pending |= now - before
                if before - now:
                    gone[name] = list(before - now)
                self._known[name] = set(now)
        room = MAX_OBJECTS - len(self._pending)
        changed = {*self._changes.take_changed(room)} if room > 0 else set()
        uids = [*changed, *self._pending][:MAX_OBJECTS]
        self._pending.difference_update(uids)
        objects = self._changes.describe_objects(uids) if uids else []
        for each in objects:
            # Otherwise, the page would keep an object that appears and disappears between two comparisons.
            self._known.setdefault(each['resource'], set()).add(each['uid'])
        if objects or gone:
            self._publish('objects', {'objects': objects, 'gone': gone})

    def _publish(self, name: str, content: Mapping[str, Any]) -> None:
        message = format_message(name, content)
        for queue in self._pages:
            if queue.full():
                _replace(queue, format_message('state', {}))
            else:
                queue.put_nowait(message)


def _replace(queue: asyncio.Queue[bytes | None], message: bytes | None) -> None:
    """Replace all messages with this one."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(message)


def format_message(name: str, content: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b'event: %s\ndata: %s\n\n' % (name.encode(), orjson.dumps(content, default=str))
