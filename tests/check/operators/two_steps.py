"""Planted: an update deletes the former child and makes another one; interrupted in between, it fails for ever."""

from kube import CONFIGMAPS, Conflict, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


def describe(name, host):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{host}"}, "data": {"host": host}}


@kopf.on.create("webapps")
async def create(name, namespace, spec, body, memo, **_):
    child = describe(name, spec.get("host", "none"))
    kopf.adopt(child, owner=body)
    try:
        await memo.kube.create(CONFIGMAPS.format(namespace), child)
    except Conflict:
        pass


@kopf.on.update("webapps", field="spec.host")
async def move(name, namespace, old, new, body, memo, **_):
    path = CONFIGMAPS.format(namespace)
    await memo.kube.delete(f"{path}/{name}-{old or 'none'}")
    child = describe(name, new or "none")
    kopf.adopt(child, owner=body)
    await memo.kube.create(path, child)
