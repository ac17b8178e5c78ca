"""
Ending an event loop, and what runs in it: in time, and without anything that is lost by that.

Asyncio's own way waits for the cancelled tasks for as long as they take: one that swallows its cancellation would hang
the whole process. Here they are waited for a limited time, then named and left.
"""

import asyncio
import contextlib
import contextvars
import gc
import logging
import sys
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


async def outwait(tasks: Tasks, *, patience: float | None, timeout: float) -> None:
    """
    Wait until the tasks end by themselves; then cancel and name those that do not.

    :param patience: for how long (in seconds) to wait for them; `None` is forever.
    :param timeout: for how long (in seconds) to wait for them after they are cancelled.
    """
    if not tasks:
        return
    hung = set(tasks)
    try:
        _, hung = await asyncio.wait(tasks, timeout=patience)
    finally:
        if hung:
            logger.warning(
                "These tasks are left behind, and are cancelled: %s.", ', '.join(sorted(map(_describe, hung)))
            )
            await end(hung, timeout=timeout, what="The tasks that are left behind")


def find_tasks(var: contextvars.ContextVar[Any], value: object) -> set[asyncio.Task[Any]]:
    """Return the tasks that were created, at any depth, where the variable had this value; but not the current one."""
    tasks = asyncio.all_tasks() - {asyncio.current_task(), *_abandoned}
    return {task for task in tasks if _get_context(task).get(var) is value}


def _get_context(task: asyncio.Task[Any]) -> contextvars.Context:
    if sys.version_info >= (3, 12):
        return task.get_context()
    contexts = [each for each in gc.get_referents(task) if isinstance(each, contextvars.Context)]
    return contexts[0] if contexts else contextvars.Context()


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
