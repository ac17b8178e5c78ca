"""A kind as classes, in two versions: handlers get objects of them, and the CRD is made from them."""

import dataclasses
import os
from typing import Any

import kopf


@dataclasses.dataclass
class OldSpec:
    """When the alarm rings, as text: hours and minutes."""

    at: str


@dataclasses.dataclass
class AlarmSpec:
    """When the alarm rings."""

    hour: int
    minute: int = 0


@dataclasses.dataclass
class AlarmStatus:
    next: str | None = None


@kopf.kind("examples.kopf.dev/v1beta1", "Bell", deprecated="Use v1.")
@dataclasses.dataclass
class OldBell:
    spec: OldSpec
    status: AlarmStatus | None = None


@kopf.kind(
    "examples.kopf.dev/v1",
    columns={"Hour": ".spec.hour", "Minute": ".spec.minute", "Next": ".status.next"},
    rules=[
        ("self.spec.hour >= 0 && self.spec.hour < 24", "hour must be from 0 to 23"),
        ("self.spec.minute >= 0 && self.spec.minute < 60", "minute must be from 0 to 59"),
    ],
)
@dataclasses.dataclass
class Bell:
    """A bell that rings once a day."""

    spec: AlarmSpec
    status: AlarmStatus | None = None


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    # See the example of admission: conversions need the same server.
    settings.admission.server = kopf.WebhookAutoServer(addr=os.environ.get("WEBHOOK_ADDR"))
    settings.admission.managed = "examples.kopf.dev"


@kopf.on.create(Bell)
@kopf.on.update(Bell, field="spec")
def set_bell(spec: AlarmSpec, patch: kopf.Patch[Bell], logger: kopf.Logger, **_: Any) -> None:
    patch.status = AlarmStatus(next=f"{spec.hour:02}:{spec.minute:02}")
    logger.info(f"The bell is set to {spec.hour:02}:{spec.minute:02}.")


# Not persistent: when the operator ends, the kind is as it was before. That is for development only.
@kopf.on.convert(OldBell, Bell, persistent=False)
def upgrade(obj: OldBell, **_: Any) -> Bell:
    hour, _colon, minute = obj.spec.at.partition(":")
    if not (hour.isdigit() and minute.isdigit()):
        raise kopf.PermanentError(f"This is not a time: {obj.spec.at!r}.")
    return Bell(AlarmSpec(int(hour), int(minute)), obj.status)


@kopf.on.convert(Bell, OldBell, persistent=False)
def downgrade(obj: Bell, **_: Any) -> OldBell:
    return OldBell(OldSpec(f"{obj.spec.hour:02}:{obj.spec.minute:02}"), obj.status)
