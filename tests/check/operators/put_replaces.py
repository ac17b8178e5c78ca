"""Planted: a child is replaced as a whole. The annotation that another client has set is lost with the next run."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.reconcile("webapps", owns=["configmaps"])
async def reconcile(name, namespace, spec, memo, **_):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(settings)
    path = CONFIGMAPS.format(namespace)
    try:
        await memo.kube.replace(f"{path}/{name}", settings)
    except NotFound:
        await memo.kube.create(path, settings)
