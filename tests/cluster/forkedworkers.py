"""
Workers that run the tests at the same time: forks of the process that has collected them.

The workers of pytest-xdist are new interpreters, each of which imports and collects all tests: that takes longer than
to run most of them. A fork has all of it, and shares the memory. The tests of a file run in one worker, one after
another, so that fixtures of modules are set up once; fixtures of the session are set up by each worker that needs them.
When no more files are left, a worker without tests takes half of those that another one still has: otherwise, most
workers would wait for the longest file at the end.

The first files are those whose tests wait more than they compute. One worker for each core begins with the last files
instead: while only waiting tests run, the cores would be idle for a good part of the time.

The process that has collected the tests runs none of them: it hands them out, and reports what the workers send. That
is one message for each test, when it has ended: with thousands of tests of a millisecond, most of the time went into
messages. No worker waits for an answer to it, as it knows the next tests already.
"""

import asyncio
import atexit
import collections
import contextlib
import itertools
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from types import SimpleNamespace
from typing import Any, TypeAlias

import forkserver
import pytest

Files: TypeAlias = collections.deque[collections.deque[int]]
"""The tests of each file: their indexes in the list of all tests."""

AHEAD = 3
"""How many tests a worker knows: the one that it runs, the next one, and the one for which that keeps the fixtures."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, metavar="N", help="run the tests in N processes, each file in one of them")
    parser.addoption("--whole-files", action="store_true", help="with --forks: split no file, even if workers idle")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--forks"):
        config.pluginmanager.register(ForkedWorkers(config.getoption("--forks"), splits=not config.option.whole_files))


class Worker:
    """
    A process with tests, as the one that hands out the tests sees it.

    Args:
        number: which of the workers it is, from 0.
        pid: its process.
        connection: for the messages of both.
    """

    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number = number
        self.pid = pid
        self.connection = connection
        # Reports of pytest-xdist have something like this, and pytest prints it.
        name = f"fork {number}"
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache=f"[{name}]")
        self.pending: collections.deque[int] = collections.deque()
        """The tests that it has not finished: those of one file."""
        self.known = 0
        """How many of them it knows: those stay, since the fixtures that they share are kept for the next one."""
        self.is_complete = False
        """Whether it knows that these are the last ones of the file; it expects no other answer then."""

    def start(self, tests: collections.deque[int]) -> None:
        """Begin with a file; without any tests, the worker ends."""
        self.pending, self.known = tests, 0
        self.tell()

    def tell(self) -> None:
        """Send the tests that it does not know yet, up to the one after the next, and whether they are the last."""
        tests = list(itertools.islice(self.pending, self.known, AHEAD))
        self.known += len(tests)
        self.is_complete = self.known == len(self.pending)
        self.connection.send((tests, self.is_complete))

    def finish(self) -> None:
        """Called when it has finished a test. It has begun with the next one, unless that was the last of the file."""
        self.pending.popleft()
        self.known -= 1
        if not self.is_complete:
            self.tell()

    def give_up(self) -> collections.deque[int]:
        """Return the last half of the tests that it does not know; another worker runs them."""
        half = (len(self.pending) - self.known + 1) // 2
        return collections.deque(reversed([self.pending.pop() for _ in range(half)]))

    def kill(self) -> None:
        """Kill the process, if it runs, and wait for its end."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class ForkedWorkers:
    """
    The plugin of the process that has collected the tests.

    Args:
        number: how many workers there are at the same time.
        splits: whether a worker without tests takes some of another one; on a real cluster, the tests of a file can
            share what one of them removes at its end.
    """

    def __init__(self, number: int, *, splits: bool = True) -> None:
        self._number = number
        self._splits = splits
        self._computing = min(os.cpu_count() or 1, number // 2)
        """How many of them begin with the last files."""
        self._workers: list[Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests in workers; leave errors of the collection, and listings, to pytest."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        files: dict[str, collections.deque[int]] = {}
        for index, item in enumerate(session.items):
            files.setdefault(item.nodeid.partition("::")[0], collections.deque()).append(index)
        queue = collections.deque(files.values())
        if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
            reporter.showfspath = False  # the results of several files come at the same time
        try:
            for number in range(min(self._number, len(queue))):
                self._workers.append(self._fork(session, number))
            while self._workers:
                ready = wait([worker.connection for worker in self._workers])
                for worker in [worker for worker in self._workers if worker.connection in ready]:
                    self._receive(session, worker, queue)
        finally:
            for worker in self._workers:
                worker.kill()
        return True

    def _fork(self, session: pytest.Session, number: int) -> Worker:
        ours, theirs = Pipe()
        server = forkserver.split_server()
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has not. Those of plugins wait for connections, and hold no locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            for connection in (ours, *(worker.connection for worker in self._workers)):
                connection.close()
            if server is not None:
                forkserver.replace_server(server)
            _serve(session, theirs, number)
        theirs.close()
        if server is not None:
            server.close()
        return Worker(number, pid, ours)

    def _receive(self, session: pytest.Session, worker: Worker, queue: Files) -> None:
        """Act on the messages of a worker, or on its end."""
        try:
            messages = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._replace(session, worker, queue)
            return
        for kind, data in messages:
            self._act(session, worker, kind, data)
            if kind == "next":
                worker.start(self._take(worker, queue))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _act(self, session: pytest.Session, worker: Worker, kind: str, data: Any) -> None:
        hook = session.config.hook
        if kind == "start":
            hook.pytest_runtest_logstart(nodeid=data[0], location=data[1])
        elif kind == "finish":
            hook.pytest_runtest_logfinish(nodeid=data[0], location=data[1])
        elif kind == "done":
            worker.finish()
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            report.node = worker.node
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=data)
        elif kind == "exit":
            session.shouldstop = data
        elif kind == "error":
            raise RuntimeError(f"A worker has failed:\n{data}")
        elif kind == "end":
            worker.kill()
            self._workers.remove(worker)

    def _take(self, worker: Worker, queue: Files) -> collections.deque[int]:
        """Return the tests of the next file, or some tests of the worker that has the most; empty if there are none."""
        if queue:
            return queue.pop() if worker.number < self._computing else queue.popleft()
        if not self._splits:
            return collections.deque()
        return max(self._workers, key=lambda worker: len(worker.pending)).give_up()

    def _replace(self, session: pytest.Session, worker: Worker, queue: Files) -> None:
        """Report the test that has ended its process, and let another worker run the rest of the file."""
        self._workers.remove(worker)
        worker.kill()
        if worker.pending:
            item = session.items[worker.pending.popleft()]
            text = "The process of the test has ended unexpectedly."
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            session.config.hook.pytest_runtest_logreport(report=report)
        if worker.pending:
            queue.appendleft(worker.pending)
        if queue:
            self._workers.append(self._fork(session, worker.number))


# The workers.


class Sender:
    """
    The plugin of a worker, which sends everything that is to be reported.

    Args:
        config: the configuration of the run.
        connection: to the process that reports it.
    """

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self.is_serving = False
        """Whether tests are run. Before, pytest repeats the warnings of the collection, which are known."""
        self._messages: list[tuple[str, Any]] = []

    def note(self, kind: str, data: Any = None) -> None:
        """Keep a message until the next one that is sent."""
        self._messages.append((kind, data))

    def send(self, kind: str, data: Any = None) -> None:
        """Send a message after all those that were kept; end the process if the other one is gone."""
        self.note(kind, data)
        try:
            self._connection.send(self._messages)
        except ConnectionError:
            os._exit(1)
        self._messages.clear()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.note("start", (nodeid, location))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.note("finish", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if not self.is_serving:
            return
        try:
            pickle.dumps(warning_message)
        except Exception:
            warning_message.message = UserWarning(str(warning_message.message))
            warning_message.category, warning_message.source = UserWarning, None
        data = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self.note("warning", data)


def _serve(session: pytest.Session, connection: Connection, number: int) -> None:
    """Run tests as long as there are some, in the worker, and end it."""
    sender = Sender(session.config, connection)
    try:
        _detach(session.config, number)
        # Otherwise, Python creates an event loop when a plugin asks for the current one, and nothing closes that.
        asyncio.set_event_loop(None)
        session.config.pluginmanager.register(sender)
        sender.is_serving = True
        for item, nextitem in _iter_items(session, sender, connection):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            sender.send("done")
        session._setupstate.teardown_exact(None)  # the fixtures of the session
        atexit._run_exitfuncs()
        sender.send("end")
    except pytest.exit.Exception as error:
        sender.send("exit", str(error))
    except (KeyboardInterrupt, EOFError):
        pass  # the other process has got the signal, too, or is gone
    except BaseException:
        sender.send("error", traceback.format_exc())
    finally:
        os._exit(0)


def _detach(config: pytest.Config, number: int) -> None:
    """Let nothing be shared with other workers: the terminal, the files with the captured output, temporary folders."""
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker{number}"
    factory._basetemp.mkdir(exist_ok=True)


def _iter_items(session: pytest.Session, sender: Sender, connection: Connection) -> Iterator[tuple[Any, Any]]:
    """Yield each test with the one after it. After the last of a file, it is the session, and a file is asked for."""
    known: collections.deque[int] = collections.deque()
    while True:
        sender.send("next")
        is_complete = False
        while known or not is_complete:
            while not is_complete and (len(known) < 2 or connection.poll()):
                tests, is_complete = connection.recv()
                known.extend(tests)
            if not known:
                return
            item = session.items[known.popleft()]
            yield item, session.items[known[0]] if known else session
