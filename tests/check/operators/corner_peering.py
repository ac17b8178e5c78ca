"""Corner: an operator that works only while no other one of its peering has a higher priority."""

import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.peering.name = "shops"
    settings.peering.mandatory = True
    settings.peering.clusterwide = True


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
async def apply_settings(name, spec, **_):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(child)
    await kopf.apply(child)
