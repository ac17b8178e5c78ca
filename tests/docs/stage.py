"""Where the code of a page is run: a namespace of the sandbox, with an operator that has only these handlers.

The operator runs in a thread of this process, which takes hundredths of a second. The checks are Python code; what they
can call are the public methods of `Stage`, by their names.
"""

import contextlib
import functools
import inspect
import io
import logging
import os
import pathlib
import re
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence

import yaml
from snippets import Block, Lesson, read_page

import kopf
from kopf._cogs.aiokits.flags import ServingThreadEvent
from kopf._core.actions.loggers import TextFormatter  # the prefixes are those that users see
from kopf.testing import Operator, Refusal, Sandbox

SECONDS = 60.0


@contextlib.contextmanager
def pointing(path: pathlib.Path, sandbox: Sandbox):
    """Let the file be the kubeconfig of the sandbox; what it was before is restored in the end."""
    previous = path.readlink() if path.is_symlink() else None
    path.unlink(missing_ok=True)
    path.symlink_to(sandbox.kubeconfig)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        if previous is not None:
            path.symlink_to(previous)


@contextlib.contextmanager
def importable(files: Sequence[Block]):
    """Let code import the modules of its page: the blocks with captions."""
    modules = {pathlib.Path(block.caption).stem for block in files if block.caption.endswith(".py")}
    for block in files:
        path = pathlib.Path(block.caption)
        if path.suffix == ".py" and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)
        for name in modules:
            sys.modules.pop(name, None)


