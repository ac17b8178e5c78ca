"""Planted: the differences of an update are applied one by one, but not those that remove a field."""

import kopf


@kopf.on.create("webapps")
def create(spec, patch, **_):
    patch.status["applied"] = dict(spec)


@kopf.on.update("webapps", field="spec")
def update(diff, patch, **_):
    for operation, field, _, new in diff:
        if operation in ("add", "change") and len(field) == 1:
            patch.status.setdefault("applied", {})[field[0]] = new
