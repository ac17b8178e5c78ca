"""Planted: a task in the background makes the child. If it fails or is lost, the child is never made."""

import asyncio

import kopf

TASKS = set()


async def make(child):
    await asyncio.sleep(2)
    await kopf.apply(child)


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def begin(name, spec, body, patch, **_):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(child, owner=body)
    task = asyncio.create_task(make(child))
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)
    patch.status["phase"] = "Done"
