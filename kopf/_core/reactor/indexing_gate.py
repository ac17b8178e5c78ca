"""
The gate that delays handlers until the indices that they can use are complete.

When an operator starts, all handlers wait for all indices. Later, only the handlers that can use an index wait for it.
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable

from kopf._cogs.aiokits.loops import end

logger = logging.getLogger(__name__)

REMINDER_INTERVAL = 30.0
"""How often the logs tell what the handlers wait for (in seconds)."""

EXIT_TIMEOUT = 2.0
"""For how long the indexing functions may take to end when they are cancelled (in seconds)."""


class AwaitedList:
    """A list that is to come, and the objects of it that are being indexed."""

    __slots__ = ('indices', 'initial', 'listing', 'objects', 'title')

    def __init__(self, title: str, indices: Collection[str]) -> None:
        self.title = title
        self.indices = indices
        self.initial = True
        """Whether all handlers wait for it, not only those that can use its indices."""
        self.listing = False
        self.objects = 0


class IndexingGate:
    """
    All the indexing that goes on in an operator, and the gate that is closed until the indices are complete.

    It counts: there are lists to come, and objects of them to be indexed. When the operator starts, all handlers wait
    for all of them, as the documentation promises. For resources and namespaces that come later, and for lists that
    fail, only those handlers wait that can use the indices: they name them, or read their kwargs. Handlers of the same
    resource wait together.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Are called each time when the gate opens for some of the handlers, or for all."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited: dict[Hashable, AwaitedList] = {}
        self._initial = 0  # how many of them keep all handlers waiting
        self._filling: collections.Counter[str] = collections.Counter()  # how many of them each index waits for
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        return not self._awaited

    def is_open(self, arguments: frozenset[str] | None) -> bool:
        """Check whether those handlers may run that can look at these arguments; ``None`` is for any arguments."""
        if not self._awaited:
            return True
        if self._initial or arguments is None:
            return False
        return arguments.isdisjoint(self._filling)

    def expect(self, key: Hashable, title: str, indices: Collection[str] = (), *, initial: bool = True) -> None:
        """
        Let handlers wait for a list, and for the objects of it.

        Args:
            key: by what the list is known.
            title: what it is called in the logs.
            indices: the names of the indices that are filled from it.
            initial: whether all handlers wait for it, or only those that can use these indices.
        """
        awaited = self._awaited.get(key)
        if awaited is None:
            awaited = self._awaited[key] = AwaitedList(title, indices)
            self._filling.update(awaited.indices)
        else:
            self._initial -= awaited.initial
        awaited.listing, awaited.initial = True, initial
        self._initial += initial
        if self._reminder is None:
            self._remind_later()

    def dismiss(self, key: Hashable) -> None:
        """Do not wait for the list any more: it is complete, or never will be."""
        if (awaited := self._awaited.get(key)) is not None and awaited.listing:
            awaited.listing = False
            self._check(key, awaited)

    def excuse(self, key: Hashable) -> bool:
        """Let only those handlers wait for the list that can use its indices; return whether others have waited."""
        awaited = self._awaited.get(key)
        if awaited is None or not awaited.initial:
            return False
        awaited.initial = False
        self._initial -= 1
        self._notify(not self._initial)
        return True

    def start(self, work: Coroutine[None, None, None], key: Hashable = None) -> None:
        """Let an object be indexed in the background; wait for that, too, if the list of this key is waited for."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        if (awaited := self._awaited.get(key)) is None:
            task.add_done_callback(self._end)
        else:
            awaited.objects += 1
            task.add_done_callback(functools.partial(self._end_counted, key, awaited))

    def _end_counted(self, key: Hashable, awaited: AwaitedList, task: asyncio.Task[None]) -> None:
        self._end(task)
        awaited.objects -= 1
        self._check(key, awaited)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _check(self, key: Hashable, awaited: AwaitedList) -> None:
        """Open the gate for those who have waited for this, unless they wait for something else."""
        if awaited.listing or awaited.objects:
            return
        del self._awaited[key]
        self._initial -= awaited.initial
        self._filling.subtract(awaited.indices)
        filled = [index for index in awaited.indices if not self._filling[index]]
        for index in filled:
            del self._filling[index]
        self._notify(bool(filled) or not self._awaited or (awaited.initial and not self._initial))

    def _notify(self, is_opening: bool) -> None:
        if not self._awaited:
            self._cancel_reminder()
        if is_opening and not self._closed:
            for listener in self.listeners:
                listener()

    async def close(self) -> None:
        """Stop all indexing; the indices stay as they are. Functions that do not stop in time are named and left."""
        self._closed = True
        self._cancel_reminder()
        self.failure.cancel()
        await end(list(self._tasks), timeout=EXIT_TIMEOUT, what="The functions of indices")

    def _remind_later(self) -> None:
        self._reminder = asyncio.get_running_loop().call_later(REMINDER_INTERVAL, self._remind)

    def _remind(self) -> None:
        titles = sorted(awaited.title for awaited in self._awaited.values() if awaited.listing)
        count = sum(awaited.objects for awaited in self._awaited.values())
        lists = f"the lists of {', '.join(titles)}" if titles else ''
        objects = f"{count} objects being indexed" if count else ''
        waiting = ' and '.join(filter(None, [lists, objects]))
        if self._initial:
            logger.warning("No handlers are run until all indices are complete; still waiting for: %s.", waiting)
        else:
            logger.warning(
                "The handlers that can use the indices %s are not run until these are complete; still waiting for: %s.",
                join_names(self._filling),
                waiting,
            )
        self._remind_later()

    def _cancel_reminder(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None


def join_names(names: Iterable[str]) -> str:
    """Name the indices in a log."""
    return ', '.join(map(repr, sorted(names))) or 'there'
