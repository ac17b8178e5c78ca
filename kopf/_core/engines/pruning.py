"""
Pruning: the deletion of children that a handler does not apply any more, after a run of it that has succeeded.

A child is deleted only in the state that was looked at: the request has its uid and its resource version. If another
client changes the child meanwhile, the server refuses the request, and the event of that change starts another run.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.clients.api import AnyLogger, ApiClient, encode
from kopf._cogs.clients.errors import APIConflictError, APINotFoundError
from kopf._core.engines.adoption import OWNER_LABEL, ChildKey, find_handler, find_owners
from kopf._core.engines.child_marks import ChildKind

BACKGROUND: Final = 'Background'
"""The policy for the children of a deleted child: they are deleted after it. It is not the default of all kinds."""


class PruneRules(NamedTuple):
    """Which children are wanted when a run of a handler has succeeded."""

    owner: str
    """The uid of the owner."""
    operator: str
    """The name of the operator."""
    handler: str
    """The id of the handler."""
    wanted: Collection[ChildKey]
    """The children that it has applied in the run."""
    others: Mapping[str, Collection[ChildKey] | None]
    """The children that the other handlers of the object want, by their ids; ``None`` if that is unknown yet."""


def is_unwanted(key: ChildKey, raw: Mapping[str, Any], rules: PruneRules) -> bool:
    """Check whether the object is to be deleted."""
    if key in rules.wanted or rules.owner not in find_owners(raw):
        return False
    handler = find_handler(raw, rules.operator)
    if handler is None:
        return False
    if handler == rules.handler:
        return not any(wanted is not None and key in wanted for wanted in rules.others.values())
    if handler in rules.others:
        return False
    # The handler was renamed or removed. If it was renamed, it can want the child.
    return all(wanted is not None and key not in wanted for wanted in rules.others.values())


async def list_children(
    client: ApiClient,
    kind: ChildKind,
    owner: Mapping[str, Any],
    *,
    logger: AnyLogger | None = None,
) -> list[tuple[ChildKey, Mapping[str, Any]]]:
    """Return the children of the owner of this kind, as the API server has them; none if it has no such kind."""
    metadata = owner['metadata']
    namespace = None if kind.is_remote else metadata.get('namespace')
    url = kind.get_resource(namespaced=namespace is not None).get_url(namespace=namespace)
    try:
        page = await client.get_json(url, {'labelSelector': f'{OWNER_LABEL}={metadata["uid"]}'}, logger=logger)
    except APINotFoundError:
        return []
    found: list[tuple[ChildKey, Mapping[str, Any]]] = []
    for item in page.get('items') or ():
        place = item['metadata'].get('namespace')
        found.append((ChildKey(kind.get_resource(namespaced=place is not None), place, item['metadata']['name']), item))
    return found


async def delete_remote(
    client: ApiClient,
    owner: Mapping[str, Any],
    kinds: Collection[ChildKind],
    logger: AnyLogger,
) -> None:
    """Delete the children of the owner that the garbage collector does not delete: the owner is being deleted."""
    for kind in sorted(kind for kind in kinds if kind.is_remote):
        for key, child in await list_children(client, kind, owner, logger=logger):
            if owner['metadata']['uid'] in find_owners(child) and not child['metadata'].get('ownerReferences'):
                if await delete_child(client, key, child, is_versioned=False, logger=logger):
                    logger.info("%s is deleted together with its owner.", key)


async def delete_child(
    client: ApiClient,
    key: ChildKey,
    raw: Mapping[str, Any],
    *,
    is_versioned: bool = True,
    logger: AnyLogger | None = None,
) -> bool:
    """
    Delete the object if it is still in this state; return whether the request was successful.

    Args:
        client: the client to delete with.
        key: the object.
        raw: its known state.
        is_versioned: whether the object must not have changed; otherwise, only its uid is compared.
        logger: the logger of the owner.

    Raises:
        APIConflictError: if the request conflicts with another one, and is to be repeated.
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
        await client.request('DELETE', url, payload=encode(options), logger=logger)
    except APINotFoundError:
        return False
    except APIConflictError:
        # Without the version, another state of the object is no reason for a conflict: the request is to be repeated.
        if not is_versioned:
            raise
        return False
    return True
