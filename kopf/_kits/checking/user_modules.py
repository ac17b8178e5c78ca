"""
The modules of the operator's author, as a process that is started again would import them: anew.

Those with handlers are imported again for each operator of a course; otherwise, the second one would have none. So are
the modules that have imported these. The other modules stay: they can stand for what is outside of the operator, such
as a simulated cloud, which a killed operator leaves as it is. Modules that were imported before the first operator was
started stay in any case.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from kopf._core.intents.registries import OperatorRegistry

_FOREIGN = (
    *(sysconfig.get_path(name) + os.sep for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')),
    str(Path(__file__).parents[2]) + os.sep,
)


class UserModules:
    """The modules that the operators of one course import."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._stale: set[str] = set()

    @property
    def foreign(self) -> list[str]:
        """The imported modules of the standard library and of installed packages."""
        return [name for name in sys.modules if name not in self._before and not _is_users(sys.modules[name])]

    @contextlib.contextmanager
    def loading(self, registry: OperatorRegistry) -> Iterator[None]:
        """Forget the modules with handlers for the time when an operator is loaded into the registry."""
        for name in self._stale:
            sys.modules.pop(name, None)
        yield
        self._stale = self._find_stale(
            {str(getattr(handler.fn, '__module__', '')) for handler in registry.iter_handlers()}
        )

    def _find_stale(self, declaring: set[str]) -> set[str]:
        """Return the modules with handlers, their packages, and all modules that refer to these."""
        own = {
            name: module for name, module in list(sys.modules.items()) if name not in self._before and _is_users(module)
        }
        stale = {name for name in own if any(f'{other}.'.startswith(f'{name}.') for other in declaring)}
        while found := {name for name, module in own.items() if name not in stale and _refers(module, stale)}:
            stale |= found
        return stale


def _is_users(module: ModuleType) -> bool:
    path = getattr(module, '__file__', None)
    return isinstance(path, str) and not path.startswith(_FOREIGN)


def _refers(module: ModuleType, names: set[str]) -> bool:
    """Check whether the module has imported one of the others, or something of it."""
    return any(_get_origin(value) in names for value in list(vars(module).values()))


def _get_origin(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    origin = getattr(value, '__module__', '')
    return origin if isinstance(origin, str) else ''
