"""Planted: a leader that was suspended does not look whether it is the leader still, and works beside its successor."""

import asyncio
import datetime
import uuid

from kube import CONFIGMAPS, Conflict, Kube, NotFound

import kopf

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
VALID_FOR = datetime.timedelta(seconds=15)
ME = {"id": None, "leads": False}


def now():
    return datetime.datetime.now(datetime.UTC)


@kopf.on.startup()
async def begin(memo, **kwargs):
    ME["id"] = str(uuid.uuid4())
    memo.kube = Kube(**kwargs)
    memo.election = asyncio.create_task(elect(memo.kube))


@kopf.on.cleanup()
async def end(memo, **_):
    memo.election.cancel()
    await memo.kube.close()


async def elect(kube):
    while True:
        try:
            await renew(kube)
        except Conflict:
            pass
        await asyncio.sleep(5)


async def renew(kube):
    spec = {"holderIdentity": ME["id"], "renewTime": now().isoformat(timespec="microseconds")}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "shop"}, "spec": spec}
    try:
        found = await kube.get(f"{LEASES}/shop")
    except NotFound:
        await kube.create(LEASES, lease)
        ME["leads"] = True
        return
    is_old = now() - datetime.datetime.fromisoformat(found["spec"]["renewTime"]) > VALID_FOR
    if is_old or found["spec"]["holderIdentity"] == ME["id"]:
        await kube.replace(f"{LEASES}/shop", {**lease, "metadata": found["metadata"]})
        ME["leads"] = True


@kopf.on.reconcile("webapps", interval=30)
async def serve(name, namespace, spec, body, memo, **_):
    if not ME["leads"]:
        return
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"image": spec["image"]}}
    kopf.adopt(child, owner=body)
    path = CONFIGMAPS.format(namespace)
    try:
        found = await memo.kube.get(f"{path}/{name}")
    except NotFound:
        await memo.kube.create(path, child)
    else:
        if found["data"] != child["data"]:
            await memo.kube.patch(f"{path}/{name}", {"data": child["data"]})
