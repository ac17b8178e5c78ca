"""
Connections in memory: one end receives the data of the other end a moment later, in the order of writing.

The delays are random numbers with a seed: in reality, data of different connections arrive in any order, so each seed
gives another order. There is no encryption: both ends are in the same process.

Each end calls its protocol in its own context, as a real connection does. Otherwise, a server would handle a request in
the context of its client: the tasks of the server would write into the log of the client, and end when the client is
killed.
"""

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from kopf._kits.testing.virtual.outputs import output_var

Address = tuple[str, int]
MakeProtocol = Callable[[], asyncio.BaseProtocol]

FASTEST, SLOWEST = 0.0001, 0.002
"""The limits of the transmission delay to the other end (in seconds)."""

HIGH_WATER = 64 * 1024
"""The amount of data in flight above which the writer must pause (in bytes)."""

FIRST_PORT = 20001

_EOF = b''


class MemorySocket:
    """
    A replacement for a listening or connected socket, which only has the addresses.

    Args:
        address: its own address.
        peer: the address of the other end.
    """

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, address: Address, peer: Address | None = None) -> None:
        self._address = address
        self._peer = peer

    def getsockname(self) -> Address:
        """Return the address."""
        return self._address

    def getpeername(self) -> Address | None:
        """Return the address of the other end."""
        return self._peer

    def fileno(self) -> int:
        """Return the descriptor of closed sockets, as there is none."""
        return -1

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there are no options."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Network:
    """All listening servers that share one virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self._rng = rng
        self._servers: dict[int, MemoryServer] = {}
        self.transports: dict[MemoryTransport, None] = {}
        """All connections that are not lost."""
        self._last_port = FIRST_PORT - 1

    def pick_delay(self) -> float:
        """Return a random transmission time (in seconds)."""
        return self._rng.uniform(FASTEST, SLOWEST)

    def bind(self, address: Address) -> MemorySocket:
        """Return a socket with this address; if the port is 0, with the next free port."""
        host, port = address
        if not port:
            self._last_port += 1
            port = self._last_port
        return MemorySocket((host, port))

    def is_served(self, port: int) -> bool:
        """Check whether a server listens on the port."""
        return port in self._servers

    def listen(self, make: MakeProtocol, sock: Any) -> 'MemoryServer':
        """Start a server."""
        server = MemoryServer(self, make, sock)
        self._servers[server.port] = server
        return server

    def forget(self, server: 'MemoryServer') -> None:
        """Stop listening."""
        if self._servers.get(server.port) is server:
            del self._servers[server.port]

    def kill(self, owner: object) -> None:
        """Break off all connections of a killed operator, and close its ports."""
        for server in list(self._servers.values()):
            if server.context.get(output_var) is owner:
                self.forget(server)
        for transport in list(self.transports):
            if transport.context.get(output_var) is owner:
                transport.vanish()

    async def connect(self, make: MakeProtocol, host: str, port: int) -> tuple['MemoryTransport', Any]:
        """
        Connect to a server.

        Raises:
            ConnectionRefusedError: no server listens on the port.
        """
        await asyncio.sleep(self.pick_delay())
        server = self._servers.get(port)
        if server is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        client, accepted = make(), server.make()
        near = MemoryTransport(self, client, contextvars.copy_context(), (host, 0), (host, port))
        far = MemoryTransport(self, accepted, server.context, (host, port), (host, 0))
        near.join(far)
        server.context.run(accepted.connection_made, far)
        client.connection_made(near)
        return near, client


class MemoryServer(asyncio.AbstractServer):
    """A listening server, as `asyncio.loop.create_server` returns it."""

    def __init__(self, network: Network, make: MakeProtocol, sock: Any) -> None:
        self._network = network
        self.make = make
        self.context = contextvars.copy_context()
        """The context of the operator or the sandbox that has opened the server."""
        self.sockets: tuple[Any, ...] = (sock,)
        self.port: int = sock.getsockname()[1]

    def close(self) -> None:
        """Stop listening; connections stay."""
        self._network.forget(self)
        for sock in self.sockets:
            sock.close()
        self.sockets = ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._network.loop

    def is_serving(self) -> bool:
        """Check whether it listens."""
        return bool(self.sockets)

    async def start_serving(self) -> None:
        """Do nothing: it listens already."""

    async def serve_forever(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def wait_closed(self) -> None:
        """Do nothing: it is closed at once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        protocol: asyncio.BaseProtocol,
        context: contextvars.Context,
        sockname: Address,
        peername: Address,
    ) -> None:
        sock = MemorySocket(sockname, peername)
        super().__init__({'sockname': sockname, 'peername': peername, 'socket': sock})
        self._network = network
        self._loop = network.loop
        self._pick_delay = network.pick_delay
        self.context = context
        self._protocol: Any = protocol
        self._peer: MemoryTransport = self
        self._inbox: deque[tuple[float, bytes]] = deque()  # with their times of arrival
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reads = True
        self._is_peer_paused = False
        self._is_closing = False
        self._is_lost = False
        self._has_sent_eof = False
        network.transports[self] = None

    def join(self, peer: 'MemoryTransport') -> None:
        """Connect the two ends."""
        self._peer, peer._peer = peer, self

    # The protocol calls these methods.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        """Check whether the connection is closed, or will be closed when everything is sent."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Check whether received data are passed to the protocol."""
        return self._reads and not self._is_closing

    def pause_reading(self) -> None:
        """Keep received data until `resume_reading`."""
        self._reads = False

    def resume_reading(self) -> None:
        """Pass received data to the protocol again."""
        if not self._reads:
            self._reads = True
            self._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits are the same for all connections."""

    def get_write_buffer_size(self) -> int:
        """Return the amount of data in flight to the other end (in bytes)."""
        return self._peer._size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the data."""
        if data and not self._is_closing and not self._has_sent_eof:
            self._peer._receive(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send all the data at once."""
        self.write(b''.join(list_of_data))

    def can_write_eof(self) -> bool:
        """Check whether one direction can be closed alone."""
        return True

    def write_eof(self) -> None:
        """Close this direction of the connection."""
        if not self._is_closing and not self._has_sent_eof:
            self._has_sent_eof = True
            self._peer._receive(_EOF)

    def close(self) -> None:
        """Close the connection after everything is sent."""
        if not self._is_closing:
            self.write_eof()
            self._is_closing = True
            self._loop.call_soon(self._lose, None, context=self.context)

    def abort(self) -> None:
        """Break off the connection: data in flight to the other end are lost."""
        if not self._is_lost:
            self._is_closing = True
            self._loop.call_soon(self._lose, None, context=self.context)
            self._peer._break()

    # The transmission to the other end.

    def _receive(self, data: bytes) -> None:
        at = self._loop.time() + self._pick_delay()
        if self._inbox:
            at = max(at, self._inbox[-1][0])  # never before earlier data
        self._inbox.append((at, data))
        self._size += len(data)
        if self._size > HIGH_WATER and not self._is_peer_paused:
            self._is_peer_paused = True
            self._peer._protocol.pause_writing()
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._inbox and self._reads and not self._is_lost:
            self._timer = self._loop.call_at(self._inbox[0][0], self._deliver, context=self.context)

    def _deliver(self) -> None:
        self._timer = None
        while self._inbox and self._reads and not self._is_closing and self._inbox[0][0] <= self._loop.time():
            _, data = self._inbox.popleft()
            self._size -= len(data)
            if data is _EOF:
                if not self._protocol.eof_received():
                    self.close()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(self._protocol, data)
            else:
                self._protocol.data_received(data)
        if self._is_peer_paused and self._size <= HIGH_WATER // 4:
            self._is_peer_paused = False
            if not self._peer._is_lost:
                self._peer._protocol.resume_writing()
        self._schedule()

    @staticmethod
    def _fill(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def _break(self) -> None:
        """Called when the other end has broken off the connection."""
        if not self._is_lost:
            self._inbox.clear()
            self._is_closing = True
            error = ConnectionResetError(104, "Connection reset by peer")
            self._loop.call_later(self._pick_delay(), self._lose, error, context=self.context)

    def vanish(self) -> None:
        """Called when the operator of this end is killed: the other end loses the connection."""
        self._forget()
        self._peer._is_closing = True
        self._peer._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _forget(self) -> None:
        self._is_lost = self._is_closing = True
        self._network.transports.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._inbox.clear()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._forget()
            self._protocol.connection_lost(error)
