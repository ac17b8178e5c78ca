"""One kind in two versions: the API asks the operator to make objects of the one into objects of the other."""

import os

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    # See the example of admission: conversions need the same server.
    settings.admission.server = kopf.WebhookAutoServer(addr=os.environ.get("WEBHOOK_ADDR"))
    settings.admission.managed = "examples.kopf.dev"


# Not persistent: when the operator ends, the kind is as it was before. That is for development. Leave it out otherwise,
# or objects of one version are passed off as another while the operator is down.
@kopf.on.convert("kopfalarms", from_version="v1", to_version="v2", persistent=False)
def split(spec, patch, **_):
    hour, colon, minute = spec.get("at", "").partition(":")
    if not (colon and hour.isdigit() and minute.isdigit()):
        raise kopf.PermanentError(f"This is not a time: {spec.get('at')!r}.")
    patch.spec.update(at=None, hour=int(hour), minute=int(minute))


@kopf.on.convert("kopfalarms", from_version="v2", to_version="v1", persistent=False)
def join(spec, patch, **_):
    patch.spec.update(at=f"{spec.get('hour', 0):02}:{spec.get('minute', 0):02}", hour=None, minute=None)


# A handler sees objects in the version that it asks for.
@kopf.on.create("kopf.dev", "v1", "kopfalarms")
@kopf.on.update("kopf.dev", "v1", "kopfalarms")
def set_alarm(spec, logger, **_):
    logger.info(f"The alarm is set to {spec['at']}.")
