"""Correct: a deployment by a level-triggered handler, which waits until its pods are ready."""

import kopf


@kopf.on.reconcile("webapps", owns=["deployments"], conditions=True)
async def reconcile(name, spec, children, patch, **_):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": spec["image"]}]}}
    wanted = {"replicas": spec["replicas"], "selector": {"matchLabels": labels}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    await children.apply({**deployment, "spec": wanted}, ready=True)
    patch.status["ready"] = spec["replicas"]
