"""
The most important faults on the real control plane: between it and the operator, a proxy breaks what passes through it.

On the sandbox, `tests/faults` has all of this and more; so there, these tests are run only with ``--thorough``.
"""

import asyncio
import contextlib
import json
import pathlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hostile import HostileServer
from kinds import define
from kubeapi import KubeApi, wait
from operatorprocess import OperatorProcess
from sandboxplane import SandboxPlane

FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
LAST_HANDLED = "kopf.zalando.org/last-handled-configuration"
HANDLERS = '''
import asyncio, json, os, kopf
from kopf._core.reactor import watches

watches.MIN_BACKOFF, watches.MAX_BACKOFF = 0.1, 0.3  # these streams break more often than others do

def note(id, name, **facts):
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(json.dumps({"id": id, "name": name, **facts}) + "\\n")

@kopf.on.startup()
def configure(settings, **_):
    global tuned
    tuned = settings
    settings.posting.enabled = False
    settings.networking.request_timeout = 2
    settings.networking.error_backoffs = [0.2, 0.2, 0.2]

def declare(decorator, id, **options):
    @decorator("kopfexamples", id=id, **options)
    async def fn(name, spec, patch, **_):
        note(id, name, field=spec["field"])
        if "inactivity" in spec:
            tuned.watching.inactivity_timeout = spec["inactivity"]
        while os.path.exists(f"{os.environ['JOURNAL']}.{name}"):
            await asyncio.sleep(0.02)
        patch.status["seen"] = spec["field"]

declare(kopf.on.create, "create")
declare(kopf.on.update, "update", field="spec")
declare(kopf.on.delete, "delete", labels={"held": "yes"})

@kopf.on.event("kopfexamples")
def event(name, type, **_):
    note(type, name)
'''


class Proxy:
    """A `HostileServer` in a thread of its own."""

    def __init__(self, url: str, ca: bytes) -> None:
        self._url, self._ca = url, ca
        self._started, self._thread = threading.Event(), threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        async with HostileServer.open(self._url, self._ca) as self.server:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._started.set()
            await self._stop.wait()

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def drop(self) -> None:
        self._loop.call_soon_threadsafe(self.server.drop)

    def spoil_stream(self, fn: Any) -> None:
        """Let the open stream break off, and the next one be spoilt; return when it is open."""
        before = self.server.spoilt
        self.server.spoil(fn, "GET", "/kopfexamples.*watch=true")
        self.drop()
        wait(lambda: self.server.spoilt > before, "the next stream")


class World:
    """A namespace, an operator behind the proxy, and what its handlers have noted."""

    def __init__(self, api: KubeApi, namespace: str, proxy: Proxy, operator: OperatorProcess, journal: pathlib.Path):
        self.api, self.namespace, self.proxy, self.operator, self.journal = api, namespace, proxy, operator, journal

    def create(self, name: str, field: Any = "v1", *, labels: Any = None, **spec: Any) -> None:
        self.api.apply(
            {
                "apiVersion": "kopf.dev/v1",
                "kind": "KopfExample",
                "metadata": {"name": name, "labels": labels},
                "spec": {"field": field, **spec},
            },
            self.namespace,
        )

    def get(self, name: str) -> Any:
        return self.api.get("kopf.dev/v1", "KopfExample", self.namespace, name)

    def patch(self, name: str, patch: Any) -> None:
        self.api.patch("kopf.dev/v1", "KopfExample", self.namespace, name, patch)

    def delete(self, name: str) -> None:
        self.api.delete("kopf.dev/v1", "KopfExample", self.namespace, name)

    def handled(self, name: str, field: Any = "v1") -> Any:
        def at_rest() -> Any:
            body = self.get(name)
            annotations = (body or {}).get("metadata", {}).get("annotations", {})
            good = list(annotations) == [LAST_HANDLED] and f'"field":"{field}"' in annotations[LAST_HANDLED]
            return body if good else None

        return wait(at_rest, f"{name} to be handled with {field}")

    def called(self, name: str) -> list[tuple[str, Any]]:
        notes = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [(note["id"], note.get("field")) for note in notes if note["name"] == name]

    def calls_of_changes(self, name: str) -> list[tuple[str, Any]]:
        return [call for call in self.called(name) if call[1] is not None]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, cluster: Any, kubeapi: KubeApi, tmp_path_factory: Any) -> Iterator[World]:
    if isinstance(cluster, SandboxPlane) and not request.config.getoption("--thorough"):
        pytest.skip("tests/faults has the same for the sandbox; run with --thorough")
    folder, namespace = tmp_path_factory.mktemp("faults"), f"kopf-test-{secrets.token_hex(4)}"
    kubeapi.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    config = yaml.safe_load(pathlib.Path(cluster.kubeconfig).read_text())
    target = config["clusters"][0]["cluster"]
    journal, handlers = folder / "journal", folder / "handlers.py"
    journal.touch()
    handlers.write_text(HANDLERS)
    with Proxy(target["server"], read_ca(target)) as proxy:
        config["clusters"][0]["cluster"] = {"server": proxy.server.url}
        (folder / "kubeconfig").write_text(json.dumps(config))
        with OperatorProcess(
            "-n",
            namespace,
            "--standalone",
            handlers,
            log=folder / "log",
            kubeconfig=str(folder / "kubeconfig"),
            JOURNAL=str(journal),
        ) as operator:
            world = World(kubeapi, namespace, proxy, operator, journal)
            world.create("first")
            world.handled("first")
            yield world
            print(operator.output)  # shown if a test has failed
    for item in kubeapi.items("kopf.dev/v1", "KopfExample", namespace):
        world.patch(item["metadata"]["name"], {"metadata": {"finalizers": []}})
    kubeapi.delete("v1", "Namespace", None, namespace)


