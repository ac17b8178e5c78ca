"""The simulated life of pods, jobs, deployments, and other workloads."""

import time

import pytest

from kopf.testing import Sandbox

FAST = {"sandbox.kopf.dev/starts-after": "0.01", "sandbox.kopf.dev/runs-for": "0.01"}


@pytest.fixture(scope="module")
def busy():
    with Sandbox(pods=True) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def clean(busy):
    snapshot = busy.snapshot()
    yield
    busy.restore(snapshot)


def pod(name, policy="Never", **annotations):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": {f"sandbox.kopf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": {"restartPolicy": policy, "containers": [{"name": "main", "image": "busybox"}]},
    }


def template(policy, annotations, **labels):
    return {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {"restartPolicy": policy, "containers": [{"name": "main", "image": "busybox"}]},
    }


def job(name, annotations=FAST, policy="Never", **spec):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template(policy, annotations), **spec},
    }


def phase(name):
    return lambda body: body["status"]["phase"] == name


def condition(type):
    return lambda body: any(
        item["type"] == type and item["status"] == "True" for item in body.get("status", {}).get("conditions", ())
    )


def pods_of(sandbox, name):
    return [
        item for item in sandbox.list("pods") if item["metadata"].get("ownerReferences", [{}])[0].get("name") == name
    ]


def test_pods_run_and_succeed(busy):
    created = busy.create(pod("p", starts_after="0.1", runs_for="0.2"))
    assert created["status"]["phase"] == "Pending"
    running = busy.wait_for("pods", "p", phase("Running"))
    status = running["status"]
    assert running["spec"]["nodeName"] == "sandbox"
    assert busy.get("nodes", "sandbox")
    assert status["podIP"].startswith("10.244.")
    assert status["startTime"]
    assert {item["type"] for item in status["conditions"] if item["status"] == "True"} == {
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    }
    (container,) = status["containerStatuses"]
    assert container["ready"] and container["started"] and not container["restartCount"]
    assert list(container["state"]) == ["running"]
    ended = busy.wait_for("pods", "p", phase("Succeeded"))["status"]
    assert not condition("Ready")({"status": ended})
    (container,) = ended["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 0
    assert container["state"]["terminated"]["reason"] == "Completed"
    assert ended["podIP"] == status["podIP"]


def test_pods_fail_with_their_exit_code(busy):
    busy.create(pod("p", runs_for="0.01", exit_code="3"))
    status = busy.wait_for("pods", "p", phase("Failed"))["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "Error"


def test_failed_containers_are_restarted(busy):
    busy.create(pod("p", "OnFailure", runs_for="0.01", exit_code="1"))
    body = busy.wait_for("pods", "p", lambda body: body["status"].get("containerStatuses", [{}])[0].get("restartCount"))
    assert body["status"]["phase"] == "Running"
    assert body["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    busy.patch("pods", "p", {"metadata": {"annotations": {"sandbox.kopf.dev/exit-code": "0"}}})
    busy.wait_for("pods", "p", phase("Succeeded"))


def test_pods_stay_in_their_phases(busy):
    busy.create(pod("pending", starts_after="never"))
    busy.create(pod("running", "Always"))
    busy.create(pod("forever", runs_for="forever"))
    busy.wait_for("pods", "running", phase("Running"))
    busy.wait_for("pods", "forever", phase("Running"))
    busy.create(pod("later", starts_after="0.3", runs_for="0"))
    busy.wait_for("pods", "later", phase("Succeeded"))
    assert [item["status"]["phase"] for item in busy.list("pods")] == ["Running", "Succeeded", "Pending", "Running"]


def test_new_pods_of_an_old_name(busy):
    """What was planned for the former pod does not happen to its successor."""
    busy.create(pod("p", starts_after="0.2"))
    busy.delete("pods", "p")
    busy.create(pod("p", starts_after="never"))
    busy.create(pod("later", starts_after="0.3"))
    busy.wait_for("pods", "later", phase("Running"))
    assert busy.get("pods", "p")["status"]["phase"] == "Pending"


def test_jobs_run_pods_until_complete(busy):
    busy.create(job("j", completions=3, parallelism=2, annotations={**FAST, "sandbox.kopf.dev/runs-for": "0.1"}))
    active = busy.wait_for("jobs", "j", lambda body: body["status"].get("active") == 2)["status"]
    assert active["startTime"] and "conditions" not in active
    done = busy.wait_for("jobs", "j", condition("Complete"))["status"]
    assert (done["succeeded"], done.get("active"), done.get("failed")) == (3, None, None)
    assert done["completionTime"]
    assert [(item["type"], item["reason"], item["message"]) for item in done["conditions"]] == [
        (type, "CompletionsReached", "Reached expected number of succeeded pods")
        for type in ("SuccessCriteriaMet", "Complete")
    ]
    pods = pods_of(busy, "j")
    assert len(pods) == 3
    assert all(item["metadata"]["name"].startswith("j-") for item in pods)
    assert {item["metadata"]["labels"]["batch.kubernetes.io/job-name"] for item in pods} == {"j"}
    busy.delete("jobs", "j", propagation="Background")
    for item in pods:
        busy.wait_gone("pods", item["metadata"]["name"])


def test_jobs_fail_after_their_backoff_limit(busy):
    busy.create(job("j", {**FAST, "sandbox.kopf.dev/exit-code": "1"}, backoffLimit=1))
    failed = busy.wait_for("jobs", "j", condition("Failed"))["status"]
    assert failed["failed"] == 2
    assert [(item["type"], item["reason"], item["message"]) for item in failed["conditions"]] == [
        (type, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        for type in ("FailureTarget", "Failed")
    ]
    assert len(pods_of(busy, "j")) == 2


def test_jobs_fail_at_their_deadline(busy):
    busy.create(job("j", {"sandbox.kopf.dev/runs-for": "forever"}, activeDeadlineSeconds=1))
    failed = busy.wait_for("jobs", "j", condition("Failed"))["status"]
    assert failed["conditions"][0]["reason"] == "DeadlineExceeded"
    assert pods_of(busy, "j") == []


def test_suspended_jobs_run_no_pods_until_they_are_resumed(busy):
    busy.create(job("j", suspend=True))
    busy.wait_for("jobs", "j", condition("Suspended"))
    assert pods_of(busy, "j") == []
    busy.patch("jobs", "j", {"spec": {"suspend": False}})
    assert not condition("Suspended")(busy.wait_for("jobs", "j", condition("Complete")))


def test_finished_jobs_are_deleted_if_requested(busy):
    busy.create(job("j", ttlSecondsAfterFinished=0))
    busy.wait_gone("jobs", "j")


def deployment(replicas, **labels):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "d"}},
            "template": template("Always", {"sandbox.kopf.dev/starts-after": "0.01"}, app="d", **labels),
        },
    }


