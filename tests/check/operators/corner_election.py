"""Corner: an operator of several replicas: one of them is elected, the others wait."""

import asyncio

import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.leadership.enabled = True


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_settings(name, spec, patch, **_):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(child)
    await asyncio.sleep(3)
    await kopf.apply(child)
    patch.status["image"] = spec["image"]


@kopf.daemon("webapps")
async def watch(stopped, **_):
    while not await stopped.wait(30):
        pass
