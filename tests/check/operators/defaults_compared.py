"""Planted: the wish is compared with what the API has made of it. At rest, the service is written again and again."""

from kube import SERVICES, Kube, NotFound

import kopf


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.timer("webapps", interval=60)
async def keep_service(body, name, namespace, memo, logger, **_):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }
    kopf.adopt(service, owner=body)
    path = SERVICES.format(namespace)
    try:
        present = await memo.kube.get(f"{path}/{name}")
    except NotFound:
        await memo.kube.create(path, service)
        return
    if present["spec"] != service["spec"]:
        logger.info("The service has drifted.")
        await memo.kube.patch(f"{path}/{name}", {"spec": service["spec"]})
