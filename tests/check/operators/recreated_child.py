"""Planted: a child that is deleted is made again, also when it is deleted because its owner is."""

import kopf


def describe(name, namespace):
    metadata = {"name": name, "namespace": namespace, "labels": {"part-of": "webapps"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"app": name}}


@kopf.on.create("webapps")
@kopf.on.resume("webapps")
async def create(name, namespace, body, **_):
    child = describe(name, namespace)
    kopf.append_owner_reference(child, owner=body)
    await kopf.apply(child)


@kopf.on.event("configmaps", labels={"part-of": "webapps"})
async def restore(type, name, namespace, **_):
    if type == "DELETED":
        await kopf.apply(describe(name, namespace))
