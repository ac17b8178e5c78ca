"""
The user of an operator on a real cluster: the same writes as in the sandbox, but over the API of the cluster.

Plans and scenarios name one namespace, which another one stands for in each course. It is translated here, in both
directions.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._kits.checking.clusters import Body, Cluster, ClusterError, ClusterKind, ClusterPlace
from kopf._kits.checking.user_writes import RecordedWrites, get_name
from kopf._kits.testing.serving.waits import WaitTimeout
from kopf._kits.testing.wire.manifests import Source, read
from kopf._kits.testing.wire.statuses import Refusal

MERGE = 'application/merge-patch+json'

INTERVAL = 0.1
"""How often the user looks whether an object is gone (in seconds)."""


class Translation:
    """
    The translation of the namespace of a course to the one of plans, and back.

    Args:
        alias: the namespace in plans and reports.
        namespace: the namespace of the course.
    """

    def __init__(self, alias: str, namespace: str) -> None:
        self.namespace = namespace
        self._alias = alias

    def to_plan(self, value: Any) -> Any:
        """Return the value with the namespace of plans, wherever it is: the other name occurs nowhere by chance."""
        if isinstance(value, str):
            return value.replace(self.namespace, self._alias)
        if isinstance(value, Mapping):
            return {self.to_plan(key): self.to_plan(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.to_plan(item) for item in value]
        return value

    def to_cluster(self, body: Mapping[str, Any]) -> Body:
        """Return the object for the namespace of the course. Other fields may have the same word by chance."""
        return {**body, 'metadata': {**(body.get('metadata') or {}), 'namespace': self.namespace}}


class ClusterUser:
    """
    The user of one course on a cluster.

    Args:
        cluster: the cluster.
        place: where the course takes place.
        translation: the names of the namespace.
        writes: the notification of the course.
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

    def create(self, body: Mapping[str, Any]) -> Body:
        """Create an object, and record it as one of the user's objects."""
        text = f'create {body.get("kind")} {get_name(body)}'
        return self.writes.create(text, lambda: self._create(body))

    def apply(self, source: Source) -> Sequence[Body]:
        """Create or merge objects, and record them as the user's objects."""
        bodies = [body for _, body in read(source)]
        return self.writes.apply(f'apply {get_name(source)}', lambda: [self._merge(body) for body in bodies])

    def patch(self, resource: str, name: str, patch: Mapping[str, Any], *, namespace: str | None = None) -> Body:
        """Edit an object."""
        path = self._get_path(self._place.get(resource), namespace, name)
        return self.writes.write(f'patch {resource} {name}', lambda: self._send('PATCH', path, patch, MERGE))

    def delete(self, resource: str, name: str, *, namespace: str | None = None) -> None:
        """Delete an object."""
        path = self._get_path(self._place.get(resource), namespace, name)
        self.writes.write(f'delete {resource} {name}', lambda: self._send('DELETE', path))

    def wait_gone(self, resource: str, name: str, *, namespace: str | None = None) -> None:
        """Wait for the absence of an object."""
        path, ends_at = self._get_path(self._place.get(resource), namespace, name), time.monotonic() + self._wait
        with contextlib.suppress(Refusal):
            while time.monotonic() < ends_at:
                self._send('GET', path)
                time.sleep(INTERVAL)
            raise WaitTimeout(f'{resource} {name} is still there after {self._wait:g} s', [])

    def _create(self, body: Mapping[str, Any]) -> Body:
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

    def _get_path(self, kind: ClusterKind, namespace: str | None, name: str) -> str:
        if namespace not in (None, '', self._place.namespace):
            raise ClusterError(f'The namespace {namespace} is not that of the other objects, {self._place.namespace}.')
        return kind.get_path(self._translation.namespace, name)

    def _send(self, method: str, path: str, body: Any = None, content_type: str = 'application/json') -> Body:
        found: Body = self._translation.to_plan(self._cluster.call(method, path, body, content_type))
        return found
