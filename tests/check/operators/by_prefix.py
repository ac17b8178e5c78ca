"""Planted: the children of a deleted web app are found by the beginning of their names, as are those of others."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_pages(name, spec, body, **_):
    for page in spec.get("pages", []):
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{page}"}, "data": {"p": page}}
        kopf.adopt(child, owner=body)
        await kopf.apply(child)


@kopf.on.update("webapps", field="spec.pages")
async def remove_pages(name, namespace, old, new, memo, **_):
    for page in set(old or ()) - set(new or ()):
        try:
            await memo.kube.delete(f"{CONFIGMAPS.format(namespace)}/{name}-{page}")
        except NotFound:
            pass


@kopf.on.delete("webapps")
async def clean(name, namespace, memo, **_):
    path = CONFIGMAPS.format(namespace)
    for child in await memo.kube.list(path):
        if child["metadata"]["name"].startswith(name):
            try:
                await memo.kube.delete(f"{path}/{child['metadata']['name']}")
            except NotFound:
                pass
