"""
Discovery of the resources that are served in the cluster.

If the server supports the aggregated discovery (since Kubernetes 1.26), two requests are made for all API groups,
or one if the core group is not needed. Otherwise, one request is made for each version of each group.
A group whose own server is down (usually that of metrics), or whose document is malformed, is reported as failed;
the other groups are served nevertheless.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeVar

import orjson

from kopf._cogs.clients import api, errors
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import references

_T = TypeVar('_T')

_MALFORMED = (KeyError, TypeError, AttributeError)
"""The errors caused by malformed documents."""

_ENDING_VERBS = frozenset({'delete', 'deletecollection', 'get', 'list', 'watch'})
_ACCEPT = ','.join(
    [
        'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList',
        'application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList',
        'application/json',
    ]
)

_Kinds = dict[tuple[str, str], references.Resource]

_kinds: MutableMapping[api.ApiClient, _Kinds] = weakref.WeakKeyDictionary()
"""The resources that `find_kind` has found, by their API versions and kinds; they differ between clusters."""


class DiscoveryError(ExplainedError):
    """Raised if the resources of the cluster cannot be discovered, so that the operator cannot work there."""


class Discovery(NamedTuple):
    """
    The resources served in the cluster.

    Args:
        resources: all resources of all versions of the groups.
        failed_groups: the groups whose resources are not fully known; they should be discovered again later.
    """

    resources: frozenset[references.Resource]
    failed_groups: frozenset[str]


class _Version(NamedTuple):
    """One version of an API group; the resources are `None` if unknown."""

    group: str
    version: str
    resources: list[references.Resource] | None


async def discover(client: api.ApiClient, groups: Collection[str] | None = None) -> Discovery:
    """
    Discover the served resources.

    Args:
        client: the client of the API.
        groups: the only groups needed, ``""`` for the core one; a hint: the result can have other groups, too.

    Raises:
        errors.APIError: if even the list of groups is unknown, or if the core group is refused (4xx).
    """
    try:
        found = await _gather([_discover_core(client, groups), _discover_named(client, groups)])
    except _MALFORMED as error:  # the list of groups itself is malformed, which must not end a running operator
        raise errors.APIServerError(f"The list of API groups is malformed: {error!r}", status=200) from error
    versions = list(itertools.chain.from_iterable(found))
    return Discovery(
        resources=frozenset(_mark_preferred(versions)),
        failed_groups=frozenset(version.group for version in versions if version.resources is None),
    )


async def find_kind(client: api.ApiClient, api_version: str, kind: str) -> references.Resource | None:
    """
    Return the resource of a kind, such as ``Deployment`` of ``apps/v1``; `None` if the cluster does not have it.

    The API server is asked once for each kind that it has; see `forget_kind`.

    Raises:
        errors.APIError: if the server of the group does not respond.
    """
    known = _kinds.setdefault(client, {})
    if (api_version, kind) not in known:
        group, _, version = api_version.rpartition('/')
        try:
            data = await _request_document(client, f'/apis/{api_version}' if group else f'/api/{version}', 'resources')
        except errors.APINotFoundError:
            return None
        for found in _parse_legacy(data, group, version):
            if found.kind == kind:
                known.setdefault((api_version, kind), found)
    return known.get((api_version, kind))


def forget_kind(client: api.ApiClient, api_version: str, kind: str) -> None:
    """Called when a request about an object of the kind fails: the kind can be removed, or have another scope now."""
    _kinds.get(client, {}).pop((api_version, kind), None)


@contextlib.contextmanager
def explaining_discovery_errors() -> Iterator[None]:
    """
    Convert failures of the discovery to an error for users, where the operator cannot work without it.

    Raises:
        DiscoveryError: instead of errors of the API.
    """
    try:
        yield
    except errors.APIError as error:
        if isinstance(error, errors.APIForbiddenError):
            remedy = (
                "The credentials have neither a token nor a certificate, or these are not known there: "
                "see the user of the current context in the kubeconfig"
                if 'system:anonymous' in str(error)
                else "Bind the cluster role system:discovery to the operator's account"
            )
        elif isinstance(error, errors.APIClientError):
            remedy = "Check that the address of the server in the credentials is that of a Kubernetes API"
        else:
            remedy = (
                "Check that the server is up and can be reached. The retries of requests "
                "are set in settings.networking.error_backoffs"
            )
        raise DiscoveryError(f"The resources of the cluster cannot be discovered: {error}. {remedy}.") from error


async def _discover_core(client: api.ApiClient, groups: Collection[str] | None) -> list[_Version]:
    if groups is not None and '' not in groups:
        return []
    try:
        data = await _request_document(client, '/api', 'versions')
    except (errors.APIServerError, errors.APIConnectionError):
        # The other groups are served meanwhile. A refusal (4xx) is raised: this client can't use the API at all.
        return [_Version('', 'v1', None)]
    if data.get('kind') == 'APIGroupDiscoveryList':
        return list(_parse_aggregated(data))
    return await _gather(
        [_discover_version(client, '', version, f'/api/{version}') for version in data.get('versions') or ()]
    )


async def _discover_named(client: api.ApiClient, groups: Collection[str] | None) -> list[_Version]:
    data = await _request_document(client, '/apis', 'groups')
    if data.get('kind') == 'APIGroupDiscoveryList':
        return list(_parse_aggregated(data))
    return await _gather(
        [
            _discover_version(client, group['name'], version, f"/apis/{group['name']}/{version}")
            for group in data.get('groups') or ()
            if groups is None or group['name'] in groups
            for version in _sort_versions(group)
        ]
    )


async def _discover_version(client: api.ApiClient, group: str, version: str, path: str) -> _Version:
    # Why no retries? If the server of the group is down, the whole operator would wait for it.
    try:
        data = await _request_document(client, path, 'resources', backoffs=())
        return _Version(group, version, list(_parse_legacy(data, group, version)))
    except errors.APINotFoundError:
        return _Version(group, version, [])  # the group or the version was removed since it was listed
    except (errors.APIError, *_MALFORMED):
        return _Version(group, version, None)


async def _request_document(
    client: api.ApiClient,
    path: str,
    field: str,
    *,
    backoffs: api.Backoffs | None = None,
) -> dict[str, Any]:
    """Request a document of the discovery: an aggregated one, or one with this field."""
    body = await client.request('GET', path, accept=None if field == 'resources' else _ACCEPT, backoffs=backoffs)
    try:
        data = orjson.loads(body)
    except ValueError:
        data = None
    known = ('APIGroupDiscoveryList', 'APIGroupList', 'APIVersions', 'APIResourceList')
    if not isinstance(data, dict) or not (data.get('kind') in known or isinstance(data.get(field), list)):
        # Without this error, the cluster would seem to have no resources.
        raise errors.APIServerError(f"The answer to {path} is no discovery document: {body[:200]!r}", status=200)
    return data


async def _gather(coros: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coro) for coro in coros]
    except ExceptionGroup as e:
        raise e.exceptions[0] from e.exceptions[0].__cause__  # the first error; the other requests are cancelled
    return [task.result() for task in tasks]


def _sort_versions(group: Mapping[str, Any]) -> list[str]:
    preferred = (group.get('preferredVersion') or {}).get('version')
    names = [version['version'] for version in group.get('versions') or ()]
    # The sorting is stable: the other versions keep the order of the server, which is that of their priorities.
    return sorted(names, key=lambda name: name != preferred)


def _parse_legacy(data: Mapping[str, Any], group: str, version: str) -> Iterator[references.Resource]:
    items = data.get('resources') or ()
    # Collected first, because the items of resources and subresources come in any order.
    subresources: dict[str, set[str]] = {}
    for item in items:
        plural, slash, subresource = item['name'].partition('/')
        if slash:
            subresources.setdefault(plural, set()).add(subresource)
    for item in items:
        if '/' not in item['name']:
            yield references.Resource(
                group=group,
                version=version,
                plural=item['name'],
                kind=item.get('kind'),
                # Older servers have no singular names of built-in resources; these are the kinds in lower case.
                singular=item.get('singularName') or item.get('kind', '').lower(),
                shortcuts=frozenset(item.get('shortNames') or ()),
                categories=frozenset(item.get('categories') or ()),
                subresources=frozenset(subresources.get(item['name'], ())),
                namespaced=bool(item.get('namespaced')),
                verbs=_read_verbs(item.get('verbs')),
            )


def _parse_aggregated(data: Mapping[str, Any]) -> Iterator[_Version]:
    for item in data.get('items') or ():
        group = (item.get('metadata') or {}).get('name') or ''
        for version in item.get('versions') or ():
            try:
                name, resources = version['version'], list(_parse_aggregated_version(version, group))
            except _MALFORMED:
                yield _Version(group, '', None)
                continue
            # Stale resources still exist: they were known before the group's server went down.
            unknown = not resources and version.get('freshness') == 'Stale'
            yield _Version(group, name, None if unknown else resources)


def _parse_aggregated_version(data: Mapping[str, Any], group: str) -> Iterator[references.Resource]:
    for item in data.get('resources') or ():
        kind = (item.get('responseKind') or {}).get('kind')
        if not kind or not item.get('verbs'):
            continue  # there are only subresources, which cannot be watched
        yield references.Resource(
            group=group,
            version=data['version'],
            plural=item['resource'],
            kind=kind,
            singular=item.get('singularResource') or kind.lower(),
            shortcuts=frozenset(item.get('shortNames') or ()),
            categories=frozenset(item.get('categories') or ()),
            subresources=frozenset(sub['subresource'] for sub in item.get('subresources') or ()),
            namespaced=item.get('scope') == 'Namespaced',
            verbs=_read_verbs(item.get('verbs')),
        )


def _read_verbs(data: Iterable[str] | None) -> frozenset[str]:
    verbs = frozenset(data or ())
    # While a CRD is being deleted, its objects can still be patched, though the discovery does not list this verb.
    # Finalizers are removed by patches; without them, neither the objects nor the CRD would ever be deleted.
    return verbs | {'patch', 'update'} if verbs == _ENDING_VERBS else verbs


def _mark_preferred(versions: Iterable[_Version]) -> Iterator[references.Resource]:
    # As in kubectl, it is the first of the group's sorted versions in which the resource exists.
    seen: set[tuple[str, str]] = set()
    for version in versions:
        for resource in version.resources or ():
            preferred = (resource.group, resource.plural) not in seen
            seen.add((resource.group, resource.plural))
            yield resource if preferred else dataclasses.replace(resource, preferred=False)
