"""Correct: a timer that counts the config maps of the namespace, and writes the number only if it is another one."""

import kopf


@kopf.index("configmaps", labels={"counted": "yes"})
def counted(namespace, name, **_):
    return {namespace: name}


@kopf.timer("webapps", interval=60, idle=5)
async def count(namespace, status, counted: kopf.Index, patch, **_):
    number = len(counted.get(namespace, []))
    if status.get("counted") != number:
        patch.status["counted"] = number


@kopf.on.create("webapps")
@kopf.on.update("webapps", field="spec.pages")
@kopf.on.resume("webapps")
async def apply_pages(name, spec, **_):
    metadata = {"name": name, "labels": {"counted": "yes"}}
    data = dict.fromkeys(spec.get("pages", []), "yes")
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    kopf.adopt(child)
    await kopf.apply(child)
