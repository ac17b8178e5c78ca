"""Corner: sub-handlers of sub-handlers, with retries and results."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


def make(name, part, image):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{part}"}, "data": {"image": image}}
    kopf.adopt(child)
    return child


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


async def remove_others(client, pages, name, namespace):
    names = {f"{name}-{page}-{part}" for page in pages for part in ("texts", "routes")}
    for found in await client.list(CONFIGMAPS.format(namespace)):
        own = found["metadata"]["name"]
        if own.startswith(f"{name}-") and own not in names:
            try:
                await client.delete(f"{CONFIGMAPS.format(namespace)}/{own}")
            except NotFound:
                pass  # another client was faster


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_all(spec, name, namespace, memo, **_):
    for page in spec.get("pages", []):

        @kopf.subhandler(id=page, backoff=10)
        async def apply_page(name, spec, page=page, **_):
            @kopf.subhandler(id="texts")
            def apply_texts(name, spec, retry, **_):
                if retry < 1:
                    raise kopf.TemporaryError("Once more.", delay=5)
                kopf.apply(make(name, f"{page}-texts", spec["image"]))
                return {"texts": page}

            @kopf.subhandler(id="routes")
            async def apply_routes(name, spec, **_):
                await kopf.apply(make(name, f"{page}-routes", spec["image"]))

    await kopf.execute()
    await remove_others(memo.kube, spec.get("pages", []), name, namespace)
    return {"pages": len(spec.get("pages", []))}