def available(count):
    return lambda body: (
        body.get("status", {}).get("availableReplicas", 0)
        == count
        == body["status"].get("updatedReplicas", 0)
        == body["status"].get("replicas", 0)
    )


def test_deployments_follow_their_templates_and_scales(busy):
    busy.create(deployment(2))
    status = busy.wait_for("deployments", "d", available(2))["status"]
    assert status["replicas"] == status["readyReplicas"] == status["updatedReplicas"] == 2
    busy.wait_for("deployments", "d", condition("Available"))
    (first,) = busy.list("replicasets")
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
    hash = first["metadata"]["labels"]["pod-template-hash"]
    assert {item["metadata"]["labels"]["pod-template-hash"] for item in busy.list("pods")} == {hash}

    busy.patch("deployments", "d", {"spec": {"replicas": 3}})
    busy.wait_for("deployments", "d", available(3))
    busy.patch("deployments", "d", {"spec": {"replicas": 1}})
    busy.wait_for("deployments", "d", available(1))
    assert len(busy.list("pods")) == 1

    busy.patch("deployments", "d", {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
    busy.wait_for(
        "replicasets",
        first["metadata"]["name"],
        lambda body: not body["spec"]["replicas"] and not body["status"]["replicas"],
    )
    busy.wait_for("deployments", "d", available(1))
    assert len(busy.list("replicasets")) == 2
    assert [item["metadata"]["labels"].get("version") for item in busy.list("pods")] == ["2"]

    (name,) = [item["metadata"]["name"] for item in busy.list("pods")]
    busy.delete("pods", name)
    busy.wait_gone("pods", name)
    busy.wait_for("deployments", "d", available(1))
    assert len(busy.list("pods")) == 1


def test_nothing_lives_without_being_asked():
    with Sandbox() as sandbox:
        sandbox.create(pod("p", starts_after="0"))
        sandbox.create(job("j"))
        time.sleep(0.2)
        assert sandbox.get("pods", "p")["status"]["phase"] == "Pending"
        assert len(sandbox.list("pods")) == 1
        assert sandbox.list("nodes") == []


def test_what_was_going_on_goes_on(tmp_path):
    with Sandbox(pods=True, state=tmp_path / "state") as sandbox:
        sandbox.create(pod("p", starts_after="0.01", runs_for="0.5"))
        sandbox.wait_for("pods", "p", phase("Running"))
    with Sandbox(pods=True, state=tmp_path / "state") as sandbox:
        sandbox.wait_for("pods", "p", phase("Succeeded"))


def stateful_set(name, *, image="busybox", **spec):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}},
            **spec,
        },
    }


