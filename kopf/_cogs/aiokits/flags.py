"""
Flags of any make, awaited and raised from a coroutine.

Those who embed an operator signal to it with what they have: an event or a future, of asyncio or of threads.
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
    The mark of ready-flags that an operator raises only when it serves: when its webhooks and watches have begun.

    Others are raised as soon as the startup handlers have succeeded, as upstream does it, or when the operator ends.
    For tests that is too early: what they create first would miss the webhooks.
    """


async def wait_flag(flag: Flag) -> Any:
    """Wait until the flag is raised; return the result of a future."""
    match flag:
        case asyncio.Event():
            return await flag.wait()
        case asyncio.Future():
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
            if not flag.done():
                flag.set_result(None)
        case _:
            raise TypeError(f"A flag must be an event or a future, not {flag!r}.")


async def _wait_foreign(flag: concurrent.futures.Future[Any]) -> Any:
    # Neither wrapped nor shielded: giving up must not cancel the flag, and the flag can outlive the loop.
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

    # A thread of its own, and a daemon: it must hold neither a worker of the handlers nor the end of the process.
    threading.Thread(target=wait, name='kopf-flag', daemon=True).start()
    try:
        return await raised.wait()
    finally:
        abandoned.set()


def _call_in_loop(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed already: nobody waits
        loop.call_soon_threadsafe(fn)
