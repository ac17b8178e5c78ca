"""
Tools for testing operators: an embedded Kubernetes API, and ways to run an operator against it.

Everything is imported on the first use, since most programs that import kopf are not tests.
"""
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kopf._kits.runner import KopfRunner
    from kopf._kits.testing.faults import Fault, Faults, SeenRequest
    from kopf._kits.testing.manifests import ManifestError
    from kopf._kits.testing.operators import Operator, OperatorFailed
    from kopf._kits.testing.sandbox import AsyncSandbox, Sandbox
    from kopf._kits.testing.snapshots import Snapshot
    from kopf._kits.testing.states import StateError
    from kopf._kits.testing.statuses import Refusal

__all__ = [
    'AsyncSandbox',
    'Fault',
    'Faults',
    'KopfRunner',
    'ManifestError',
    'Operator',
    'OperatorFailed',
    'Refusal',
    'Sandbox',
    'SeenRequest',
    'Snapshot',
    'StateError',
]

_MODULES = {
    'AsyncSandbox': 'testing.sandbox',
    'Fault': 'testing.faults',
    'Faults': 'testing.faults',
    'KopfRunner': 'runner',
    'ManifestError': 'testing.manifests',
    'Operator': 'testing.operators',
    'OperatorFailed': 'testing.operators',
    'Refusal': 'testing.statuses',
    'Sandbox': 'testing.sandbox',
    'SeenRequest': 'testing.faults',
    'Snapshot': 'testing.snapshots',
    'StateError': 'testing.states',
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f'kopf._kits.{_MODULES[name]}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
