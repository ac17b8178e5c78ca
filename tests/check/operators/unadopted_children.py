"""Planted: children without an owner. After the deletion of the web app, its service is left over."""

import kopf


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_service(name, **_):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
    }
    await kopf.apply(service)