def read_ca(target: dict[str, str]) -> bytes:
    import base64

    if "certificate-authority" in target:
        return pathlib.Path(target["certificate-authority"]).read_bytes()
    return base64.b64decode(target["certificate-authority-data"])


async def begin(exchange: Any, *lines: Any) -> None:
    exchange.closing = True
    await exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    await exchange.send(*(json.dumps(line).encode() + b"\n" for line in lines))


def test_a_stream_that_is_cut_in_the_middle_of_a_line(world: World) -> None:
    async def cut(exchange: Any) -> None:
        await begin(exchange)
        async for chunk in exchange.chunks():
            if b'"cut"' in chunk:
                await exchange.send(chunk[: len(chunk) // 2])
                exchange.reset()
                return
            await exchange.send(chunk)

    world.proxy.spoil_stream(cut)
    world.create("cut")
    world.handled("cut")
    world.patch("cut", {"spec": {"field": "v2"}})
    world.handled("cut", "v2")
    assert world.calls_of_changes("cut") == [("create", "v1"), ("update", "v2")]


def test_a_frozen_stream_is_replaced(world: World) -> None:
    async def freeze(exchange: Any) -> None:
        await begin(exchange)
        await asyncio.sleep(60)

    world.create("impatient", inactivity=1)
    world.handled("impatient")
    world.proxy.spoil_stream(freeze)
    world.create("frozen", inactivity=None)
    world.handled("frozen")
    assert world.calls_of_changes("frozen") == [("create", "v1")]


def test_slow_headers_are_limited(world: World) -> None:
    async def wait_long(exchange: Any) -> None:
        await asyncio.sleep(60)

    world.proxy.spoil_stream(wait_long)
    world.create("slow")
    world.handled("slow")
    assert world.calls_of_changes("slow") == [("create", "v1")]


def test_what_is_deleted_in_a_gap_is_seen_after_a_410(world: World) -> None:
    deleted = threading.Event()

    async def expire(exchange: Any) -> None:
        while not deleted.is_set():
            await asyncio.sleep(0.02)
        await begin(exchange, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})

    for name in ("gone", "stays"):
        world.create(name)
        world.handled(name)
    world.proxy.spoil_stream(expire)
    world.delete("gone")
    world.patch("stays", {"spec": {"field": "v2"}})
    deleted.set()
    wait(lambda: ("DELETED", None) in world.called("gone"), "the deletion")
    world.handled("stays", "v2")
    assert world.calls_of_changes("stays") == [("create", "v1"), ("update", "v2")]
    assert ("DELETED", None) not in world.called("stays")


def test_a_namespace_that_is_created_anew_in_a_gap_is_served(world: World, tmp_path: pathlib.Path) -> None:
    name, created, journal = f"{world.namespace}-anew", threading.Event(), tmp_path / "journal"

    async def expire(exchange: Any) -> None:
        await begin(exchange)
        while not created.is_set():
            await asyncio.sleep(0.02)
        error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
        await exchange.send(json.dumps(error).encode() + b"\n")

    journal.touch()
    with OperatorProcess(
        "-n",
        f"{world.namespace}-*",
        "--standalone",
        world.journal.parent / "handlers.py",
        log=tmp_path / "log",
        kubeconfig=str(world.journal.parent / "kubeconfig"),
        JOURNAL=str(journal),
    ) as operator:
        own = World(world.api, name, world.proxy, operator, journal)
        world.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        own.create("old")
        own.handled("old")
        before = world.proxy.server.spoilt
        for _ in range(2):  # the other operator is behind the proxy, too
            world.proxy.server.spoil(expire, "GET", "/api/v1/namespaces.*watch=true")
        world.proxy.drop()
        wait(lambda: world.proxy.server.spoilt == before + 2, "the next streams")
        world.api.delete("v1", "Namespace", None, name)
        wait(lambda: world.api.get("v1", "Namespace", None, name) is None, "the end of the namespace")
        world.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        created.set()
        world.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": f"{name}-later"}})
        later = World(world.api, f"{name}-later", world.proxy, operator, journal)
        later.create("later")
        later.handled("later")  # by now, the namespaces are listed again
        own.create("new")
        own.handled("new")
        wait(lambda: ("DELETED", None) in own.called("old"), "the deletion of what was in the namespace")
    for each in (name, f"{name}-later"):
        world.api.delete("v1", "Namespace", None, each)


def test_everybody_waits_when_one_is_told_to(world: World) -> None:
    async def refuse(exchange: Any) -> None:
        await exchange.send_all(b"{}", b"Retry-After: 2", status=b"429 Too Many Requests")

    world.proxy.server.spoil(refuse, "PATCH", "/kopfexamples/busy")
    before = world.proxy.server.spoilt
    world.create("busy")
    wait(lambda: world.proxy.server.spoilt > before, "the refusal")
    told = time.monotonic()
    world.create("other")
    world.handled("busy")
    world.handled("other")
    patched = [
        at - told
        for at, method, target in world.proxy.server.seen
        if method == "PATCH" and ("/busy" in target or "/other" in target) and at > told
    ]
    assert min(patched) > 1.7
    assert world.calls_of_changes("busy") == world.calls_of_changes("other") == [("create", "v1")]


def test_answers_that_fail_or_are_lost_repeat_nothing(world: World) -> None:
    async def fail(exchange: Any) -> None:
        await exchange.send_all(b"<html>Bad gateway</html>", status=b"502 Bad Gateway")

    async def lose(exchange: Any) -> None:
        await exchange.read()
        exchange.reset()

    for spoil in (fail, lose):
        world.proxy.server.spoil(spoil, "PATCH", "/kopfexamples/lost")
    before = world.proxy.server.spoilt
    world.create("lost")
    wait(lambda: world.proxy.server.spoilt == before + 2, "both failures")
    world.patch("lost", {"spec": {"field": "v2"}})
    body = world.handled("lost", "v2")
    assert body["status"] == {"seen": "v2"}
    assert world.calls_of_changes("lost") == [("create", "v1"), ("update", "v2")]


@contextlib.contextmanager
def holding(world: World, name: str) -> Iterator[None]:
    """Let the handlers of the object take as long as the block does."""
    path = pathlib.Path(f"{world.journal}.{name}")
    path.touch()
    yield
    path.unlink()


def test_a_successor_of_the_same_name(world: World) -> None:
    with holding(world, "again"):
        world.create("again", "old")
        wait(lambda: ("create", "old") in world.called("again"), "the handler")
        world.delete("again")
        world.create("again", "new")
    body = world.handled("again", "new")
    assert body["status"] == {"seen": "new"}
    assert world.calls_of_changes("again") == [("create", "old"), ("create", "new")]


def test_an_edit_while_handlers_run(world: World) -> None:
    with holding(world, "edited"):
        world.create("edited")
        wait(lambda: ("create", "v1") in world.called("edited"), "the handler")
        world.patch("edited", {"spec": {"field": "v2"}})
    body = world.handled("edited", "v2")
    assert body["status"] == {"seen": "v2"}
    assert world.calls_of_changes("edited") == [("create", "v1"), ("update", "v2")]


def test_finalizers_and_annotations_that_others_remove(world: World) -> None:
    def is_held() -> bool:
        return FINALIZER in world.get("held")["metadata"].get("finalizers", ())

    world.create("held", labels={"held": "yes"})
    world.handled("held")
    world.patch("held", {"metadata": {"finalizers": []}})
    wait(is_held, "the finalizer")
    world.patch("held", {"metadata": {"annotations": {LAST_HANDLED: "{not json"}}})
    wait(lambda: world.calls_of_changes("held") == [("create", "v1")] * 2, "the handler")  # as if it was never handled
    world.handled("held")
    assert LAST_HANDLED in world.operator.output
    with holding(world, "held"):
        world.delete("held")
        wait(lambda: ("delete", "v1") in world.called("held"), "the handler")
        world.patch("held", {"spec": {"field": "v2"}})  # the removal of the finalizer does not fit any more
    wait(lambda: world.get("held") is None, "the end")
    assert world.calls_of_changes("held")[2:] == [("delete", "v1")]


PHASES = define(
    "kopfphases",
    "KopfPhase",
    group="kopf.dev",
    subresources={"status": {}},
    schema={
        "type": "object",
        "properties": {
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        },
    },
)


@pytest.fixture
def phases(kubeapi: KubeApi) -> Iterator[None]:
    """Yield a kind of which the API looks at the status."""
    kubeapi.apply(PHASES)
    yield
    kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "kopfphases.kopf.dev")
    wait(
        lambda: not kubeapi.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "kopfphases.kopf.dev"),
        "the end of the kind",
    )


