"""Planted: an order in the cloud that is not idempotent. After a kill before its record, there are two databases."""

import cloud
from kube import Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("databases")
async def order(name, spec, memo, patch, **_):
    identifier = await cloud.create_database(memo.kube, name=name, size=spec["size"], engine=spec["engine"])
    patch.status["identifier"] = identifier


@kopf.on.update("databases", field="spec")
async def change(spec, status, memo, **_):
    await cloud.change_database(memo.kube, status["identifier"], size=spec["size"], engine=spec["engine"])


@kopf.on.delete("databases")
async def cancel(status, memo, **_):
    if "identifier" in status:
        await cloud.delete_database(memo.kube, status["identifier"])
