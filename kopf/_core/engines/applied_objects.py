"""
The argument ``children`` of handlers that are not level-triggered: it applies objects, and keeps no records of them.

Handlers of changes are called once for a change, so each call of `apply` is one request. The children are neither
watched, compared, nor pruned. The kinds need not be declared: discovery finds each kind once, until a request
reveals that it is gone.
"""

import asyncio
from typing import Any

from kopf._cogs.clients.api import client_var
from kopf._cogs.clients.discovery import find_kind, forget_kind
from kopf._cogs.clients.errors import APIForbiddenError, APINotFoundError
from kopf._cogs.clients.serverside import ApplyInvalidError, apply_object
from kopf._cogs.structs.bodies import Body
from kopf._core.actions.execution import Handler
from kopf._core.engines.adoption import Adopter, ChildError, adopt, check_object, find_key
from kopf._core.engines.children import (
    CONFLICT_DELAY,
    REFUSAL_DELAY,
    ChildRefusedError,
    ReadyFn,
    check_ready,
    explain_forbidden,
    make_manager,
)
from kopf._core.intents.causes import ResourceCause


class _Applying:
    """The children that one call of a handler applies for its object."""

    __slots__ = ('_cause', '_operator')

    def __init__(self, cause: ResourceCause, operator: str) -> None:
        self._cause = cause
        self._operator = operator

    async def apply(self, obj: Any, *, ready: bool | ReadyFn, replace: bool) -> Body:
        desired, client = check_object(obj), client_var.get()
        if replace:
            raise ChildError("children.apply(replace=True) is only for level-triggered handlers: @kopf.on.reconcile.")
        version, kind = desired['apiVersion'], desired['kind']
        resource = await find_kind(client, version, kind)
        if resource is None:
            # Why is the error not permanent? The CRD can be created a little later than the owner.
            raise ChildRefusedError(
                f"children.apply(): the cluster has no kind {kind} in {version}: is its CRD created?",
                delay=CONFLICT_DELAY,
            )
        key = find_key(desired, resource, self._cause.body)
        adopter = Adopter(self._cause.body, self._cause.resource, self._operator, None)
        if not adopter.is_near(key):
            raise ChildError(
                f"children.apply(): {key} is not in the namespace of its owner, so it would not be deleted with it. "
                f"Only level-triggered handlers can apply such children: @kopf.on.reconcile."
            )
        try:
            raw = await apply_object(
                client,
                resource=resource,
                namespace=key.namespace,
                name=key.name,
                body=adopt(desired, key, adopter),
                field_manager=make_manager(self._operator),
                force=True,
            )
        except ApplyInvalidError as error:
            raise ChildError(str(error)) from error
        except APIForbiddenError as error:
            raise ChildRefusedError(explain_forbidden(key, self._cause.resource, error), delay=REFUSAL_DELAY) from error
        except APINotFoundError as error:
            forget_kind(client, version, kind)
            raise ChildRefusedError(
                f"children.apply(): {key} is not applied, as the API does not serve {resource} any more, or its "
                f"namespace is gone: {error.message}",
                delay=CONFLICT_DELAY,
            ) from error
        body = Body(raw)
        if ready is not False:
            # The user's function is called in the event loop: it must not block, like the filters of handlers.
            check_ready(key, body, ready)
        return body


class AsyncApplying(_Applying):
    """The children, for coroutines."""

    __slots__ = ()

    async def apply(self, obj: Any, *, ready: bool | ReadyFn = False, replace: bool = False) -> Body:
        """Make the object a child, apply it server-side, and return its newest state."""
        return await super().apply(obj, ready=ready, replace=replace)


class SyncApplying:
    """The children, for functions that run in threads."""

    __slots__ = ('_applying', '_loop')

    def __init__(self, cause: ResourceCause, operator: str, loop: asyncio.AbstractEventLoop) -> None:
        self._applying = _Applying(cause, operator)
        self._loop = loop

    def apply(self, obj: Any, *, ready: bool | ReadyFn = False, replace: bool = False) -> Body:
        """Do the same as `AsyncApplying.apply`, and wait for it."""
        applying = self._applying.apply(obj, ready=ready, replace=replace)
        return asyncio.run_coroutine_threadsafe(applying, self._loop).result()


def make_applying(cause: ResourceCause, handler: Handler, operator: str) -> AsyncApplying | SyncApplying:
    """Return the argument of the handler; called in the event loop."""
    if handler.asynchronous:
        return AsyncApplying(cause, operator)
    return SyncApplying(cause, operator, asyncio.get_running_loop())
