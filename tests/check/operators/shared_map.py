"""Planted: all web apps share one list of hosts: each reads it, adds itself, and replaces what others have added."""

from kube import CONFIGMAPS, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


async def change(kube, namespace, name, host):
    path = CONFIGMAPS.format(namespace)
    data = (await kube.get(f"{path}/hosts")).get("data") or {}
    data.pop(name, None)
    if host:
        data[name] = host
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hosts"}, "data": data}
    await kube.replace(f"{path}/hosts", body)


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
async def add(name, namespace, spec, memo, **_):
    await change(memo.kube, namespace, name, spec.get("host"))


@kopf.on.delete("webapps")
async def remove(name, namespace, memo, **_):
    await change(memo.kube, namespace, name, None)
