"""Planted: a task outlives its daemon. After the deletion of the web app, the task makes the config map once more."""

import asyncio

from kube import CONFIGMAPS, Kube, NotFound

import kopf

TASKS = set()


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.daemon("webapps")
async def watch_over(name, namespace, memo, stopped, **_):
    task = asyncio.create_task(keep(memo.kube, namespace, name))
    TASKS.add(task)
    await stopped.wait()


async def keep(kube, namespace, name):
    while True:
        try:
            await kube.get(f"{CONFIGMAPS.format(namespace)}/{name}")
        except NotFound:
            child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            await kube.create(CONFIGMAPS.format(namespace), child)
        except Exception:
            pass  # it is tried again
        await asyncio.sleep(10)


@kopf.on.delete("webapps")
async def remove(name, namespace, memo, **_):
    try:
        await memo.kube.delete(f"{CONFIGMAPS.format(namespace)}/{name}")
    except NotFound:
        pass
