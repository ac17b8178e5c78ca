"""Correct: a web app waits for its defaults, and follows them, by a watch and an index."""

import kopf


@kopf.index("configmaps", field="metadata.name", value="defaults")
def defaults(namespace, body, **_):
    return {namespace: dict(body["data"])}


NAMES = {}


def users_of(namespace, name, **_):
    return [(namespace, user) for user in sorted(NAMES.get(namespace, ()))] if name == "defaults" else []


@kopf.on.event("webapps")
def remember(namespace, name, **_):
    NAMES.setdefault(namespace, set()).add(name)


@kopf.on.reconcile("webapps", owns=["configmaps"], watches={"configmaps": users_of})
async def reconcile(name, namespace, spec, defaults: kopf.Index, children, **_):
    found = list(defaults.get(namespace, []))
    if not found:
        raise kopf.TemporaryError("There are no defaults yet.", delay=60)
    data = {"image": f"{found[0]['registry']}/{spec['image']}"}
    await children.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
