"""Corner: webhooks that change and refuse, beside a handler of changes."""

import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer()
    settings.admission.managed = "webapps.example.com"


@kopf.on.mutate("webapps", operation="CREATE")
def set_host(spec, name, patch, **_):
    if "host" not in spec:
        patch.spec["host"] = name


@kopf.on.validate("webapps")
async def check_pages(spec, **_):
    if len(spec.get("pages", [])) > 3:
        raise kopf.AdmissionError("There are too many pages.", code=422)


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
async def apply_settings(name, spec, **_):
    data = {"host": spec.get("host", ""), "pages": ",".join(sorted(spec.get("pages", [])))}
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    kopf.adopt(child)
    await kopf.apply(child)
