"""Planted: a child that is gone already is a permanent error of the deletion. After a kill, the second one stays."""

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
async def publish(name, spec, **_):
    # In the namespace of the web server, so without an owner.
    for part in "routes", "texts":
        child = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-{part}", "namespace": "kube-public"},
            "data": {"host": spec["host"]},
        }
        await kopf.apply(child)


@kopf.on.delete("webapps")
async def withdraw(name, memo, **_):
    try:
        for part in "routes", "texts":
            await memo.kube.delete(f"{CONFIGMAPS.format('kube-public')}/{name}-{part}")
    except NotFound as error:
        raise kopf.PermanentError(f"It was never published: {error}") from None
