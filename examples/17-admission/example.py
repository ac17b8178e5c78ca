"""Refusing and changing objects before they are stored: validating and mutating admission handlers."""

import os

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    # The server must be reachable from the cluster. This one finds the right host name for the clusters that run on
    # the same machine; for others, it listens on this machine only.
    settings.admission.server = kopf.WebhookAutoServer(addr=os.environ.get("WEBHOOK_ADDR"))
    settings.admission.managed = "examples.kopf.dev"


@kopf.on.mutate("kopfexamples", operations=["CREATE", "UPDATE"])
def set_duration(spec, patch, **_):
    # What is missing is added to what is stored. The handlers of changes will see the object with it.
    if "duration" not in spec:
        patch.spec["duration"] = "5m"


@kopf.on.mutate("kopfexamples", operation="CREATE", labels={"untrusted": kopf.PRESENT})
def mark_author(patch, userinfo, **_):
    # Only objects with the label come here at all: the cluster filters them.
    patch.meta.annotations["examples.kopf.dev/author"] = userinfo["username"]


@kopf.on.validate("kopfexamples", operations=["CREATE", "UPDATE"])
def check_items(spec, old, new, warnings, **_):
    # Kubernetes also asks about the operator's own patches. What is stored already must be accepted.
    if old is not None and old.get("spec", {}).get("items") == new.get("spec", {}).get("items"):
        return
    items = spec.get("items") or []
    if len(items) > 10:
        raise kopf.AdmissionError(f"There are {len(items)} items; 10 are the most.", code=422)
    if not items:
        warnings.append("There are no items: nothing will be done for this object.")


@kopf.on.validate("kopfexamples", operation="UPDATE", field="spec.field")
def keep_field(old, new, dryrun, logger, **_):
    before, after = old["spec"].get("field"), new["spec"].get("field")
    if before is not None and before != after:
        logger.info(f"An attempt to change the field is refused ({dryrun=}).")
        raise kopf.AdmissionError(f"The field is immutable: it is {before!r}.", code=403)


@kopf.on.validate("kopfexamples", operation="DELETE", annotations={"protected": "yes"})
def protect(name, **_):
    raise kopf.AdmissionError(f"{name} is protected. Remove the annotation first.", code=403)


@kopf.on.create("kopfexamples")
def create_fn(spec, logger, **_):
    logger.info(f"Created with the duration {spec['duration']}.")
