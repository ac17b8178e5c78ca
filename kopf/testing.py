"""
Tools for testing operators: an embedded Kubernetes API, and ways to run an operator against it.

Everything is imported on the first use, since most programs that import kopf are not tests.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kopf._kits.checking.chaos import ChecksFailed, KopfChaos
    from kopf._kits.checking.checks import CannotCheck
    from kopf._kits.runner import KopfRunner
    from kopf._kits.testing.operator_processes import Operator, OperatorFailed
    from kopf._kits.testing.sandbox import AsyncSandbox, Sandbox
    from kopf._kits.testing.serving.faults import Fault, Faults, SeenRequest
    from kopf._kits.testing.serving.snapshots import Snapshot
    from kopf._kits.testing.serving.waits import WaitTimeout
    from kopf._kits.testing.storing.states import StateError
    from kopf._kits.testing.virtual.virtual_clocks import VirtualTimeError
    from kopf._kits.testing.wire.manifests import ManifestError
    from kopf._kits.testing.wire.statuses import Refusal

__all__ = [
    'AsyncSandbox',
    'CannotCheck',
    'ChecksFailed',
    'Fault',
    'Faults',
    'KopfChaos',
    'KopfRunner',
    'ManifestError',
    'Operator',
    'OperatorFailed',
    'Refusal',
    'Sandbox',
    'SeenRequest',
    'Snapshot',
    'StateError',
    'VirtualTimeError',
    'WaitTimeout',
]

_MODULES = {
    'AsyncSandbox': 'testing.sandbox',
    'CannotCheck': 'checking.checks',
    'ChecksFailed': 'checking.chaos',
    'Fault': 'testing.serving.faults',
    'Faults': 'testing.serving.faults',
    'KopfChaos': 'checking.chaos',
    'KopfRunner': 'runner',
    'ManifestError': 'testing.wire.manifests',
    'Operator': 'testing.operator_processes',
    'OperatorFailed': 'testing.operator_processes',
    'Refusal': 'testing.wire.statuses',
    'Sandbox': 'testing.sandbox',
    'SeenRequest': 'testing.serving.faults',
    'Snapshot': 'testing.serving.snapshots',
    'StateError': 'testing.storing.states',
    'VirtualTimeError': 'testing.virtual.virtual_clocks',
    'WaitTimeout': 'testing.serving.waits',
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f'kopf._kits.{_MODULES[name]}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
