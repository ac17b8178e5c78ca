"""
The replacement of the functions that read clocks, sleep, draw random numbers, use sockets, or handle threads.

These functions of the standard library are replaced only while a simulation is open, and only for its own threads:
other threads, such as those of pytest, use the real functions. Operators in real time do not become slower.

A module that has imported a function by name before (``from time import time``) continues to use the real one. The
exception is `datetime.datetime`: methods of the class itself are replaced.
"""

import contextlib
import datetime
import functools
import gc
import os
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from kopf._kits.testing.virtual.blocking_sockets import CHUNK, BlockingSockets
from kopf._kits.testing.virtual.turns import TurnTaking, Waiter
from kopf._kits.testing.virtual.virtual_clocks import VirtualClock
from kopf._kits.testing.virtual.virtual_loops import NO_SOCKETS, is_address, is_local

_NODE = 0x0242AC110002
"""The address of the network card, which is a part of uuids of version 1."""


class Simulation(Protocol):
    """The operations of the simulation that the replaced functions need."""

    clock: VirtualClock
    rng: random.Random
    turns: TurnTaking
    sockets: BlockingSockets

    def has_current_thread(self) -> bool:
        """Check whether the calling thread belongs to the simulation."""

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the calling thread."""

    def wait(self, waiter: Waiter, timeout: float | None) -> None:
        """Block the calling thread until the waiter is awake, or for the time (in seconds)."""

    def refuse(self, message: str) -> NoReturn:
        """Raise an error in the caller and also in the test."""


@contextlib.contextmanager
def replaced(simulation: Simulation) -> Iterator[None]:
    """Replace the functions of the standard library for the time of the context."""
    with contextlib.ExitStack() as stack:
        for install in (_replace_clocks, _replace_dates, _replace_randomness, _replace_threads, _replace_sockets):
            stack.enter_context(install(simulation))
        yield


@contextlib.contextmanager
def _set(owner: Any, **values: Any) -> Iterator[None]:
    """Set the attributes for the time of the context."""
    missing = object()
    before = {name: vars(owner).get(name, missing) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _for_members(simulation: Simulation, real: Callable[..., Any], virtual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the virtual one in the threads of the simulation, and the real one in all others."""

    @functools.wraps(real)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (virtual if simulation.has_current_thread() else real)(*args, **kwargs)

    return choose


