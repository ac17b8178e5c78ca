"""Handlers for kinds that Kubernetes has by itself: here, an eye on some pods and deployments.

Nothing is different from kinds of one's own, except that other controllers change these objects all the time, and that
most of what happens to them is in the status.
"""

import kopf

# Without this filter, there would be our annotations on all the pods that there are.
MINE = {"app": "kopf-example"}


# The core group of kinds has no name, only the version: "v1", "pods". Other kinds go with their group, as "apps" below.
@kopf.on.create("v1", "pods", labels=MINE)
def pod_created(spec, logger, **_):
    images = ", ".join(container["image"] for container in spec["containers"])
    logger.info(f"A pod is here, with the images: {images}")


@kopf.on.field("v1", "pods", labels=MINE, field="status.phase")
def phase_changed(old, new, body, logger, **_):
    # Changes of the status are of no interest for other handlers, but where a handler asks for them, it gets them.
    logger.info(f"The pod was {old}, now it is {new}.")
    if new == "Failed":
        kopf.warn(body, reason="PodFailed", message="The pod has failed: see its log.")


@kopf.on.event("v1", "pods", labels=MINE)
def pod_seen(event, status, logger, **_):
    # A deletion handler would put our finalizer on the pod, and hold up its deletion for as long as we are not there.
    # For objects of others, it is more polite to be only told.
    if event["type"] == "DELETED":
        logger.info(f"The pod is gone. It was {status.get('phase')}.")


@kopf.on.update("apps", "deployments", labels=MINE, field="spec.replicas")
def scaled(old, new, logger, **_):
    logger.info(f"The deployment is scaled: {old} -> {new}")
