"""Planted: children are not pruned. The config map of a page that is removed from the list stays."""

import kopf


@kopf.on.create("webapps")
@kopf.on.update("webapps", field="spec.pages")
@kopf.on.resume("webapps")
async def apply_pages(name, spec, **_):
    for page in spec.get("pages", []):
        child = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-{page}"},
            "data": {"title": page},
        }
        kopf.adopt(child)
        await kopf.apply(child)
