"""Planted: random names of children. After a kill between the creation and its record, there are two config maps."""

import uuid

from kube import CONFIGMAPS, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
async def create_settings(name, namespace, spec, memo, **_):
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-{uuid.uuid4().hex[:8]}"},
        "data": {"image": spec["image"]},
    }
    kopf.adopt(settings)
    created = await memo.kube.create(CONFIGMAPS.format(namespace), settings)
    return {"settings": created["metadata"]["name"]}


@kopf.on.update("webapps", field="spec.image")
async def update_settings(new, status, namespace, memo, **_):
    name = status["create_settings"]["settings"]
    await memo.kube.patch(f"{CONFIGMAPS.format(namespace)}/{name}", {"data": {"image": new}})
