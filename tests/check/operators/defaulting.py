"""Correct: a webhook fills in what is missing, sub-handlers make a child for each page and delete the other ones."""

from kube import CONFIGMAPS, Kube, NotFound

import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(port=0)
    settings.admission.managed = "defaults.example.com"


@kopf.on.startup()
async def connect(memo, **kwargs):
    memo.kube = Kube(**kwargs)


@kopf.on.cleanup()
async def disconnect(memo, **_):
    await memo.kube.close()


@kopf.on.mutate("webapps")
def fill_in(spec, patch, **_):
    if "host" not in spec:
        patch.spec["host"] = "anywhere"


@kopf.on.validate("webapps")
def check(spec, **_):
    if spec.get("replicas", 1) > 3:
        raise kopf.AdmissionError("At most three replicas.", code=400)


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
async def serve(spec, name, namespace, uid, body, patch, memo, **_):
    pages = spec.get("pages", [])

    def maker(page):
        async def make(**_):
            data = {"host": spec["host"]}
            child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{page}"}, "data": data}
            kopf.adopt(child, owner=body)
            await kopf.apply(child)

        return make

    async def delete_others(**_):
        collection = CONFIGMAPS.format(namespace)
        for child in await memo.kube.list(collection):
            owners = [owner["uid"] for owner in child["metadata"].get("ownerReferences", [])]
            child_name = child["metadata"]["name"]
            if uid in owners and child_name not in {f"{name}-{page}" for page in pages}:
                try:
                    await memo.kube.delete(f"{collection}/{child_name}")
                except NotFound:
                    pass

    for page in pages:
        kopf.register(id=page, fn=maker(page))
    kopf.register(id="delete-others", fn=delete_others)
    patch.status["pages"] = len(pages)
