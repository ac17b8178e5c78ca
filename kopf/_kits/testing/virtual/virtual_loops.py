"""
The event loop of virtual time.

When no callback is ready, its clock jumps to the next timer. So an hour takes only as long as the code that runs in it.
The loop has no sockets: connections are in memory, and other connections are refused with an explanation.

The order of a set depends on the hashes of its items. The usual hashes of tasks and futures are their addresses, which
differ in each run. So tasks and futures get numbers as their hashes here, and sets of them, as `asyncio` uses them,
have the same order in each run.
"""

import asyncio
import contextvars
import gc
import heapq
import itertools
import random
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, NoReturn, TextIO, TypeVar

from kopf._cogs.aiokits import loops
from kopf._cogs.aiokits.loops import get_context
from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool
from kopf._kits.testing.virtual.memory_networks import MakeProtocol, MemoryServer, MemoryTransport, Network
from kopf._kits.testing.virtual.outputs import output_var
from kopf._kits.testing.virtual.virtual_clocks import ORIGIN, VirtualClock

T = TypeVar('T')
HandleT = TypeVar('HandleT', bound=asyncio.Handle)

STEP = 1e-6
"""
By how much each iteration of the loop moves the clock (in seconds).

Otherwise, code that repeats `asyncio.sleep(0)` until some time has passed would never end.
"""

MAX_ITERATIONS = 100_000
"""The number of iterations without a wait after which the loop is considered to be busy forever."""


COLLECTION_INTERVAL = 5_000
"""The number of waits between two collections of garbage."""


