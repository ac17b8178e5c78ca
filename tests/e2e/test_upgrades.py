"""A kind with stored objects gets its second version, and nothing is lost, in whatever order things happen."""

import os

import pytest
import yaml
from forkserver import run_process
from kubeapi import ApiError, wait

GROUP = "up.kopf.dev"
COUNT = 50
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

FORMER = """
    import dataclasses, kopf, os

    @dataclasses.dataclass
    class OldSpec:
        at: str
        note: str = ""

    @dataclasses.dataclass
    class Status:
        set: str | None = None

    @kopf.kind("up.kopf.dev/v1", os.environ["KIND"], conditions=True)
    @dataclasses.dataclass
    class OldAlarm:
        spec: OldSpec
        status: Status | None = None
"""

OLD_HANDLERS = """
    @kopf.on.create(OldAlarm)
    def created(spec, patch, **_):
        patch.status["set"] = spec.at
        patch.status["conditions"] = [{"type": "Old", "status": "True"}]
"""

NEW_HANDLERS = """
    @dataclasses.dataclass
    class NewSpec:
        hour: int
        minute: int
        note: str = ""

    @kopf.kind("up.kopf.dev/v2", os.environ["KIND"], conditions=True)
    @dataclasses.dataclass
    class Alarm:
        spec: NewSpec
        status: Status | None = None

    @kopf.on.startup()
    def configure(settings, **_):
        settings.admission.server = kopf.WebhookServer()
        settings.admission.managed = "up.kopf.dev"

    @kopf.on.convert(OldAlarm, Alarm)
    def upgrade(obj: OldAlarm, **_) -> Alarm:
        hour, _colon, minute = obj.spec.at.partition(":")
        return Alarm(NewSpec(int(hour), int(minute), obj.spec.note), obj.status)

    @kopf.on.convert(Alarm, OldAlarm)
    def downgrade(obj: Alarm, **_) -> OldAlarm:
        return OldAlarm(OldSpec(f"{obj.spec.hour:02}:{obj.spec.minute:02}", obj.spec.note), obj.status)

    @kopf.on.create(Alarm)
    @kopf.on.resume(Alarm)
    def handled(body, patch, **_):
        spec = body["spec"]
        patch.status["set"] = f"v2:{spec.get('hour')}:{spec.get('minute')}"
"""


def get_time(number):
    return f"{number % 24:02}:{number:02}"


class Upgrade:
    """One kind with its stored objects."""

    def __init__(self, kubeapi, namespace, tmp_path, run_operator):
        self.api, self.namespace, self.folder = kubeapi, namespace, tmp_path
        self.kind = f"Alarm{namespace[-8:]}"
        self.plural = f"alarm{namespace[-8:]}s"
        self.env = {"KIND": self.kind}
        self._run_operator = run_operator
        self.former = self._write("former.py", FORMER + OLD_HANDLERS)
        self.newer = self._write("newer.py", FORMER + NEW_HANDLERS)

    def _write(self, name, code):
        path = self.folder / name
        path.write_text(code.replace("\n    ", "\n"))
        return path

    def apply_crd(self, app):
        done = run_process(["kopf", "crd", app], env={**os.environ, **self.env})
        assert done.returncode == 0, done.stderr
        crd = yaml.safe_load(done.stdout)
        try:
            self.api.request("POST", CRDS, crd)
        except ApiError as error:
            assert error.status == 409
            self.patch_crd(crd, "application/merge-patch+json")

    def patch_crd(self, patch, kind):
        self.api.request("PATCH", f"{CRDS}/{self.plural}.{GROUP}", patch, kind)

    def remove_conversion(self):
        change = {"op": "add", "path": "/spec/conversion", "value": {"strategy": "None"}}
        self.patch_crd([change], "application/json-patch+json")

    def path(self, version, name=""):
        return f"/apis/{GROUP}/{version}/namespaces/{self.namespace}/{self.plural}" + (name and f"/{name}")

    def get(self, version, name=""):
        return self.api.request("GET", self.path(version, name))

    def operate(self, app, *args):
        return self._run_operator(app, "--standalone", *args, **self.env)

    def fill(self):
        """Create the objects in the former version, and let the former operator handle them."""

        def served():
            try:
                return self.get("v1")["items"] == []
            except ApiError as error:
                assert error.status == 404
                return False

        self.apply_crd(self.former)
        wait(served, "the former version")
        for number in range(COUNT):
            body = {
                "apiVersion": f"{GROUP}/v1",
                "kind": self.kind,
                "metadata": {"name": f"alarm-{number:02}"},
                "spec": {"at": get_time(number), "note": f"note {number}"},
            }
            self.api.request("POST", self.path("v1"), body)
        operator = self.operate(self.former)
        wait(lambda: all(self.is_set(each) for each in self.get("v1")["items"]), "the former operator")
        operator.stop()

    @staticmethod
    def is_set(body):
        return "set" in (body.get("status") or {})

    def is_handled(self):
        try:
            items = self.get("v2")["items"]
        except ApiError:
            return False
        return all(each["status"]["set"].startswith("v2:") for each in items)

    def check(self):
        """Check that all objects have all their fields, in both versions."""
        found = {each["metadata"]["name"]: each for each in self.get("v2")["items"]}
        former = {each["metadata"]["name"]: each for each in self.get("v1")["items"]}
        assert len(found) == len(former) == COUNT
        for number in range(COUNT):
            name = f"alarm-{number:02}"
            assert former[name]["spec"] == {"at": get_time(number), "note": f"note {number}"}
            assert found[name]["spec"] == {"hour": number % 24, "minute": number, "note": f"note {number}"}
            assert found[name]["status"]["set"] == f"v2:{number % 24}:{number}"
            assert found[name]["status"]["conditions"] == [{"type": "Old", "status": "True"}]


@pytest.fixture
def upgrade(cluster, kubeapi, namespace, tmp_path, run_operator):
    upgrade = Upgrade(kubeapi, namespace, tmp_path, run_operator)
    yield upgrade
    upgrade.remove_conversion()  # without the operator, the objects could not be listed for their deletion
    kubeapi.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, f"{upgrade.plural}.{GROUP}")


@pytest.mark.long
def test_nothing_is_lost_if_the_crd_comes_before_the_operator(upgrade):
    upgrade.fill()
    upgrade.apply_crd(upgrade.newer)
    # From the first moment, the API server refuses what it cannot convert.
    wait(lambda: "v2" in {each["version"] for each in upgrade.api.request("GET", f"/apis/{GROUP}")["versions"]}, "v2")
    with pytest.raises(ApiError, match="operator-not-started"):
        upgrade.get("v2", "alarm-01")
    assert upgrade.get("v1", "alarm-01")["spec"]["at"] == get_time(1)
    upgrade.operate(upgrade.newer)
    wait(upgrade.is_handled, "the newer operator")
    upgrade.check()


@pytest.mark.long
def test_nothing_is_lost_if_the_operator_applies_the_crd(upgrade):
    upgrade.fill()
    upgrade.operate(upgrade.newer, "--apply-crds")
    wait(upgrade.is_handled, "the newer operator")
    upgrade.check()


@pytest.mark.long
def test_nothing_is_lost_if_the_crd_has_no_conversion(upgrade):
    """The operator handles no objects until it has written the conversion, and the API server uses it."""
    upgrade.fill()
    upgrade.apply_crd(upgrade.newer)
    upgrade.remove_conversion()
    operator = upgrade.operate(upgrade.newer)
    operator.wait_output("Its objects are handled when the conversion is in force.")
    wait(upgrade.is_handled, "the newer operator")
    upgrade.check()
