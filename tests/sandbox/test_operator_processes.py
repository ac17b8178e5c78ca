"""Operators against the sandbox, with the fixtures of users."""

import types

import pytest
from kinds import define

import kopf
from kopf._kits.testing import operator_processes
from kopf._kits.testing.serving.faults import SeenRequest
from kopf._kits.testing.webhook_notices import handles_own_resources
from kopf.testing import Operator, OperatorFailed

CRD = define("kopfexamples", "KopfExample", group="kopf.dev")
HANDLERS = """
import kopf

@kopf.on.create('kopfexamples')
def created(**_):
    return 'hello'
"""


def test_an_operator_handles_an_object(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    kopf_sandbox.apply(CRD)
    with kopf_operator(tmp_path / "handlers.py") as operator:
        kopf_sandbox.create({"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": "x"}})
        body = kopf_sandbox.wait_for("kopfexamples", "x", lambda body: "status" in body)
    assert body["status"] == {"created": "hello"}
    assert operator.returncode == 0
    assert "created" in operator.output


def test_the_error_of_an_operator_that_does_not_start_is_raised(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "handlers.py").write_text("1 / 0")
    with pytest.raises(OperatorFailed, match="ZeroDivisionError"), kopf_operator(tmp_path / "handlers.py"):
        pass


WEBHOOKS = """
import asyncio
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.managed = MANAGED
    settings.admission.server = Slow()

class Slow:
    async def __call__(self, fn):
        await asyncio.sleep(0.5)
        yield {'url': 'https://127.0.0.1:1/'}
        await asyncio.Event().wait()

@kopf.on.validate('kopfexamples')
def check(**_):
    pass

@kopf.on.event('configmaps')
def seen(**_):
    pass
"""


@pytest.mark.parametrize(
    "_", ["real time", pytest.param("virtual time", marks=pytest.mark.kopf_sandbox(virtual_time=True))]
)
def test_an_operator_with_managed_webhooks_starts_when_they_are_registered(kopf_sandbox, kopf_operator, tmp_path, _):
    (tmp_path / "handlers.py").write_text(WEBHOOKS.replace("MANAGED", "'own.example.dev'"))
    kopf_sandbox.apply(CRD)
    with kopf_operator(tmp_path / "handlers.py"):
        assert kopf_sandbox.get("validatingwebhookconfigurations", "own.example.dev")["webhooks"]


def test_an_operator_whose_webhooks_are_registered_by_others_starts_with_its_watches(
    kopf_sandbox, kopf_operator, tmp_path
):
    (tmp_path / "handlers.py").write_text(WEBHOOKS.replace("MANAGED", "None"))
    kopf_sandbox.apply(CRD)
    with kopf_operator(tmp_path / "handlers.py"):
        assert kopf_sandbox.list("validatingwebhookconfigurations") == []


def test_an_operator_that_cannot_register_its_webhooks_says_so(kopf_sandbox, kopf_operator, tmp_path):
    (tmp_path / "handlers.py").write_text(WEBHOOKS.replace("MANAGED", "'own.example.dev'").replace("0.5", "1000"))
    kopf_sandbox.apply(CRD)
    with (
        pytest.raises(OperatorFailed, match="has not registered its webhooks after 5"),
        kopf_operator(tmp_path / "handlers.py", timeout=5),
    ):
        pass


def test_last_words_are_heard(kopf_sandbox):
    """Also if they are said between two looks, and the operator has ended by then."""

    class Ending(Operator):
        said, returncode = "", None

        @property
        def output(self):
            said, self.said, self.returncode = self.said, "my last words", 0
            return said

    operator = Ending(kopf_sandbox)
    assert operator.wait_for_output("last words")
    operator.stop()


def test_an_operator_that_is_not_started_says_nothing(kopf_sandbox, kopf_operator):
    with pytest.raises(OperatorFailed, match="it is not started: use it in a with statement"):
        kopf_operator('handlers.py').wait_for_output('something', timeout=3600)


@pytest.mark.parametrize("options", [["--all-namespaces"], ["--namespace", "default"], ["--namespace", "def*"]])
@pytest.mark.parametrize("resource", ["namespaces", "customresourcedefinitions"])
def test_an_operator_of_what_the_framework_watches_too_is_started(
    kopf_sandbox, kopf_operator, tmp_path, resource, options
):
    code = f"import kopf\n@kopf.on.event('{resource}')\ndef fn(name, **_): print(f'seen {{name}}')\n"
    (tmp_path / 'handlers.py').write_text(code)
    with kopf_operator(tmp_path / 'handlers.py', *options) as operator:
        if resource == 'namespaces':
            operator.wait_for_output('seen default')


@pytest.mark.parametrize(
    "names, expected",
    [
        (["ns"], True),
        (["crds", "kopfpeerings"], True),
        (["namespaces", "pods"], False),
        ([kopf.EVERYTHING], False),
        ([], False),
    ],
)
def test_operators_of_what_the_framework_watches_too_are_recognized(names, expected):
    registry = kopf.OperatorRegistry()
    for name in names:
        kopf.on.event(name, registry=registry)(lambda: None)
    assert handles_own_resources(registry) is expected


