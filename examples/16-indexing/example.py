"""Indices: what handlers need to know of other objects, kept in memory instead of being asked for.

The index is filled by what is heard of the pods, before any other handler is called, and is there by its name in the
arguments of all handlers.
"""

import kopf

OURS = {"kex": kopf.PRESENT}


@kopf.index("v1", "pods", labels=OURS)
def pods_by_kex(namespace, name, labels, **_):
    # The keys and values are put into one common mapping: {(namespace, kex): [name, name...]}.
    return {(namespace, labels["kex"]): name}


@kopf.index("v1", "pods", labels=OURS)
def container_names(namespace, name, spec, **_):
    return {(namespace, name): [container["name"] for container in spec["containers"]]}


@kopf.index("v1", "pods", labels=OURS)
def known_pods(name, **_):
    return name  # not a mapping: all values are under the key None


@kopf.on.create("kopfexamples")
def created(namespace, name, pods_by_kex: kopf.Index[tuple[str, str], str], container_names, logger, **_):
    # What was in the cluster when the operator started is all here already.
    for pod in sorted(pods_by_kex.get((namespace, name), [])):
        [containers] = container_names[namespace, pod]
        logger.info(f"{pod} runs {', '.join(containers)}.")


@kopf.timer("kopfexamples", interval=0.5)
def count(namespace, name, pods_by_kex, status, patch, **_):
    # A read-only view of what is known now: no requests, no waiting.
    pods = sorted(pods_by_kex.get((namespace, name), []))
    if pods != status.get("pods"):
        patch.status["pods"] = pods


@kopf.on.probe(id="pods")
def probe(known_pods, **_):
    return len(known_pods.get(None, []))