class Stage:
    """One operator and its objects, for one check."""

    def __init__(self, sandbox: Sandbox, namespace: str) -> None:
        self.sandbox = sandbox
        self.namespace = namespace
        self.settings = kopf.OperatorSettings()
        self.module = types.ModuleType("snippet")
        self._kind, self._api, self._plural = "KopfExample", "kopf.dev/v1", "kopfexamples"
        self.module.__dict__["__tracebackhide__"] = True  # pytest would show the whole page
        self._output = Lines()
        self._log = io.StringIO()
        self._thread: threading.Thread | None = None
        self._others: list[threading.Thread] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None

    def perform(self, lesson: Lesson) -> None:
        """Run the code of the page, start the operator if there are handlers for it, and run the check."""
        with self._prepared(), importable(read_page(lesson.check.page).files):
            for block in lesson.code:
                exec(block.compile(), self.module.__dict__)
            if lesson.check.kind == "check":
                self.start()
            objects = [part for block in lesson.objects for part in yaml.safe_load_all(block.text)]
            exec(lesson.check.compile(), {**self.module.__dict__, **self._helpers(), "objects": objects})
            self.stop()
            for thread in self._others:
                thread.join(SECONDS)
            assert not any(thread.is_alive() for thread in self._others), "What runs in a thread has not ended."
            for block in lesson.outputs:
                assert_shows(block.text, self.log() + self.printed(), block.place)

    @contextlib.contextmanager
    def _prepared(self):
        # The default registry itself, emptied: that is what threads have, too.
        registry = vars(kopf.get_default_registry())
        previous = dict(registry)
        registry.update(vars(type(kopf.get_default_registry())()))
        sys.modules["snippet"] = self.module
        handler = logging.StreamHandler(self._log)
        handler.setFormatter(TextFormatter("%(message)s", prefix=True))
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            with contextlib.redirect_stdout(self._output):
                yield
        except BaseException as error:
            for frame in traceback.extract_tb(error.__traceback__):
                if not frame.filename.endswith(".py"):
                    error.add_note(f"{frame.filename}:{frame.lineno}: {frame.line}")
            print(self.log(), self.printed(), sep="\n")
            raise
        finally:
            self._end()
            root.removeHandler(handler)
            root.setLevel(level)
            sys.modules.pop("snippet", None)
            registry.update(previous)

    def _helpers(self):
        members = inspect.getmembers(self, inspect.ismethod)
        return {
            "stage": self,
            "settings": self.settings,
            "namespace": self.namespace,
            "module": self.module,
            **{name: method for name, method in members if not name.startswith("_") and name != "perform"},
        }

    # -- The operator.

    def start(self, **options) -> None:
        """Start the operator, and wait until it works; the options are those of `kopf.operator`."""
        ready, self._stop, self._error = ServingThreadEvent(), threading.Event(), None
        options = {
            "namespaces": [self.namespace],
            "standalone": True,
            "settings": self.settings,
            "stop_flag": self._stop,
            "ready_flag": ready,
            **options,
        }
        if options.get("clusterwide"):
            options.pop("namespaces")

        def run() -> None:
            try:
                kopf.run(**options)
            except BaseException as error:
                self._error = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="operator of a page", daemon=True)
        self._thread.start()
        assert ready.wait(SECONDS), "The operator does not start."
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the operator, if it runs; raise what it has failed with."""
        self._end()
        if self._error is not None:
            raise self._error

    def restart(self, **options) -> None:
        """Stop the operator and start it again."""
        self.stop()
        self.start(**options)

    def _end(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(SECONDS)
            assert not self._thread.is_alive(), "The operator does not stop."
            self._thread = None

    def meanwhile(self, function, *args) -> None:
        """Run the function in a thread; the check has to see to it that it ends."""
        self._others.append(threading.Thread(target=function, args=args, daemon=True))
        self._others[-1].start()

    # -- The objects: those of the examples' kind unless said otherwise.

    def use(self, kind, api) -> None:
        """Let objects be of this kind from now on unless said otherwise."""
        self._kind, self._api, self._plural = kind, api, f"{kind.lower()}s"

    def create(self, name="example", *, kind=None, api=None, labels=(), annotations=(), **fields):
        """Create an object with these fields (``spec=...`` and others)."""
        meta = {"name": name, "namespace": self.namespace, "labels": dict(labels), "annotations": dict(annotations)}
        return self.sandbox.create(
            {"apiVersion": api or self._api, "kind": kind or self._kind, "metadata": meta, **fields}
        )

    def pod(self, name, *, containers=("main",), **fields):
        """Create a pod with these containers."""
        spec = {"containers": [{"name": container, "image": "example"} for container in containers]}
        return self.create(name, kind="Pod", api="v1", spec=spec, **fields)

    def apply(self, source) -> None:
        """Create or change the objects of a dict or of a text in YAML."""
        for body in [source] if isinstance(source, dict) else yaml.safe_load_all(source):
            body["metadata"]["namespace"] = self.namespace
            self.sandbox.apply(body)

    def patch(self, name, patch, kind=None, **options):
        """Change an object by a merge patch."""
        return self.sandbox.patch(kind or self._plural, name, patch, namespace=self.namespace, **options)

    def delete(self, name="example", kind=None):
        """Request the deletion of an object."""
        self.sandbox.delete(kind or self._plural, name, namespace=self.namespace)

    def get(self, name="example", kind=None):
        """Read an object; an empty dict if there is none."""
        try:
            return self.sandbox.get(kind or self._plural, name, namespace=self.namespace)
        except Refusal as error:
            if error.code == 404:
                return {}
            raise

    def status(self, name="example", kind=None):
        """Return the status of an object; an empty dict if there is none."""
        return self.get(name, kind).get("status", {})

    def progress(self, handler, name="example"):
        """Return what is remembered of a handler that is not finished; an empty dict if nothing is."""
        annotations = self.get(name).get("metadata", {}).get("annotations", {})
        return yaml.safe_load(annotations.get(f"kopf.zalando.org/{handler}", "{}"))

    def handled(self, name="example"):
        """Wait until the object is handled in full: its state is noted, and nothing is in progress."""

        def is_handled():
            annotations = self.get(name)["metadata"].get("annotations", {})
            ours = [key for key in annotations if key.startswith("kopf.zalando.org/")]
            noted = yaml.safe_load(annotations["kopf.zalando.org/last-handled-configuration"])
            return len(ours) == 1 and noted.get("spec") == self.get(name).get("spec")

        self.until(is_handled)

    def events(self, name="example"):
        """Return the Kubernetes events of an object: a list of their types, reasons, and messages."""
        return [
            (event["type"], event["reason"], event["message"])
            for event in self.sandbox.list("events", namespace=self.namespace)
            if event["involvedObject"]["name"] == name
        ]

    def gone(self, name="example", kind=None):
        """Wait until the object is gone."""
        self.sandbox.wait_gone(kind or self._plural, name, namespace=self.namespace, timeout=SECONDS)

    def refused(self, action) -> Refusal:
        """Do it, and return why the API has refused it."""
        try:
            action()
        except Refusal as error:
            return error
        raise AssertionError("It is not refused.")

    def admitting(self) -> None:
        """Wait until the API asks the webhooks of the operator."""
        resources = "validatingwebhookconfigurations", "mutatingwebhookconfigurations"
        self.until(
            lambda: (
                len(kopf.get_default_registry().webhooks)
                == sum(
                    len(found.get("webhooks", [])) for resource in resources for found in self.sandbox.list(resource)
                )
            )
        )

    # -- What has come of it.

    def run_tests(self) -> None:
        """Run the test functions of the code, with the fixtures of the package for pytest."""
        kubeconfig = pathlib.Path(os.environ["KUBECONFIG"])
        for name, function in vars(self.module).items():
            if name.startswith("test_"):
                marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "kopf_sandbox"]
                with Sandbox(**(marks[0].kwargs if marks else {})) as sandbox, pointing(kubeconfig, sandbox):
                    fixtures = {"kopf_sandbox": sandbox, "kopf_operator": functools.partial(Operator, sandbox)}
                    function(**{name: fixtures[name] for name in inspect.signature(function).parameters})

    def log(self) -> str:
        """All log messages so far, also of debugging; the namespace is called "default" there."""
        return self._log.getvalue().replace(self.namespace, "default")

    def printed(self) -> str:
        """All that the code has printed so far."""
        return self._output.getvalue()

    def until(self, condition, seconds=SECONDS) -> None:
        """Wait until the condition is true; whatever is missing for it is not there yet.

        Raises:
            AssertionError: after so many seconds.
            BaseException: what the operator has failed with, if it has ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                result = condition()
            except LookupError as error:
                result = error
            if result and not isinstance(result, LookupError):
                return
            if self._error is not None:
                raise self._error  # the operator has ended: there is nothing to wait for
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"It has not become true in {seconds} seconds, but is {result!r}:\n{inspect.getsource(condition)}"
                )
            time.sleep(0.005)

    def logged(self, text: str) -> None:
        """Wait until a log message contains the text; "..." stands for anything."""
        self.until(lambda: re.search(_pattern(text), self.log(), re.DOTALL))

    def shown(self, text: str) -> None:
        """Wait until the code has printed the text; "..." stands for anything."""
        self.until(lambda: re.search(_pattern(text), self.printed(), re.DOTALL))


class Lines(io.StringIO):
    """A stream of whole lines: `print` writes them in two pieces, and several threads may do so at once."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = threading.local()

    def write(self, text: str) -> int:
        whole, newline, self._begun.text = (getattr(self._begun, "text", "") + text).rpartition("\n")
        super().write(whole + newline)
        return len(text)


def _pattern(text: str) -> str:
    parts = (r"\s+".join(map(re.escape, part.split())) for part in text.split("..."))
    return r"\s*.*?\s*".join(parts)


def assert_shows(shown: str, output: str, place: str) -> None:
    """Assert that the lines occur in the output, in this order; "..." stands for anything, also for lines."""
    position = 0
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            continue
        found = re.compile(_pattern(line)).search(output, position)
        assert found, f"{place}: this line is not in the output (or not here): {line!r}\n{output}"
        position = found.end()
