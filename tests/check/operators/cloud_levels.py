"""Correct: a database in the cloud is found by its name, ordered if it is missing, changed if it differs."""

import cloud
from kube import Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.reconcile("databases", interval=300)
async def reconcile(name, spec, memo, patch, **_):
    identifier = await cloud.find_database(memo.kube, name)
    if identifier is None:
        identifier = await cloud.create_database(memo.kube, name=name, **spec)
    elif (await memo.kube.get(f"{cloud.DATABASES}/{identifier}"))["spec"] != {"name": name, **spec}:
        await cloud.change_database(memo.kube, identifier, **spec)
    patch.status["identifier"] = identifier


@kopf.on.delete("databases")
async def cancel(name, memo, **_):
    identifier = await cloud.find_database(memo.kube, name)
    if identifier is not None:
        await cloud.delete_database(memo.kube, identifier)