@pytest.mark.usefixtures("phases")
def test_a_status_that_is_refused_is_not_lost_by_a_kill(
    world: World,
    kubeapi: KubeApi,
    tmp_path: pathlib.Path,
    cluster: Any,
) -> None:
    handlers, phase = tmp_path / "handlers.py", tmp_path / "phase"
    handlers.write_text(f"""
import json, kopf, pathlib

@kopf.on.create('kopfphases')
def create(patch, **_):
    patch.status['phase'] = json.loads(pathlib.Path({str(phase)!r}).read_text())
""")
    kubeapi.apply({"apiVersion": "kopf.dev/v1", "kind": "KopfPhase", "metadata": {"name": "obj"}}, world.namespace)

    def get() -> Any:
        return kubeapi.get("kopf.dev/v1", "KopfPhase", world.namespace, "obj")

    for value, expected in [(5, None), ("ready", {"phase": "ready"})]:
        phase.write_text(json.dumps(value))
        with OperatorProcess(
            "-n", world.namespace, "--standalone", handlers, log=tmp_path / f"log{value}", kubeconfig=cluster.kubeconfig
        ) as operator:
            if expected is None:
                operator.wait_output("The API refuses to patch the object: status.phase")
            else:
                wait(lambda: LAST_HANDLED in get()["metadata"].get("annotations", {}), "the handling")
            operator.process.kill()
        assert get().get("status") == expected
        assert list(get()["metadata"].get("annotations", {})) == ([LAST_HANDLED] if expected else [])


