"""Children that are applied: a handler says what they are to be like, and the framework does what is needed for that.

The handler is called when the object, or any of its children, has changed. It does not matter what exists already: what
is missing is created, what differs is changed, and what it does not apply any more is deleted.
"""

import kopf


def make_settings(name, spec):
    data = {"field": spec["field"], "items": ",".join(spec["items"])}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def make_deployment(name, spec):
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "infinity"],
        "envFrom": [{"configMapRef": {"name": name}}],
    }
    # The replicas are not here: whoever scales the deployment may do so.
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }


def make_service(name):
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@kopf.on.reconcile("kopfexamples", owns=["configmaps", "deployments", "services"])
async def reconcile(name, spec, children, patch, logger, **_):
    await children.apply(make_settings(name, spec))
    deployment = await children.apply(make_deployment(name, spec))
    if not spec.get("private"):
        await children.apply(make_service(name))
    # What is in memory: no requests, no waiting.
    patch.status["services"] = len(children["services"])
    patch.status["replicas"] = deployment.spec["replicas"]
    logger.info(f"All is as it should be: {', '.join(f'{len(children[kind])} {kind}' for kind in children)}.")
