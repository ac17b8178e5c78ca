"""
Closing an event loop and its tasks within a limited time.

Why not simply `asyncio.run`? It waits for the cancelled tasks without a limit. One task that swallows its cancellation
would hang the whole process. Here the tasks get a limited time; then they are named in the log and abandoned.
"""

import asyncio
import contextlib
import contextvars
import gc
import logging
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar('T')
Tasks = Collection[asyncio.Task[Any]]

_abandoned: list[asyncio.Task[Any]] = []


@contextlib.contextmanager
def finishing(loop: asyncio.AbstractEventLoop, *, timeout: float = 5.0) -> Iterator[asyncio.AbstractEventLoop]:
    """
    Enter with a new loop; on exit, cancel its remaining tasks and close it.

    Args:
        loop: the new event loop.
        timeout: how long to wait for the remaining tasks after their cancellation (in seconds).
    """
    from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool

    loop.set_default_executor(DaemonicThreadPool())  # hung threads of users must not keep the process alive either
    try:
        yield loop
    finally:
        try:
            # Do this even after errors: otherwise, remaining tasks would be destroyed while pending.
            loop.run_until_complete(finish(timeout=timeout))
        finally:
            loop.close()


async def finish(*, timeout: float) -> None:
    """
    Cancel all other tasks of the loop, except for abandoned ones, and end its asynchronous generators.

    Args:
        timeout: how long to wait for the tasks after their cancellation (in seconds).
    """
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
    Cancel the tasks and wait until they end; tasks that do not end in time are named in the log and abandoned.

    Args:
        tasks: the tasks to cancel.
        timeout: how long to wait for the tasks after their cancellation (in seconds); ``None`` is forever.
        what: the name of the abandoned tasks in the log.
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
    Wait until the tasks end by themselves; cancel the tasks that do not, and name them in the log.

    Args:
        tasks: the tasks to wait for.
        patience: how long to wait before the cancellation (in seconds); ``None`` is forever.
        timeout: how long to wait after the cancellation (in seconds).
    """
    if not tasks:
        return
    hung = set(tasks)
    try:
        # If the caller is cancelled here, all tasks still count as hung, so they are cancelled below.
        _, hung = await asyncio.wait(tasks, timeout=patience)
    finally:
        if hung:
            logger.warning(
                "These tasks are left behind, and are cancelled: %s.", ', '.join(sorted(map(_describe, hung)))
            )
            await end(hung, timeout=timeout, what="The tasks that are left behind")


def find_tasks(var: contextvars.ContextVar[Any], value: object) -> set[asyncio.Task[Any]]:
    """Return the tasks whose context has this value of the variable, inherited at any depth; except the current one."""
    tasks = asyncio.all_tasks() - {asyncio.current_task(), *_abandoned}
    return {task for task in tasks if get_context(task).get(var) is value}


def get_context(task: asyncio.Task[Any]) -> contextvars.Context:
    """Return the context of the task."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    # Tasks of Python 3.11 do not reveal their context, but the garbage collector knows what they refer to.
    contexts = [each for each in gc.get_referents(task) if isinstance(each, contextvars.Context)]
    return contexts[0] if contexts else contextvars.Context()


async def complete(coro: Coroutine[Any, Any, T], *, patience: float) -> T:
    """
    Await the coroutine; if the caller is cancelled, let the coroutine end first, but only for a limited time.

    This is for requests that are followed by other requests: the server could execute an abandoned request after the
    next one.

    Args:
        coro: the coroutine to complete, e.g. a request.
        patience: how long the coroutine may run after the cancellation (in seconds).
    """
    task = asyncio.create_task(coro)
    try:
        # The shield keeps the task from the first cancellation of the caller; the second one ends it below.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=patience)
        if task.done() and not task.cancelled():
            task.exception()  # retrieve it, because asyncio would log it otherwise
        raise
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def make_threadsafe(fn: Callable[[], object]) -> Callable[[], None]:
    """
    Return a function that can be called in any thread, and calls the given one in the current event loop.

    If the loop is closed, the call does nothing: the caller cannot know that the loop is closed.
    """
    loop = asyncio.get_running_loop()

    def call_soon() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(fn)

    return call_soon


def abandon(tasks: Tasks) -> None:
    """Keep the tasks until the end of the process, without further warnings about them."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the log names them already
    # Without a reference, the garbage collector would close their coroutines in the middle of other code.
    _abandoned.extend(tasks)


def _describe(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    return f"{task.get_name()} ({getattr(coro, '__qualname__', coro)})"