@pytest.mark.usefixtures("phases")
def test_labels_that_are_edited_after_a_kill_in_a_creation(
    world: World,
    kubeapi: KubeApi,
    tmp_path: pathlib.Path,
    cluster: Any,
) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text("""
import asyncio, kopf, os

@kopf.on.create('kopfphases')
def first(**_):
    print("The first one.", flush=True)

@kopf.on.create('kopfphases')
async def second(**_):
    print("The second one.", flush=True)
    if 'HANGS' in os.environ:
        await asyncio.Event().wait()

@kopf.on.update('kopfphases')
def update(labels, **_):
    print(f"Updated: {dict(labels)}", flush=True)
""")
    with OperatorProcess(
        "-n", world.namespace, "--standalone", handlers, log=tmp_path / "log1", kubeconfig=cluster.kubeconfig, HANGS=""
    ) as operator:
        kubeapi.apply(
            {"apiVersion": "kopf.dev/v1", "kind": "KopfPhase", "metadata": {"name": "obj"}, "spec": {"size": 1}},
            world.namespace,
        )
        operator.wait_output("The second one.")
        operator.process.kill()
    kubeapi.patch("kopf.dev/v1", "KopfPhase", world.namespace, "obj", {"metadata": {"labels": {"edited": "yes"}}})
    with OperatorProcess(
        "-n", world.namespace, "--standalone", handlers, log=tmp_path / "log2", kubeconfig=cluster.kubeconfig
    ) as operator:
        operator.wait_output("Updated: {'edited': 'yes'}")
        assert "The first one." not in operator.output
