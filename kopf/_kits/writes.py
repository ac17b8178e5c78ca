"""
Writes by the code of an operator: `apply` writes an object, and `seen` reports an object that other code has written.

Both pass the new state to the operator at once. Otherwise, the operator would get it only from the watch, with a delay.
Until then, handlers could use a state that is older than their own last write.
"""

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Generator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from kopf._cogs.aiokits import thread_pools
from kopf._cogs.clients.api import ApiClient, client_var
from kopf._cogs.clients.discovery import find_kind, forget_kind
from kopf._cogs.clients.errors import APINotFoundError
from kopf._cogs.clients.pacing import exempted
from kopf._cogs.clients.serverside import apply_object
from kopf._cogs.helpers import thirdparty
from kopf._cogs.structs.bodies import RawBody
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import PermanentError, TemporaryError, cause_var
from kopf._core.engines.adoption import check_object
from kopf._core.engines.children import make_manager
from kopf._core.engines.indexing import INDEXING_PATIENCE, wait_for_indexing
from kopf._core.intents.causes import ConversionCause, WebhookCause
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.orchestration import WriteThrough, write_through_var

K8sObject: TypeAlias = (
    Mapping[str, Any]
    | thirdparty.PykubeObject
    | thirdparty.Kr8sObject
    | thirdparty.KubernetesModel
    | thirdparty.LightkubeModel
)

T = TypeVar('T')

UNSERVED_DELAY = 30
"""The delay of the next attempt if the cluster does not have the kind, which can be created later (in seconds)."""

SEEING_PATIENCE = 10.0
"""How long a thread waits for a busy event loop (in seconds)."""


class WriteError(PermanentError):
    """Raised if `kopf.apply` or `kopf.seen` cannot be called there, or not with these arguments."""

    message_code = 'write-error'


class UnservedKindError(TemporaryError):
    """Raised if the cluster does not have the kind of the object of `kopf.apply`. The call is repeated later."""

    message_code = 'kind-unserved'


