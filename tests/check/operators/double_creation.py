"""Planted: creation by a stale view. While the watch of the pods lags behind, the same pods are created once more."""

from kube import Kube

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.index("pods", labels={"webapp": kopf.PRESENT})
def pods_of(namespace, name, labels, **_):
    return {(namespace, labels["webapp"]): name}


@kopf.timer("webapps", interval=15)
async def scale(body, name, namespace, spec, pods_of: kopf.Index, memo, **_):
    pods = sorted(pods_of.get((namespace, name), []))
    path = f"/api/v1/namespaces/{namespace}/pods"
    for _number in range(len(pods), spec["replicas"]):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": f"{name}-", "labels": {"webapp": name}},
            "spec": {"containers": [{"name": "main", "image": "nginx"}]},
        }
        kopf.adopt(pod, owner=body)
        await memo.kube.create(path, pod)
