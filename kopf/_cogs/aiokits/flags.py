"""
Flags of any type that coroutines can await and raise.

An application that embeds an operator can signal to it by any of these: an event or a future, of asyncio or of threads.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any

Flag = asyncio.Future[Any] | asyncio.Event | concurrent.futures.Future[Any] | threading.Event


class ServingFlag:
    """
    Marks a ready-flag that an operator raises only when it serves.

    Then, its watches have started, and its webhooks and conversions are registered. Other ready-flags are raised as
    soon as the startup handlers have succeeded, as in upstream, or when the operator ends. That is too early for tests:
    the first objects that they create would bypass the webhooks.
    """


class ServingEvent(ServingFlag, asyncio.Event):
    """Such a flag for coroutines."""


class ServingThreadEvent(ServingFlag, threading.Event):
    """Such a flag for threads."""


async def wait_flag(flag: Flag) -> Any:
    """Wait until the flag is raised; return the result of a future."""
    match flag:
        case asyncio.Event():
            return await flag.wait()
        case asyncio.Future():
            # The future belongs to the application: a cancelled wait must not cancel it.
            return await asyncio.shield(flag)
        case concurrent.futures.Future():
            return await _wait_foreign(flag)
        case threading.Event():
            return await _wait_in_thread(flag)
    raise TypeError(f"A flag must be an event or a future, not {flag!r}.")


def is_raised(flag: Flag) -> bool:
    """Check whether the flag is raised; from any thread."""
    return flag.is_set() if isinstance(flag, asyncio.Event | threading.Event) else flag.done()


async def raise_flag(flag: Flag) -> None:
    """Raise the flag; a flag that is raised already is left as it is."""
    match flag:
        case asyncio.Event() | threading.Event():
            flag.set()
        case asyncio.Future() | concurrent.futures.Future():
            # The application can have set or cancelled it, e.g. to stop waiting for it.
            if not flag.done():
                flag.set_result(None)
        case _:
            raise TypeError(f"A flag must be an event or a future, not {flag!r}.")


async def _wait_foreign(flag: concurrent.futures.Future[Any]) -> Any:
    # Why not simply asyncio.wrap_future()? Its cancellation would cancel the flag, and the flag can outlive the loop.
    loop, raised = asyncio.get_running_loop(), asyncio.Event()
    flag.add_done_callback(lambda _: _call_in_loop(loop, raised.set))
    await raised.wait()
    return flag.result()


async def _wait_in_thread(flag: threading.Event) -> bool:
    loop = asyncio.get_running_loop()
    raised, abandoned = asyncio.Event(), threading.Event()

    def wait() -> None:
        while not abandoned.is_set():
            if flag.wait(0.5):
                _call_in_loop(loop, raised.set)
                return

    # Why not simply run_in_executor()? It would occupy a thread of sync handlers and delay the exit of the process.
    threading.Thread(target=wait, name='kopf-flag', daemon=True).start()
    try:
        return await raised.wait()
    finally:
        abandoned.set()


def _call_in_loop(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed already, so no task waits for it
        loop.call_soon_threadsafe(fn)