def apply(
    obj: K8sObject,
    *,
    namespace: str | None = None,
    field_manager: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Any:
    """
    Apply an object server-side: create it, or change the fields that it has; to be awaited in ``async`` functions.

    In ``def`` handlers, which run in threads, it is called without ``await``, and blocks until it is done. The operator
    knows the result at once: its indices have it on return, and its handlers are triggered by it. The operator's own
    credentials are used.

    Args:
        obj: the object, with at least the ``apiVersion``, the ``kind``, and the ``metadata.name``.
        namespace: the namespace, if the object has none; by default, that of the object being handled.
        field_manager: the name under which the API server remembers the fields; by default, ``kopf-<operator>/apply``
            with ``settings.applying.operator``. What this manager has applied before and does not apply any more is
            removed.
        force: take the fields away from other managers instead of failing.
        dry_run: let the API server compute the result without storing it.

    Returns:
        The object as it is stored in the API server.

    Raises:
        kopf.ApplyConflictError: if other managers have set some of the fields to other values; unless forced.
        kopf.ApplyInvalidError: if the object would be invalid, or an immutable field would be changed.
        kopf.ApplyUnsupportedError: if the API server does not support server-side apply for this kind.
        kopf.PermanentError: if the object cannot be applied as it is, or if no operator runs here.
        kopf.TemporaryError: if the cluster does not have the kind.
    """
    client, write_through = client_var.get(None), write_through_var.get(None)
    if client is None or write_through is None:
        raise WriteError(
            "kopf.apply() works only inside of a running operator: for example, in a handler of @kopf.on.startup()."
        )
    desired = check_object(obj, 'kopf.apply')
    # Why not the manager of children? If an object is applied in both ways, the API server would remove the fields that
    # the last request does not have, such as the owner reference.
    manager = field_manager or f'{make_manager(write_through.settings.applying.operator)}/apply'
    work = _apply(desired, client, write_through, namespace, field_manager=manager, force=force, dry_run=dry_run)
    return work if _is_in_loop() else _run_in_loop('apply', work)


async def _apply(
    desired: Mapping[str, Any],
    client: ApiClient,
    write_through: WriteThrough,
    namespace: str | None,
    *,
    dry_run: bool,
    **options: Any,
) -> RawBody:
    with exempted(isinstance(cause_var.get(None), WebhookCause | ConversionCause)):
        resource = await _find_resource(client, desired['apiVersion'], desired['kind'])
        place, name = _find_namespace(desired, resource, namespace), desired['metadata']['name']
        try:
            raw = await apply_object(
                client, resource=resource, namespace=place, name=name, body=desired, dry_run=dry_run, **options
            )
        except APINotFoundError:
            forget_kind(client, desired['apiVersion'], desired['kind'])
            raise
    if not dry_run:
        await _Sight(write_through.see(raw))
    return raw


def seen(obj: K8sObject, *, deleted: bool = False) -> Awaitable[None]:
    """
    Report to the operator an object that another client of the API has written, before the watch brings it.

    The operator handles the object as an event: its indices get it, and handlers are called for it. When the watch
    brings the same state or older ones later, they are ignored. Nothing happens if the operator does not watch such
    objects, or knows this state or a newer one.

    On return, the object is known, except for the index functions: ``await`` the call to wait for them, too. In ``def``
    handlers, which run in threads, the call waits for them by itself.

    Args:
        obj: the object, as in the response of the API: with its resource version.
        deleted: whether the object is deleted, so that the API does not have it any more.

    Raises:
        kopf.PermanentError: if it is no object, or if no operator runs here.
    """
    write_through = write_through_var.get(None)
    if write_through is None or not write_through.is_connected:
        raise WriteError(
            "kopf.seen() works only inside of a running operator: in its handlers, and in the tasks that they start."
        )
    raw = cast(RawBody, check_object(obj, 'kopf.seen'))
    if _is_in_loop():
        return _Sight(write_through.see(raw, is_deleted=deleted))

    async def work() -> None:
        await _Sight(write_through.see(raw, is_deleted=deleted))

    _run_in_loop('seen', work(), timeout=SEEING_PATIENCE + INDEXING_PATIENCE)
    return _Sight(())


class _Sight(Awaitable[None]):
    """The result of `seen`; awaiting it waits until the index functions have processed the object."""

    def __init__(self, records: Collection[ObjectRecord]) -> None:
        self._records = records

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        await wait_for_indexing(self._records)


def _is_in_loop() -> bool:
    return asyncio.events._get_running_loop() is not None


def _run_in_loop(name: str, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
    loop = write_through_var.get().loop
    try:
        with thread_pools.waiting():
            return asyncio.run_coroutine_threadsafe(work, loop).result(timeout)
    except RuntimeError:
        if not loop.is_closed():
            raise
        work.close()
        raise WriteError(f"kopf.{name}() is called in a thread whose operator has ended.") from None


async def _find_resource(client: ApiClient, version: str, kind: str) -> Resource:
    found = await find_kind(client, version, kind)
    if found is None:
        raise UnservedKindError(
            f"kopf.apply(): the cluster has no kind {kind!r} in {version}. Is its CRD installed?",
            delay=UNSERVED_DELAY,
        )
    return found


def _find_namespace(desired: Mapping[str, Any], resource: Resource, given: str | None) -> str | None:
    own = desired['metadata'].get('namespace')
    title = f"{desired['kind']} {desired['metadata']['name']!r}"
    if not resource.namespaced:
        if own is not None or given is not None:
            raise WriteError(
                f"kopf.apply(): {title} is cluster-scoped, so it cannot be in the namespace {own or given!r}."
            )
        return None
    if own is not None and given is not None and own != given:
        raise WriteError(f"kopf.apply(): {title} has metadata.namespace {own!r}, but namespace= is {given!r}.")
    body = getattr(cause_var.get(None), 'body', None)
    found = own or given or (None if body is None else body.metadata.namespace)
    if not found:
        raise WriteError(
            f"kopf.apply(): {title} needs a namespace, and no object in a namespace is being handled: "
            f"set metadata.namespace, or namespace=."
        )
    return str(found)
