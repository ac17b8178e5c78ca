"""
The controllers of deployments and replica sets: they decide on the objects to create and on the status.

All functions are pure. For a new template, a deployment gets a new replica set; the old ones are scaled to zero as soon
as all pods of the new one are available. The parameters of the rolling update are ignored.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from kopf._kits.testing.controllers import jobs, pods
from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.wire import timestamps

HASH = 'pod-template-hash'
ANNOTATION = 'deployment.kubernetes.io/'
_ALPHABET = 'bcdfghjklmnpqrstvwxz2456789'
"""The characters of hashes: without vowels, so that the names of objects do not contain words by chance."""


class SetOutcome(NamedTuple):
    """The next step for a replica set."""

    status: dict[str, Any]
    missing: int
    superfluous: Sequence[str]


class Rollout(NamedTuple):
    """The next step for a deployment: its status, a replica set to create, and the sizes of others."""

    status: dict[str, Any]
    new: Body | None
    sizes: dict[str, int]


def decide_set(body: Body, children: Sequence[Body]) -> SetOutcome:
    """Return the next step for a replica set with these pods."""
    active = [child for child in children if (child.get('status') or {}).get('phase') not in pods.ENDED]
    ready, wanted = sum(map(pods.is_ready, active)), body['spec'].get('replicas', 1)
    counts = {'fullyLabeledReplicas': len(active), 'readyReplicas': ready, 'availableReplicas': ready}
    status = {
        'replicas': len(active),
        'observedGeneration': body['metadata'].get('generation', 1),
        **{key: count for key, count in counts.items() if count},
    }
    # Delete unready pods first: they do not serve requests yet.
    superfluous = [child['metadata']['name'] for child in sorted(active, key=pods.is_ready)[: len(active) - wanted]]
    return SetOutcome(status, max(0, wanted - len(active)), superfluous if len(active) > wanted else [])


def decide_rollout(body: Body, children: Sequence[Body]) -> Rollout:
    """Return the next step for a deployment with these replica sets."""
    spec, wanted = body['spec'], body['spec'].get('replicas', 1)
    digest = make_digest(spec['template'])
    name = f'{body["metadata"]["name"]}-{digest}'
    current = next((child for child in children if child['metadata']['name'] == name), None)
    complete = current is not None and _count(current, 'availableReplicas') >= wanted
    sizes = {}
    for child in children:
        size = wanted if child is current else 0 if complete else child['spec'].get('replicas', 0)
        if child['spec'].get('replicas') != size:
            sizes[child['metadata']['name']] = size
    new = _set_of(body, name, digest, len(children) + 1) if current is None else None
    return Rollout(_status(body, children, current, name), new, sizes)


def make_digest(template: Any) -> str:
    """Return a short hash of a template, for the names and labels of the objects with this template."""
    number = int.from_bytes(hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).digest()[:8], 'big')
    letters = []
    for _ in range(10):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return ''.join(letters)


def _status(body: Body, children: Sequence[Body], current: Body | None, name: str) -> dict[str, Any]:
    wanted = body['spec'].get('replicas', 1)
    total = {
        key: sum(_count(child, key) for child in children) for key in ('replicas', 'readyReplicas', 'availableReplicas')
    }
    available, updated = total['availableReplicas'], _count(current, 'replicas') if current is not None else 0
    status: dict[str, Any] = {
        'observedGeneration': body['metadata'].get('generation', 1),
        **{k: v for k, v in total.items() if v},
        **({'updatedReplicas': updated} if updated else {}),
        **({'unavailableReplicas': wanted - available} if available < wanted else {}),
    }
    done = current is not None and updated == total['replicas'] == wanted and available >= wanted
    enough = available >= wanted - wanted // 4  # the default of `maxUnavailable`: 25 %, rounded down
    before = {item['type']: item for item in (body.get('status') or {}).get('conditions') or ()}
    status['conditions'] = [
        _condition(
            before,
            'Available',
            enough,
            *(
                ('MinimumReplicasAvailable', 'Deployment has minimum availability.')
                if enough
                else ('MinimumReplicasUnavailable', 'Deployment does not have minimum availability.')
            ),
        ),
        _condition(
            before,
            'Progressing',
            True,
            *(
                ('NewReplicaSetAvailable', f'ReplicaSet "{name}" has successfully progressed.')
                if done
                else ('ReplicaSetUpdated', f'ReplicaSet "{name}" is progressing.')
            ),
        ),
    ]
    return status


def _set_of(body: Body, name: str, digest: str, revision: int) -> Body:
    spec = body['spec']
    template = spec['template']
    labels = {**((template.get('metadata') or {}).get('labels') or {}), HASH: digest}
    made = jobs.pod_of(body, {})
    replicas = spec.get('replicas', 1)
    # The hash is in the selector, too: otherwise, the replica sets of different templates would share their pods.
    selector = dict(spec['selector'])
    selector['matchLabels'] = {**(selector.get('matchLabels') or {}), HASH: digest}
    return {
        'metadata': {
            'name': name,
            'labels': labels,
            'ownerReferences': made['metadata']['ownerReferences'],
            'annotations': {f'{ANNOTATION}desired-replicas': str(replicas), f'{ANNOTATION}revision': str(revision)},
        },
        'spec': {
            'replicas': replicas,
            'selector': selector,
            'template': {**template, 'metadata': {**(template.get('metadata') or {}), 'labels': labels}},
        },
    }


def _condition(before: dict[str, Any], type: str, value: bool, reason: str, message: str) -> dict[str, str]:
    new = {'type': type, 'status': str(value), 'reason': reason, 'message': message}
    old, now = before.get(type) or {}, timestamps.now()
    same = all(old.get(key) == text for key, text in new.items())
    since = old['lastTransitionTime'] if old.get('status') == str(value) else now
    return {**new, 'lastUpdateTime': old['lastUpdateTime'] if same else now, 'lastTransitionTime': since}


def _count(body: Body, key: str) -> int:
    return int((body.get('status') or {}).get(key) or 0)
