"""
The base of admission and conversion: it runs a handler once, with the kwargs for the object of the request.

Handlers of webhooks are not retried, and no progress is stored, as the API server waits for the response. Admission
reviews are in `admission`, conversion reviews in `conversion_reviews`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import quote_error
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import (
    ErrorsMode,
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
"""Returns the memo of the object with this resource and metadata, or ``None`` if the operator does not know it."""


class ReviewError(Exception):
    """Raised for a request that cannot be answered by a review; ``status`` is the HTTP status of the response."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def describe(error: BaseException) -> str:
    """Return the text of an error, with its class if the text alone says little (``KeyError: 'x'``)."""
    text = str(error)
    if not text or text == 'None':
        return repr(error)
    return text if isinstance(error, PermanentError | TemporaryError) else quote_error(error)


class Responder:
    """Runs the handlers of webhooks."""

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
        """
        Return the fields that all causes have in common.

        Args:
            resource: the resource of the object.
            body: the object, as the handlers see it.
            metadata: the metadata of the stored object, to find its memo; ``None`` if it is not stored yet.
        """
        memo = None if metadata is None else self._memos(resource, metadata)
        return {
            'logger': LocalObjectLogger(body=body, settings=self._settings),
            'memo': self._context.copy_memo() if memo is None else memo,
            'indices': self._context.indices,
            'resource': resource,
            'body': body,
            'patch': Patch(body=body),
        }

    async def run_once(self, handler: ResourceHandler, cause: ResourceCause) -> Outcome:
        """Run the handler once; arbitrary errors are permanent."""
        state = HandlerState(started=utcnow())
        rules = self._context.make_rules(executor=self._context.response_threads)
        rules = rules._replace(default_errors=ErrorsMode.PERMANENT)
        return await run_handler(handler, cause, state, rules)
