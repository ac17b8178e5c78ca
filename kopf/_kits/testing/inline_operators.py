"""
Operators in virtual time: ``kopf run`` as a task in the event loop of the sandbox.

The command line parses the arguments, configures the log, and loads the files as usual. Only its last step is replaced
here: running the operator until it ends. The files are executed again for each operator, but the modules that they
import stay imported.
"""

import asyncio
import contextlib
import contextvars
import importlib
import io
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from kopf._cogs.aiokits.flags import ServingEvent
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.instruments import Instrument
from kopf._core.intents.registries import OperatorRegistry, SmartOperatorRegistry
from kopf._core.reactor import running
from kopf._kits.runner import restored_levels
from kopf._kits.testing.sandbox import Sandbox
from kopf._kits.testing.sandbox_logins import environment, make_vault
from kopf._kits.testing.virtual.outputs import OutputHandler, output_var, routed
from kopf._kits.testing.virtual.simulations import Simulation
from kopf._kits.testing.virtual.virtual_clocks import VirtualTimeError
from kopf._kits.testing.webhook_notices import handles_own_resources, has_endpoints

__tracebackhide__ = True  # pytest omits the frames of this module from tracebacks


class InlineOperator:
    """
    One operator in the simulation of its sandbox (see `simulations`).

    Args:
        sandbox: the sandbox, with virtual time.
        registry: handlers in addition to those of the files.
        settings: the initial settings, which handlers of the startup can change.
        instruments: the instruments that observe the operator.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        simulation: Simulation,
        *,
        registry: OperatorRegistry | None = None,
        settings: OperatorSettings | None = None,
        instruments: Collection[Instrument] = (),
    ) -> None:
        self._sandbox = sandbox
        self._simulation = simulation
        self._instruments = instruments
        self.registry = SmartOperatorRegistry() if registry is None else registry
        """The handlers of the operator."""
        self._settings = OperatorSettings() if settings is None else settings
        self._text = io.StringIO()
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._ready = ServingEvent()
        self._stack = contextlib.ExitStack()
        self.returncode: int | None = None
        """The exit code; None while the operator runs."""

    @property
    def output(self) -> str:
        """The output so far, including the log."""
        return self._text.getvalue()

    @property
    def is_started(self) -> bool:
        """True if the operator was started."""
        return self._task is not None or self.returncode is not None

    @property
    def is_serving(self) -> bool:
        """True since the operator has started its watches and registered its webhooks and conversions."""
        return self._ready.is_set()

    @property
    def has_endpoints(self) -> bool:
        """True if the API server calls the operator for admission or conversion."""
        return has_endpoints(self.registry)

    @property
    def handles_own_resources(self) -> bool:
        """True if all handlers are for resources that the framework watches, too."""
        return handles_own_resources(self.registry)

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        provisioner: str | None = None,
        loaded: Callable[[OperatorRegistry], None] | None = None,
    ) -> None:
        """
        Load the files and start the operator, which then runs whenever the test waits for something.

        Args:
            arguments: the arguments of ``kopf run``.
            env: more environment variables.
            cwd: the working directory while the files are loaded.
            provisioner: the token of the user who applies the CRDs; by default, the operator does.
            loaded: called with the handlers when the files are loaded and the operator is not started yet.
        """
        self._stack.enter_context(environment({'KUBECONFIG': str(self._sandbox.kubeconfig), **env}))
        self._stack.enter_context(restored_levels())
        context = contextvars.copy_context()
        with contextlib.chdir(cwd or '.'), routed():
            options = context.run(self._load, arguments, provisioner)
        # Modules can draw random numbers when they are first imported. Later random numbers must not depend on that.
        self._simulation.reseed()
        if options is None:
            self._stack.close()  # the operator has ended already, so leave its context, too
        else:
            if loaded is not None:
                loaded(self.registry)
            self._task = self._simulation.loop.create_task(self._run(options), name='operator', context=context)

    def stop(self, timeout: float) -> int | None:
        """Stop the operator gracefully, and cancel it after the timeout (in virtual seconds); return the exit code."""
        try:
            if self._task is not None and self.returncode is None:
                self._simulation.run(self._end(self._task, timeout))
        except VirtualTimeError:
            if not self._simulation.is_broken:
                raise
        finally:
            self._stack.close()
        return self.returncode

    def kill(self) -> None:
        """Stop all tasks and threads of the operator at once, as if its process was killed."""
        if self.returncode is None:
            self._simulation.kill(self._text)
            self.returncode = -9
            self._stack.close()

    def freeze(self, seconds: float) -> None:
        """Freeze all tasks and threads of the operator for a time (in seconds), as if a signal stopped its process."""
        if self.returncode is None:
            self._simulation.freeze(self._text, seconds)

    def is_owner(self, owner: object) -> bool:
        """Check whether the owner of a task, thread or connection is this operator."""
        return owner is self._text

    def _load(self, arguments: Sequence[str], provisioner: str | None) -> Mapping[str, Any] | None:
        """Run the command line up to the start of the operator; return the options to start it with."""
        output_var.set(self._text)
        captured: list[Mapping[str, Any]] = []
        # Imported by its name at run time, as the layers do not allow the kits to import the command line.
        cli = importlib.import_module('kopf.cli')
        controls = cli.CLIControls(
            registry=self.registry,
            settings=self._settings,
            stop_flag=self._stop,
            ready_flag=self._ready,
            vault=make_vault(self._sandbox),
            provisioning_vault=None if provisioner is None else make_vault(self._sandbox, token=provisioner),
            run=lambda **options: captured.append(options),
        )
        root = logging.getLogger()
        before = list(root.handlers)
        try:
            cli.main.main(['run', *arguments], prog_name='kopf', standalone_mode=False, obj=controls)
        except click.ClickException as error:
            error.show(self._text)
            self.returncode = error.exit_code
        except SystemExit as error:
            self.returncode = error.code if isinstance(error.code, int) else 1
        added = [handler for handler in root.handlers if handler not in before]
        # The command line expects to be alone in the process, so it replaces the log handlers of other operators.
        root.handlers[:] = before
        for handler in added:
            mine = OutputHandler(handler, self._text)
            root.addHandler(mine)
            self._stack.callback(root.removeHandler, mine)
        return {**captured[0], 'instruments': self._instruments} if captured else None

    async def _run(self, options: Mapping[str, Any]) -> None:
        cli = importlib.import_module('kopf.cli')
        try:
            with cli.failing_shortly(debug=False):
                await running.operator(**options)
        except SystemExit as error:
            self.returncode = error.code if isinstance(error.code, int) else 1
        else:
            self.returncode = 0

    async def _end(self, task: asyncio.Task[None], timeout: float) -> None:
        self._stop.set()
        await asyncio.wait({task}, timeout=timeout)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=timeout)
            self.returncode = -9
