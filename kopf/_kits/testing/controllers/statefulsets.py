"""
The controllers of stateful sets and daemon sets: they decide on the pods and on the status.

All functions are pure. Pods of stateful sets are created in the order of their numbers, and deleted in the opposite
order, one at a time unless the policy is ``Parallel``. A daemon set has one pod, as there is one node. After a change
of the template, the old pods are replaced one after another.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kopf._kits.testing.controllers import jobs, pods, replicasets
from kopf._kits.testing.kinds.kinds import Body

REVISION = 'controller-revision-hash'
POD_NAME, POD_INDEX = 'statefulset.kubernetes.io/pod-name', 'apps.kubernetes.io/pod-index'


class SetOutcome(NamedTuple):
    """The next step for a set: its status, the pods and claims to create, and the pods to delete."""

    status: dict[str, Any]
    missing: Sequence[Body]
    claims: Sequence[Body]
    superfluous: Sequence[str]


def decide_stateful(body: Body, children: Sequence[Body]) -> SetOutcome:
    """Return the next step for a stateful set with these pods."""
    spec, name = body['spec'], body['metadata']['name']
    first = (spec.get('ordinals') or {}).get('start', 0)
    wanted = [f'{name}-{first + number}' for number in range(spec.get('replicas', 1))]
    revision = f'{name}-{replicasets.make_digest(spec["template"])}'
    known = {child['metadata']['name']: child for child in children}
    missing = [each for each in wanted if each not in known]
    superfluous = sorted(known.keys() - set(wanted), key=_number, reverse=True)
    if spec.get('podManagementPolicy') != 'Parallel':
        # Create the next pod only when all pods before it are ready. Delete no pod while any is missing.
        before = wanted[: wanted.index(missing[0])] if missing else wanted
        is_steady = all(pods.is_ready(known[each]) for each in before)
        missing = missing[:1] if is_steady else []
        superfluous = superfluous[:1] if is_steady and not missing else []
    if not missing and not superfluous and all(pods.is_ready(child) for child in children):
        superfluous = _find_outdated(spec, [known[each] for each in wanted], revision)
    ended = [each for each, child in known.items() if (child.get('status') or {}).get('phase') in pods.ENDED]
    made = [_make_pod(body, each, revision) for each in missing]
    claims = [claim for each in missing for claim in _make_claims(body, each)]
    return SetOutcome(_stateful_status(body, children, revision), made, claims, ended or superfluous)


def decide_daemons(body: Body, children: Sequence[Body]) -> SetOutcome:
    """Return the next step for a daemon set with these pods."""
    revision = replicasets.make_digest(body['spec']['template'])
    updated = [child for child in children if _revision(child) == revision]
    ready = sum(map(pods.is_ready, children))
    status = {
        'currentNumberScheduled': min(1, len(children)),
        'desiredNumberScheduled': 1,
        'numberMisscheduled': 0,
        'numberReady': ready,
        'observedGeneration': body['metadata'].get('generation', 1),
        **({'updatedNumberScheduled': len(updated)} if updated else {}),
        **({'numberAvailable': ready} if ready else {'numberUnavailable': 1}),
    }
    is_rolling = (body['spec'].get('updateStrategy') or {}).get('type') != 'OnDelete'
    outdated = [_name(child) for child in children if is_rolling and child not in updated]
    ended = [_name(child) for child in children if (child.get('status') or {}).get('phase') in pods.ENDED]
    made = [] if children else [jobs.pod_of(body, body['spec']['template'], {REVISION: revision})]
    return SetOutcome(status, made, [], ended or outdated)


def _find_outdated(spec: Body, known: Sequence[Body], revision: str) -> list[str]:
    """Return the name of the last pod with an outdated template, if the strategy permits its replacement."""
    strategy = spec.get('updateStrategy') or {}
    if strategy.get('type') == 'OnDelete':
        return []
    partition = (strategy.get('rollingUpdate') or {}).get('partition') or 0
    outdated = [_name(child) for child in known if _revision(child) != revision and _number(_name(child)) >= partition]
    return outdated[-1:]


def _stateful_status(body: Body, children: Sequence[Body], revision: str) -> dict[str, Any]:
    before, wanted = body.get('status') or {}, body['spec'].get('replicas', 1)
    ready = sum(map(pods.is_ready, children))
    updated = sum(_revision(child) == revision for child in children)
    current = before.get('currentRevision') or revision
    if len(children) == updated == ready == wanted:
        current = revision
    counts = {
        'readyReplicas': ready,
        'currentReplicas': sum(_revision(child) == current for child in children),
        'updatedReplicas': updated,
    }
    return {
        'replicas': len(children),
        'availableReplicas': ready,
        'currentRevision': current,
        'updateRevision': revision,
        'collisionCount': 0,
        'observedGeneration': body['metadata'].get('generation', 1),
        **{key: count for key, count in counts.items() if count},
    }


def _make_pod(body: Body, name: str, revision: str) -> Body:
    spec = body['spec']
    labels = {REVISION: revision, POD_NAME: name, POD_INDEX: str(_number(name))}
    pod = jobs.pod_of(body, spec['template'], labels)
    del pod['metadata']['generateName']
    pod['metadata']['name'] = name
    pod['spec'].update(hostname=name, **({'subdomain': spec['serviceName']} if spec.get('serviceName') else {}))
    if templates := spec.get('volumeClaimTemplates'):
        claimed = {template['metadata']['name']: f'{template["metadata"]["name"]}-{name}' for template in templates}
        pod['spec']['volumes'] = [
            *({'name': volume, 'persistentVolumeClaim': {'claimName': claim}} for volume, claim in claimed.items()),
            *(volume for volume in pod['spec'].get('volumes') or () if volume['name'] not in claimed),
        ]
    return pod


def _make_claims(body: Body, name: str) -> Iterator[Body]:
    """Return the claims of a pod. They outlive the set, so they have no owner."""
    for template in body['spec'].get('volumeClaimTemplates') or ():
        labels = (body['spec']['selector'].get('matchLabels') or {}) | (template['metadata'].get('labels') or {})
        metadata = {**template['metadata'], 'name': f'{template["metadata"]["name"]}-{name}', 'labels': labels}
        yield {'metadata': metadata, 'spec': dict(template['spec'])}


def _revision(child: Body) -> str | None:
    return (child['metadata'].get('labels') or {}).get(REVISION)


def _name(child: Body) -> str:
    return str(child['metadata']['name'])


def _number(name: str) -> int:
    return int(name.rpartition('-')[2])
