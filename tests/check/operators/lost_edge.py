"""Planted: edges are taken for all there is. What happens while the operator is down never reaches the config map."""

from kube import CONFIGMAPS, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.event("webapps")
async def mirror(event, body, name, namespace, spec, memo, **_):
    path = CONFIGMAPS.format(namespace)
    data = {"image": spec["image"], "replicas": str(spec["replicas"])}
    if event["type"] == "ADDED":
        settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        kopf.adopt(settings, owner=body)
        await memo.kube.create(path, settings)
    elif event["type"] == "MODIFIED":
        await memo.kube.patch(f"{path}/{name}", {"data": data})
