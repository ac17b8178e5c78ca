"""The job controller: it decides which pods a job needs, and on the job's status. All functions are pure."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kopf._kits.testing.controllers import pods
from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.wire import timestamps

LIMIT = 'BackoffLimitExceeded', 'Job has reached the specified backoff limit'
DEADLINE = 'DeadlineExceeded', 'Job was active longer than specified deadline'
REACHED = 'CompletionsReached', 'Reached expected number of succeeded pods'
_TRANSIENT = ('Suspended',)


class Outcome(NamedTuple):
    """The next step for a job: its status, the pods to create and to delete, and when to check it again."""

    status: dict[str, Any]
    missing: int
    superfluous: Sequence[str]
    again: float | None


def decide(job: Body, children: Sequence[Body]) -> Outcome:
    """Return the next step for a job with these pods."""
    spec, before = job['spec'], job.get('status') or {}
    phases = [(child.get('status') or {}).get('phase') for child in children]
    active = [child for child, phase in zip(children, phases, strict=True) if phase not in pods.ENDED]
    succeeded, failed = phases.count('Succeeded'), phases.count('Failed')
    suspended = bool(spec.get('suspend'))
    status: dict[str, Any] = {
        'uncountedTerminatedPods': {},
        'terminating': 0,
        'ready': sum(map(pods.is_ready, active)),
        'conditions': [item for item in before.get('conditions') or () if item['type'] not in _TRANSIENT],
    }
    if not suspended:
        status['startTime'] = before.get('startTime') or timestamps.now()
    status.update(
        {key: count for key, count in (('active', len(active)), ('succeeded', succeeded), ('failed', failed)) if count}
    )
    parallelism = spec.get('parallelism', 1)
    wanted = spec.get('completions') or (succeeded or parallelism)  # by default, the first success is the end
    missing, superfluous, again = 0, [_name(child) for child in active], None
    if suspended:
        _add_conditions(status, before, ('JobSuspended', 'Job suspended'), 'Suspended')
    elif failed > spec.get('backoffLimit', 6):
        _add_conditions(status, before, LIMIT, 'FailureTarget', 'Failed')
    elif (again := _left(spec, status)) is not None and again <= 0:
        _add_conditions(status, before, DEADLINE, 'FailureTarget', 'Failed')
    elif succeeded >= wanted and (spec.get('completions') is not None or not active):
        _add_conditions(status, before, REACHED, 'SuccessCriteriaMet', 'Complete')
        status['completionTime'] = timestamps.now()
    else:
        superfluous = []
        needed = min(parallelism, wanted - succeeded) if spec.get('completions') is not None or not succeeded else 0
        missing = max(0, needed - len(active))
        if len(active) > parallelism:
            superfluous = [_name(child) for child in active[parallelism:]]
    if superfluous:
        status.pop('active', None)
        status['ready'] = 0
    if not status['conditions']:
        del status['conditions']
    return Outcome(status, missing, superfluous, again)


def is_over(job: Body) -> bool:
    """Check whether the job has been completed, or has failed."""
    return any(
        item['type'] in ('Complete', 'Failed') and item['status'] == 'True'
        for item in (job.get('status') or {}).get('conditions') or ()
    )


def seconds_left(job: Body) -> float | None:
    """Return how long a finished job is still kept (seconds); None if it is kept forever."""
    kept = job['spec'].get('ttlSecondsAfterFinished')
    ended = next(
        item['lastTransitionTime'] for item in job['status']['conditions'] if item['type'] in ('Complete', 'Failed')
    )
    return None if kept is None else kept - _since(ended)


def pod_of(owner: Body, template: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Body:
    """Return a new pod of a controller, by its template."""
    meta = dict(template.get('metadata') or {})
    meta['labels'] = {**(meta.get('labels') or {}), **(labels or {})}
    mine = owner['metadata']
    reference = {
        'apiVersion': owner['apiVersion'],
        'kind': owner['kind'],
        'name': mine['name'],
        'uid': mine['uid'],
        'controller': True,
        'blockOwnerDeletion': True,
    }
    return {
        'metadata': {**meta, 'generateName': f'{mine["name"]}-', 'ownerReferences': [reference]},
        'spec': dict(template.get('spec') or {}),
    }


def _left(spec: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    limit = spec.get('activeDeadlineSeconds')
    return None if limit is None else limit - _since(status['startTime'])


def _since(timestamp: str) -> float:
    then = datetime.datetime.fromisoformat(timestamp)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


def _add_conditions(status: dict[str, Any], before: Mapping[str, Any], why: tuple[str, str], *types: str) -> None:
    known = {item['type']: item for item in before.get('conditions') or ()}
    now = timestamps.now()
    for type in types:
        status['conditions'].append(
            known.get(type)
            or {
                'type': type,
                'status': 'True',
                'reason': why[0],
                'message': why[1],
                'lastProbeTime': now,
                'lastTransitionTime': now,
            }
        )


def _name(pod: Body) -> str:
    return str(pod['metadata']['name'])
