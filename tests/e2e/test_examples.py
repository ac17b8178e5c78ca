"""The examples do what their READMEs say, as users run them: `kopf run` in a process, against a real API."""

import json
import pathlib
import re
import signal

import pytest
from kubeapi import wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KIND = "kopf.dev/v1", "KopfExample"
NAME = "kopf-example-1"
LAST_HANDLED = "kopf.zalando.org/last-handled-configuration"


@pytest.fixture
def obj(kubeapi, namespace):
    """Return the object of obj.yaml in the test's namespace: its state by call, and the steps of READMEs with it."""

    class Example:
        def __call__(self):
            return kubeapi.get(*KIND, namespace, NAME)

        def handled(self, **spec):
            """Wait until the object is noted as handled with these fields and with nothing in progress."""

            def check():
                found = self()
                ours = {
                    key: value
                    for key, value in found["metadata"].get("annotations", {}).items()
                    if key.startswith("kopf.zalando.org/")
                }
                essence = json.loads(ours.pop(LAST_HANDLED, "null"))
                return essence and not ours and essence["spec"].items() >= spec.items() and found

            return wait(check, f"the object to be handled with {spec}")

        def change(self, **spec):
            kubeapi.patch(*KIND, namespace, NAME, {"spec": spec})

        def delete(self):
            kubeapi.delete(*KIND, namespace, NAME)

        def gone(self):
            return wait(lambda: self() is None, "the object to be gone")

    kubeapi.apply(EXAMPLES / "obj.yaml", namespace)
    return Example()


def assert_ends_well(operator, sig=signal.SIGTERM):
    code, seconds = operator.stop(sig)
    assert code == 0, operator.output
    assert seconds < 15
    assert "Traceback" not in operator.output


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_the_minimal_example_handles_the_creation(run_operator, obj, sig):
    operator = run_operator(EXAMPLES / "01-minimal" / "example.py")
    found = obj.handled(field="value")
    assert found["status"] == {"create_fn": {"message": "hello world"}}
    assert "And here we are! Creating: {'duration': '1m', 'field': 'value', 'items': [" in operator.output
    operator.wait_output(r"Handler 'create_fn' succeeded\.")
    operator.wait_output(r"Creation is processed: 1 succeeded; 0 failed\.")
    assert_ends_well(operator, sig)


def test_minimal_handles_an_object_once(run_operator, obj):
    path = EXAMPLES / "01-minimal" / "example.py"
    first = run_operator(path)
    version = obj.handled()["metadata"]["resourceVersion"]
    assert_ends_well(first)

    second = run_operator(path)
    obj.change(field="other")
    assert obj.handled(field="other")["metadata"]["resourceVersion"] != version
    assert_ends_well(second)
    assert first.output.count("And here we are!") == 1
    assert second.output.count("And here we are!") == 0


def test_handlers_with_exceptions_are_retried_or_given_up(run_operator, obj):
    operator = run_operator(EXAMPLES / "03-exceptions" / "example.py")
    obj.handled()
    operator.wait_output(r"Creation is processed: 3 succeeded; 3 failed\.")
    output = operator.output
    assert output.count("The database is not ready yet.") == 2
    assert len(re.findall(r"Handler 'not_yet' failed temporarily: ", output)) == 2
    assert "Handler 'not_yet' succeeded." in output
    assert "Handler 'never' failed permanently: There is nothing that could be done about it." in output
    failed = "failed with an exception and will"
    assert f"Handler 'flaky' {failed} try again in 0.5 seconds: ConnectionError: The network has" in output
    assert "Handler 'flaky' succeeded." in output
    assert f"Handler 'strict' {failed} stop now: ValueError: The specification makes no sense." in output
    assert f"Handler 'nice_to_have' {failed} ignore it: RuntimeError: It is of no importance." in output
    assert "Attempt 2 has failed." in output
    assert "Attempt 3 has failed." not in output
    code, seconds = operator.stop()
    assert code == 0 and seconds < 15


