"""Planted: it matters what is seen first. If the web app comes before the defaults, it never gets their registry."""

import asyncio

import kopf


@kopf.index("configmaps", field="metadata.name", value="defaults")
def defaults(namespace, body, **_):
    return {namespace: dict(body["data"])}


@kopf.on.create("webapps")
@kopf.on.update("webapps")
async def apply_settings(name, namespace, spec, defaults: kopf.Index, **_):
    await asyncio.sleep(1)  # there may be more than one change in a row
    registry = "docker.io"
    for found in defaults.get(namespace, []):
        registry = found["registry"]
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"image": f"{registry}/{spec['image']}"},
    }
    kopf.adopt(settings)
    await kopf.apply(settings)
