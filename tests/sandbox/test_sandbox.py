"""The Python API: start and stop, and the verbs on dicts, in synchronous and asynchronous code."""

import asyncio
import json
import stat
import urllib.request

import pytest
from kinds import NOTES, define, note

import kopf.testing
from kopf.testing import ManifestError, Refusal, Sandbox, WaitTimeout

NOTE = note("n")


@pytest.fixture(scope="module")
def notes():
    with Sandbox(crds=NOTES) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def clean(notes):
    yield
    for item in notes.list("notes"):
        notes.delete("notes", item["metadata"]["name"], namespace=item["metadata"]["namespace"])


def test_all_verbs_have_a_method(notes):
    created = notes.create({**NOTE, "text": "a"})
    assert created["metadata"]["namespace"] == "default"
    assert notes.get("notes", "n") == created
    assert notes.patch("nt", "n", {"text": "b"})["text"] == "b"
    assert notes.patch("Note", "n", [{"op": "replace", "path": "/text", "value": "c"}])["text"] == "c"
    current = notes.get("note.example.dev", "n")
    assert notes.replace({**current, "text": "d"})["text"] == "d"
    assert [item["text"] for item in notes.list("notes.v1.example.dev")] == ["d"]
    notes.delete("notes", "n")
    assert notes.list("notes") == []


@pytest.mark.parametrize(
    "resource, found",
    [
        ("example.dev/v1/notes", True),
        ("example.dev/notes", True),
        ("example.dev/v1/Note", True),
        ("example.dev/v2/notes", False),
        ("example.org/v1/notes", False),
    ],
)
def test_the_group_and_the_version_can_precede_the_name(notes, resource, found):
    notes.create(NOTE)
    if found:
        assert notes.get(resource, "n")["metadata"]["name"] == "n"
    else:
        with pytest.raises(Refusal, match="doesn't have a resource type"):
            notes.get(resource, "n")


@pytest.mark.parametrize("resource", ["v1/pods", "pods.v1", "po"])
def test_the_core_api_is_a_version_without_a_group(notes, resource):
    assert notes.list(resource) == []


def test_lists_can_be_narrowed(notes):
    notes.create({**NOTE, "metadata": {"name": "a", "labels": {"x": "1"}}})
    notes.create({**NOTE, "metadata": {"name": "b", "namespace": "kube-system"}})
    assert len(notes.list("notes")) == 2
    assert len(notes.list("notes", namespace="default")) == 1
    assert len(notes.list("notes", label_selector="!x")) == 1
    assert len(notes.list("notes", field_selector="metadata.name=a")) == 1


def test_names_stand_for_the_kinds_of_the_moment(notes):
    for group in ("a.example.com", "b.example.com"):
        definition = notes.create(define("memos", "Memo", group=group, short="mm"))
        assert notes.create("mm", "x")["apiVersion"] == f"{group}/v1"
        notes.delete("crds", definition["metadata"]["name"])
        notes.wait_gone("crds", definition["metadata"]["name"])
        with pytest.raises(Refusal, match="doesn't have a resource type"):
            notes.get("mm", "x")


def test_refusals_are_raised_as_exceptions(notes):
    with pytest.raises(Refusal) as caught:
        notes.get("notes", "absent")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")
    assert str(caught.value) == 'notes.example.dev "absent" not found'
    with pytest.raises(Refusal, match="doesn't have a resource type"):
        notes.list("unicorns")
    with pytest.raises(Refusal, match='no matches for kind "Unicorn"'):
        notes.create({**NOTE, "kind": "Unicorn"})


def test_a_refused_service_monitor_has_a_remedy(notes):
    body = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "n"}}
    with pytest.raises(
        Refusal, match="no matches for kind .* make the manifests with --metrics, not with --monitoring"
    ):
        notes.apply(body)


def test_given_objects_are_not_changed(notes):
    body = {**NOTE, "metadata": {"name": "n"}}
    notes.create(body)
    assert body == NOTE


async def test_waits_end_when_the_condition_is_met(notes):
    waiting = asyncio.create_task(notes.aio.wait_for("notes", "n", lambda body: body.get("text") == "b"))
    await notes.aio.create({**NOTE, "text": "a"})
    await notes.aio.patch("notes", "n", {"text": "b"})
    assert (await waiting)["text"] == "b"
    gone = asyncio.create_task(notes.aio.wait_gone("notes", "n"))
    await notes.aio.delete("notes", "n")
    await gone


def test_waiting_in_vain_says_what_is_there(notes):
    with pytest.raises(TimeoutError, match="is not there after 0.05 s; it is: absent"):
        notes.wait_for("notes", "n", timeout=0.05)
    notes.create({**NOTE, "text": "a"})
    with pytest.raises(TimeoutError, match='"text": "a"'):
        notes.wait_for("notes", "n", lambda body: False, timeout=0.05)
    with pytest.raises(TimeoutError, match="is not gone"):
        notes.wait_gone("notes", "n", timeout=0.05)