def _replace_all(
    simulation: Simulation, owner: Any, **functions: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    chosen = {name: _for_members(simulation, getattr(owner, name), fn) for name, fn in functions.items()}
    return _set(owner, **chosen)


# Clocks.


def _replace_clocks(simulation: Simulation) -> contextlib.AbstractContextManager[None]:
    clock = simulation.clock

    real_localtime = time.localtime
    realtime = getattr(time, 'CLOCK_REALTIME', None)

    def read_clock(number: int) -> float:
        return clock.read_wall() if number == realtime else clock.read_monotonic()

    def read_clock_ns(number: int) -> int:
        return clock.read_wall_ns() if number == realtime else clock.read_monotonic_ns()

    def fill(fn: Callable[..., Any], count: int, get: Callable[[], Any]) -> Callable[..., Any]:
        """Wrap the function so that its last argument, if omitted, is the present virtual time."""
        return lambda *args: fn(*args) if len(args) == count and args[-1] is not None else fn(*args[: count - 1], get())

    def get_local() -> time.struct_time:
        return real_localtime(clock.read_wall())

    functions: dict[str, Callable[..., Any]] = {
        'time': clock.read_wall,
        'time_ns': clock.read_wall_ns,
        'monotonic': clock.read_monotonic,
        'monotonic_ns': clock.read_monotonic_ns,
        'perf_counter': clock.read_monotonic,
        'perf_counter_ns': clock.read_monotonic_ns,
        'sleep': simulation.sleep,
        'localtime': fill(time.localtime, 1, clock.read_wall),
        'gmtime': fill(time.gmtime, 1, clock.read_wall),
        'ctime': fill(time.ctime, 1, clock.read_wall),
        'strftime': fill(time.strftime, 2, get_local),
        'asctime': fill(time.asctime, 1, get_local),
    }
    if hasattr(time, 'clock_gettime'):
        functions['clock_gettime'] = read_clock
        functions['clock_gettime_ns'] = read_clock_ns
    return _replace_all(simulation, time, **functions)


@contextlib.contextmanager
def _replace_dates(simulation: Simulation) -> Iterator[None]:
    """
    Replace the methods of `datetime.datetime` that read the clock.

    Why not replace the class, as other tools do? Modules that have imported it would keep the real one, and libraries
    such as pydantic would not recognize the other class.
    """
    real_now, real_utcnow = datetime.datetime.now, datetime.datetime.utcnow

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        if simulation.has_current_thread():
            return cls.fromtimestamp(simulation.clock.read_wall(), tz)
        return real_now(tz) if cls is datetime.datetime else cls.fromtimestamp(time.time(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        if simulation.has_current_thread():
            return cls.fromtimestamp(simulation.clock.read_wall(), datetime.UTC).replace(tzinfo=None)
        return real_utcnow() if cls is datetime.datetime else cls.fromtimestamp(time.time(), datetime.UTC)

    # The attributes of classes written in C cannot be set. But their ``__dict__`` is a view of a dict, which the
    # garbage collector returns as its referent.
    attributes = gc.get_referents(datetime.datetime.__dict__)[0]
    before = {name: attributes[name] for name in ('now', 'utcnow')}
    try:
        attributes.update(now=classmethod(now), utcnow=classmethod(utcnow))
        _forget_cached_methods()
        yield
    finally:
        attributes.update(before)
        _forget_cached_methods()


def _forget_cached_methods() -> None:
    import ctypes

    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


# Randomness.


@contextlib.contextmanager
def _replace_randomness(simulation: Simulation) -> Iterator[None]:
    rng = simulation.rng

    real_seed, real_uuid1 = random.Random.seed, uuid.uuid1

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and not isinstance(self, random.SystemRandom) and simulation.has_current_thread():
            a = rng.getrandbits(128)
        real_seed(self, a, version)

    def uuid1(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
        return real_uuid1(_NODE if node is None else node, 0 if clock_seq is None else clock_seq)

    state = random.getstate()
    # The functions of the module are methods of one instance, so it is sufficient to seed this instance.
    random.seed(rng.getrandbits(128))
    with (
        _set(random.Random, seed=seed),
        _set(random, seed=functools.partial(seed, random._inst)),
        _replace_all(simulation, os, urandom=rng.randbytes),
        _replace_all(simulation, random, _urandom=rng.randbytes),  # used by `secrets`
        _replace_all(simulation, uuid, uuid1=uuid1),
        _set(uuid, _last_timestamp=None),
    ):
        try:
            yield
        finally:
            random.setstate(state)


# Threads.


@contextlib.contextmanager
def _replace_threads(simulation: Simulation) -> Iterator[None]:
    turns = simulation.turns
    real_start, real_join, real_wait = threading.Thread.start, threading.Thread.join, threading.Condition.wait

    def is_governed() -> bool:
        return simulation.has_current_thread() and not turns.is_starting

    def start(self: threading.Thread) -> None:
        if is_governed():
            turns.start(self, real_start)
        else:
            real_start(self)

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        if is_governed() and self is not threading.current_thread():
            turns.join(self, lambda waiter: simulation.wait(waiter, timeout))
            timeout = 0 if timeout is not None and turns.has(self) else None
        real_join(self, timeout)

    def wait(self: Any, timeout: float | None = None) -> bool:
        """Wait as the original does, but with a waiter instead of a lock."""
        if not is_governed():
            return real_wait(self, timeout)
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = Waiter()
        self._waiters.append(waiter)
        saved = self._release_save()
        try:
            simulation.wait(waiter, timeout)
        finally:
            self._acquire_restore(saved)
            if not waiter.is_released:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return waiter.is_released

    with (
        _set(threading.Thread, start=start, join=join),
        _set(threading.Condition, wait=wait),
        # Why the slow queue? The fast one waits by a lock of its own, the slow one by `threading.Condition`.
        _set(queue, SimpleQueue=queue._PySimpleQueue),  # type: ignore[attr-defined]
        # These modules have imported the clock by its name.
        _replace_all(simulation, queue, time=simulation.clock.read_monotonic),
        _replace_all(simulation, threading, _time=simulation.clock.read_monotonic),
    ):
        yield


# Sockets.


@contextlib.contextmanager
def _replace_sockets(simulation: Simulation) -> Iterator[None]:
    real_connect, real_resolve = socket.socket.connect, socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> None:
        if self.family not in (socket.AF_INET, socket.AF_INET6) or not simulation.has_current_thread():
            real_connect(self, address)
        elif self.type == socket.SOCK_STREAM and is_local(address[0]):
            simulation.sockets.connect(self, address[0], address[1])
        else:
            self.close()  # otherwise, the warning about the open socket would hide the error
            simulation.refuse(f"A connection to {address[0]}:{address[1]} was attempted by a socket. {NO_SOCKETS}")

    def connect_ex(self: socket.socket, address: Any) -> int:
        try:
            connect(self, address)
        except OSError as error:
            if error.errno is None:
                raise
            return error.errno
        return 0

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if simulation.has_current_thread() and isinstance(host, str) and not is_local(host) and not is_address(host):
            simulation.refuse(f"The address of {host} was looked up. {NO_SOCKETS}")
        return real_resolve(host, *args, **kwargs)

    with (
        _set(socket.socket, connect=connect, connect_ex=connect_ex),
        _set(socket.socket, **_make_methods(simulation)),
        _set(socket, getaddrinfo=resolve),
    ):
        yield


def _make_methods(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """Return the replaced methods of sockets: they end the turn before they would block, and wake up the bridge."""
    real = socket.socket
    names = ('recv', 'recv_into', 'send', 'sendall', 'shutdown', 'setsockopt', 'getsockopt', '_real_close')
    recv, recv_into, send, sendall, shutdown, setsockopt, getsockopt, close = (getattr(real, name) for name in names)

    def receive(fn: Callable[..., Any]) -> Callable[..., Any]:
        def receive(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
            if (bridge := simulation.sockets.find(self)) is not None:
                simulation.sockets.await_data(self, bridge)
            return fn(self, *args, **kwargs)

        return receive

    def send_some(self: socket.socket, data: Any, *args: Any) -> int:
        bridge = simulation.sockets.find(self)
        count: int = send(self, data if bridge is None else memoryview(data).cast('B')[:CHUNK], *args)
        if bridge is not None:
            bridge.pump()
        return count

    def send_all(self: socket.socket, data: Any, *args: Any) -> None:
        if simulation.sockets.find(self) is None:
            sendall(self, data, *args)
            return
        left = memoryview(data).cast('B')
        while left:
            left = left[send_some(self, left, *args) :]

    def shut(self: socket.socket, how: int) -> None:
        shutdown(self, how)
        if (bridge := simulation.sockets.find(self)) is not None:
            bridge.pump()

    def set_option(self: socket.socket, level: int, *args: Any) -> None:
        if level == socket.SOL_SOCKET or simulation.sockets.find(self) is None:  # there is no TCP in between
            setsockopt(self, level, *args)

    def get_option(self: socket.socket, level: int, *args: Any) -> Any:
        is_known = level == socket.SOL_SOCKET or simulation.sockets.find(self) is None
        return getsockopt(self, level, *args) if is_known else 0

    def really_close(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        close(self, *args, **kwargs)
        simulation.sockets.forget(self)

    methods = (receive(recv), receive(recv_into), send_some, send_all, shut, set_option, get_option, really_close)
    return dict(zip(names, methods, strict=True))
