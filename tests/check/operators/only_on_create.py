"""Planted: children are made on creation only. The deletion of a config map is seen, but it does not come back."""

import kopf


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_settings(name, spec, **_):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(settings)
    kopf.label(settings, {"webapp": name})
    await kopf.apply(settings)


@kopf.on.event("configmaps", labels={"webapp": kopf.PRESENT})
async def watch_settings(event, name, logger, **_):
    if event["type"] == "DELETED":
        logger.warning(f"The config map {name} was deleted!")
