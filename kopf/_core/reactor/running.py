"""
The entry points: running operators from the command line, in threads, and in existing event loops.

`run` blocks a whole process or thread, `operator` runs in an existing event loop, `spawn_tasks` and `run_tasks` are for
applications that manage tasks themselves. An operator cancels only the tasks that it or its handlers have created, as
other parts of the application can share the loop. But `run_tasks` cancels all tasks that are younger than the operator.
Specified in the documentation's "Run an operator from Python".
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import re
import signal
import threading
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Unpack

from kopf._cogs.aiokits.loops import find_tasks, finishing, outwait
from kopf._cogs.helpers import loaders
from kopf._core.intents.signatures import showing_options
from kopf._core.reactor.operators import Operator, OperatorOptions

logger = logging.getLogger(__name__)

LEFTOVERS_PATIENCE = 5.0
"""How long `run_tasks` waits for the remaining tasks when the root tasks have ended (in seconds)."""

CANCELLATION_TIMEOUT = 2.0
"""How long cancelled remaining tasks may take to end (in seconds)."""

_operator_var: contextvars.ContextVar[Operator | None] = contextvars.ContextVar('_operator_var', default=None)
"""The operator to which a task belongs. Its handlers and the tasks that they create inherit the variable."""

_blocked_loops: set[asyncio.AbstractEventLoop] = set()
"""The loops of `run`: the caller waits for the operator, and goes on when a signal has stopped it."""

_earlier_tasks: weakref.WeakKeyDictionary[asyncio.Task[None], weakref.WeakSet[asyncio.Task[Any]]] = (
    weakref.WeakKeyDictionary()
)
"""The tasks that existed when an operator was spawned."""

_showing_operator_options = showing_options(
    OperatorOptions, clusterwide=False, inspect=False, namespaces=(), tracing=False
)


@_showing_operator_options
def run(*, loop: asyncio.AbstractEventLoop | None = None, **options: Unpack[OperatorOptions]) -> None:
    """
    Run an operator until it is stopped, in this thread.

    Args:
        loop: the event loop to run in; by default, a new one, which is closed in the end.
        options: the other parameters; see `operator`, also for its errors.

    Raises:
        RuntimeError: if there is a running event loop in this thread.
    """
    if asyncio.events._get_running_loop() is not None:
        raise RuntimeError("kopf.run() cannot be called in a running event loop. Use: await kopf.operator(...)")
    if not logger.hasHandlers():
        # No formatter adds the code, as there is none.
        logger.warning(
            "The logs are not shown, as there is no logging: call kopf.configure() before kopf.run(). [logging-missing]"
        )
    with contextlib.nullcontext(loop) if loop is not None else finishing(asyncio.new_event_loop()) as chosen:
        _blocked_loops.add(chosen)
        try:
            chosen.run_until_complete(operator(**options))
        finally:
            _blocked_loops.discard(chosen)


@_showing_operator_options
async def operator(**options: Unpack[OperatorOptions]) -> None:
    """
    Run an operator until it is stopped: by a signal (in the main thread), by its flag, or by a cancellation.

    Keyword Args:
        lifecycle: the order of handlers instead of the default one: see `kopf.lifecycles`.
        registry: the handlers; by default, all those declared without a registry.
        settings: the settings to start with; startup handlers can change them.
        indexers: the indices to fill, in order to read them from outside of the operator.
        memo: the operator's memo, of any class that can be copied.
        vault: existing credentials.
        instruments: instances of `kopf.Instrument`, such as metrics and traces.
        clusterwide: serve the whole cluster.
        namespaces: the names and the patterns of namespaces to serve.
        namespace: the only name or pattern; the old form of ``namespaces``.
        stop_flag: an event or a future, of asyncio or of threads, that stops the operator when it is set.
        ready_flag: is set after the startup handlers; and in any case when the operator ends.
        identity: the name of the operator among its peers.
        standalone: ignore the peers.
        priority: the priority among the peers.
        peering_name: the name of the peering object.
        leader_election: elect one of several replicas, by a Lease; only the leader works.
        shards: with ``auto``, share the objects with the other members of the same group; all of them work.
        lease_name: the name of the Lease by which the replicas elect, or share the objects.
        liveness_endpoint: the URL of the server for probes.
        tracing: make traces of OpenTelemetry.
        inspect: permit ``kopf top`` to look into the operator.
        metrics_endpoint: the URL of the server for metrics; it can be that of the probes.
        scanning: notice new resources and namespaces, for which a cluster role is needed; by default, it does.

    Raises:
        kopf.LoginError: if there are no credentials, or if none are accepted.
        Exception: the error of a startup handler, a cleanup handler, or a task of the framework.
    """
    instance = Operator(_parse_options(options))
    if (path := loaders.get_loading()) is not None:
        logger.warning(
            "%s calls kopf.run() or kopf.operator() while it is imported: the operator of the command line begins "
            "when that call has ended. Remove the call, or move it below: if __name__ == '__main__':",
            path,
        )
    await _run(instance)


async def _run(instance: Operator) -> None:
    token = _operator_var.set(instance)
    try:
        with _stopped_by_signals(instance):
            await instance.run()
    finally:
        try:
            await outwait(
                find_tasks(_operator_var, instance),
                patience=instance.settings.queueing.exit_timeout,
                timeout=CANCELLATION_TIMEOUT,
            )
        finally:
            _operator_var.reset(token)


@_showing_operator_options
async def spawn_tasks(**options: Unpack[OperatorOptions]) -> list[asyncio.Task[None]]:
    """
    Start an operator in the running loop; return its tasks, to be awaited by `run_tasks` or otherwise.

    Other tasks can be added to the list: then all of them are stopped as soon as any of them ends.
    When this function returns, the options are verified, and are in the settings already.

    Raises:
        TypeError: if the options are invalid, or contradict each other.
    """
    instance, earlier = Operator(_parse_options(options)), weakref.WeakSet(asyncio.all_tasks())
    task = asyncio.create_task(_run(instance), name='operator')
    _earlier_tasks[task] = earlier
    return [task]


async def run_tasks(
    root_tasks: Collection[asyncio.Task[None]],
    *,
    ignored: Collection[asyncio.Task[Any]] = frozenset(),
) -> None:
    """
    Wait until one of the tasks ends, and cancel the others; raise the error of any of them.

    All tasks that were created since the operator was spawned are assumed to belong to it. When the root tasks have
    ended, the others have 5 seconds to finish; then they are logged and cancelled. Earlier tasks are not cancelled.

    Args:
        root_tasks: the tasks from `spawn_tasks`, possibly with others.
        ignored: the tasks that are not cancelled.
    """
    tasks, earlier = set(root_tasks) - set(ignored), _find_earlier_tasks(root_tasks)
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        leftovers = asyncio.all_tasks() - earlier - set(ignored) - {asyncio.current_task()}
        await outwait(leftovers, patience=LEFTOVERS_PATIENCE, timeout=CANCELLATION_TIMEOUT)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _find_earlier_tasks(root_tasks: Collection[asyncio.Task[None]]) -> set[asyncio.Task[Any]]:
    """Return the tasks that existed before the root tasks; all existing tasks if that is unknown."""
    known = [_earlier_tasks[task] for task in root_tasks if task in _earlier_tasks]
    return set.intersection(*map(set, known)) if known else asyncio.all_tasks()


def _parse_options(given: OperatorOptions) -> OperatorOptions:
    """Return the options with deprecated forms replaced; raise `TypeError` if they are invalid."""
    if unknown := sorted(given.keys() - OperatorOptions.__annotations__.keys()):
        raise TypeError(f"The operator got an unexpected keyword argument {unknown[0]!r}.")
    options = given.copy()
    namespaces = options.get('namespaces') or ()
    if isinstance(namespaces, str | re.Pattern):
        raise TypeError(f"namespaces= must be a collection, such as namespaces=[{namespaces!r}].")
    namespaces = list(namespaces)
    namespace = options.pop('namespace', None)
    if namespace is not None:
        if namespaces:
            raise TypeError("Only one of namespaces= and namespace= can be given to the operator, not both.")
        warnings.warn("namespace=... is now namespaces=[...]. Please rename.", DeprecationWarning, stacklevel=4)
        namespaces.append(namespace)
    if namespaces and options.get('clusterwide'):
        raise TypeError("The operator can be either cluster-wide or namespaced, not both.")
    options['namespaces'] = namespaces
    return options


class _FormerHandler:
    """
    The handler of a signal that the program had before: set by `signal.signal`, or in the event loop.

    There is no public way to learn what is set in a loop. Without that, an application whose handlers are there, such
    as one of aiohttp, would not get the signals any more, not even after the operator has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        self._loop = loop
        self._number = number
        self._fn: Any = signal.getsignal(number)
        handles: Mapping[int, Any] = getattr(loop, '_signal_handlers', None) or {}
        self._handle: Any = handles.get(number)

    def restore(self) -> None:
        """Set it again."""
        if self._handle is not None:
            # Why not the handle's own method? It would be one more level for each operator of the loop.
            handle = self._handle
            handle._context.run(self._loop.add_signal_handler, self._number, handle._callback, *handle._args)
        else:
            signal.signal(self._number, signal.SIG_DFL if self._fn is None else self._fn)

    def call(self) -> None:
        """Pass the signal on, unless the handler is a default one, which only interrupts the main task."""
        if self._handle is not None:
            self._handle._run()
        elif callable(self._fn) and not self._is_default():
            self._fn(self._number, None)

    def _is_default(self) -> bool:
        module = getattr(getattr(self._fn, 'func', self._fn), '__module__', None) or ''
        return module.partition('.')[0] in ('asyncio', 'uvloop', '_signal')


