"""Correct: a creation in steps that fail now and then; what has succeeded is not done again."""

import kopf


def make(name, step, spec):
    data = {"size": str(spec["size"])}
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{step}"}, "data": data}
    kopf.adopt(child)
    return child


@kopf.on.create("databases")
@kopf.on.update("databases", field="spec.size")
async def prepare(name, spec, retry, **_):
    if retry < 2:
        raise kopf.TemporaryError("It is not ready.", delay=15)
    await kopf.apply(make(name, "prepared", spec))


@kopf.on.create("databases", backoff=5)
@kopf.on.update("databases", field="spec.size", backoff=5)
def migrate(name, spec, retry, patch, **_):
    if retry < 1:
        raise ConnectionError("The network is bad.")
    kopf.apply(make(name, "migrated", spec))
    patch.status["size"] = spec["size"]
