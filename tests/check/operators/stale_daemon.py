"""Planted: a daemon reads the spec once, when it starts. A changed image never reaches the config map."""

import kopf


@kopf.index("configmaps", labels={"webapp": kopf.PRESENT})
def images(namespace, labels, body, **_):
    return {(namespace, labels["webapp"]): body["data"]["image"]}


@kopf.daemon("webapps")
async def keep_settings(body, name, namespace, spec, images: kopf.Index, stopped, **_):
    image = spec["image"]
    while not stopped:
        if list(images.get((namespace, name), [])) != [image]:
            metadata = {"name": name, "labels": {"webapp": name}}
            settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"image": image}}
            kopf.adopt(settings, owner=body)
            await kopf.apply(settings)
        await stopped.wait(10)
