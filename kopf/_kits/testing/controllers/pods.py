"""
The simulated phases of pods, as if a node ran them: pending, running, ended.

No container is run. Annotations of the pod, which can come from the template of a job or a deployment, determine its
phases and their durations. Without these annotations, the pod runs soon. With the restart policy ``Always``, it keeps
running; otherwise, it succeeds after a second.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Body
from kopf._kits.testing.wire import timestamps

PREFIX = 'sandbox.kopf.dev/'
STARTS_AFTER, RUNS_FOR = f'{PREFIX}starts-after', f'{PREFIX}runs-for'
"""The annotations with the time that the pod is pending (seconds, or ``never``) and runs (seconds, or ``forever``)."""
EXIT_CODE = f'{PREFIX}exit-code'
"""The annotation with the exit code of the containers; 0 is a success."""

STARTS_AFTER_DEFAULT = 0.1
RUNS_FOR_DEFAULT = 1.0
BACKOFF = 1.0
"""The minimal running time of restarted containers (seconds): they must not restart a thousand times a second."""
NODE, HOST = 'sandbox', '127.0.0.1'
ENDED = ('Succeeded', 'Failed')


def delay(body: Body) -> float | None:
    """Return how long the pod stays in its present phase (seconds); None if it stays forever."""
    phase = (body.get('status') or {}).get('phase')
    if phase == 'Running':
        forever = (body['spec'].get('restartPolicy') or 'Always') == 'Always'
        runs = _seconds(body, RUNS_FOR, None if forever else RUNS_FOR_DEFAULT)
        again = any(item['restartCount'] for item in _containers(body['status']))
        return max(runs, BACKOFF) if runs is not None and again else runs
    return _seconds(body, STARTS_AFTER, STARTS_AFTER_DEFAULT) if phase in (None, '', 'Pending') else None


def advance(body: Body, address: str) -> None:
    """Move the pod to its next phase; a pod without an IP gets the ``address``."""
    status: dict[str, Any] = body.setdefault('status', {})
    if status.get('phase') != 'Running':
        _start(body, status, address)
        return
    code = exit_code(body)
    policy = body['spec'].get('restartPolicy') or 'Always'
    if policy == 'Always' or (policy == 'OnFailure' and code):
        _restart(status, code)
    else:
        _end(status, code)


def exit_code(body: Body) -> int:
    """Return the exit code of the pod's containers."""
    try:
        return int(_annotations(body).get(EXIT_CODE) or 0)
    except ValueError:
        return 0


def is_ready(body: Mapping[str, Any]) -> bool:
    """Check whether the pod is ready."""
    return any(
        item['type'] == 'Ready' and item['status'] == 'True'
        for item in (body.get('status') or {}).get('conditions') or ()
    )


def node() -> Body:
    """Return the node that the pods are bound to."""

    def condition(type: str, status: str, reason: str, message: str) -> dict[str, str]:
        now = timestamps.now()
        return {
            'type': type,
            'status': status,
            'lastHeartbeatTime': now,
            'lastTransitionTime': now,
            'reason': reason,
            'message': message,
        }

    capacity = {'cpu': '8', 'memory': '16Gi', 'pods': '110'}
    return {
        'metadata': {'name': NODE, 'labels': {'kubernetes.io/hostname': NODE, 'kubernetes.io/os': 'linux'}},
        'status': {
            'capacity': capacity,
            'allocatable': capacity,
            'addresses': [{'type': 'InternalIP', 'address': HOST}, {'type': 'Hostname', 'address': NODE}],
            'conditions': [
                condition('MemoryPressure', 'False', 'KubeletHasSufficientMemory', 'there is no memory at all'),
                condition('Ready', 'True', 'KubeletReady', 'the sandbox pretends to run pods'),
            ],
        },
    }


def _start(body: Body, status: dict[str, Any], address: str) -> None:
    now, spec = timestamps.now(), body['spec']
    spec.setdefault('nodeName', NODE)
    status.update(
        phase='Running', hostIP=HOST, hostIPs=[{'ip': HOST}], podIP=address, podIPs=[{'ip': address}], startTime=now
    )
    _set_conditions(
        status,
        dict.fromkeys(('PodReadyToStartContainers', 'Initialized', 'Ready', 'ContainersReady', 'PodScheduled'), True),
    )
    uid = body['metadata']['uid']
    if spec.get('initContainers'):
        status['initContainerStatuses'] = [
            {
                **_container(item, uid),
                'state': _terminated(0, now, _id(uid, item['name'])),
                'ready': True,
                'started': False,
            }
            for item in spec['initContainers']
        ]
    status['containerStatuses'] = [
        {**_container(item, uid), 'state': {'running': {'startedAt': now}}, 'ready': True, 'started': True}
        for item in spec.get('containers') or ()
    ]


def _restart(status: dict[str, Any], code: int) -> None:
    for item in _containers(status):
        began = (item['state'].get('running') or {}).get('startedAt', timestamps.now())
        item['lastState'] = _terminated(code, began, item['containerID'])
        item['restartCount'] += 1
        item['containerID'] = 'sandbox://' + hashlib.sha256(f'{item["containerID"]}'.encode()).hexdigest()
        item['state'] = {'running': {'startedAt': timestamps.now()}}


def _end(status: dict[str, Any], code: int) -> None:
    status['phase'] = 'Failed' if code else 'Succeeded'
    _set_conditions(
        status,
        {'PodReadyToStartContainers': False, 'Ready': False, 'ContainersReady': False},
        '' if code else 'PodCompleted',
    )
    for item in _containers(status):
        began = (item['state'].get('running') or {}).get('startedAt', timestamps.now())
        item['state'] = _terminated(code, began, item['containerID'])
        item['ready'] = item['started'] = False


def _set_conditions(status: dict[str, Any], wanted: Mapping[str, bool], reason: str = '') -> None:
    conditions = {item['type']: item for item in status.get('conditions') or ()}
    for type, value in wanted.items():
        if (conditions.get(type) or {}).get('status') != str(value):
            conditions[type] = {
                'type': type,
                'status': str(value),
                'lastProbeTime': None,
                'lastTransitionTime': timestamps.now(),
            }
            if reason and type != 'PodReadyToStartContainers':
                conditions[type]['reason'] = reason
    status['conditions'] = list(conditions.values())


def _container(item: Mapping[str, Any], uid: str) -> dict[str, Any]:
    image = item.get('image', '')
    return {
        'name': item['name'],
        'image': image,
        'restartCount': 0,
        'lastState': {},
        'imageID': f'{image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}',
        'containerID': _id(uid, item['name']),
    }


def _containers(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from status.get('containerStatuses') or ()


def _id(uid: str, name: str) -> str:
    return 'sandbox://' + hashlib.sha256(f'{uid}/{name}'.encode()).hexdigest()


def _terminated(code: int, began: str, id: str) -> dict[str, Any]:
    return {
        'terminated': {
            'exitCode': code,
            'reason': 'Error' if code else 'Completed',
            'startedAt': began,
            'finishedAt': timestamps.now(),
            'containerID': id,
        }
    }


def _annotations(body: Body) -> Mapping[str, str]:
    return body['metadata'].get('annotations') or {}


def _seconds(body: Body, annotation: str, default: float | None) -> float | None:
    text = _annotations(body).get(annotation)
    if text in ('never', 'forever'):
        return None
    try:
        return max(0.0, float(text)) if text is not None else default
    except ValueError:
        return default
