"""
Real clusters for checks: requests with the credentials of a context, kinds, and temporary namespaces.

In a course, requests are made in an event loop that runs in a separate thread, together with the proxy of the
operators. The check itself uses no thread, because it forks processes: an ending thread that has used OpenSSL holds a
lock of OpenSSL for a moment, even after `join`. If the process is forked at this moment, the lock is never released in
the fork.
"""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import orjson

from kopf._cogs.clients import kubeconfigs
from kopf._cogs.structs.credentials import ConnectionInfo, LoginError
from kopf._cogs.structs.references import Resource
from kopf._kits.testing.wire.statuses import Refusal

if TYPE_CHECKING:
    import aiohttp

T = TypeVar('T')

Body = dict[str, Any]

LABEL = 'kopf.dev/check'
"""The label of the namespaces and CRDs that checks have created; its value identifies one check."""

TIMEOUT = 30.0
"""The time limit of a check's own request to the cluster (in seconds); those of the operator have none."""

REMOVAL_TIMEOUT = 60.0
"""How long a check waits until its namespaces and its CRDs are gone (in seconds)."""

ESTABLISHING_TIMEOUT = 30.0
"""How long a check waits until a created CRD is established (in seconds)."""

CONCURRENT_LISTS = 8
"""How many lists are requested at the same time."""

CRDS = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'
NAMESPACES = '/api/v1/namespaces'


class ClusterError(Exception):
    """Raised when the cluster cannot be used for a check; the message has the reason and the remedy."""


