"""Planted: a status from a stale read. If the watch of the config maps lags behind, the count stays wrong."""

import kopf


@kopf.index("configmaps", labels={"webapp": kopf.PRESENT})
def pages_of(namespace, name, labels, **_):
    return {(namespace, labels["webapp"]): name}


@kopf.on.event("configmaps", labels={"webapp": kopf.PRESENT})
def log_pages(name, logger, **_):
    logger.info(f"Page: {name}")


@kopf.on.create("webapps")
@kopf.on.update("webapps", field="spec.replicas")
async def count(name, namespace, pages_of: kopf.Index, patch, **_):
    patch.status["pages"] = len(pages_of.get((namespace, name), []))
