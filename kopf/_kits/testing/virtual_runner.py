"""The runner of the server in virtual time: in the thread of the test, only while the test waits for a result."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kopf._kits.testing.instances import Instance, Runner, shorten
from kopf._kits.testing.virtual.simulations import NO_COROUTINES, Simulation
from kopf._kits.testing.virtual.virtual_clocks import VirtualTimeError

T = TypeVar('T')

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks


class VirtualRunner(Runner):
    """
    A replacement for `instances.Runner` without a thread.

    Args:
        make: creates the server.
        simulation: the simulation in which the server runs.
    """

    def __init__(self, make: Callable[[], Instance], simulation: Simulation) -> None:
        super().__init__(make)
        self._simulation = simulation
        self._is_open = False

    def start(self) -> None:
        """Begin virtual time and start the server."""
        if self._is_open or self.ready.done():
            raise RuntimeError('A sandbox can be used once: create another one.')
        self._simulation.open()
        self._is_open = True
        try:
            self._instance = self._simulation.run(self._start())
            self._simulation.reseed()
        except BaseException as error:
            self.ready.set_exception(error)
        else:
            self.ready.set_result(None)

    async def _start(self) -> Instance:
        instance = self._make()
        await instance.start()
        return instance

    def stop(self) -> None:
        """Stop the server and end virtual time."""
        if self._is_open:
            self._is_open = False
            try:
                if self._instance is not None:
                    self._simulation.run(self._instance.stop())
            finally:
                self._simulation.close()

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the coroutine is done."""
        if not self._is_open:
            coroutine.close()
            raise RuntimeError('The sandbox is not running any more.')
        try:
            return self._simulation.run(coroutine)
        except Exception as error:
            failure = shorten(error)
        raise failure

    async def later(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine, in the loop of virtual time."""
        if asyncio.get_running_loop() is not self._simulation.loop:
            coroutine.close()
            raise VirtualTimeError(NO_COROUTINES)
        try:
            return await coroutine
        except Exception as error:
            failure = shorten(error)
        raise failure
