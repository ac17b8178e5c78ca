"""Planted: the former child stays. When the host changes from A to B, the service of A is left."""

import kopf


@kopf.on.field("webapps", field="spec.host")
async def expose(new, **_):
    if new is None:
        return
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": new},
        "spec": {"selector": {"host": new}, "ports": [{"port": 80}]},
    }
    kopf.adopt(service)
    await kopf.apply(service)
