"""Server-side apply by the client of the framework: what the API server really responds."""

import asyncio

import pytest

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.clients.logins import login_with_kubeconfig
from kopf._cogs.clients.serverside import ApplyConflictError, ApplyInvalidError, ApplyUnsupportedError, apply_object
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
STATUSES = Resource("", "v1", "componentstatuses", "ComponentStatus")


def deployment(*, image="a", **spec):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    selector = {"matchLabels": {"app": "web"}}
    spec = {"replicas": 0, "selector": selector, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


@pytest.fixture
def apply(cluster, namespace, monkeypatch):
    """Apply an object as a field manager, each time with a client of its own."""
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)

    def apply(body, manager="one", *, resource=DEPLOYMENTS, **options):
        async def send():
            settings = OperatorSettings()
            vault = Vault({HandlerId("login"): login_with_kubeconfig(settings=settings)})
            async with ApiClient(vault, settings) as client:
                where = namespace if resource.namespaced else None
                arguments = {"namespace": where, "name": "web", "body": body, "field_manager": manager}
                return await apply_object(client, resource=resource, **arguments, **options)

        return asyncio.run(send())

    return apply


def test_an_object_is_created_and_changed_and_left_as_it_is(apply):
    created = apply(deployment())
    assert apply(deployment(replicas=1))["spec"]["replicas"] == 1
    assert apply(deployment(replicas=2), dry_run=True)["spec"]["replicas"] == 2
    result = apply(deployment(replicas=1))
    assert result["spec"]["replicas"] == 1
    assert result["metadata"]["uid"] == created["metadata"]["uid"]
    version = result["metadata"]["generation"]
    assert apply(deployment(replicas=1))["metadata"]["generation"] == version
    [entry] = [entry for entry in result["metadata"]["managedFields"] if entry["manager"] == "one"]
    assert entry["operation"] == "Apply"


def test_conflicts_name_the_other_manager_until_its_fields_are_taken(apply, kubeapi, namespace):
    apply(deployment(image="a"))
    kubeapi.patch("apps/v1", "Deployment", namespace, "web", {"spec": {"replicas": 3}})  # an update, not an apply
    with pytest.raises(ApplyConflictError) as e:
        apply(deployment(image="b"), "two")
    image = 'spec.template.spec.containers[name="c"].image'
    updater = next(manager for manager, fields in e.value.conflicts.items() if "spec.replicas" in fields)
    assert e.value.conflicts["one"] == [image]
    assert e.value.conflicts[updater] == ["spec.replicas"]
    assert f"'one' owns {image}" in str(e.value)
    taken = apply(deployment(image="b"), "two", force=True)
    assert taken["spec"]["replicas"] == 0
    assert taken["spec"]["template"]["spec"]["containers"][0]["image"] == "b"


def test_refused_fields_are_named(apply):
    apply(deployment())
    with pytest.raises(ApplyInvalidError) as e:
        apply(deployment(selector={"matchLabels": {"app": "other"}}))
    assert "spec.selector" in e.value.immutable_fields
    with pytest.raises(ApplyInvalidError) as e:
        apply(deployment(replicas=-1))
    assert e.value.fields == ["spec.replicas"]
    assert not e.value.immutable_fields
    with pytest.raises(ApplyInvalidError) as e:
        apply(deployment(nope=1))
    assert e.value.fields == ["spec.nope"]


def test_a_kind_that_cannot_be_applied_is_told(apply):
    body = {"apiVersion": "v1", "kind": STATUSES.kind, "metadata": {"name": "web"}}
    with pytest.raises(ApplyUnsupportedError, match="does not support"):
        apply(body, resource=STATUSES)