def test_an_operator_without_its_kinds_is_not_waited_for(kopf_sandbox, kopf_operator, tmp_path, monkeypatch):
    monkeypatch.setattr(operator_processes, '_UNRESOLVED_TIMEOUT', 0)
    (tmp_path / 'handlers.py').write_text("import kopf\n@kopf.on.event('nosuches')\ndef fn(**_): pass\n")
    with pytest.raises(OperatorFailed, match="does not watch anything; apply the CRDs of its resources before it"):
        kopf_operator(tmp_path / 'handlers.py', timeout=3600).start()


CONVERSIONS = """
import asyncio, dataclasses, kopf

@dataclasses.dataclass
class Old:
    spec: dict[str, str]

@dataclasses.dataclass
class New:
    spec: dict[str, str]

kopf.kind('example.dev/v1', 'Alarm')(Old)
kopf.kind('example.dev/v2', 'Alarm')(New)

class Slow(kopf.WebhookServer):
    async def __call__(self, fn):
        await asyncio.sleep(1)
        async for config in super().__call__(fn):
            yield config

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.managed = 'own.example.dev'
    settings.admission.server = Slow()

@kopf.on.convert(Old, New)
def upgrade(obj, **_):
    return New({'at': obj.spec['time']})

@kopf.on.convert(New, Old)
def downgrade(obj, **_):
    return Old({'time': obj.spec['at']})
"""
OTHERS = {
    "nothing else": "",
    "the same kind": "\n@kopf.on.event(New)\ndef seen(**_): pass\n",
    "another kind": "\n@kopf.on.event('secrets')\ndef seen(**_): pass\n",
    "webhooks": "\n@kopf.on.validate('secrets')\ndef check(**_): pass\n",
}


@pytest.mark.long
@pytest.mark.parametrize("others", OTHERS)
def test_an_operator_that_converts_starts_when_its_conversions_are_registered(
    kopf_sandbox, kopf_operator, tmp_path, others
):
    (tmp_path / "handlers.py").write_text(CONVERSIONS + OTHERS[others])
    with kopf_operator(tmp_path / "handlers.py", timeout=30):
        kopf_sandbox.create("example.dev/v1/alarms", "early", spec={"time": "07:30"})
        assert kopf_sandbox.get("example.dev/v2/alarms", "early")["spec"] == {"at": "07:30"}
    with kopf_operator(tmp_path / "handlers.py", timeout=30):  # it replaces the address of the first one
        kopf_sandbox.create("example.dev/v1/alarms", "late", spec={"time": "23:30"})


@pytest.mark.parametrize("handler", ["validate('kopfexamples')", "convert('kopfexamples')"])
def test_an_operator_that_only_serves_what_others_have_registered_starts(
    kopf_sandbox, kopf_operator, tmp_path, handler
):
    head = WEBHOOKS.replace("MANAGED", "None").partition("@kopf.on.validate")[0]
    (tmp_path / "handlers.py").write_text(f"{head}@kopf.on.{handler}\ndef fn(**_):\n    pass\n")
    kopf_sandbox.apply(CRD)
    with kopf_operator(tmp_path / "handlers.py", timeout=30) as operator:
        operator.wait_for_output("Webhooks are served at")


def test_an_operator_with_webhooks_for_missing_kinds_only_does_not_start(
    kopf_sandbox, kopf_operator, tmp_path, monkeypatch
):
    monkeypatch.setattr(operator_processes, '_UNRESOLVED_TIMEOUT', 0)
    head = WEBHOOKS.replace("MANAGED", "'own.example.dev'").partition("@kopf.on.event")[0]
    (tmp_path / "handlers.py").write_text(head)
    with pytest.raises(OperatorFailed, match="apply the CRDs of its resources before it"):
        kopf_operator(tmp_path / "handlers.py", timeout=3600).start()


def test_an_operator_with_webhooks_has_started_when_both_configurations_are_written():
    """Also if it does not tell that it serves, because it is the child of a supervisor."""

    def request(verb, type, body=b"", status=200):
        seen = SeenRequest("", "", {}, "kopf/1", "", resource=f"{type}webhookconfigurations", verb=verb, body=body)
        seen.status = status
        return seen

    class Looking(Operator):
        def __init__(self, *requests):
            self._sandbox = types.SimpleNamespace(requests=requests)
            self._control = types.SimpleNamespace(is_serving=True, has_endpoints=False, handles_own_resources=False)

        def has_started(self):
            return self._find_lacking(0) is None

    config = b'{"webhooks": [{"clientConfig": {}}]}'
    requests = [request("create", "validating"), request("create", "mutating")]
    assert not Looking(*requests).has_started()
    requests.append(request("patch", "validating", config))
    assert not Looking(*requests).has_started()
    assert not Looking(*requests, request("patch", "mutating", status=0)).has_started()
    assert Looking(*requests, request("patch", "mutating", b'{"webhooks": []}')).has_started()
    assert Looking(*requests, request("patch", "mutating", config, status=403)).has_started()
