"""
The results of handlers in the status of the object: one key for each handler.

A result that is a mapping is merged into the former result of its handler; any other result replaces it.
"""

from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs.diffs import is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import Outcome


def deliver_results(outcomes: Mapping[HandlerId, Outcome], patch: Patch) -> None:
    """Add the results of the handlers to the status in the patch."""
    for key, outcome in outcomes.items():
        if outcome.result is None:
            continue
        if isinstance(outcome.result, Mapping):
            known = patch.status.get(key)
            # A new dict, as the result itself belongs to the user's function.
            patch.status[key] = {**(known if isinstance(known, Mapping) else {}), **outcome.result}
        else:
            patch.status[key] = outcome.result


def is_delivered(result: Any, known: Any) -> bool:
    """Check whether the status contains the result already, so that its delivery would change nothing."""
    if isinstance(result, Mapping) and isinstance(known, Mapping):
        return is_same({**known, **result}, known, exact=False)
    return is_same(result, known, exact=False)
