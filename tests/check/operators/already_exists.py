"""Planted: an own child that exists already is a permanent error. After a kill in between, the service never comes."""

from kube import CONFIGMAPS, SERVICES, Conflict, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
async def create(name, namespace, spec, memo, **_):
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }
    kopf.adopt([settings, service])
    try:
        await memo.kube.create(CONFIGMAPS.format(namespace), settings)
        await memo.kube.create(SERVICES.format(namespace), service)
    except Conflict as error:
        raise kopf.PermanentError(f"The name is taken: {error}") from None
