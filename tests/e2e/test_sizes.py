"""Objects near the limits of size, and Secrets: as the API server itself sees them."""

import base64
import json
import random

import pytest
from kubeapi import wait

LAST_HANDLED = "kopf.zalando.org/last-handled-configuration"
PACKED = f"{LAST_HANDLED}-packed"
HANDLERS = '''
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.queueing.error_delays = [0.1, 0.2, 600]

@kopf.on.create('kopfexamples')
@kopf.on.create('secrets')
def create(logger, **_):
    logger.info("CREATED")

@kopf.on.update('kopfexamples')
@kopf.on.update('secrets')
def update(diff, logger, **_):
    logger.info("UPDATED: %s", [('.'.join(field), str(old)[:30], str(new)[:30]) for _, field, old, new in diff])
'''


def noise(size):
    return base64.b64encode(random.Random(0).randbytes(size * 3 // 4)).decode()


@pytest.fixture
def operator(run_operator, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return run_operator("--standalone", tmp_path / "handlers.py")


@pytest.fixture
def annotations(kubeapi, namespace):
    def read(kind="KopfExample"):
        body = kubeapi.get("v1" if kind == "Secret" else "kopf.dev/v1", kind, namespace, "obj")
        return body["metadata"].get("annotations", {})

    return read


def make(namespace, spec, **metadata):
    return {
        "apiVersion": "kopf.dev/v1",
        "kind": "KopfExample",
        "metadata": {"name": "obj", "namespace": namespace, **metadata},
        "spec": spec,
    }


@pytest.mark.parametrize("big", ["x" * 300_000, noise(300_000)], ids=["compressed", "digested"])
def test_updates_of_big_objects_are_handled(kubeapi, namespace, operator, annotations, big):
    kubeapi.request(
        "POST", kubeapi.path("kopf.dev/v1", "KopfExample", namespace), make(namespace, {"field": "v1", "big": big})
    )
    wait(lambda: PACKED in annotations(), "the last-handled configuration")
    kubeapi.patch("kopf.dev/v1", "KopfExample", namespace, "obj", {"spec": {"field": "v2"}})
    operator.wait_output(r"UPDATED: \[\('spec.field', 'v1', 'v2'\)\]")
    assert LAST_HANDLED not in annotations() and "Throttling" not in operator.output


def test_no_place_at_all(kubeapi, namespace, operator, annotations):
    kubeapi.request(
        "POST",
        kubeapi.path("kopf.dev/v1", "KopfExample", namespace),
        make(namespace, {"field": "v1"}, annotations={"example.com/all": "x" * (256 * 1024 - 17)}),
    )
    operator.wait_output("Throttling for 600 seconds")
    assert operator.output.count("The API refuses to patch the object") == 1
    assert "metadata.annotations: Too long" in operator.output
    kubeapi.patch(
        "kopf.dev/v1", "KopfExample", namespace, "obj", {"metadata": {"annotations": {"example.com/all": None}}}
    )
    wait(lambda: LAST_HANDLED in annotations(), "the last-handled configuration")
    operator.wait_output("UPDATED")
    assert operator.output.count("CREATED") == 1


def test_values_of_secrets_are_stored_and_told_as_digests(kubeapi, namespace, operator, annotations):
    secret = base64.b64encode(b"very-secret").decode()
    kubeapi.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/secrets",
        {"metadata": {"name": "obj"}, "data": {"password": secret, "user": "bWU="}},
    )
    wait(lambda: LAST_HANDLED in annotations("Secret"), "the last-handled configuration")
    assert json.loads(annotations("Secret")[LAST_HANDLED])["data"]["password"].startswith("digest:")
    kubeapi.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/secrets/obj",
        {"data": {"user": "eW91"}},
        "application/merge-patch+json",
    )
    operator.wait_output(r"UPDATED: \[\('data.user', 'digest:\w+', 'eW91'\)\]")
