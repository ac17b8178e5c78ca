"""Operators against the sandbox, with the fixtures of users."""

import types

import pytest
from kinds import define

from kopf._kits.testing.serving.faults import SeenRequest
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
        kopf_operator('handlers.py').wait_for_output('something', timeout=0.05)


def test_an_operator_with_webhooks_has_started_when_both_configurations_are_written():
    def request(verb, type, body=b"", status=200):
        seen = SeenRequest("", "", {}, "kopf/1", "", resource=f"{type}webhookconfigurations", verb=verb, body=body)
        seen.status = status
        return seen

    class Looking(Operator):
        def __init__(self, *requests):
            self._sandbox = types.SimpleNamespace(requests=requests)

    config = b'{"webhooks": [{"clientConfig": {}}]}'
    requests = [request("create", "validating"), request("create", "mutating")]
    assert not Looking(*requests)._serves(0)
    requests.append(request("patch", "validating", config))
    assert not Looking(*requests)._serves(0)
    assert not Looking(*requests, request("patch", "mutating", status=0))._serves(0)
    assert Looking(*requests, request("patch", "mutating", b'{"webhooks": []}'))._serves(0)
    assert Looking(*requests, request("patch", "mutating", config, status=403))._serves(0)
