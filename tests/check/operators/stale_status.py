"""Planted: a status from a stale read. If the watch of the config maps lags behind, the count stays wrong."""

import asyncio

from kube import CONFIGMAPS, Conflict, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.index("configmaps", labels={"webapp": kopf.PRESENT})
def pages_of(namespace, name, labels, **_):
    return {(namespace, labels["webapp"]): name}


@kopf.on.create("webapps")
async def create_pages(name, namespace, spec, memo, pages_of: kopf.Index, patch, **_):
    for page in spec.get("pages", []):
        metadata = {"name": f"{name}-{page}", "labels": {"webapp": name}}
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        kopf.adopt(child)
        try:
            await memo.kube.create(CONFIGMAPS.format(namespace), child)
        except Conflict:
            pass  # created by an attempt before
    await asyncio.sleep(1)  # until the watch has brought them
    patch.status["pages"] = len(pages_of.get((namespace, name), []))