def rolled_out(body):
    """Check what `kubectl rollout status` does for stateful sets."""
    status = body["status"]
    return (
        status["observedGeneration"] == body["metadata"]["generation"]
        and status["readyReplicas"] == body["spec"]["replicas"]
        and status["currentRevision"] == status["updateRevision"]
    )


def test_pods_of_a_stateful_set_are_created_in_order(busy):
    blocked = {"annotations": {"sandbox.kopf.dev/starts-after": "never"}, "labels": {"app": "s"}}
    body = stateful_set("s", replicas=3)
    body["spec"]["template"]["metadata"] = blocked
    busy.create(body)
    busy.wait_for("pods", "s-0")
    busy.wait_for("statefulsets", "s", lambda body: body["status"]["replicas"] == 1)
    assert [item["metadata"]["name"] for item in busy.list("pods")] == ["s-0"]
    busy.patch("pods", "s-0", {"metadata": {"annotations": {"sandbox.kopf.dev/starts-after": "0"}}})
    pod = busy.wait_for("pods", "s-1")
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "s-1"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("s-1", "s")


def test_a_stateful_set_replaces_its_pods_from_the_last_one(busy):
    busy.create(stateful_set("s", replicas=2))
    busy.wait_for("statefulsets", "s", rolled_out)
    former = {item["metadata"]["name"]: item["metadata"]["uid"] for item in pods_of(busy, "s")}
    changed = stateful_set("s", image="nginx", replicas=2, updateStrategy={"rollingUpdate": {"partition": 1}})
    busy.patch("statefulsets", "s", {"spec": changed["spec"]})
    busy.wait_for("pods", "s-1", lambda body: body["spec"]["containers"][0]["image"] == "nginx")
    busy.wait_for("statefulsets", "s", lambda body: body["status"].get("readyReplicas") == 2)
    assert busy.get("pods", "s-0")["metadata"]["uid"] == former["s-0"]
    assert not rolled_out(busy.get("statefulsets", "s"))
    busy.patch("statefulsets", "s", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
    busy.wait_for("statefulsets", "s", rolled_out)
    assert former.items().isdisjoint(
        {item["metadata"]["name"]: item["metadata"]["uid"] for item in pods_of(busy, "s")}.items()
    )


def test_a_stateful_set_is_scaled_down_from_its_last_pod_and_keeps_the_claims(busy):
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    busy.create(stateful_set("s", replicas=2, podManagementPolicy="Parallel", volumeClaimTemplates=[claim]))
    busy.wait_for("statefulsets", "s", rolled_out)
    volumes = busy.get("pods", "s-1")["spec"]["volumes"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-s-1"}} in volumes
    busy.patch("statefulsets", "s", {"spec": {"replicas": 1}})
    busy.wait_gone("pods", "s-1")
    busy.wait_for("statefulsets", "s", rolled_out)
    assert [item["metadata"]["name"] for item in busy.list("pvc")] == ["data-s-0", "data-s-1"]


def test_a_daemon_set_has_a_pod_on_the_node_and_replaces_it(busy):
    body = stateful_set("d")
    del body["spec"]["serviceName"]
    busy.create({**body, "kind": "DaemonSet"})
    status = busy.wait_for("daemonsets", "d", lambda body: body["status"].get("numberAvailable"))["status"]
    assert status["desiredNumberScheduled"] == status["updatedNumberScheduled"] == status["numberReady"] == 1
    (former,) = pods_of(busy, "d")
    busy.patch("daemonsets", "d", {"spec": {"template": stateful_set("d", image="nginx")["spec"]["template"]}})
    busy.wait_gone("pods", former["metadata"]["name"])
    busy.wait_for("daemonsets", "d", lambda body: body["status"].get("numberAvailable"))
    assert [item["spec"]["containers"][0]["image"] for item in pods_of(busy, "d")] == ["nginx"]
