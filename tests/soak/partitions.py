"""A TCP proxy between one replica and the API, which can be cut, frozen, or slowed down: a network of its own."""

import asyncio
import contextlib
import threading
import time
from types import TracebackType
from typing import Self


class Link:
    """
    The link of one replica to the API, served in a thread.

    ``refused`` breaks off all connections, and refuses new ones; ``held`` keeps what comes from the replica, and passes
    it on when it is over: as a congested network does it.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._refusing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextlib.contextmanager
    def refused(self) -> 'contextlib.Generator[None]':  # type: ignore[name-defined]
        """Break off all connections, and refuse new ones."""
        self._refusing = True
        self._loop.call_soon_threadsafe(self._break)
        try:
            yield
        finally:
            self._refusing = False

    @contextlib.contextmanager
    def held(self) -> 'contextlib.Generator[None]':  # type: ignore[name-defined]
        """Keep all that comes from the replica until the end."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    async def _start(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, '127.0.0.1', 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        self._break()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _break(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        remote: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                return
            answers, remote = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, remote, held=True))
                group.create_task(self._copy(answers, writer, held=False))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass
        finally:
            for each in (writer, remote):
                if each is not None:
                    each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        # What was received is passed on even if its sender is gone by then: as a network does it.
        while data := await reader.read(65536):
            if held:
                await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        if held:
            await self._flowing.wait()
            await asyncio.sleep(1)
        raise ConnectionResetError


def sleep_until(moment: float) -> None:
    """Sleep until this monotonic time."""
    time.sleep(max(0.0, moment - time.monotonic()))
