"""Planted: a database is ordered when its object is admitted; if the answer is lost, it is ordered again."""

import cloud
from kube import Kube

import kopf


@kopf.on.startup()
async def connect(memo, settings, **kwargs):
    settings.admission.server = kopf.WebhookServer(port=0)
    settings.admission.managed = "order.example.com"
    memo.kube = Kube(settings=settings, **kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.mutate("databases", operation="CREATE")
async def order(name, spec, memo, patch, **_):
    patch.meta.annotations["example.com/ordered"] = await cloud.create_database(memo.kube, name=name, size=spec["size"])


@kopf.on.update("databases")
async def change(annotations, spec, memo, **_):
    await cloud.change_database(memo.kube, annotations["example.com/ordered"], size=spec["size"])


@kopf.on.delete("databases")
async def cancel(annotations, memo, **_):
    await cloud.delete_database(memo.kube, annotations["example.com/ordered"])
