"""
The user of an operator on a real cluster: makes the same writes as in the sandbox, over the API of the cluster.

Plans and scenarios always name the same namespace, but each course has a namespace of its own. This module translates
the name in both directions.
"""

import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._kits.checking.clusters import Body, Cluster, ClusterError, ClusterPlace
from kopf._kits.checking.user_writes import RecordedWrites, clean, get_name, make_edit
from kopf._kits.testing.serving.localclient import compose
from kopf._kits.testing.serving.waits import ExpectedState, Predicate, WaitTimeout
from kopf._kits.testing.wire.manifests import Source, read
from kopf._kits.testing.wire.statuses import Refusal

MERGE, JSON = 'application/merge-patch+json', 'application/json-patch+json'

INTERVAL = 0.1
"""How often the user looks at an object that it waits for (in seconds)."""


class Translation:
    """
    The translation of the name of a course's namespace to the name in plans, and back.

    Args:
        alias: the namespace in plans and reports.
        namespace: the namespace of the course.
    """

    def __init__(self, alias: str, namespace: str) -> None:
        self.namespace = namespace
        self._alias = alias

    def to_plan(self, value: Any) -> Any:
        """Return the value with the name in plans: it is replaced in all texts, since it occurs nowhere by chance."""
        if isinstance(value, str):
            return value.replace(self.namespace, self._alias)
        if isinstance(value, Mapping):
            return {self.to_plan(key): self.to_plan(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.to_plan(item) for item in value]
        return value

    def to_cluster(self, body: Mapping[str, Any]) -> Body:
        """Return the object in the namespace of the course. Other fields with the same word do not change."""
        return {**body, 'metadata': {**(body.get('metadata') or {}), 'namespace': self.namespace}}


class ClusterUser:
    """
    The user of one course on a cluster.

    Args:
        cluster: the cluster.
        place: where the course takes place.
        translation: the names of the namespace.
        writes: notifies the course of each write.
        wait: the timeout of waits (in seconds).
    """

    def __init__(
        self, cluster: Cluster, place: ClusterPlace, translation: Translation, writes: RecordedWrites, *, wait: float
    ) -> None:
        self.writes = writes
        self._cluster = cluster
        self._place = place
        self._translation = translation
        self._wait = wait

    def create(self, what: Any, name: str | None = None, *, namespace: str | None = None, **fields: Any) -> Body:
        """Create an object, and record it as one of the user's objects."""
        body = what
        if isinstance(what, str):
            kind = self._place.get(what)
            body = compose(kind.api_version, kind.resource.kind or '', name, fields)
        self._check_namespace(namespace)
        return self.writes.create(f'create {body.get("kind")} {get_name(body)}', lambda: self._create(body))

    def apply(self, source: Source) -> Sequence[Body]:
        """Create or merge objects, and record them as the user's objects."""
        bodies = [body for _, body in read(source)]
        return self.writes.apply(f'apply {get_name(source)}', lambda: [self._merge(body) for body in bodies], source)

    def patch(
        self, resource: str, name: str, patch: Any, *, namespace: str | None = None, subresource: str = ''
    ) -> Body:
        """Edit an object: a dict is a merge patch, a list is a JSON patch."""
        path = self._get_path(resource, namespace, name, subresource)
        content_type = MERGE if isinstance(patch, Mapping) else JSON
        return self.writes.edit(
            f'patch {resource} {name}',
            lambda: self._send('PATCH', path, patch, content_type),
            make_edit(patch, subresource),
        )

    def replace(self, body: Mapping[str, Any], *, namespace: str | None = None, subresource: str = '') -> Body:
        """Replace an object."""
        kind, name = self._place.find(body['apiVersion'], body['kind']), get_name(body)
        path, given = self._get_path(kind.name, namespace, name, subresource), self._translation.to_cluster(body)
        edit = None if subresource else lambda _: clean(body)
        return self.writes.edit(f'replace {body["kind"]} {name}', lambda: self._send('PUT', path, given), edit)

    def delete(self, resource: str, name: str, *, namespace: str | None = None, propagation: str = '') -> None:
        """Delete an object."""
        path = self._get_path(resource, namespace, name)
        options = {'apiVersion': 'v1', 'kind': 'DeleteOptions', 'propagationPolicy': propagation}
        body = options if propagation else None
        self.writes.write(f'delete {resource} {name}', lambda: self._send('DELETE', path, body))

    def get(self, resource: str, name: str, *, namespace: str | None = None) -> Body:
        """Return an object."""
        return self._send('GET', self._get_path(resource, namespace, name))

    def list(
        self, resource: str, *, namespace: str | None = None, label_selector: str = '', field_selector: str = ''
    ) -> Sequence[Body]:
        """Return all objects of the kind in the namespace of the course."""
        selectors = {'labelSelector': label_selector, 'fieldSelector': field_selector}
        query = urllib.parse.urlencode({key: value for key, value in selectors.items() if value})
        items = self._send('GET', f'{self._get_path(resource, namespace)}?{query}').get('items') or []
        kind = self._place.get(resource)
        return [{'apiVersion': kind.api_version, 'kind': kind.resource.kind, **item} for item in items]

    def wait_for(
        self,
        resource: str,
        name: str,
        predicate: Predicate | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 0.0,
    ) -> Body:
        """Wait for a state, with a longer timeout than in ordinary tests."""
        expected = ExpectedState(resource, name, predicate)
        path, seconds = self._get_path(resource, namespace, name), max(timeout, self._wait)
        ends_at, last = time.monotonic() + seconds, None
        while time.monotonic() < ends_at:
            last = self._find(path)
            if last is not None and expected.accept(last):
                return last
            time.sleep(INTERVAL)
        raise WaitTimeout(expected.explain(expected.wanted, seconds, last), [])

    def wait_gone(self, resource: str, name: str, *, namespace: str | None = None, timeout: float = 0.0) -> None:
        """Wait for the absence of an object, with a longer timeout than in ordinary tests."""
        path, seconds = self._get_path(resource, namespace, name), max(timeout, self._wait)
        ends_at = time.monotonic() + seconds
        while self._find(path) is not None:
            if time.monotonic() > ends_at:
                raise WaitTimeout(f'{resource} {name} is still there after {seconds:g} s', [])
            time.sleep(INTERVAL)

    def rest(self, *, quiet: float = 0.0, timeout: float = 0.0) -> None:
        """Wait until the operator is at rest, except for periodic writes."""
        self.writes.settle()

    def _find(self, path: str) -> Body | None:
        """Return the object; None if it does not exist."""
        try:
            return self._send('GET', path)
        except Refusal as error:
            if error.code != 404:
                raise
            return None

    def _create(self, body: Mapping[str, Any]) -> Body:
        self._check_namespace((body.get('metadata') or {}).get('namespace'))
        kind = self._place.find(body['apiVersion'], body['kind'])
        return self._send('POST', kind.get_path(self._translation.namespace), self._translation.to_cluster(body))

    def _merge(self, body: Mapping[str, Any]) -> Body:
        try:
            return self._create(body)
        except Refusal as error:
            if error.code != 409:
                raise
        kind, name = self._place.find(body['apiVersion'], body['kind']), body['metadata']['name']
        path = kind.get_path(self._translation.namespace, name)
        return self._send('PATCH', path, self._translation.to_cluster(body), MERGE)

    def _get_path(self, resource: str, namespace: str | None, name: str | None = None, subresource: str = '') -> str:
        self._check_namespace(namespace)
        path = self._place.get(resource).get_path(self._translation.namespace, name)
        return f'{path}/{subresource}' if subresource else path

    def _check_namespace(self, namespace: str | None) -> None:
        if namespace not in (None, '', self._place.namespace):
            raise ClusterError(f'The namespace {namespace} is not that of the other objects, {self._place.namespace}.')

    def _send(self, method: str, path: str, body: Any = None, content_type: str = 'application/json') -> Body:
        found: Body = self._translation.to_plan(self._cluster.call(method, path, body, content_type))
        return found
