"""Corner: sub-handlers of sub-handlers, with retries and results."""

import kopf


def make(name, part, image):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{part}"}, "data": {"image": image}}
    kopf.adopt(child)
    return child


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_all(spec, **_):
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
    return {"pages": len(spec.get("pages", []))}