def test_handlers_of_all_kinds_are_called(run_operator, obj):
    path = EXAMPLES / "05-handlers" / "example.py"
    first = run_operator(path)
    obj.handled()
    first.wait_output(r"The operator starts")
    first.wait_output(r"Event: None kopf-example-1|Event: ADDED kopf-example-1")
    first.wait_output(r"Created: spec=\{'duration': '1m'")
    assert_ends_well(first)
    assert "The operator stops" in first.output
    assert "Resumed" not in first.output
    assert "Updated" not in first.output

    second = run_operator(path)
    second.wait_output(r"Resumed: kopf-example-1 was there before this operator")
    obj.change(field="other")
    second.wait_output(r"Updated: change spec\.field: value -> other")
    second.wait_output(r"Field: value -> other")
    obj.handled(field="other")
    obj.delete()
    second.wait_output(r"Deleted: kopf-example-1 waits for this handler")
    obj.gone()
    second.wait_output(r"Event: DELETED kopf-example-1")
    assert_ends_well(second)
    assert "Created" not in second.output
    assert second.output.count("Resumed") == 1


def test_all_at_once_goes_on_after_a_restart(run_operator, obj, kubeapi, namespace):
    """What the README cannot show in a sandbox, which ends with the operator."""

    def children():
        found = kubeapi.items("v1", "ConfigMap", namespace)
        return {item["data"]["item"]: item["metadata"] for item in found if item["metadata"]["name"].startswith(NAME)}

    def counted(number):
        return wait(lambda: (found := obj())["status"].get("children") == number and found, f"{number} children")

    path = EXAMPLES / "99-all-at-once" / "example.py"
    first = run_operator(path)
    found = obj.handled()
    assert found["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
    assert found["status"]["prepare"] == {"attempts": 2}
    counted(2)
    assert all(meta["labels"]["examples.kopf.dev/parent"] == NAME for meta in children().values())
    assert all(meta["ownerReferences"][0]["uid"] == found["metadata"]["uid"] for meta in children().values())
    assert_ends_well(first)
    assert "Resumed" not in first.output
    assert "Activity 'login' succeeded." in first.output

    # While no operator watches: a child is lost, and another one is wanted.
    kubeapi.delete("v1", "ConfigMap", namespace, f"{NAME}-item1")
    obj.change(items=["item2", "item3"])
    second = run_operator(path)
    obj.handled(items=["item2", "item3"])
    second.wait_output(r"Resumed, with \d children\.")
    second.wait_output("The child item3 is created.")
    second.wait_output("The child item1 is removed.")
    counted(2)
    assert children().keys() == {"item2", "item3"}
    obj.delete()
    obj.gone()
    assert_ends_well(second)
    assert second.output.count("Resumed") == 1
    assert "prepare" not in second.output
    assert "The child item2" not in second.output


def test_walkthrough_when_claims_cannot_be_made_or_changed(run_operator, kubeapi, namespace):
    folder = EXAMPLES / "18-walkthrough"
    kind, claim = ("kopf.dev/v1", "EphemeralVolumeClaim", namespace), ("v1", "PersistentVolumeClaim", namespace)
    kubeapi.apply(folder / "crd.yaml")
    kubeapi.apply(folder / "obj.yaml", namespace)
    kubeapi.apply({"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": "no-size"}, "spec": {}}, namespace)
    operator = run_operator(folder / "ephemeral.py")
    operator.wait_output(r"/no-size\] Handler 'create_fn' failed permanently: Size must be set\. Got None\.")
    operator.wait_output(r"/my-claim\] Creation is processed: 1 succeeded; 0 failed\.")
    assert kubeapi.get(*claim, "no-size") is None

    kubeapi.patch(*kind, "no-size", {"spec": {"size": "1G"}})
    operator.wait_output(r"/no-size\] Handler 'update_fn/spec\.size' failed permanently: There is no claim to change")
    # A claim that is gone, or that is not bound yet, cannot be resized: it is no use, but to try again.
    kubeapi.delete(*claim, "my-claim")
    kubeapi.patch(*kind, "my-claim", {"spec": {"size": "2G"}})
    operator.wait_output(r"/my-claim\] Handler 'update_fn/spec\.size' failed temporarily: The cluster has refused: \w+")
    assert_ends_well(operator)
    if kubeapi.get(*claim, "my-claim"):  # protected, with no controller there to release it
        kubeapi.patch(*claim, "my-claim", {"metadata": {"finalizers": None}})
