"""Planted: children are made on creation only. The deletion of a config map is seen, but it does not come back."""

import kopf


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_settings(name, spec, **_):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(settings)
    await kopf.apply(settings)


@kopf.on.reconcile("webapps", owns=["configmaps"])
async def report(children, patch, **_):
    patch.status["settings"] = len(children["configmaps"])
