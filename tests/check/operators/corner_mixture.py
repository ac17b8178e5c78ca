"""Corner: handlers of changes, a level-triggered one, a daemon, a timer, an index and a deletion for one kind."""

import kopf


@kopf.index("configmaps", labels={"app": kopf.PRESENT})
def settings_of(labels, name, **_):
    return {labels["app"]: name}


@kopf.on.create("webapps")
def note_creation(patch, retry, **_):
    if retry < 1:
        raise kopf.TemporaryError("Once more.", delay=10)
    patch.status["created"] = True


@kopf.on.field("webapps", field="spec.host")
async def note_host(new, patch, **_):
    patch.status["host"] = new


@kopf.on.reconcile("webapps", owns=["configmaps"], interval=600)
async def reconcile(name, spec, children, settings_of: kopf.Index, patch, **_):
    labels = {"app": name}
    metadata = {"name": name, "labels": labels}
    await children.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"image": spec["image"]}}
    )
    patch.status["settings"] = len(settings_of.get(name, []))


@kopf.timer("webapps", interval=60)
async def count(name, status, settings_of: kopf.Index, patch, **_):
    if status.get("counted") != len(settings_of.get(name, [])):
        patch.status["counted"] = len(settings_of.get(name, []))


@kopf.daemon("webapps")
async def wait(stopped, **_):
    await stopped.wait()


@kopf.on.delete("webapps")
async def delete(retry, **_):
    if retry < 1:
        raise kopf.TemporaryError("Once more.", delay=10)
