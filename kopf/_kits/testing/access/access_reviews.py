"""
Review requests: SelfSubjectReview, TokenReview, SubjectAccessReview, SelfSubjectRulesReview and others.

The response to the creation of a review contains the answer. Reviews are never stored.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.access.permissions import Attributes, Authorizer
from kopf._kits.testing.access.users import User
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.wire import statuses, timestamps

Lookup = Callable[[str], User | None]
"""Returns the user of a token, or None if the token is not known."""

AUDIENCE = 'https://kubernetes.default.svc'


class Reviews:
    """The answers to review requests."""

    def __init__(self, authorizer: Authorizer, lookup: Lookup) -> None:
        self._authorizer = authorizer
        self._lookup = lookup

    def answer(self, kind: Kind, namespace: str, asked: Mapping[str, Any], user: User) -> Body:
        """Return the decoded object with its status; raise a 400 or a 422 if the request is incomplete."""
        spec: dict[str, Any] = asked.get('spec') or {}
        sent = {key: value for key, value in asked['metadata'].items() if value is not None}
        head: Body = {'kind': kind.name, 'apiVersion': kind.api_version}
        match kind.plural:
            case 'selfsubjectreviews':
                meta = {'creationTimestamp': timestamps.now()}
                return {**head, 'metadata': meta, 'status': {'userInfo': user.as_info()}}
            case 'tokenreviews':
                return {**head, 'metadata': sent, 'spec': spec, 'status': self._token(spec)}
            case 'selfsubjectrulesreviews':
                return {**head, 'metadata': {}, 'spec': {}, 'status': self._rules(user, spec.get('namespace', ''))}
        if kind.namespaced:
            if sent.get('namespace', namespace) != namespace:
                raise statuses.wrong_namespace()
            sent['namespace'] = namespace
        else:
            sent.pop('namespace', None)
        causes = [*_problems(kind, spec, namespace), *_metadata_problems(sent)]
        if causes:
            raise statuses.invalid(kind.group, '', '', causes)
        if not kind.plural.startswith('self'):
            user = User(spec.get('user', ''), tuple(spec.get('groups') or ()), spec.get('uid', ''))
        decision = self._authorizer.decide(user, _attributes(spec))
        status = {'allowed': decision.allowed, 'reason': decision.reason}
        return {
            **head,
            'metadata': sent,
            'spec': spec,
            'status': {key: value for key, value in status.items() if value != ''},
        }

    def _token(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        if not spec.get('token'):
            raise statuses.bad_request('token is required for TokenReview in authentication')
        user = self._lookup(str(spec['token']))
        audiences = spec.get('audiences') or [AUDIENCE]
        if user is not None and AUDIENCE in audiences:
            return {'authenticated': True, 'user': user.as_info(), 'audiences': [AUDIENCE]}
        error = 'invalid bearer token'
        if user is not None:
            listed = ' '.join(f'"{audience}"' for audience in audiences)
            error = f'[{error}, token audiences ["{AUDIENCE}"] is invalid for the target audiences [{listed}]]'
        return {'user': {}, 'error': error}

    def _rules(self, user: User, namespace: str) -> dict[str, Any]:
        if not namespace:
            raise statuses.bad_request('no namespace on request')
        rules, error = self._authorizer.rules(user, namespace)
        fields = ('verbs', 'apiGroups', 'resources', 'resourceNames')
        status: dict[str, Any] = {
            'resourceRules': [
                {key: rule[key] for key in fields if rule.get(key)} for rule in rules if rule.get('resources')
            ],
            'nonResourceRules': [
                {'verbs': rule['verbs'], 'nonResourceURLs': rule['nonResourceURLs']}
                for rule in rules
                if rule.get('nonResourceURLs')
            ],
            'incomplete': False,
        }
        return {**status, 'evaluationError': error} if error else status


def _problems(kind: Kind, spec: Mapping[str, Any], namespace: str) -> Any:
    resource, other = spec.get('resourceAttributes'), spec.get('nonResourceAttributes')
    if resource is not None and other is not None:
        text = orjson.dumps({'Path': other.get('path', ''), 'Verb': other.get('verb', '')}).decode()
        yield statuses.value_invalid(
            'spec.nonResourceAttributes', text, 'cannot be specified in combination with resourceAttributes'
        )
    elif resource is None and other is None:
        yield statuses.value_invalid(
            'spec.resourceAttributes',
            'null',
            'exactly one of nonResourceAttributes or resourceAttributes must be specified',
        )
    if not kind.plural.startswith('self') and not spec.get('user') and not spec.get('groups'):
        yield statuses.value_invalid('spec.user', '""', 'at least one of user or group must be specified')
    if kind.namespaced and (resource or {}).get('namespace', '') != namespace:
        yield statuses.value_invalid(
            'spec.resourceAttributes.namespace',
            f'"{(resource or {}).get("namespace", "")}"',
            'must match metadata.namespace',
        )


def _metadata_problems(sent: Mapping[str, Any]) -> Iterator[statuses.Cause]:
    if sent.keys() - {'namespace', 'managedFields'}:
        ordered = {key: _sorted(sent[key]) for key in ('name', 'generateName', 'namespace', *sent) if key in sent}
        yield statuses.value_invalid(
            'metadata', statuses.text(ordered), f'must be empty{" except for namespace" if "namespace" in sent else ""}'
        )


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return [
            {**item, 'fieldsV1': orjson.loads(orjson.dumps(item.get('fieldsV1'), option=orjson.OPT_SORT_KEYS))}
            for item in value
            if isinstance(item, dict)
        ]
    return value


def _attributes(spec: Mapping[str, Any]) -> Attributes:
    if (resource := spec.get('resourceAttributes')) is None:
        other = spec['nonResourceAttributes']
        return Attributes(other.get('verb', ''), path=other.get('path', ''))
    return Attributes(
        **{key: resource.get(key, '') for key in ('verb', 'group', 'resource', 'subresource', 'namespace', 'name')}
    )
