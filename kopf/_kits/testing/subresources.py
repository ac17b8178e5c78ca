"""
Views of objects that are not objects of their own: scales, and tokens of service accounts.
"""
import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing import clocks, statuses, tables, users
from kopf._kits.testing.kinds import Body, Kind
from kopf._kits.testing.rest import Objects, Options
from kopf._kits.testing.reviews import AUDIENCE
from kopf._kits.testing.users import Tokens

#: The shortest time that a token can be asked for, in seconds.
SHORTEST = 600


def token_request(namespace: str, account: Body, body: Any, tokens: Tokens) -> Body:
    """A token for a service account."""
    asked: Mapping[str, Any] = body if isinstance(body, dict) else {}
    meta = account['metadata']
    seconds = (asked.get('spec') or {}).get('expirationSeconds') or 3600
    for wrong, word in ((seconds < SHORTEST, 'less than 10 minutes'), (seconds > 2**32, 'larger than 2^32 seconds')):
        if wrong:
            raise statuses.invalid('authentication.k8s.io', 'TokenRequest', '', [statuses.value_invalid(
                'spec.expirationSeconds', str(seconds), f'may not specify a duration {word}')])
    user = users.service_account(namespace, meta['name'], meta['uid'])
    user = dataclasses.replace(user, extra={users.CREDENTIAL: [f'JTI={uuid.uuid4()}']})
    return {
        'kind': 'TokenRequest', 'apiVersion': 'authentication.k8s.io/v1',
        'metadata': {'name': meta['name'], 'namespace': namespace, 'uid': meta['uid'],
                     'creationTimestamp': clocks.now()},
        'spec': {'audiences': [AUDIENCE], 'expirationSeconds': seconds, 'boundObjectRef': None},
        'status': {'token': tokens.issue(user, seconds=seconds), 'expirationTimestamp': clocks.after(seconds)},
    }


class Scales:
    """The view of an object that only says how many replicas there are and should be."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, kind: Kind, namespace: str, name: str) -> Body:
        """The scale of an object."""
        return self._view(kind, kind.body(self._objects.get(kind, namespace, name)))

    async def change(
            self, kind: Kind, namespace: str, name: str, change: Callable[[Body], Body], options: Options,
    ) -> Body:
        """Change the scale by a function of it, and write the result through to the object."""
        scale = change(self.get(kind, namespace, name))
        replicas = (scale.get('spec') or {}).get('replicas', 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise statuses.invalid('autoscaling', 'Scale', name, [statuses.value_invalid(
                'spec.replicas', str(replicas), 'must be greater than or equal to 0')])
        patch: Body = {}
        node, path = patch, kind.scale['spec'].strip('.').split('.')
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = replicas
        if version := (scale.get('metadata') or {}).get('resourceVersion'):
            patch.setdefault('metadata', {})['resourceVersion'] = version
        await self._objects.patch(kind, namespace, name, patch, 'application/merge-patch+json', options)
        return self.get(kind, namespace, name)

    def _view(self, kind: Kind, body: Body) -> Body:
        meta = body['metadata']
        kept = ('name', 'namespace', 'uid', 'resourceVersion', 'creationTimestamp')
        status: Body = {'replicas': next(tables.find(body, kind.scale['status']), 0)}
        if path := kind.scale.get('selector'):
            selector = next(tables.find(body, path), '')
            if isinstance(selector, Mapping):
                selector = ','.join(f'{key}={value}' for key, value in (selector.get('matchLabels') or {}).items())
            if selector:
                status['selector'] = selector
        return {
            'kind': 'Scale', 'apiVersion': 'autoscaling/v1',
            'metadata': {key: meta[key] for key in kept if key in meta},
            'spec': {'replicas': next(tables.find(body, kind.scale['spec']), 0)}, 'status': status,
        }

