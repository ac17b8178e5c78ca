"""
The results of handlers in the status of the object: one key for each handler.

A result that is a mapping is merged into the former result of its handler; any other result replaces it.
"""

from collections.abc import Mapping
from typing import Any

from kopf._cogs.clients.api import AnyLogger
from kopf._cogs.helpers.explanations import INTERRUPTIONS, name_error
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import Outcome


def deliver_results(
    outcomes: Mapping[HandlerId, Outcome], patch: Patch, logger: AnyLogger, *, stored: Body | None = None
) -> None:
    """
    Add the results of the handlers to the status in the patch.

    A result that does not fit there is logged, and left out: an error would also stop the other handlers of the object.

    Args:
        outcomes: the outcomes of the handlers.
        patch: the patch of the handlers.
        logger: the logger of the object.
        stored: the object, if results that it has already are to be left out.
    """
    for key, outcome in outcomes.items():
        if outcome.result is None:
            continue
        try:
            if stored is None or not is_delivered(outcome.result, stored.status.get(key)):
                _deliver(key, outcome.result, patch)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # a handler has set the status to a string, or has returned a faulty mapping
            logger.error("The result of handler %r is lost: %s", key, name_error(error))


def _deliver(key: HandlerId, result: Any, patch: Patch) -> None:
    if isinstance(result, Mapping):
        known = patch.status.get(key)
        # A new dict, as the result itself belongs to the user's function.
        patch.status[key] = {**(known if isinstance(known, Mapping) else {}), **result}
    else:
        patch.status[key] = result


def is_delivered(result: Any, known: Any) -> bool:
    """Check whether the status contains the result already, so that its delivery would change nothing."""
    if isinstance(result, Mapping) and isinstance(known, Mapping):
        return is_same({**known, **result}, known, exact=False)
    return is_same(result, known, exact=False)
