"""Planted: the time of each run is written to a child that triggers the next run. The operator never comes to rest."""

import datetime

import kopf


@kopf.on.reconcile("webapps", owns=["configmaps"])
async def reconcile(name, namespace, spec, **_):
    now = datetime.datetime.now(datetime.UTC).isoformat()
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": {"example.com/checked-at": now}},
        "data": {"image": spec["image"]},
    }
    kopf.adopt(settings)
    await kopf.apply(settings)