class _Signals:
    """
    The signal handlers of one event loop: the first signal stops all its operators, the second one ends the process.

    If the operators do not stop within the timeout of ``settings.process``, the process is killed from a thread, as the
    event loop can be blocked. The former signal handlers are restored when the last operator ends. Then, those of the
    program around the operator, such as those of a web server, get the signal, too: not earlier, as they can end the
    program.
    """

    numbers = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._operators: set[Operator] = set()
        self._former: dict[signal.Signals, _FormerHandler] = {}
        self._received: signal.Signals | None = None
        self._killing: threading.Timer | None = None

    def add(self, instance: Operator) -> None:
        """Stop this operator by signals; install the signal handlers if it is the first operator of the loop."""
        if not self._operators:
            self._former = {number: _FormerHandler(self._loop, number) for number in self.numbers}
            # Otherwise, the signal handlers would keep the current context, and this operator with it, for too long.
            context = contextvars.Context()
            for number in self.numbers:
                context.run(self._loop.add_signal_handler, number, self._receive, number)
                signal.signal(
                    number, self._restore_defaults
                )  # replaces a no-op: asyncio gets the signal by its wakeup fd
                signal.siginterrupt(number, False)
        self._operators.add(instance)

    def discard(self, instance: Operator) -> None:
        """Forget this operator; restore the former signal handlers if it is the last operator of the loop."""
        self._operators.discard(instance)
        if not self._operators:
            if self._killing is not None:
                self._killing.cancel()
            for number, former in self._former.items():
                self._loop.remove_signal_handler(number)
                former.restore()
            if self._received is not None and self._loop not in _blocked_loops:
                # Why later? What it raises would count as an error of this operator.
                self._loop.call_soon(self._former[self._received].call, context=contextvars.Context())
            _signals.pop(self._loop, None)

    def _restore_defaults(self, number: int, frame: object) -> None:
        """Restore the default action of signals: the second one ends the process, even if the event loop is blocked."""
        for other in self.numbers:
            signal.signal(other, signal.SIG_DFL)

    def _receive(self, number: signal.Signals) -> None:
        for other in self.numbers:
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        self._received = number
        logger.info("Signal %s is received. Operator is stopping.", number.name)
        for instance in self._operators:
            instance.stop()
        timeouts = [instance.settings.process.ultimate_exiting_timeout for instance in self._operators]
        patience = max((timeout for timeout in timeouts if timeout is not None), default=None)
        if patience is not None and None not in timeouts:
            # Why not a timer of the event loop? The loop itself can hang.
            self._killing = threading.Timer(patience, _kill, [patience])
            self._killing.daemon = True
            self._killing.start()


def _kill(patience: float) -> None:
    logger.critical(
        "The operator is still stopping after %g seconds "
        "(settings.process.ultimate_exiting_timeout). The process is killed.",
        patience,
    )
    os.kill(os.getpid(), signal.SIGKILL)


_signals: dict[asyncio.AbstractEventLoop, _Signals] = {}


@contextlib.contextmanager
def _stopped_by_signals(instance: Operator) -> Iterator[None]:
    """Let the first signal stop the operator, and the second one end the process at once."""
    loop = asyncio.get_running_loop()
    # Python permits signal handlers only in the main thread. In virtual time, the test process handles signals itself.
    if threading.current_thread() is not threading.main_thread() or getattr(loop, 'is_virtual', False):
        yield
        return
    signals = _signals.setdefault(loop, _Signals(loop))
    signals.add(instance)
    try:
        yield
    finally:
        signals.discard(instance)