class ClusterKind(NamedTuple):
    """A kind of objects in the cluster."""

    name: str
    """The plural, followed by the group if the cluster has the same plural in several groups."""
    resource: Resource
    schema: Mapping[str, Any] | None = None
    """The schema of a custom resource; None for others."""

    @property
    def api_version(self) -> str:
        """The API version, as in manifests."""
        return f'{self.resource.group}/{self.resource.version}'.lstrip('/')

    def get_path(self, namespace: str, name: str | None = None) -> str:
        """Return the path of an object, or of all objects in the namespace."""
        return self.resource.get_url(namespace=namespace, name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPlace:
    """Where the courses of one check take place."""

    context: str
    """The name of the context in the kubeconfig."""
    run: str
    """The value of the label of all namespaces and CRDs of this check."""
    namespace: str
    """The namespace of the user's objects in plans and reports; each course replaces it by its own namespace."""
    kinds: Sequence[ClusterKind]

    def find(self, api_version: str, kind: str) -> ClusterKind:
        """Return a kind; raise `ClusterError` if its objects cannot be in the namespace of a course."""
        group = api_version.rpartition('/')[0]
        for item in self.kinds:
            if (item.resource.group, item.resource.kind) == (group, kind):
                if not item.resource.namespaced:
                    raise ClusterError(explain_scope(f'The objects of {kind} ({api_version})'))
                return item
        raise ClusterError(
            f'The cluster of the context {self.context!r} has no kind {kind} ({api_version}): give its definition by '
            '--crd, and create it by --apply-crds.'
        )

    def get(self, name: str) -> ClusterKind:
        """
        Return a kind by its name here, or by a plural, singular, kind or short name, as `Sandbox` accepts them.

        Raises:
            ClusterError: there is no such kind.
        """
        word, _, rest = name.partition('.')
        for item in self.kinds:
            if item.name == name:
                return item
        for item in self.kinds:
            resource = item.resource
            apis = ('', resource.group, f'{resource.version}.{resource.group}'.rstrip('.'))
            names = (resource.plural, resource.singular, resource.kind, *resource.shortcuts)
            if rest in apis and word in names:
                return item
        raise ClusterError(f'The cluster of the context {self.context!r} has no kind {name!r}.')

    @property
    def namespaced(self) -> Sequence[ClusterKind]:
        """The kinds whose objects are in namespaces, and can be listed and created."""
        return [item for item in self.kinds if item.resource.namespaced and item.resource.verbs >= {'list', 'create'}]


def explain_scope(what: str) -> str:
    """Return the message that something cannot be checked because it is not in a namespace."""
    return (
        f'{what} are cluster-scoped, but each run on a cluster is confined to a namespace of its own, as it must not '
        'disturb others. Check this in the sandbox, without --cluster.'
    )


class Cluster:
    """
    The API of a cluster, to be used in a ``with`` block.

    Args:
        context: the name of the context in the kubeconfig.
        threaded: whether the event loop runs all the time, in a thread of its own. Otherwise, it runs only during
            calls.
    """

    def __init__(self, context: str, *, threaded: bool = False) -> None:
        self._context = context
        self._thread: threading.Thread | None = None
        self._is_threaded = threaded

    def __enter__(self) -> Self:
        self._info = _log_in(self._context)
        self._loop = asyncio.new_event_loop()
        if self._is_threaded:
            self._thread = threading.Thread(target=self._loop.run_forever, name='kopf-cluster', daemon=True)
            self._thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            self._session = self.run(self._connect())
            stack.callback(lambda: self.run(self._session.close()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _connect(self) -> 'aiohttp.ClientSession':
        import aiohttp  # imported only here, as most checks need no cluster

        self._options: dict[str, Any] = {'allow_redirects': False}
        if self._info.tls_server_name:
            self._options['server_hostname'] = self._info.tls_server_name
        if self._info.proxy_url:
            self._options['proxy'] = self._info.proxy_url
        context = self._info.as_ssl_context() if self._info.server.startswith('https://') else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=['Accept-Encoding', 'Content-Type', 'User-Agent'],
            auto_decompress=False,  # the proxy passes compressed responses on unchanged
            trust_env=bool(self._info.trust_env),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop, and wait for its result; not to be called from within the loop."""
        if self._thread is None:
            return self._loop.run_until_complete(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def send(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), data: bytes | None = None
    ) -> 'aiohttp.ClientResponse':
        """Send a request with the credentials of the context; the target is a path with its query, already encoded."""
        import yarl

        url = yarl.URL(self._info.server.rstrip('/') + target, encoded=True)
        merged = [*headers, *self._info.as_http_headers().items()]
        return await self._session.request(method, url, headers=merged, data=data, **self._options)

    async def request(self, method: str, target: str, body: Any = None, content_type: str = 'application/json') -> Body:
        """
        Return the object in the response.

        Raises:
            Refusal: the API has refused the request.
            ClusterError: there is no response.
        """
        import aiohttp

        headers = [('Accept', 'application/json'), ('User-Agent', 'kopf-check'), ('Content-Type', content_type)]
        data = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(TIMEOUT), await self.send(method, target, headers, data) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:  # time-outs are OSError
            reason = str(error) or type(error).__name__
            raise ClusterError(f'The cluster of the context {self._context!r} does not answer: {reason}.') from None
        try:
            document = orjson.loads(content)
        except ValueError:
            document = {'message': content.decode(errors='replace')[:200]}
        if response.status >= 300:
            message = document.get('message') or response.reason or ''
            raise Refusal(response.status, document.get('reason', ''), message, document.get('details'))
        return document if isinstance(document, dict) else {}

    def call(self, method: str, target: str, body: Any = None, content_type: str = 'application/json') -> Body:
        """Do the same as `request`; to be called from other threads than that of the loop."""
        return self.run(self.request(method, target, body, content_type))

    # Kinds.

    def list_kinds(self) -> list[ClusterKind]:
        """Return the kinds of the cluster, each in the preferred version of its group."""
        return self.run(self._list_kinds())

    async def _list_kinds(self) -> list[ClusterKind]:
        groups = (await self.request('GET', '/apis')).get('groups') or []
        paths = ['/api/v1', *(f'/apis/{group["preferredVersion"]["groupVersion"]}' for group in groups)]
        documents = await asyncio.gather(*map(self._find, paths))
        resources = [resource for document in documents for resource in _read_resources(document)]
        schemas = _read_schemas(await self._find(CRDS))
        first = {resource.plural: resource for resource in reversed(resources)}  # the core group comes first
        return [
            ClusterKind(
                resource.plural if first[resource.plural] is resource else f'{resource.plural}.{resource.group}',
                resource,
                schemas.get((resource.group, resource.plural, resource.version)),
            )
            for resource in resources
        ]

    async def _find(self, target: str) -> Body:
        """Return the discovery document; an empty one if it is absent or forbidden, or its server is down."""
        try:
            return await self.request('GET', target)
        except Refusal:
            return {}

    def list_objects(self, kinds: Iterable[ClusterKind], namespace: str) -> list[tuple[ClusterKind, Body]]:
        """Return all objects in the namespace; kinds that cannot be listed have none."""
        return self.run(self._list_objects(list(kinds), namespace))

    async def _list_objects(self, kinds: Sequence[ClusterKind], namespace: str) -> list[tuple[ClusterKind, Body]]:
        places = asyncio.Semaphore(CONCURRENT_LISTS)

        async def list_one(kind: ClusterKind) -> list[tuple[ClusterKind, Body]]:
            async with places:
                items = (await self._find(kind.get_path(namespace))).get('items') or []
            header = {'apiVersion': kind.api_version, 'kind': kind.resource.kind}
            return [(kind, {**header, **item}) for item in items]

        return [found for part in await asyncio.gather(*map(list_one, kinds)) for found in part]

    # The namespaces and CRDs that a check creates and removes.

    def create_namespace(self, run: str) -> str:
        """Create a namespace for a course; return its name."""
        metadata = {'generateName': 'kopf-check-', 'labels': {LABEL: run}}
        body = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': metadata}
        return str(self.call('POST', NAMESPACES, body)['metadata']['name'])

    def remove_namespace(self, name: str, kinds: Iterable[ClusterKind]) -> None:
        """Remove the namespace without waiting; also the finalizers of its objects, as no operator runs any more."""
        for kind, body in self.list_objects(kinds, name):
            if body['metadata'].get('finalizers'):
                patch = {'metadata': {'finalizers': None}}
                with contextlib.suppress(Refusal):
                    path = kind.get_path(name, body['metadata']['name'])
                    self.call('PATCH', path, patch, 'application/merge-patch+json')
        with contextlib.suppress(Refusal):  # the namespace is gone or being deleted
            self.call('DELETE', f'{NAMESPACES}/{name}')

    def remove_namespaces(self, run: str, kinds: Sequence[ClusterKind]) -> list[str]:
        """Remove all namespaces of this check; return those that still exist after a while."""

        def remove(namespace: Mapping[str, Any]) -> None:
            self.remove_namespace(namespace['metadata']['name'], kinds)

        return self._remove_all(NAMESPACES, run, remove, pause=0.5)

    def _remove_all(
        self, path: str, run: str, remove: Callable[[Mapping[str, Any]], None], *, pause: float
    ) -> list[str]:
        """Remove the objects of this check at the path again and again; return those that still exist after a while."""
        ends_at = time.monotonic() + REMOVAL_TIMEOUT
        while True:
            items = self.call('GET', f'{path}?labelSelector={LABEL}%3D{run}').get('items') or []
            if not items or time.monotonic() > ends_at:
                return [item['metadata']['name'] for item in items]
            for item in items:
                remove(item)
            time.sleep(pause)

    def has_crd(self, name: str) -> bool:
        """Check whether there is a CRD of this name."""
        try:
            self.call('GET', f'{CRDS}/{name}')
        except Refusal as error:
            if error.code == 404:
                return False
            raise
        return True

    def create_crd(self, body: Mapping[str, Any], run: str) -> None:
        """Create a CRD unless another client has just created it, and wait until the API serves it."""
        metadata, ends_at = body['metadata'], time.monotonic() + ESTABLISHING_TIMEOUT
        labels = {**(metadata.get('labels') or {}), LABEL: run}
        stored: Mapping[str, Any] = {}
        try:
            stored = self.call('POST', CRDS, {**body, 'metadata': {**metadata, 'labels': labels}})
        except Refusal as error:
            if error.code != 409:
                raise
        while not is_established(stored):
            if time.monotonic() > ends_at:
                raise ClusterError(f'The CRD {metadata["name"]} is not established after {ESTABLISHING_TIMEOUT:g} s.')
            time.sleep(0.05)
            stored = self.call('GET', f'{CRDS}/{metadata["name"]}')

    def remove_crds(self, run: str) -> list[str]:
        """
        Remove all CRDs that this check has created, with their objects, so that the next check can create them.

        Why by the label and not by their names? CRDs that other clients have created meanwhile would be removed, too,
        with all of their objects.

        Returns:
            The names of those that still exist after a while.
        """
        return self._remove_all(CRDS, run, self._remove_crd, pause=0.1)

    def _remove_crd(self, crd: Mapping[str, Any]) -> None:
        preconditions = {'uid': crd['metadata']['uid']}
        options = {'apiVersion': 'v1', 'kind': 'DeleteOptions', 'preconditions': preconditions}
        with contextlib.suppress(Refusal):  # the CRD is gone
            self.call('DELETE', f'{CRDS}/{crd["metadata"]["name"]}', options)


def is_established(crd: Mapping[str, Any]) -> bool:
    """Check whether the API serves the kind."""
    conditions = (crd.get('status') or {}).get('conditions') or ()
    return any(item['type'] == 'Established' and item['status'] == 'True' for item in conditions)


def _log_in(context: str) -> ConnectionInfo:
    """Return the credentials of the context; run its exec plugin if there is one."""
    try:
        config = kubeconfigs.load()
        if config is None:
            raise ClusterError(f'There is no kubeconfig for --cluster {context}: set $KUBECONFIG.')
        return config._replace(current_context=context).resolve(trust_env=True)
    except LoginError as error:
        raise ClusterError(f'--cluster {context}: {error}') from None


def _read_resources(document: Mapping[str, Any]) -> Iterator[Resource]:
    """Yield the resources of a discovery document."""
    group, _, version = document.get('groupVersion', '').rpartition('/')
    items = document.get('resources') or []
    for item in items:
        plural, slash, _ = item['name'].partition('/')
        if not slash:
            yield Resource(
                group,
                version,
                plural,
                kind=item['kind'],
                singular=item.get('singularName') or item['kind'].lower(),
                shortcuts=frozenset(item.get('shortNames') or ()),
                categories=frozenset(item.get('categories') or ()),
                subresources=frozenset(
                    other['name'].partition('/')[2] for other in items if other['name'].startswith(f'{plural}/')
                ),
                namespaced=item['namespaced'],
                verbs=frozenset(item.get('verbs') or ()),
            )


def _read_schemas(crds: Mapping[str, Any]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Return the schemas of custom resources by their groups, plurals, and versions."""
    return {
        (crd['spec']['group'], crd['spec']['names']['plural'], version['name']): (
            (version.get('schema') or {}).get('openAPIV3Schema') or {}
        )
        for crd in crds.get('items') or ()
        for version in crd['spec']['versions']
    }
