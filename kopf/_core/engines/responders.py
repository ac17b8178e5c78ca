"""
What the answers to reviews of all kinds have in common: how handlers are told what they are asked about.

Nothing is stored of a review, and nothing is tried again: whoever has asked waits. So a handler is run once, and what
comes of it is the answer. See `admission` and `conversion_reviews` for the questions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import quote_error
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import (
    ErrorsMode,
    Execution,
    Outcome,
    PermanentError,
    TemporaryError,
    run_handler,
    utcnow,
)
from kopf._core.actions.handler_states import HandlerState
from kopf._core.actions.loggers import LocalObjectLogger
from kopf._core.intents.causes import ResourceCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ResourceHandler

Memos = Callable[[Resource, Mapping[str, Any]], Any]
"""Gives the memo of the existing object with this metadata, or ``None`` if the object is not known."""


class ReviewError(Exception):
    """The request can't be reviewed; ``status`` is the HTTP status that says why."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def describe(error: BaseException) -> str:
    """Return the text of an error, with its type where the text alone says little; its whole form if there is none."""
    text = str(error)
    if not text or text == 'None':
        return repr(error)
    return text if isinstance(error, PermanentError | TemporaryError) else quote_error(error)


class Responder:
    """Runs handlers for the answers to reviews, with what the operator has for them."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        memos: Memos,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._memos = memos

    def get_basics(self, resource: Resource, body: Body, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """Give what all causes have about an object; its metadata, if it exists already, lead to its memo."""
        memo = None if metadata is None else self._memos(resource, metadata)
        return {
            'logger': LocalObjectLogger(body=body, settings=self._settings),
            'memo': self._context.copy_memo() if memo is None else memo,
            'indices': self._context.indices,
            'resource': resource,
            'body': body,
            'patch': Patch(body=body),
        }

    async def ask(self, handler: ResourceHandler, cause: ResourceCause) -> Outcome:
        """Run the handler once."""
        state = HandlerState(started=utcnow())
        rules = Execution(self._settings.execution.executor, default_errors=ErrorsMode.PERMANENT)
        return await run_handler(handler, cause, state, rules)
