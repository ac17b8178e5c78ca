"""
Ending an event loop, and what runs in it: in time, and without anything that is lost by that.

Asyncio's own way waits for the cancelled tasks for as long as they take: one that swallows its cancellation would hang
the whole process. Here they are waited for a limited time, then named and left.
"""
import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine, Iterator
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar('T')
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


async def complete(coro: Coroutine[Any, Any, T], *, patience: float) -> T:
    """
    Await the coroutine; when cancelled, let it come to its end before that, but only if this does not take long.

    This is for requests that others are to follow: the server can carry out a request that nobody waits for any more,
    and later than the next one.

    :param patience: for how long (in seconds) to wait after the cancellation.
    """
    task = asyncio.create_task(coro)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=patience)
        raise
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def abandon(tasks: Tasks) -> None:
    """Let the tasks be what they are until the end of the process, without any more complaints about them."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # they are named already
    # Without a reference, they would be closed in the middle of something else.
    _abandoned.extend(tasks)


def _describe(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    return f"{task.get_name()} ({getattr(coro, '__qualname__', coro)})"
