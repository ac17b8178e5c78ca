"""Correct: children in another namespace, which a deletion handler removes; it is no error if they are gone."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
@kopf.on.resume("webapps")
@kopf.on.update("webapps", field="spec.host")
async def publish(name, spec, **_):
    for part in "routes", "texts":
        metadata = {"name": f"{name}-{part}", "namespace": "kube-public"}
        data = {"host": spec.get("host", name)}
        await kopf.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


@kopf.on.delete("webapps")
async def withdraw(name, memo, **_):
    for part in "routes", "texts":
        try:
            await memo.kube.delete(f"{CONFIGMAPS.format('kube-public')}/{name}-{part}")
        except NotFound:
            pass
