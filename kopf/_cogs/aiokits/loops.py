"""
Ending an event loop, whatever still runs in it.

Asyncio's own way waits for the cancelled tasks for as long as they take: one that swallows its cancellation would hang
the whole process. Here they are waited for a limited time, then named and left.
"""
import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Any

logger = logging.getLogger(__name__)

Tasks = Collection[asyncio.Task[Any]]

_abandoned: list[asyncio.Task[Any]] = []


@contextlib.contextmanager
def finishing(loop: asyncio.AbstractEventLoop, *, timeout: float = 5.0) -> Iterator[asyncio.AbstractEventLoop]:
    """
    Give the new loop to be used, and close it in the end.

    :param timeout: for how long (in seconds) to wait for the tasks that are left after they are cancelled.
    """
    from kopf._cogs.aiokits.pools import DaemonicThreadPool
    loop.set_default_executor(DaemonicThreadPool())  # threads of users that hang must not keep the process either
    try:
        yield loop
    finally:
        try:
            loop.run_until_complete(_finish(timeout))
        finally:
            loop.close()


async def _finish(timeout: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task(), *_abandoned}
    for task in tasks:
        task.cancel()
    if tasks:
        _, hung = await asyncio.wait(tasks, timeout=timeout)
        if hung:
            logger.warning("Tasks do not end in time, and are left: %s.", ', '.join(sorted(map(_describe, hung))))
            abandon(hung)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().shutdown_asyncgens()


async def end(tasks: Tasks, *, timeout: float | None, what: str) -> None:
    """
    Cancel the tasks, and return when they have ended; but those that do not, are named and left.

    :param timeout: for how long (in seconds) to wait for them after they are cancelled; `None` is forever.
    :param what: how logs call those that are left.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, hung = await asyncio.wait(tasks, timeout=timeout)
    if hung:
        logger.warning("%s ignore their cancellation, and are left: %s.", what, ', '.join(sorted(map(_describe, hung))))
        abandon(hung)


def abandon(tasks: Tasks) -> None:
    """Let the tasks be what they are until the end of the process, without any more complaints about them."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they are named already
    # Without a reference, they would be closed in the middle of something else.
    _abandoned.extend(tasks)


def _describe(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    return f"{task.get_name()} ({getattr(coro, '__qualname__', coro)})"