class _NumberedTask(asyncio.Task[Any]):
    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number  # before the task is added to the set of all tasks
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    def __init__(self, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(**options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """
    The event loop of a simulation.

    Args:
        clock: the clock that it moves.
        rng: the source of the delays of the network.
        refuse: raises an error with an explanation; called when an action is impossible in virtual time.
    """

    is_virtual = True

    _scheduled: list[asyncio.TimerHandle]  # the heap of timers of the base class

    def __init__(self, clock: VirtualClock, rng: random.Random, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__()
        self._clock = clock
        self._refuse = refuse
        self._numbers = itertools.count()
        self._selector = self
        self._clock_resolution = 1e-9
        self._iterations = 0
        self._uncollected = 0
        self._destinations: dict[Any, tuple[str, int]] = {}
        self._dead: list[object] = []  # the outputs of killed operators
        # The waiting callbacks, by the id of the output.
        self._frozen: dict[int, tuple[object, list[asyncio.Handle]]] = {}
        self._pools: weakref.WeakKeyDictionary[TextIO, DaemonicThreadPool] = weakref.WeakKeyDictionary()
        self.network = Network(self, rng)
        self.set_task_factory(self._make_task)

    # Methods that the base class calls.

    def time(self) -> float:
        """Return the virtual monotonic time (in seconds)."""
        return self._clock.read_monotonic()

    def select(self, timeout: float | None) -> list[Any]:
        """Move the clock to the next timer; called by the base class when it would wait for sockets."""
        self._clock.move_to(self._clock.now + STEP)
        self._iterations += 1
        if self._frozen:
            self._park()
        if timeout is None:
            self._refuse(
                "Nothing can happen any more: no timer is set and no thread runs, but the awaited result is not there."
            )
        if timeout > 0:
            self._iterations = 0
            self._collect_garbage()
            # Move it exactly to the time of the timer: a sum of differences would be early by a rounding error.
            until = self._clock.now + timeout
            self._clock.move_to(min(until, self._scheduled[0].when() - ORIGIN) if self._scheduled else until)
        elif self._iterations > MAX_ITERATIONS:
            self._iterations = 0
            busy = next(iter(self._get_ready()), None)
            self._refuse(
                f"The time does not go on: the loop has made {MAX_ITERATIONS} steps without a wait. Something is "
                f"repeated without a delay: {busy!r}."
            )
        return []

    def _collect_garbage(self) -> None:
        """
        Collect the garbage of the last steps from time to time.

        The automatic collection is off in a simulation. It would run finalizers, which can start tasks, at moments that
        depend on the past of the process.
        """
        self._uncollected += 1
        if self._uncollected >= COLLECTION_INTERVAL:
            self._uncollected = 0
            gc.collect(1)

    def _get_ready(self) -> list[asyncio.Handle]:
        return list(self._ready)  # type: ignore[attr-defined]

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # nothing to do: the loop never sleeps in `select`

    def _check_thread(self) -> None:
        pass  # threads run one at a time, and never while the loop runs

    def create_future(self) -> asyncio.Future[Any]:
        """Create a numbered future."""
        return _NumberedFuture(next(self._numbers), loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the function in a thread: by default, in one of the operator that calls it."""
        # Why not in the same threads for all operators? Threads end, or freeze, with the operator that has started
        # them, as those of processes do. Functions of other operators would wait for such threads for ever.
        output = output_var.get()
        if executor is None and output is not None:
            executor = self._pools.get(output)
            if executor is None:
                executor = self._pools[output] = DaemonicThreadPool()
        return super().run_in_executor(executor, func, *args)

    # Killing.

    def kill(self, owner: object) -> None:
        """
        Stop all tasks of an operator as if its process was killed: without `finally` blocks and last requests.

        Args:
            owner: the output of the operator, by which its contexts are recognised.
        """
        self._dead.append(owner)
        self._frozen.pop(id(owner), None)
        for handle in (*self._get_ready(), *self._scheduled):
            self._cancel_dead(handle)
        # Why keep the tasks? The garbage collector would close their coroutines, which runs `finally` blocks.
        loops.abandon({task for task in asyncio.all_tasks(self) if get_context(task).get(output_var) is owner})
        self.network.kill(owner)

    # Freezing.

    def freeze(self, owner: object) -> None:
        """
        Freeze all tasks of an operator until `thaw`, as if a signal stopped its process.

        Args:
            owner: the output of the operator, by which its contexts are recognised.
        """
        self._frozen[id(owner)] = owner, []

    def thaw(self, owner: object) -> None:
        """Let the operator continue: overdue callbacks run immediately."""
        _, handles = self._frozen.pop(id(owner), (None, []))
        for handle in handles:
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                handle._scheduled = True  # type: ignore[attr-defined]
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def _park(self) -> None:
        """Remove the callbacks of frozen operators from the queues, and keep them."""
        for owner, handles in self._frozen.values():
            ready = [handle for handle in self._get_ready() if _is_owned(handle, owner)]
            timers = [handle for handle in self._scheduled if _is_owned(handle, owner)]
            for handle in ready:
                self._ready.remove(handle)  # type: ignore[attr-defined]
            for timer in timers:
                self._scheduled.remove(timer)
                timer._scheduled = False  # type: ignore[attr-defined]
            if timers:
                heapq.heapify(self._scheduled)
            handles += [*ready, *timers]

    def _cancel_dead(self, handle: HandleT) -> HandleT:
        if self._dead and any(_is_owned(handle, owner) for owner in self._dead):
            handle.cancel()
        return handle

    def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        """Call the function in the next iteration, unless it belongs to a killed operator."""
        return self._cancel_dead(super().call_soon(*args, **options))

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        """Call the function in the next iteration, unless it belongs to a killed operator."""
        return self._cancel_dead(super().call_soon_threadsafe(*args, **options))

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        """Call the function at this time, unless it belongs to a killed operator."""
        return self._cancel_dead(super().call_at(*args, **options))

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if context is not None:
            options['context'] = context
        return _NumberedTask(next(self._numbers), coro, loop=loop, **options)  # type: ignore[arg-type]

    # The network.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: MakeProtocol,
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        **options: Any,
    ) -> MemoryServer:
        """Listen in memory."""
        return self.network.listen(protocol_factory, sock or self.network.bind((host or '127.0.0.1', port or 0)))

    async def create_connection(
        self,
        protocol_factory: MakeProtocol,
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        **options: Any,
    ) -> tuple[MemoryTransport, Any]:
        """Connect in memory, to a server of the same loop."""
        if sock is not None:
            host, port = self._destinations.pop(sock, (None, None))
            sock.close()
        if host is None or port is None:
            self._refuse_connection('an open socket')
        self._check_destination(host, port)
        return await self.network.connect(protocol_factory, host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Remember the address for `create_connection`, which will be called with this socket."""
        host, port = address[0], address[1]
        self._check_destination(host, port)
        self._destinations[sock] = (host, port)

    async def getaddrinfo(self, host: Any, port: Any, *, type: int = 0, **options: Any) -> Any:
        """Resolve addresses and the name of this machine; there is no name server."""
        import socket

        name = host.decode() if isinstance(host, bytes) else host
        # Names of this domain never exist, in no network; generated CRDs have one as a placeholder.
        if name is not None and name.endswith('.invalid'):
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        if name not in (None, 'localhost') and not is_address(name):
            self._check_destination(name, port)
        address = '127.0.0.1' if name in (None, 'localhost') else name
        family = socket.AF_INET6 if ':' in address else socket.AF_INET
        return [(family, type or socket.SOCK_STREAM, 6, '', (address, int(port or 0)))]

    def _check_destination(self, host: str, port: int | str | None) -> None:
        if not is_local(host):
            self._refuse_connection(f'{host}:{port}')

    def _refuse_connection(self, where: str) -> NoReturn:
        self._refuse(f"A connection to {where} was attempted. {NO_SOCKETS}")

    def _refuse_socket(self, *_: object, **__: object) -> NoReturn:
        self._refuse(f"A socket or a pipe was opened. {NO_SOCKETS}")

    def _refuse_process(self, *_: object, **__: object) -> NoReturn:
        self._refuse(
            "A subprocess was started. This is impossible in virtual time, as subprocesses run in real time: replace "
            "it in the test, or run the test without virtual_time=True."
        )

    create_datagram_endpoint = create_unix_connection = create_unix_server = _refuse_socket
    add_reader = add_writer = connect_read_pipe = connect_write_pipe = _refuse_socket
    sock_recv = sock_recv_into = sock_sendall = sock_accept = _refuse_socket
    subprocess_exec = subprocess_shell = _refuse_process


def _is_owned(handle: asyncio.Handle, owner: object) -> bool:
    return handle._context.get(output_var) is owner  # type: ignore[attr-defined]


NO_SOCKETS = (
    "In virtual time, there is no network but that of the sandbox: replace the client in the test, or run the test "
    "without virtual_time=True."
)


def is_local(host: str) -> bool:
    """Check whether the host is this machine."""
    return host in ('localhost', '::1', '::', '0.0.0.0') or host.startswith('127.')


def is_address(host: str) -> bool:
    """Check whether the host is an IP address, not a name."""
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