@pytest.mark.parametrize(
    "predicate, failure",
    [
        (lambda body: body["nosuch"], "KeyError: 'nosuch'"),
        (lambda body: body["text"][5], "IndexError: string index out of range"),
        (lambda body: body.get("nosuch")["key"], "TypeError: 'NoneType' object is not subscriptable"),
        (lambda body: body.get("nosuch").get("key"), "AttributeError: 'NoneType' object has no attribute 'get'"),
        (lambda body: next(item for item in body.get("items", [])), "StopIteration"),
    ],
)
def test_lookup_errors_of_predicates_are_named_at_the_timeout(notes, predicate, failure):
    notes.create({**NOTE, "text": "a"})
    with pytest.raises(WaitTimeout) as error:
        notes.wait_for("notes", "n", predicate, timeout=0.05)
    assert f"is not as expected after 0.05 s (the predicate has failed: {failure}); it is: {{" in str(error.value)


def test_a_predicate_that_never_decides_is_named(notes):
    notes.create({**NOTE, "text": "a"})
    with pytest.raises(WaitTimeout, match="the predicate has returned None: is there no return in it"):
        notes.wait_for("notes", "n", lambda body: None, timeout=0.05)
    with pytest.raises(WaitTimeout, match="is not as expected after 0.05 s; it is"):
        notes.wait_for("notes", "n", lambda body: False, timeout=0.05)


def test_a_wait_for_an_unknown_kind_says_so_at_the_timeout(notes):
    with pytest.raises(WaitTimeout, match="nosuches 'n' is not there after 0.05 s: there is no kind 'nosuches'"):
        notes.wait_for("nosuches", "n", timeout=0.05)


async def _asynchronous(body):
    return False


@pytest.mark.parametrize(
    "predicate, message",
    [
        (True, "the predicate must be a function of the object, not True"),
        (_asynchronous, "the predicate must not be an async function: its result is needed at once"),
        (
            lambda: True,
            r"the predicate cannot be called with the object: .*takes 0 positional arguments but 1 was given",
        ),
    ],
)
def test_wrong_predicates_are_refused_in_the_line_that_uses_them(notes, predicate, message):
    notes.create({**NOTE, "text": "a"})
    with pytest.raises(TypeError, match=message) as error:
        notes.wait_for("notes", "n", predicate, timeout=5)
    assert {entry.path.name for entry in error.traceback[:-2]} <= {"test_sandbox.py"}


async def test_lookup_errors_of_predicates_count_as_not_yet(notes):
    waiting = asyncio.create_task(notes.aio.wait_for("notes", "n", lambda body: body["items"][0] == 1))
    await notes.aio.create(NOTE)
    await notes.aio.patch("notes", "n", {"items": [1]})
    assert (await waiting)["items"] == [1]


@pytest.mark.parametrize(
    "predicate, error",
    [
        (lambda: True, TypeError),
        (lambda body: body.nosuch, AttributeError),
        (lambda body: 1 / 0, ZeroDivisionError),
    ],
)
async def test_mistakes_in_the_predicate_are_raised_at_once(notes, predicate, error):
    notes.create(NOTE)
    with pytest.raises(error):
        notes.wait_for("notes", "n", predicate)
    with pytest.raises(error):
        await notes.aio.wait_for("notes", "n", predicate)


def test_events_are_those_of_the_objects_that_were_waited_for(notes):
    uid = notes.create(NOTE)["metadata"]["uid"]
    rows = [("Note", "n", uid), ("Note", "m", "other"), ("Other", "n", "another")]
    for count, (kind, name, some) in enumerate(rows, start=1):
        notes.create(
            "events",
            f"event{count}",
            reason="Testing",
            type="Normal",
            count=count,
            message=f"{kind} {name}",
            involvedObject={"kind": kind, "name": name, "uid": some, "namespace": "default"},
        )
    with pytest.raises(WaitTimeout) as error:
        notes.wait_gone("notes", "n", timeout=0.01)
    assert error.value.events == ["Normal Testing: Note n"]
    with pytest.raises(WaitTimeout) as error:
        notes.wait_for("notes", "m", timeout=0.01)  # it has been there
    assert error.value.events == ["Normal Testing (x2): Note m"]


def test_objects_are_created_by_kind_and_name(notes):
    body = notes.create(
        "Note",
        "n",
        text="a",
        labels={"a": "b"},
        annotations={"c": "d"},
        finalizers=["e/f"],
        metadata={"labels": {}, "generateName": "g-"},
    )
    meta = body["metadata"]
    assert (body["apiVersion"], body["kind"], body["text"]) == ("example.dev/v1", "Note", "a")
    assert (meta["name"], meta["namespace"], meta["labels"]) == ("n", "default", {"a": "b"})
    assert (meta["annotations"], meta["finalizers"], meta["generateName"]) == ({"c": "d"}, ["e/f"], "g-")
    notes.patch("notes", "n", {"metadata": {"finalizers": None}})
    assert notes.create("configmap", "x", namespace="kube-system", data={"k": "v"})["data"] == {"k": "v"}
    assert notes.get("configmap", "x", namespace="kube-system")["apiVersion"] == "v1"
    assert notes.create("note", text="a", metadata={"generateName": "g-"})["metadata"]["name"].startswith("g-")
    with pytest.raises(Refusal, match="doesn't have a resource type"):
        notes.create("unicorns", "u")
    with pytest.raises(TypeError, match="either a whole object"):
        notes.create(NOTE, "n")


