"""Planted: a condition that lies. The web app is Ready before its children are there."""

from kube import CONFIGMAPS, WEBAPPS, Conflict, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
async def create(name, namespace, spec, meta, memo, **_):
    ready = {"type": "Ready", "status": "True", "reason": "Created", "observedGeneration": meta["generation"]}
    await memo.kube.patch(f"{WEBAPPS.format(namespace)}/{name}/status", {"status": {"conditions": [ready]}})
    for page in spec.get("pages", []):
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{page}"}}
        kopf.adopt(child)
        try:
            await memo.kube.create(CONFIGMAPS.format(namespace), child)
        except Conflict:
            pass  # created by an attempt before
