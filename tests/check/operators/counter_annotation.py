"""Planted: a counter in an annotation. An attempt that is repeated after a kill counts twice: there is a revision 2."""

from kube import CONFIGMAPS, WEBAPPS, Conflict, Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
@kopf.on.update("webapps", field="spec")
async def release(name, namespace, annotations, spec, memo, **_):
    revision = int(annotations.get("example.com/revision", 0)) + 1
    change = {"metadata": {"annotations": {"example.com/revision": str(revision)}}}
    await memo.kube.patch(f"{WEBAPPS.format(namespace)}/{name}", change)
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-revision-{revision}"},
        "data": {"image": spec["image"]},
    }
    kopf.adopt(child)
    try:
        await memo.kube.create(CONFIGMAPS.format(namespace), child)
    except Conflict:
        pass
