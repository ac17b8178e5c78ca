"""
The modules of the operator's author, which are imported again for each operator, as by a restarted process.

Modules with handlers are imported again for each operator of a course: otherwise, a second operator would have no
handlers. Modules that have imported these are imported again, too. All other modules are kept, as they can simulate
systems outside of the operator, such as a cloud, whose state must survive the operator. Modules that were imported
before the first operator started are always kept.
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
    """The modules that the operators of one course have imported."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._stale: set[str] = set()

    @property
    def foreign(self) -> list[str]:
        """The imported modules of the standard library and of installed packages."""
        return [name for name in sys.modules if name not in self._before and not is_users(sys.modules[name])]

    @contextlib.contextmanager
    def loading(self, registry: OperatorRegistry) -> Iterator[None]:
        """Remove the modules with handlers from ``sys.modules``, so that the block imports them again."""
        for name in self._stale:
            sys.modules.pop(name, None)
        yield
        self._stale = self._find_stale(
            {str(getattr(handler.fn, '__module__', '')) for handler in registry.iter_handlers()}
        )

    def _find_stale(self, declaring: set[str]) -> set[str]:
        """Return the modules with handlers, their packages, and all modules that refer to any of them."""
        own = {
            name: module for name, module in list(sys.modules.items()) if name not in self._before and is_users(module)
        }
        stale = {name for name in own if any(f'{other}.'.startswith(f'{name}.') for other in declaring)}
        while found := {name for name, module in own.items() if name not in stale and _refers(module, stale)}:
            stale |= found
        return stale


def is_users(module: ModuleType) -> bool:
    """Check whether the module belongs neither to the standard library nor to an installed package."""
    path = getattr(module, '__file__', None)
    return isinstance(path, str) and not path.startswith(_FOREIGN)


def _refers(module: ModuleType, names: set[str]) -> bool:
    """Check whether the module has imported one of the named modules, or an object from one."""
    return any(_get_origin(value) in names for value in list(vars(module).values()))


def _get_origin(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    origin = getattr(value, '__module__', '')
    return origin if isinstance(origin, str) else ''
