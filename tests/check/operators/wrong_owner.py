"""Planted: the owner is taken from a global variable. The config map of one web app goes with the other one."""

from kube import CONFIGMAPS, Conflict, Kube

import kopf

current = None


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
async def create_settings(body, name, namespace, spec, memo, **_):
    global current
    current = body
    await create(memo.kube, namespace, f"{name}-settings", {"image": spec["image"]})
    await create(memo.kube, namespace, f"{name}-routes", {"host": spec["host"]})


async def create(kube, namespace, name, data):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    kopf.adopt(child, owner=current)
    try:
        await kube.create(CONFIGMAPS.format(namespace), child)
    except Conflict:
        pass
