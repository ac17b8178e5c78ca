"""Planted: a change is ignored while the creation goes on. The size in the cloud stays that of the first moment."""

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
    identifier = await cloud.find_database(memo.kube, name)
    if identifier is None:
        identifier = await cloud.create_database(memo.kube, name=name, size=spec["size"], engine=spec["engine"])
    patch.status["phase"] = "Creating"
    patch.status["identifier"] = identifier


@kopf.timer("databases", interval=20, initial_delay=20)
async def check(status, patch, **_):
    if status.get("phase") == "Creating":
        patch.status["phase"] = "Ready"


@kopf.on.update("databases", field="spec")
async def resize(spec, status, memo, logger, **_):
    if status.get("phase") != "Ready":
        logger.info("It is still being created.")
        return
    await cloud.change_database(memo.kube, status["identifier"], size=spec["size"], engine=spec["engine"])


@kopf.on.delete("databases")
async def cancel(name, memo, **_):
    identifier = await cloud.find_database(memo.kube, name)
    if identifier is not None:
        await cloud.delete_database(memo.kube, identifier)
