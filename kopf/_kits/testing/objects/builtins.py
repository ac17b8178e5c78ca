"""
The defaults and rules that make built-in kinds usable without their controllers.

This is not the full validation of a real server: most invalid Deployments are stored unchanged. It covers the fields
that clients use in responses: phases, types, addresses of services, settings of webhooks, encoded secrets.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kopf._kits.testing.access import roles
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.objects import builtin_rules, defaulting, eventrules, service_addresses
from kopf._kits.testing.resources import crds
from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.statuses import Cause

SELECTABLE: Mapping[str, tuple[str, ...]] = {
    'pods': (
        'spec.nodeName',
        'spec.restartPolicy',
        'spec.schedulerName',
        'spec.serviceAccountName',
        'status.phase',
        'status.podIP',
        'status.nominatedNodeName',
    ),
    'events': eventrules.SELECTABLE,
    'namespaces': ('status.phase',),
    'secrets': ('type',),
    'nodes': ('spec.unschedulable',),
    'services': ('spec.clusterIP', 'spec.type'),
    'jobs': ('status.successful',),
    'replicationcontrollers': ('status.replicas',),
    'certificatesigningrequests': ('spec.signerName',),
}
"""The fields that field selectors can use, besides the name and the namespace."""

_ABSENT = {'status.successful': '0', 'status.replicas': '0', 'spec.unschedulable': 'false'}
"""The values of absent fields in field selectors, if they are not empty strings."""


COMPLAINTS = dict.fromkeys(
    (
        'pods',
        'events',
        'namespaces',
        'secrets',
        'nodes',
        'services',
        'replicationcontrollers',
        'certificatesigningrequests',
    ),
    'field label not supported: {}',
) | {'jobs': 'field label "{}" not supported for Job'}
"""The kinds with field selectors of their own, and the error about unknown fields."""
COMPLAINT = '"{}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def selectable(kind: Kind) -> frozenset[str]:
    """Return the fields for field selectors on objects of a built-in kind."""
    if kind.group == eventrules.GROUP:
        return frozenset(eventrules.SELECTABLE_ANEW)
    return frozenset(SELECTABLE.get(kind.plural, ()))


def fields_of(plural: str) -> Callable[[Mapping[str, Any]], Mapping[str, str]] | None:
    """Return a function that picks the selectable fields of an object, or None if the kind has none."""
    paths = SELECTABLE.get(plural)
    if plural == 'events':
        return eventrules.pick
    if paths is None:
        return None

    def pick(body: Mapping[str, Any]) -> Mapping[str, str]:
        return {path: _dig(body, path) or _ABSENT.get(path, '') for path in paths}

    return pick


def apply(body: Body, kind: Kind) -> None:
    """Fill in the omitted fields, at the creation and at every update."""
    match kind.plural:
        case crds.PLURAL:
            crds.complete(body)
        case 'secrets':
            body.setdefault('type', 'Opaque')
            if plain := body.pop('stringData', None):
                encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
                body['data'] = {**(body.get('data') or {}), **encoded}
        case 'namespaces':
            body['metadata'].setdefault('labels', {})['kubernetes.io/metadata.name'] = body['metadata'].get('name', '')
        case 'services':
            service_addresses.complete(body)
        case 'roles' | 'clusterroles' | 'rolebindings' | 'clusterrolebindings':
            roles.complete(body, kind)
        case 'mutatingwebhookconfigurations' | 'validatingwebhookconfigurations':
            for webhook in body.get('webhooks') or ():
                _complete_webhook(webhook, kind)
            if not body.get('webhooks'):
                body.pop('webhooks', None)
        case _:
            defaulting.apply(body, kind.plural)


def begin(body: Body, kind: Kind) -> None:
    """Set the initial state of a new object."""
    match kind.plural:
        case 'namespaces':
            present = (body.get('spec') or {}).get('finalizers') or []
            body['spec'] = {'finalizers': [*(item for item in present if item != 'kubernetes'), 'kubernetes']}
            body['status'] = {'phase': 'Active'}
        case crds.PLURAL:
            body['status'] = {}
            crds.complete(body)
        case _ if not kind.custom:
            if 'status' in kind.subresources and kind.plural != 'nodes':
                body['status'] = {}
            defaulting.begin(body, kind.plural)
            allocate(body, kind)


def problems(body: Body, kind: Kind, old: Body | None = None) -> Iterator[Cause]:
    """Yield the errors by the rules of built-in kinds that the sandbox checks."""
    match kind.plural:
        case 'mutatingwebhookconfigurations' | 'validatingwebhookconfigurations':
            for index, webhook in enumerate(body.get('webhooks') or ()):
                yield from _webhook_problems(webhook, f'webhooks[{index}]')
        case 'events':
            yield from eventrules.problems(body, kind, old)
        case 'roles' | 'clusterroles' | 'rolebindings' | 'clusterrolebindings':
            yield from roles.problems(body, kind)
        case _:
            yield from builtin_rules.problems(body, kind.plural)


def _webhook_problems(webhook: Mapping[str, Any], place: str) -> Iterator[Cause]:
    name, client = webhook.get('name', ''), webhook.get('clientConfig') or {}
    if len(name.split('.')) < 3:
        yield statuses.value_invalid(
            f'{place}.name', f'"{name}"', 'should be a domain with at least three segments separated by dots'
        )
    if webhook.get('sideEffects') not in ('None', 'NoneOnDryRun'):
        yield statuses.value_required(f'{place}.sideEffects', 'must specify one of None, NoneOnDryRun')
    if ('url' in client) == ('service' in client):
        yield statuses.value_required(f'{place}.clientConfig', 'exactly one of url or service is required')
    elif 'url' in client and not client['url'].startswith('https://'):
        yield statuses.value_invalid(
            f'{place}.clientConfig.url', f'"{client["url"]}"', "'https' is the only allowed URL scheme"
        )
    if not {'v1', 'v1beta1'} & set(webhook.get('admissionReviewVersions') or ()):
        yield statuses.value_required(f'{place}.admissionReviewVersions', 'must specify one of v1, v1beta1')


def _complete_webhook(webhook: dict[str, Any], kind: Kind) -> None:
    for key in [key for key, value in webhook.items() if value is None]:
        del webhook[key]
    webhook.setdefault('failurePolicy', 'Fail')
    webhook.setdefault('matchPolicy', 'Equivalent')
    webhook.setdefault('timeoutSeconds', 10)
    webhook.setdefault('namespaceSelector', {})
    webhook.setdefault('objectSelector', {})
    if kind.plural.startswith('mutating'):
        webhook.setdefault('reinvocationPolicy', 'Never')
    for rule in webhook.get('rules') or ():
        rule.setdefault('scope', '*')
    if service := (webhook.get('clientConfig') or {}).get('service'):
        service.setdefault('port', 443)


def allocate(body: Body, kind: Kind, old: Body | None = None) -> None:
    """Fill in the fields that the server allocates if the client has not set them."""
    if kind.plural == 'services':
        service_addresses.allocate(body, old)


def _dig(body: Mapping[str, Any], path: str) -> str:
    value: Any = body
    for part in path.split('.'):
        value = value.get(part) if isinstance(value, Mapping) else None
    match value:
        case None:
            return ''
        case bool():
            return str(value).lower()
    return str(value)