@pytest.mark.parametrize("name", ["ManifestError", "OperatorFailed", "Refusal", "StateError", "WaitTimeout"])
def test_errors_are_called_as_they_are_imported(name):
    error = getattr(kopf.testing, name)
    assert (error.__module__, error.__qualname__) == ("kopf.testing", name)


def test_resources_that_come_later_are_waited_for(notes):
    with pytest.raises(TimeoutError):
        notes.wait_for("unicorns", "u", timeout=0.05)


def test_files_and_objects_can_be_applied(notes, tmp_path):
    (tmp_path / "a.yaml").write_text(
        json.dumps({**NOTE, "text": "a"})
        + "\n---\n"
        + json.dumps({"apiVersion": "v1", "kind": "List", "items": [{**NOTE, "metadata": {"name": "m"}}]})
    )
    assert [body["metadata"]["name"] for body in notes.apply(tmp_path)] == ["n", "m"]
    assert notes.apply({**NOTE, "text": "b"})[0]["text"] == "b"


@pytest.mark.parametrize(
    "source, message",
    [
        ("no/such/file.yaml", "cannot be read"),
        ("a: [\n", "not YAML"),
        ("just: this\n", "apiVersion is missing"),
        ({**NOTE, "kind": "Unicorn"}, "Unicorn 'n': no matches"),
    ],
)
def test_sources_that_cannot_be_applied_are_explained(notes, source, message):
    with pytest.raises(ManifestError, match=message):
        notes.apply(source)


def test_refusals_name_the_applied_objects(notes):
    with pytest.raises(Refusal, match="object: Note 'A': .*metadata.name: Invalid value") as error:
        notes.apply({**NOTE, "metadata": {"name": "A"}})
    assert error.value.code == 422 and isinstance(error.value, ManifestError)


def test_the_kubeconfig_leads_to_the_sandbox(notes):
    config = json.loads(notes.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == notes.url
    assert config["users"][0]["user"]["token"] == notes.token
    assert stat.S_IMODE(notes.kubeconfig.stat().st_mode) == 0o600


def test_requests_are_noted(notes):
    import ssl

    request = urllib.request.Request(
        f"{notes.url}/apis/example.dev/v1/notes?limit=1",
        headers={"Authorization": f"Bearer {notes.token}", "User-Agent": "me"},
    )
    urllib.request.urlopen(request, context=ssl.create_default_context(cadata=notes.ca.decode())).read()
    seen = notes.requests[-1]
    assert (seen.method, seen.verb, seen.resource, seen.status) == ("GET", "list", "notes", 200)
    assert (seen.user_agent, dict(seen.query), seen.user) == ("me", {"limit": "1"}, "sandbox")


async def test_a_sandbox_can_be_used_asynchronously():
    async with Sandbox(crds=[NOTES], loads=[NOTE]) as sandbox:
        assert (await sandbox.get("notes", "n"))["metadata"]["name"] == "n"
        assert len(await sandbox.list("notes")) == 1
        assert (await sandbox.wait_for("notes", "n", timeout=1))["kind"] == "Note"


def test_a_sandbox_cannot_be_used_after_its_end():
    with Sandbox() as sandbox:
        path = sandbox.kubeconfig
        assert path.exists()
    assert not path.exists()
    with pytest.raises(RuntimeError, match="not running"):
        Sandbox().get("notes", "n")
    with pytest.raises(RuntimeError, match="not running any more"):
        sandbox.get("notes", "n")
    with pytest.raises(RuntimeError, match="used once"), sandbox:
        pass


def test_a_given_kubeconfig_stays(tmp_path):
    with Sandbox(kubeconfig=tmp_path / "deep" / "config"):
        pass
    assert (tmp_path / "deep" / "config").exists()


def test_bad_starts_fail_with_their_reason(notes):
    with pytest.raises(ManifestError), Sandbox(crds="no/such/file.yaml"):
        pass
    with pytest.raises(OSError), Sandbox(port=int(notes.url.rpartition(":")[2])):
        pass


def test_requests_are_written_to_the_audit_log(tmp_path):
    with Sandbox(audit=tmp_path / "audit.log") as sandbox:
        import ssl

        request = urllib.request.Request(
            f"{sandbox.url}/api/v1/namespaces",
            method="POST",
            data=b'{"metadata": {"name": "x"}}',
            headers={"Authorization": f"Bearer {sandbox.token}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, context=ssl.create_default_context(cadata=sandbox.ca.decode())).read()
    (entry,) = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    assert (entry["verb"], entry["user"], entry["responseStatus"]["code"]) == ("create", {"username": "sandbox"}, 201)
    assert entry["objectRef"] == {"resource": "namespaces", "apiVersion": "v1"}
    assert entry["requestObject"] == {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}}
