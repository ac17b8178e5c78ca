"""Correct: a webhook fills in what is missing, sub-handlers make a child for each page."""

import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(port=0)
    settings.admission.managed = "defaults.example.com"


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
async def serve(spec, name, body, patch, **_):
    pages = spec.get("pages", [])

    def maker(page):
        async def make(**_):
            data = {"host": spec["host"]}
            child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{page}"}, "data": data}
            kopf.adopt(child, owner=body)
            await kopf.apply(child)

        return make

    for page in pages:
        kopf.register(id=page, fn=maker(page))
    patch.status["pages"] = len(pages)
