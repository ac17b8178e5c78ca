"""
Pruning: after a successful run of a handler, the deletion of children that it does not apply any more.

The request names the uid and the resource version of the known state. So, if another client changes the child
meanwhile, the API server refuses the deletion, and the event of that change triggers another run.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.clients.api import AnyLogger, ApiClient, decode_object, encode
from kopf._cogs.clients.discovery import discover
from kopf._cogs.clients.errors import (
    APIClientError,
    APIConflictError,
    APIError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APITooManyRequestsError,
    APIUnservedError,
)
from kopf._cogs.clients.patching import patch_obj
from kopf._cogs.structs.references import Selector
from kopf._core.engines.adoption import OWNER_LABEL, ChildKey, find_handler, find_owners, make_orphaning
from kopf._core.engines.child_marks import ChildKind
from kopf._core.engines.conversion_strategies import CRDS_PATH
from kopf._core.engines.field_ownership import find_entry

CONFIRMATION_DELAY: Final = 1.0
"""The delay after which a kind that the API server does not serve is looked for once more (in seconds)."""

BACKGROUND: Final = 'Background'
"""The propagation policy: the garbage collector deletes the dependents of the child after it.

Why not the default? It depends on the kind: the dependents of a Job, for example, would become orphans.
"""


MAX_NAMED: Final = 10
"""How many refusals are described in an error: the text can become the message of a condition."""


class DeletionRefusedError(APIError):
    """Raised if the API server has refused to delete some children, after the others were deleted."""


class Refusals:
    """The refused requests of one pruning, which must not stop the deletion of the other children."""

    def __init__(self) -> None:
        self._refusals: list[tuple[ChildKey | ChildKind, APIClientError]] = []

    @contextlib.contextmanager
    def collecting(self, target: ChildKey | ChildKind) -> Iterator[None]:
        """Keep the error if the request about this child, or about the children of this kind, is refused."""
        try:
            yield
        except APIClientError as error:
            # Why not go on after other errors? If the API server is down or overloaded, each further request would
            # fail, too, and only after all of its attempts.
            if isinstance(error, APITooManyRequestsError) and not error.is_partial:
                raise
            self._refusals.append((target, error))

    def check(self) -> None:
        """
        Raise one error about all refusals, if there are any.

        Raises:
            DeletionRefusedError: if there are any.
        """
        if self._refusals:
            texts = [f"{target}: {error.message}" for target, error in self._refusals[:MAX_NAMED]]
            texts += [f"and {len(self._refusals) - MAX_NAMED} more"] if len(self._refusals) > MAX_NAMED else []
            first = self._refusals[0][1]
            raise DeletionRefusedError('; '.join(texts), status=first.status, reason=first.reason) from first


class PruneRules(NamedTuple):
    """The children that are wanted after a successful run of a handler."""

    owner: str
    """The uid of the owner."""
    operator: str
    """The name of the operator."""
    handler: str
    """The id of the handler."""
    wanted: Collection[ChildKey]
    """The children that the handler has applied in the run."""
    others: Mapping[str, Collection[ChildKey] | None]
    """The children that other handlers of the owner want, by the ids of the handlers; ``None`` if still unknown."""
    former: Collection[str] = ()
    """The ids of the handlers of the owner that do not name the kind of the children any more."""


def is_unwanted(key: ChildKey, raw: Mapping[str, Any], rules: PruneRules) -> bool:
    """Check whether no handler wants the child any more, so that it must be deleted."""
    if key in rules.wanted or rules.owner not in find_owners(raw):
        return False
    handler = find_handler(raw, rules.operator)
    if handler is None:
        return False
    if handler == rules.handler and handler not in rules.former:
        if rules.others.get(handler, ()) is None:
            return False  # another handler has the same id, e.g. for another version of the resource
        return not any(wanted is not None and key in wanted for wanted in rules.others.values())
    if handler in rules.others and handler not in rules.former:
        return False
    # The handler was renamed or removed, or it has left the kind to others. One of these can want the child.
    return all(wanted is not None and key not in wanted for wanted in rules.others.values())


def is_applied(raw: Mapping[str, Any], manager: str) -> bool:
    """Check whether the operator has applied the object, with this name of its field manager."""
    # Why are the labels not sufficient? Users copy an object with its labels, annotations, and owner references, but
    # the copy has no managed fields of the operator.
    return find_entry(raw, manager) is not None


async def list_children(
    client: ApiClient,
    kind: ChildKind,
    owner: Mapping[str, Any],
    *,
    namespaces: Collection[str],
    logger: AnyLogger | None = None,
) -> list[tuple[ChildKey, Mapping[str, Any]]]:
    """
    List the owner's children of this kind from the API server; return none if the cluster has no such kind.

    Args:
        client: the client to list with.
        kind: the kind of the children.
        owner: the owner.
        namespaces: the namespaces to list one by one if it is forbidden to list the whole cluster.
        logger: the logger of the owner.

    Raises:
        APIUnservedError: if the cluster has the kind, but the API server does not serve it now.
    """
    try:
        items = await _list_items(client, kind, owner, namespaces, logger)
    except APINotFoundError:
        # The version can be removed from the CRD. And API servers that have just started know no custom resources.
        served = await _find_served(client, kind) or await _confirm_served(client, kind)
        if served is None:
            await _check_gone(client, kind, logger)
            return []
        kind = served
        items = await _list_items(client, kind, owner, namespaces, logger)
    found: list[tuple[ChildKey, Mapping[str, Any]]] = []
    for item in items:
        place = item['metadata'].get('namespace')
        found.append((ChildKey(kind.get_resource(namespaced=place is not None), place, item['metadata']['name']), item))
    return found


async def _list_items(
    client: ApiClient,
    kind: ChildKind,
    owner: Mapping[str, Any],
    namespaces: Collection[str],
    logger: AnyLogger | None,
) -> list[Mapping[str, Any]]:
    namespace = None if kind.is_remote else owner['metadata'].get('namespace')
    params = {'labelSelector': f'{OWNER_LABEL}={owner["metadata"]["uid"]}'}
    try:
        return await _request_items(client, _get_url(kind, namespace), params, logger)
    except APIForbiddenError as error:
        if namespace is not None or not namespaces:
            raise
        refusal = error
    # Why not first? Roles are sufficient to serve some namespaces, but an operator with a ClusterRole also finds the
    # children in namespaces that only a former version of it served.
    found: list[Mapping[str, Any]] = []
    for each in sorted(namespaces):
        try:
            found += await _request_items(client, _get_url(kind, each), params, logger)
        except APINotFoundError:
            raise refusal from None  # the kind is cluster-scoped
    return found


def _get_url(kind: ChildKind, namespace: str | None) -> str:
    return kind.get_resource(namespaced=namespace is not None).get_url(namespace=namespace)


async def can_be_selected(client: ApiClient, kind: ChildKind, selectors: Collection[Selector]) -> bool:
    """Check whether one of the selectors, whose kinds were not found yet, can select this kind."""
    near = [selector for selector in selectors if selector.group in (None, kind.group)]
    if not near:
        return False
    discovery = await discover(client, {kind.group})
    found = [resource for resource in discovery.resources if kind.is_of(resource)]
    # The names of a kind that the API server does not serve now are unknown.
    return not found or any(selector.check(resource) for selector in near for resource in found)


async def _find_served(client: ApiClient, kind: ChildKind) -> ChildKind | None:
    """Return the kind in a version that the API server serves; ``None`` if there is none."""
    discovery = await discover(client, {kind.group})
    if kind.group in discovery.failed_groups:
        raise APIServerError(f"The versions of {kind} cannot be discovered.")
    found = [resource for resource in discovery.resources if kind.is_of(resource)]
    preferred = min(found, key=lambda resource: (not resource.preferred, resource.version), default=None)
    return None if preferred is None else kind._replace(version=preferred.version)


async def _confirm_served(client: ApiClient, kind: ChildKind) -> ChildKind | None:
    await asyncio.sleep(CONFIRMATION_DELAY)
    return await _find_served(client, kind)


async def _check_gone(client: ApiClient, kind: ChildKind, logger: AnyLogger | None) -> None:
    """
    Check that the cluster does not have the kind, which the discovery lacks.

    Raises:
        APIUnservedError: if there is its CRD, so that its objects still exist: e.g. no version of it is served now.
    """
    # Why a list? Operators have the permission for it, as they watch all CRDs.
    params = {'fieldSelector': f'metadata.name={kind.plural}.{kind.group}'}
    try:
        found = await _request_items(client, CRDS_PATH, params, logger) if kind.group else []
    except (APINotFoundError, APIForbiddenError):
        found = []  # without this permission, the operator must not keep the owner for ever when the kind is gone
    if found:
        raise APIUnservedError(f"{kind} is not served now, but its CRD exists.", status=404)


async def _request_items(
    client: ApiClient, url: str, params: Mapping[str, str], logger: AnyLogger | None
) -> list[Mapping[str, Any]]:
    page = await client.get_json(url, params, logger=logger)
    if not isinstance(page, dict) or not isinstance(page.get('items', 0), list | None):
        # It must not be treated as an empty list: the children would be left behind.
        raise APIServerError(f"The response to GET {url} is no list of objects: {str(page)[:200]}")
    return page.get('items') or []


class RemoteChildren:
    """
    The remote children of an owner that is being deleted: the garbage collector ignores them.

    Args:
        client: the client of the API.
        owner: the owner.
        kinds: the kinds of its children.
        manager: the name of the field manager that has applied the children.
        namespaces: the namespaces to list one by one if it is forbidden to list the whole cluster.
        logger: the logger of the owner.
    """

    def __init__(
        self,
        client: ApiClient,
        owner: Mapping[str, Any],
        kinds: Collection[ChildKind],
        *,
        manager: str,
        namespaces: Collection[str],
        logger: AnyLogger,
    ) -> None:
        self._client = client
        self._owner = owner
        self._kinds = sorted(kind for kind in kinds if kind.is_remote)
        self._manager = manager
        self._namespaces = namespaces
        self._logger = logger

    async def delete(self) -> None:
        """
        Delete the children.

        Raises:
            DeletionRefusedError: if some could not be deleted; the others are deleted nevertheless.
        """
        await self._change(self._delete)

    async def orphan(self) -> None:
        """
        Remove what links the children to their owner, as the garbage collector removes owner references.

        Raises:
            DeletionRefusedError: if some could not be changed; the others are changed nevertheless.
        """
        await self._change(self._orphan)

    async def _change(self, change: Callable[[ChildKey, Mapping[str, Any]], Awaitable[None]]) -> None:
        refusals = Refusals()
        for kind in self._kinds:
            with refusals.collecting(kind):
                for key, child in await self._list(kind):
                    with refusals.collecting(key):
                        await change(key, child)
        refusals.check()

    async def _list(self, kind: ChildKind) -> list[tuple[ChildKey, Mapping[str, Any]]]:
        found = await list_children(self._client, kind, self._owner, namespaces=self._namespaces, logger=self._logger)
        return [
            (key, child)
            for key, child in found
            if self._owner['metadata']['uid'] in find_owners(child)
            and not child['metadata'].get('ownerReferences')
            and is_applied(child, self._manager)
        ]

    async def _delete(self, key: ChildKey, child: Mapping[str, Any]) -> None:
        if await delete_child(self._client, key, child, is_versioned=False, logger=self._logger):
            self._logger.info("%s is deleted together with its owner.", key)

    async def _orphan(self, key: ChildKey, child: Mapping[str, Any]) -> None:
        result = await patch_obj(
            self._client,
            resource=key.resource,
            namespace=key.namespace,
            name=key.name,
            uid=child['metadata'].get('uid'),
            patch=make_orphaning(),
            body=None,
            logger=self._logger,
        )
        if result.unserved:
            raise APIUnservedError(f"{key} cannot be changed, as its kind is not served now.", status=404)
        if not result.gone:
            self._logger.info("%s is kept without its owner, as requested for the deletion of the owner.", key)


async def delete_child(
    client: ApiClient,
    key: ChildKey,
    raw: Mapping[str, Any],
    *,
    is_versioned: bool = True,
    logger: AnyLogger | None = None,
) -> bool:
    """
    Delete the child if it is still in this state; return whether the request was successful.

    Args:
        client: the client to delete with.
        key: the object.
        raw: its known state.
        is_versioned: whether to compare the resource version; otherwise, only the uid is compared.
        logger: the logger of the owner.

    Raises:
        APIConflictError: if the request conflicts with a concurrent one, so that the caller must repeat it.
        APINotFoundError: if the API does not serve the kind of the child now.
        APIServerError: if the response is not that of an API server.
    """
    metadata = raw['metadata']
    preconditions = {'uid': metadata.get('uid')}
    if is_versioned:
        preconditions['resourceVersion'] = metadata.get('resourceVersion')
    options = {
        'apiVersion': 'v1',
        'kind': 'DeleteOptions',
        'preconditions': preconditions,
        'propagationPolicy': BACKGROUND,
    }
    url = key.resource.get_url(namespace=key.namespace, name=key.name)
    try:
        body = await client.request('DELETE', url, payload=encode(options), logger=logger)
    except APINotFoundError as error:
        # If the resource itself is missing, for a moment or for good, that says nothing about the child.
        if error.code is None:
            raise
        return False
    except APIConflictError:
        # With the version, a conflict means that the child has changed, and its event triggers another run. Without
        # the version, no event follows, so the caller must repeat the request.
        if not is_versioned:
            raise
        return False
    decode_object('DELETE', url, body)  # it is the object, or a Status; a page of a proxy is no deletion
    return True
