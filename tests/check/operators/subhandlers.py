"""Correct: a sub-handler for each page that comes or goes; each of them can be repeated."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.field("webapps", field="spec.pages")
async def update_pages(old, new, **_):
    before, after = set(old or []), set(new or [])
    for page in sorted(after):
        kopf.register(add_page, id=f"add-{page}", param=page)
    for page in sorted(before - after):
        kopf.register(remove_page, id=f"remove-{page}", param=page, backoff=30)


async def add_page(param, name, **_):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{param}"}}
    kopf.adopt(child)
    await kopf.apply(child)


async def remove_page(param, name, namespace, memo, **_):
    try:
        await memo.kube.delete(f"{CONFIGMAPS.format(namespace)}/{name}-{param}")
    except NotFound:
        pass
