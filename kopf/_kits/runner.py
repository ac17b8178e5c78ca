"""
Running a command of ``kopf`` in the background of a test, while the test does its things to the cluster.

It is the same command as in a shell, with the same options, but in a thread: so its output and its errors are at hand,
and debuggers and coverage see it. The standard output and the logging of the whole process are redirected meanwhile.
"""
import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.loaders import LoadError
from kopf._core.intents.registries import OperatorRegistry

if TYPE_CHECKING:
    from click.testing import Result

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class KopfRunner:
    """
    A context manager that runs an operator as ``kopf run`` does, for as long as the context lasts.

    The operator is stopped gracefully at the end of the context; its output and its exit code are there afterwards::

        with KopfRunner(['run', '-n', 'default', 'example.py']) as runner:
            ...
        assert runner.exit_code == 0
        assert 'And here we are!' in runner.output

    :param args: (and all other arguments) the arguments of ``click.testing.CliRunner.invoke``, the command line first.
    :param reraise: whether to raise in the end what the operator has failed with.
    :param timeout: for how long (in seconds) to wait until the operator begins, and until it stops; forever by default.
    :param registry: the handlers to begin with; those in the files of the command line are added there.
    :param settings: the settings to begin with.
    :raises TimeoutError: at the end of the context, if the operator does not stop in time.
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
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._future: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        self._stop.clear()
        self._ready.clear()
        self._future = concurrent.futures.Future()
        self._future.add_done_callback(lambda _: self._ready.set())
        # A daemon: an operator that can't be stopped must not keep the tests from finishing.
        threading.Thread(target=self._run, args=(self._future,), name='kopf-runner', daemon=True).start()
        self._ready.wait(self.timeout)
        return self

    def __exit__(
            self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        try:
            self._future.result(self.timeout)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"The operator has not stopped in {self.timeout:g} seconds.") from error
        failure = self.exception
        if self.reraise and failure is not None:
            # An operator that has failed is usually the reason why the test does too.
            raise failure from error if error is not None else failure.__cause__

    def _run(self, future: 'concurrent.futures.Future[Result]') -> None:
        try:
            result = self._invoke()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _invoke(self) -> 'Result':
        from click.testing import CliRunner
        cli = importlib.import_module('kopf.cli')
        loop = asyncio.new_event_loop()
        controls = cli.CLIControls(
            ready_flag=self._ready, stop_flag=self._stop, registry=self.registry, settings=self.settings, loop=loop)
        with contextlib.closing(loop), _restored_logging():
            result = CliRunner().invoke(cli.main, *self.args, obj=controls, **self.kwargs)
            loop.run_until_complete(loop.shutdown_asyncgens())
            return result

    @property
    def future(self) -> 'concurrent.futures.Future[Result]':
        """The future of the result of the command, as ``click`` makes it."""
        return self._future

    @property
    def exit_code(self) -> int:
        """What the process would have exited with; waits until it ends, as all the properties below do."""
        return self._future.result().exit_code

    @property
    def output(self) -> str:
        """Both the standard output and the standard error (where the logs are), as they come."""
        return self._future.result().output

    @property
    def stdout(self) -> str:
        """The standard output."""
        return self._future.result().stdout

    @property
    def stdout_bytes(self) -> bytes:
        """The standard output, not decoded."""
        return self._future.result().stdout_bytes

    @property
    def stderr(self) -> str:
        """The standard error, with the logs."""
        return self._future.result().stderr

    @property
    def stderr_bytes(self) -> bytes:
        """The standard error, not decoded."""
        return self._future.result().stderr_bytes or b''

    @property
    def exception(self) -> BaseException | None:
        """What the operator has failed with; the original error rather than how the command line has reported it."""
        error: BaseException | None = self._future.result().exception
        while isinstance(error, (SystemExit, LoadError)) and error.__cause__ is not None:
            error = error.__cause__
        return error

    @property
    def exc_info(self) -> ExcInfo | None:
        """The same as what ``sys.exc_info()`` would give, also for an ordinary exit."""
        error = self.exception
        return cast('ExcInfo | None', self._future.result().exc_info) if error is None else (
            type(error), error, error.__traceback__)


@contextlib.contextmanager
def _restored_logging() -> Iterator[None]:
    """Let no handler outlive the streams that it writes to."""
    loggers = [logging.getLogger(name) for name in (None, 'asyncio', 'aiohttp')]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    try:
        yield
    finally:
        loggers[0].handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
