"""
What one operator has for all of its handlers, whatever they are called for.

It is made once, when the operator is started, and travels as a whole. Those who need a part of it for every event take
that part when they are created: the context is not looked into on the hot path.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.instruments import Instruments
from kopf._core.actions.execution import Execution
from kopf._core.actions.lifecycles import LifeCycleFn, get_default_lifecycle
from kopf._core.intents.registries import OperatorRegistry


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperatorContext:
    """What the handlers of one operator share."""

    settings: OperatorSettings
    registry: OperatorRegistry = dataclasses.field(default_factory=OperatorRegistry)
    """The handlers themselves."""
    lifecycle: LifeCycleFn = dataclasses.field(default_factory=get_default_lifecycle)
    """The order of the handlers of an object."""
    memo: Any = None
    """The memo of the operator; the memos of objects are copies of it."""
    indices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The indices by their names: live, and to be read only."""
    instruments: Instruments = dataclasses.field(default_factory=Instruments)
    """Who is told what happens."""

    def copy_memo(self) -> Any:
        """Return the first memo of an object."""
        return copy.copy(self.memo)

    def make_rules(self) -> Execution:
        """Make the rules for running handlers, by the settings as they are now."""
        execution = self.settings.execution
        return Execution(
            executor=execution.executor, default_backoff=execution.default_backoff, instruments=self.instruments
        )
