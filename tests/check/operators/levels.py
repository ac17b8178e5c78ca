"""Correct: children of a web app by a level-triggered handler, with conditions and pruning."""

import kopf


@kopf.on.reconcile("webapps", owns=["configmaps", "services"], conditions=True, interval=3600)
async def reconcile(name, spec, children, patch, **_):
    for page in spec.get("pages", []):
        labels = {"page": page}
        metadata = {"name": f"{name}-{page}", "labels": labels}
        data = {"title": page.title(), "image": spec["image"]}
        await children.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    if spec["public"]:
        wanted = {"selector": {"app": name}, "ports": [{"port": 80}]}
        await children.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": wanted})
    patch.status["pages"] = len(children["configmaps"])
