"""Planted: the finalizer is removed before the work is done. After a kill in between, the database is left over."""

import cloud
from kube import Kube

import kopf

FINALIZER = "example.com/cloud"
PATH = "/apis/example.com/v1/namespaces/{}/databases/{}"


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("databases")
async def order(name, namespace, spec, memo, **_):
    await memo.kube.patch(PATH.format(namespace, name), {"metadata": {"finalizers": [FINALIZER]}})
    if await cloud.find_database(memo.kube, name) is None:
        await cloud.create_database(memo.kube, name=name, size=spec["size"], engine=spec["engine"])


@kopf.on.update("databases", field="spec")
async def change(name, spec, memo, **_):
    identifier = await cloud.find_database(memo.kube, name)
    await cloud.change_database(memo.kube, identifier, size=spec["size"], engine=spec["engine"])


@kopf.on.event("databases")
async def cancel(name, namespace, meta, memo, **_):
    if meta.get("deletionTimestamp") and FINALIZER in meta.get("finalizers", []):
        await memo.kube.patch(PATH.format(namespace, name), {"metadata": {"finalizers": None}})
        identifier = await cloud.find_database(memo.kube, name)
        if identifier is not None:
            await cloud.delete_database(memo.kube, identifier)
