"""
Questions and views that are not objects of their own: reviews of access and tokens, scales, tokens of accounts.

Everything is allowed to everybody who has credentials; the reviews say so.
"""
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing import clocks, statuses, tables
from kopf._kits.testing.kinds import Body, Kind
from kopf._kits.testing.rest import Objects, Options, User

#: Which user a token belongs to, or None if it is not known; and how to issue one.
Lookup = Callable[[str], User | None]
Issue = Callable[[User], str]

READABLE = ['/api', '/api/*', '/apis', '/apis/*', '/healthz', '/livez', '/openapi', '/openapi/*', '/readyz', '/version',
            '/version/']


def review(kind: Kind, body: Any, user: User, lookup: Lookup) -> Body:
    """The answer to an object that is a question."""
    asked: Mapping[str, Any] = body if isinstance(body, dict) else {}
    spec = asked.get('spec') or {}
    status: dict[str, Any] = {'allowed': True, 'reason': 'the sandbox allows everything'}
    match kind.plural:
        case 'selfsubjectreviews':
            status = {'userInfo': _user_info(user)}
        case 'tokenreviews':
            known = lookup(str(spec.get('token', '')))
            status = {'user': {}, 'error': 'invalid bearer token'}
            if known is not None:
                status = {'authenticated': True, 'user': _user_info(known)}
        case 'selfsubjectrulesreviews':
            status = {
                'resourceRules': [{'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']}],
                'nonResourceRules': [{'verbs': ['*'], 'nonResourceURLs': ['*']},
                                     {'verbs': ['get'], 'nonResourceURLs': READABLE}],
                'incomplete': False,
            }
    answer: Body = {'kind': kind.name, 'apiVersion': kind.api_version, 'metadata': {}}
    if kind.plural != 'selfsubjectreviews':
        answer['spec'] = spec
    return {**answer, 'status': status}


def token_request(namespace: str, name: str, body: Any, issue: Issue) -> Body:
    """A token for a service account."""
    asked: Mapping[str, Any] = body if isinstance(body, dict) else {}
    seconds = (asked.get('spec') or {}).get('expirationSeconds') or 3600
    account = f'system:serviceaccount:{namespace}:{name}'
    groups = ('system:serviceaccounts', f'system:serviceaccounts:{namespace}', 'system:authenticated')
    token = issue(User(account, groups))
    return {
        'kind': 'TokenRequest', 'apiVersion': 'authentication.k8s.io/v1',
        'metadata': {'name': name, 'namespace': namespace, 'creationTimestamp': clocks.now()},
        'spec': {'audiences': ['https://kubernetes.default.svc'], 'expirationSeconds': seconds, 'boundObjectRef': None},
        'status': {'token': token, 'expirationTimestamp': clocks.after(seconds)},
    }


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


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


def _user_info(user: User) -> dict[str, Any]:
    return {'username': user.name, 'groups': list(user.groups)}
