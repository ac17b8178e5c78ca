"""
Running a command of ``kopf`` in the background of a test, while the test works with the cluster.

It is the same command as in a shell, with the same options, but in a thread. So its output and errors are accessible,
and debuggers and coverage work. The standard output and the logging of the whole process are redirected meanwhile.
Its handlers are those of the default registry, with those of the files and modules on the command line. Files are
executed again in each run, and their handlers are for this run only. Modules are imported once in a process, so their
handlers stay in the default registry, for the next runs.
Operators that are embedded into other programs are run by the functions of those programs, instead of a command.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from kopf._cogs.aiokits.flags import ServingThreadEvent
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.loaders import LoadError, is_of_script
from kopf._core.actions import loggers
from kopf._core.intents.registries import (
    OperatorRegistry,
    SmartOperatorRegistry,
    get_default_registry,
    set_default_registry,
)

if TYPE_CHECKING:
    from click import Command
    from click.testing import Result

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

PATIENCE = 30.0
"""The time (in seconds) to wait for the result of an operator that is not stopped yet."""


ENTERING_PATIENCE = 5.0
"""The time (in seconds) after which the context is entered, even if the operator does not serve yet."""

_keeping = threading.Lock()


class KopfRunner:
    """
    A context manager that runs an operator as ``kopf run`` does, for as long as the context lasts.

    The operator is stopped gracefully at the end of the context; its output and its exit code are there afterwards::

        with KopfRunner(['run', '-n', 'default', 'example.py']) as runner:
            ...
        assert runner.exit_code == 0
        assert 'And here we are!' in runner.output

    Embedded operators are run without a command line, by a function or a coroutine function, such as `kopf.operator`.
    The runner calls it with the arguments that follow, and with ``ready_flag``, ``stop_flag``, and the registry and the
    settings of the runner, if there are any. The framework logs as it does by default::

        with KopfRunner(kopf.operator, registry=registry, namespaces=['default']) as runner:
            ...

    Args:
        args: (and all other arguments) the arguments of ``click.testing.CliRunner.invoke``, the command line first;
            or the function that runs the operator, with its arguments.
        reraise: whether to raise the error of the operator at the end.
        timeout: how long to wait until the operator stops (in seconds); forever by default. The context is
            entered when the operator serves, but after 5 seconds at the latest, e.g. if its startup handlers
            take longer or are retried.
        registry: the handlers to begin with, instead of those declared so far; those in the files and modules of
            the command line are added there.
        settings: the settings to begin with.

    Raises:
        TimeoutError: at the end of the context, if the operator does not stop in time.
    """

    def __init__(
        self,
        *args: Any,
        reraise: bool = True,
        timeout: float | None = None,
        registry: OperatorRegistry | None = None,
        settings: OperatorSettings | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self.reraise = reraise
        self.timeout = timeout
        self.registry = registry
        self.settings = settings
        self._default_registry = self._run_registry = get_default_registry()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        # The first requests in the context must reach the webhooks.
        self._ready = ServingThreadEvent()
        self._future: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        self._stop.clear()
        self._ready.clear()
        self._future = concurrent.futures.Future()
        # An operator that ends early never becomes ready, and the block must be entered nevertheless.
        self._future.add_done_callback(lambda _: self._ready.set())
        self._default_registry = get_default_registry()
        self._run_registry = SmartOperatorRegistry() if self.registry is None else self.registry
        if self.registry is None:
            # Why a copy? Operators that run at the same time must not get each other's handlers.
            self._run_registry.extend(self._default_registry)
        # Why a daemon thread? An operator that cannot be stopped must not prevent the tests from finishing.
        self._thread = threading.Thread(target=self._run, args=(self._future,), name='kopf-runner', daemon=True)
        self._thread.start()
        self._ready.wait(ENTERING_PATIENCE if self.timeout is None else min(ENTERING_PATIENCE, self.timeout))
        self._keep_handlers()
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        try:
            self._future.result(self.timeout)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"The operator has not stopped in {self.timeout:g} seconds.") from error
        failure = self.exception
        if self.reraise and failure is not None:
            # If the operator has failed, its error is usually the reason for the failure of the test.
            if isinstance(failure, SystemExit) and self.output:
                failure = failure.with_traceback(None)  # the output is more helpful
                failure.add_note(self.output)
            raise failure from error if error is not None else failure.__cause__

    def _run(self, future: 'concurrent.futures.Future[Result]') -> None:
        try:
            try:
                result = self._invoke()
            finally:
                self._keep_handlers()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _invoke(self) -> 'Result':
        from click.testing import CliRunner

        # Import it by its name: the kits are a layer below the command line.
        cli = importlib.import_module('kopf.cli')
        loop = asyncio.new_event_loop()
        set_default_registry(self._default_registry)  # in this thread, like in the thread of the test
        with contextlib.closing(loop), _restored_logging():
            if self.args and callable(self.args[0]):
                result = CliRunner().invoke(self._make_command(*self.args), [])
            else:
                controls = cli.CLIControls(
                    ready_flag=self._ready,
                    stop_flag=self._stop,
                    settings=self.settings,
                    loop=loop,
                    registry=self._run_registry,
                )
                result = CliRunner().invoke(cli.main, *self.args, obj=controls, **self.kwargs)
            loop.run_until_complete(loop.shutdown_asyncgens())
            return result

    def _keep_handlers(self) -> None:
        """Keep the handlers of modules for the next runs: modules are imported only once, unlike files."""
        if self.registry is None:
            # Runners of several threads can share a default registry, and `extend` checks before it appends.
            with _keeping:
                self._default_registry.extend(self._run_registry, lambda handler: not is_of_script(handler.fn))

    def _make_command(self, fn: Callable[..., Any], *args: Any) -> 'Command':
        """Wrap the function in a command, so that its output and errors are the same as of other commands."""
        import click

        given = {
            key: value for key, value in [('registry', self.registry), ('settings', self.settings)] if value is not None
        }

        # Run as a command, although there is no command line: so the output, the exit code and the errors are collected
        # in the same way.
        @click.command
        def embedded() -> None:
            loggers.configure()
            result = fn(*args, ready_flag=self._ready, stop_flag=self._stop, **given, **self.kwargs)
            if inspect.isawaitable(result):
                asyncio.run(wait_for_end(result))

        return embedded

    @property
    def future(self) -> 'concurrent.futures.Future[Result]':
        """The future of the result of the command, as ``click`` makes it."""
        return self._future

    def _result(self) -> 'Result':
        """Return the result of the operator; raise `RuntimeError` if there is none yet."""
        if self._thread is None:
            raise RuntimeError("The operator has not been started: use the runner in a `with` block.")
        patience = PATIENCE if self.timeout is None and not self._stop.is_set() else self.timeout
        try:
            return self._future.result(patience)
        except TimeoutError:
            if self._future.done():
                raise
            raise RuntimeError(
                "The operator still runs: its output and its exit code are there when the `with` block has ended."
            ) from None

    @property
    def exit_code(self) -> int:
        """
        The exit code of the operator; waits until it ends, as all the properties below do.

        Inside the context, it waits for an operator that ends by itself for ``timeout`` or half a minute.

        Raises:
            RuntimeError: if the operator still runs then, or has not been started.
        """
        return self._result().exit_code

    @property
    def output(self) -> str:
        """The standard output and the standard error (with the logs), interleaved."""
        return self._result().output

    @property
    def stdout(self) -> str:
        """The standard output."""
        return self._result().stdout

    @property
    def stdout_bytes(self) -> bytes:
        """The standard output, not decoded."""
        return self._result().stdout_bytes

    @property
    def stderr(self) -> str:
        """The standard error, with the logs."""
        return self._result().stderr

    @property
    def stderr_bytes(self) -> bytes:
        """The standard error, not decoded."""
        return self._result().stderr_bytes or b''

    @property
    def exception(self) -> BaseException | None:
        """The error of the operator: the original one, not the one converted by the command line."""
        error: BaseException | None = self._result().exception
        while isinstance(error, (SystemExit, LoadError)) and error.__cause__ is not None:
            error = error.__cause__
        return error

    @property
    def exc_info(self) -> ExcInfo | None:
        """The same as ``sys.exc_info()``, also for an ordinary exit."""
        error = self.exception
        return (
            cast('ExcInfo | None', self._result().exc_info)
            if error is None
            else (type(error), error, error.__traceback__)
        )


async def wait_for_end(awaitable: Awaitable[Any]) -> None:
    await awaitable


@contextlib.contextmanager
def _restored_logging() -> Iterator[None]:
    """Restore the logging on exit, so that no log handler outlives the stream that it writes to."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    with restored_levels():
        try:
            yield
        finally:
            root.handlers[:] = handlers


@contextlib.contextmanager
def restored_levels() -> Iterator[None]:
    """Restore the levels of loggers on exit: the command line sets them for the whole process."""
    affected = [logging.getLogger(name) for name in (None, 'asyncio', 'aiohttp')]
    levels = [logger.level for logger in affected]
    try:
        yield
    finally:
        for logger, level in zip(affected, levels, strict=True):
            logger.setLevel(level)
