"""
Sockets of blocking clients in virtual time, such as ``urllib``, ``requests``, and clients that use these.

Such clients run in threads, which take turns with the event loop. The socket of a client is replaced by one end of a
pair of real sockets. The other end belongs to a `Bridge`, which passes the bytes on to a connection in memory. Before
the client would block, its thread ends its turn until the bridge has bytes for it. So requests of these clients take
the same virtual time, and have the same order, in each run.

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
"""How many bytes are written at once: fewer than the buffers of the system can hold, as a write must never block."""

IN_COROUTINE = (
    "A coroutine waits for a socket, and so blocks the event loop: call blocking clients in functions without async, "
    "or by asyncio.to_thread()."
)

IN_OWN_LOOP = (
    "A thread connects a non-blocking socket, as event loops do. In virtual time, there is only one event loop: use "
    "the client in coroutines, or use a blocking one, or run the test without virtual_time=True."
)


class Simulation(Protocol):
    """The operations of the simulation that blocking sockets need."""

    turns: TurnTaking

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the coroutine is done."""

    def wait(self, waiter: Waiter, timeout: float | None) -> None:
        """Block the calling thread until the waiter is awake, or for the time (in seconds)."""

    def refuse(self, message: str) -> NoReturn:
        """Raise an error in the caller and also in the test."""


class Bridge(asyncio.Protocol):
    """
    Passes bytes between the socket of a client and a connection in memory.

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
        """The error that has ended the connection, if any."""
        self.is_over = False
        """Whether the server has closed its direction of the connection."""

    # The connection in memory calls these methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to pass bytes on."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the client."""
        self._unsent += data
        self.flush()
        self._wake()

    def eof_received(self) -> None:
        """End the stream for the client, too."""
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the connection, or its error, on to the client."""
        self.error = exc
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self.flush()
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.is_awake:
            self.waiter.release()

    # The replaced methods of sockets call these methods in the client's thread.

    def flush(self) -> None:
        """Pass on to the client as many bytes as its buffer takes."""
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
    All sockets of blocking clients in a simulation.

    Args:
        simulation: the simulation.
        network: the connections in memory.
    """

    def __init__(self, simulation: Simulation, network: Network) -> None:
        self._simulation = simulation
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
            self._simulation.refuse(IN_OWN_LOOP)
        near, far = socket.socketpair()
        bridge = Bridge(far)
        with near:
            try:
                self._call(self._network.connect(lambda: bridge, host, port), timeout)
            except BaseException:
                bridge.release()
                raise
            os.dup2(near.fileno(), sock.fileno(), inheritable=False)
        sock.settimeout(timeout)  # restore the flags that belong to the descriptor
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
        until = None if timeout is None else self._simulation.loop.time() + timeout
        while not is_readable(sock):
            if bridge.error is not None:
                raise bridge.error
            if timeout == 0:
                return
            bridge.waiter = Waiter()
            self._wait(bridge.waiter, None if until is None else until - self._simulation.loop.time())
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
        """Run the coroutine in the event loop, in the context of the calling thread."""
        simulation = self._simulation
        strand = simulation.turns.current
        if strand is None and not simulation.loop.is_running():
            return simulation.run(coroutine)
        if strand is None:
            coroutine.close()
            simulation.refuse(IN_COROUTINE)
        context = contextvars.copy_context()
        context.run(output_var.set, strand.owner)
        waiter = Waiter()
        task = simulation.loop.create_task(coroutine, context=context)
        task.add_done_callback(lambda _: None if waiter.is_awake else waiter.release(), context=context)
        self._wait(waiter, timeout)
        if not waiter.is_released:
            task.cancel()
            raise TimeoutError('timed out')
        return task.result()

    def _wait(self, waiter: Waiter, timeout: float | None) -> None:
        if self._simulation.turns.current is None and self._simulation.loop.is_running():
            self._simulation.refuse(IN_COROUTINE)
        self._simulation.wait(waiter, timeout)


def is_readable(sock: socket.socket) -> bool:
    """Check whether the socket has received bytes, or the end of the stream."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
