"""Correct: web apps find the databases of their name, by an index and by a watch; both kinds have handlers."""

import kopf


@kopf.index("databases")
def sizes(name, namespace, spec, **_):
    return {(namespace, name): spec["size"]}


def same_name(namespace, name, **_):
    return [(namespace, name)]


@kopf.on.create("databases")
@kopf.on.update("databases")
def describe(spec, patch, **_):
    patch.status["summary"] = f"{spec['engine']}, {spec['size']}"


@kopf.on.reconcile("webapps", owns=["configmaps"], watches={"databases": same_name})
async def join(name, namespace, spec, sizes: kopf.Index, children, conditions, **_):
    size = next(iter(sizes.get((namespace, name), [])), None)
    data = {"image": spec["image"], "size": str(size or 0)}
    await children.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
    conditions["Ready"] = kopf.Condition(size is not None, "Joined" if size else "NoDatabase", "")
