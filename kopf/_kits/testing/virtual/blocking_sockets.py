"""
Blocking sockets in virtual time: clients such as ``urllib``, ``requests``, and those that are built on them.

They run in threads, which take turns with the event loop. A socket of such a client is connected to one end of a pair
of real sockets; the other end belongs to a `Bridge`, which passes the bytes on to a connection in memory. Before the
client would block, its thread gives up its turn until the bridge has bytes for it. So requests of these clients take
the same virtual time, and come in the same order, in each run.

Why real sockets at all? The clients wrap them into files, set options, and poll them for lost connections.
"""

import asyncio
import contextlib
import contextvars
import os
import select
import socket
import weakref
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from kopf._kits.testing.virtual.memory_networks import Network
from kopf._kits.testing.virtual.outputs import output_var
from kopf._kits.testing.virtual.turns import TurnTaking, Waiter

T = TypeVar('T')

CHUNK = 32 * 1024
"""How many bytes are written at once: less than the buffers of the system hold, as a write must never block."""

IN_COROUTINE = (
    "A coroutine waits for a socket, and so blocks the event loop: call blocking clients in functions without async, "
    "or by asyncio.to_thread()."
)

IN_OWN_LOOP = (
    "A thread connects a non-blocking socket, as event loops do. In virtual time, there is only one event loop: use "
    "the client in coroutines, or use a blocking one, or run the test without virtual_time=True."
)


class World(Protocol):
    """The world, as blocking sockets need it."""

    turns: TurnTaking

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the coroutine is done."""

    def wait(self, waiter: Waiter, timeout: float | None) -> None:
        """Block the calling thread until the waiter is awake, or for the time (in seconds)."""

    def refuse(self, message: str) -> NoReturn:
        """Raise an error here, and raise it in the test, too."""


class Bridge(asyncio.Protocol):
    """
    The way between the socket of a client and a connection in memory.

    Args:
        end: the other end of the client's socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._transport: Any = None
        self._unsent = b''
        self.waiter: Waiter | None = None
        self.error: Exception | None = None
        """Why the connection is lost, if it is."""
        self.is_over = False
        """Whether the server sends nothing more."""

    # Called by the connection in memory.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to pass bytes on."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the client."""
        self._unsent += data
        self.flush()
        self._wake()

    def eof_received(self) -> None:
        """Let the client see the end of the stream."""
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the client see the end of the connection, or the error."""
        self.error = exc
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self.flush()
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.is_awake:
            self.waiter.release()

    # Called in the client's thread.

    def flush(self) -> None:
        """Pass on to the client as much as its buffer takes."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        if self.is_over and not self._unsent:
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_WR)

    def pump(self) -> None:
        """Pass the bytes of the client on to the server."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self._end.recv(CHUNK):
                self._transport.write(data)
            self._transport.write_eof()

    def close(self) -> None:
        """Pass on the remaining bytes, and close the connection."""
        self.pump()
        self._transport.close()
        self.release()

    def release(self) -> None:
        """Close the socket."""
        self._end.close()


class BlockingSockets:
    """
    All sockets of blocking clients in a world.

    Args:
        world: the world.
        network: the connections in memory.
    """

    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network
        self._bridges: weakref.WeakKeyDictionary[socket.socket, Bridge] = weakref.WeakKeyDictionary()
        self._all: weakref.WeakSet[Bridge] = weakref.WeakSet()

    def find(self, sock: socket.socket) -> Bridge | None:
        """Return the bridge of the socket, if it was connected here."""
        return self._bridges.get(sock)

    def connect(self, sock: socket.socket, host: str, port: int) -> None:
        """
        Connect the socket to a server in memory.

        Raises:
            ConnectionRefusedError: no server listens on the port.
        """
        timeout = sock.gettimeout()
        if timeout == 0:
            self._world.refuse(IN_OWN_LOOP)
        near, far = socket.socketpair()
        bridge = Bridge(far)
        with near:
            try:
                self._call(self._network.connect(lambda: bridge, host, port), timeout)
            except BaseException:
                bridge.release()
                raise
            os.dup2(near.fileno(), sock.fileno(), inheritable=False)
        sock.settimeout(timeout)  # the descriptor has other flags now
        self._bridges[sock] = bridge
        self._all.add(bridge)

    def await_data(self, sock: socket.socket, bridge: Bridge) -> None:
        """
        Wait until the socket can be read without blocking.

        Raises:
            TimeoutError: nothing has come within the time-out of the socket.
            ConnectionResetError: the connection is lost.
        """
        bridge.pump()
        bridge.flush()
        timeout = sock.gettimeout()
        until = None if timeout is None else self._world.loop.time() + timeout
        while not is_readable(sock):
            if bridge.error is not None:
                raise bridge.error
            if timeout == 0:
                return
            bridge.waiter = Waiter()
            self._wait(bridge.waiter, None if until is None else until - self._world.loop.time())
            if not bridge.waiter.is_released:
                raise TimeoutError('timed out')

    def forget(self, sock: socket.socket) -> None:
        """Close the connection of the socket."""
        bridge = self._bridges.pop(sock, None)
        if bridge is not None:
            bridge.close()

    def close(self) -> None:
        """Release the sockets that were not closed."""
        for bridge in list(self._all):
            bridge.release()

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run the coroutine in the event loop, as a part of the program that the calling thread belongs to."""
        world = self._world
        strand = world.turns.current
        if strand is None and not world.loop.is_running():
            return world.run(coroutine)
        if strand is None:
            coroutine.close()
            world.refuse(IN_COROUTINE)
        context = contextvars.copy_context()
        context.run(output_var.set, strand.owner)
        waiter = Waiter()
        task = world.loop.create_task(coroutine, context=context)
        task.add_done_callback(lambda _: None if waiter.is_awake else waiter.release(), context=context)
        self._wait(waiter, timeout)
        if not waiter.is_released:
            task.cancel()
            raise TimeoutError('timed out')
        return task.result()

    def _wait(self, waiter: Waiter, timeout: float | None) -> None:
        if self._world.turns.current is None and self._world.loop.is_running():
            self._world.refuse(IN_COROUTINE)
        self._world.wait(waiter, timeout)


def is_readable(sock: socket.socket) -> bool:
    """Check whether the socket has bytes, or the end of its stream."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
