"""Planted: errors are logged and forgotten. After one failure of the API, the config map is missing for ever."""

from kube import CONFIGMAPS, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
async def create_settings(name, namespace, spec, memo, logger, **_):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(settings)
    try:
        await memo.kube.create(CONFIGMAPS.format(namespace), settings)
    except Exception as error:
        logger.warning(f"The config map could not be created: {error}")


@kopf.on.field("webapps", field="spec.image", old=kopf.PRESENT)
async def update_settings(new, name, namespace, memo, logger, **_):
    try:
        await memo.kube.patch(f"{CONFIGMAPS.format(namespace)}/{name}", {"data": {"image": new}})
    except Exception as error:
        logger.warning(f"The config map could not be updated: {error}")
