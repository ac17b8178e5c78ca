"""A small operator for a test: it shows in the status what it has seen in the specification."""

from typing import Any

import kopf


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec.field')
def remember(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
    patch.status['seen'] = spec.get('field')
