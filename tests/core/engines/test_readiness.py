import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.readiness import _RULES, Readiness, check_readiness


def make(api_version, kind, *, spec=None, status=None, conditions=None, generation=2, observed=2, **meta):
    """Return an object whose controller has seen its last change."""
    status = {**(status or {})}
    if conditions is not None:
        status['conditions'] = [
            {'type': name, 'status': value, 'reason': 'Why', 'message': 'Because\nof it.'}
            if isinstance(value, str)
            else {'type': name, **value}
            for name, value in conditions.items()
        ]
    if observed is not None:
        status['observedGeneration'] = observed
    metadata = {'name': 'x', 'generation': generation, **meta}
    return {'apiVersion': api_version, 'kind': kind, 'metadata': metadata, 'spec': spec or {}, 'status': status}


def deployment(spec=None, conditions=None, **status):
    numbers = {'replicas': 3, 'updatedReplicas': 3, 'readyReplicas': 3, 'availableReplicas': 3, **status}
    conditions = {'Available': 'True', 'Progressing': 'True', **(conditions or {})}
    return make('apps/v1', 'Deployment', spec={'replicas': 3, **(spec or {})}, status=numbers, conditions=conditions)


def stateful_set(strategy=None, **status):
    spec = {'replicas': 3, 'updateStrategy': strategy or {'type': 'RollingUpdate', 'rollingUpdate': {'partition': 0}}}
    numbers = {'replicas': 3, 'readyReplicas': 3, 'updatedReplicas': 3}
    revisions = {'currentRevision': 'a', 'updateRevision': 'a'}
    return make('apps/v1', 'StatefulSet', spec=spec, status={**numbers, **revisions, **status})


def daemon_set(strategy='RollingUpdate', **status):
    numbers = dict.fromkeys(
        ['desiredNumberScheduled', 'currentNumberScheduled', 'updatedNumberScheduled', 'numberAvailable'], 4
    )
    spec = {'updateStrategy': {'type': strategy}}
    return make('apps/v1', 'DaemonSet', spec=spec, status={**numbers, 'numberReady': 4, **status})


def replica_set(conditions=None, **status):
    numbers = {'replicas': 3, 'readyReplicas': 3, 'availableReplicas': 3, **status}
    return make('apps/v1', 'ReplicaSet', spec={'replicas': 3}, status=numbers, conditions=conditions)


def job(conditions=None, spec=None, **status):
    return make('batch/v1', 'Job', spec={'completions': 5, **(spec or {})}, status=status, conditions=conditions)


def pod(conditions=None, **status):
    return make('v1', 'Pod', status={'phase': 'Running', **status}, conditions=conditions, observed=None)


def waiting(reason):
    return [{'name': 'c', 'state': {'waiting': {'reason': reason, 'message': 'Too bad.'}}}]


def phased(kind, phase=None, **status):
    return make('v1', kind, status={**({} if phase is None else {'phase': phase}), **status}, observed=None)


def crd(**conditions):
    return make('apiextensions.k8s.io/v1', 'CustomResourceDefinition', conditions=conditions, observed=None)


def autoscaler(**conditions):
    return make('autoscaling/v2', 'HorizontalPodAutoscaler', conditions=conditions, observed=None)


def custom(api_version='example.com/v1', kind='Thing', *, observed=None, **conditions):
    return make(api_version, kind, conditions=conditions, observed=observed)


def service(type_, ingress=None):
    return make('v1', 'Service', spec={'type': type_}, status={'loadBalancer': {'ingress': ingress}}, observed=None)


def budget(current, desired):
    return make('policy/v1', 'PodDisruptionBudget', status={'currentHealthy': current, 'desiredHealthy': desired})


READY = [
    deployment(),
    deployment(spec={'replicas': 0}, replicas=0, updatedReplicas=0, readyReplicas=0, availableReplicas=0),
    stateful_set(),
    stateful_set({'type': 'OnDelete'}, updatedReplicas=0, updateRevision='b'),
    stateful_set({'rollingUpdate': {'partition': 2}}, updatedReplicas=1, updateRevision='b'),
    daemon_set(),
    daemon_set('OnDelete', updatedNumberScheduled=0),
    make('apps/v1', 'DaemonSet', status={'desiredNumberScheduled': 0}),
    replica_set(),
    replica_set({'ReplicaFailure': 'False'}),
    job({'SuccessCriteriaMet': 'True', 'Complete': 'True'}),
    pod({'Ready': 'True'}),
    pod({'Ready': 'False'}, phase='Succeeded'),
    phased('PersistentVolumeClaim', 'Bound'),
    phased('PersistentVolume', 'Available'),
    phased('PersistentVolume', 'Bound'),
    phased('Namespace', 'Active'),
    service('ClusterIP'),
    service('LoadBalancer', [{'ip': '1.2.3.4'}]),
    crd(NamesAccepted='True', Established='True'),
    make('apiregistration.k8s.io/v1', 'APIService', conditions={'Available': 'True'}, observed=None),
    budget(2, 2),
    autoscaler(AbleToScale='True', ScalingActive='True'),
    autoscaler(AbleToScale='True', ScalingActive={'status': 'False', 'reason': 'ScalingDisabled'}),
    custom(),
    custom(observed=2, Ready='True'),
    custom(Ready={'status': 'True', 'observedGeneration': 2}),
    custom(Stalled='False', Reconciling='False', Other='False'),
    custom('example.com/v1', 'Job'),  # not that of the group batch
    {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x'}, 'data': {}},
]

NOT_READY = [
    (deployment(updatedReplicas=1), "1 of 3 replicas are updated"),
    (deployment(replicas=4), "1 old replicas are not terminated yet"),
    (deployment(availableReplicas=2), "2 of 3 replicas are available"),
    (deployment(readyReplicas=2), "2 of 3 replicas are ready"),
    (deployment(conditions={'Available': 'False'}), "it is not available: Why: Because of it."),
    (make('apps/v1', 'Deployment', observed=None), "its controller has not written its status yet"),
    (stateful_set(readyReplicas=2), "2 of 3 replicas are ready"),
    (stateful_set(replicas=4), "1 surplus replicas are not terminated yet"),
    (stateful_set({'type': 'OnDelete'}, readyReplicas=0), "0 of 3 replicas are ready"),
    (stateful_set({'rollingUpdate': {'partition': 1}}, updatedReplicas=1), "1 of 2 replicas are updated"),
    (stateful_set(updateRevision='b'), "the update to the new revision is not finished"),
    (daemon_set(currentNumberScheduled=3), "3 of 4 pods are scheduled"),
    (daemon_set(updatedNumberScheduled=3), "3 of 4 pods are updated"),
    (daemon_set(numberAvailable=3), "3 of 4 pods are available"),
    (daemon_set(numberReady=3), "3 of 4 pods are ready"),
    (make('apps/v1', 'DaemonSet'), "its controller has not written its status yet"),
    (replica_set(readyReplicas=2), "2 of 3 replicas are ready"),
    (replica_set(availableReplicas=2), "2 of 3 replicas are available"),
    (replica_set(replicas=5), "2 surplus replicas are not terminated yet"),
    (replica_set({'ReplicaFailure': 'True'}), "its pods cannot be created or deleted: Why: Because of it."),
    (job(), "it is not started yet"),
    (job(startTime='2026-01-01T00:00:00Z', succeeded=2), "2 of 5 pods are completed"),
    (job(spec={'suspend': True}), "it is suspended"),
    (pod(), "it is not ready"),
    (pod({'Ready': 'False'}), "it is not ready: Why: Because of it."),
    (pod({'PodScheduled': 'False', 'Ready': 'False'}, phase='Pending'), "it is not scheduled: Why: Because of it."),
    (pod(containerStatuses=waiting('ContainerCreating')), "it is not ready"),
    (
        pod(containerStatuses=waiting('ImagePullBackOff')),
        "the container 'c' is waiting: ImagePullBackOff: Too bad.",
    ),
    (
        pod({'Ready': 'False'}, initContainerStatuses=waiting('CrashLoopBackOff')),
        "the container 'c' is waiting: CrashLoopBackOff: Too bad.",
    ),
    (phased('PersistentVolumeClaim', 'Pending'), "its phase is Pending, not Bound"),
    (phased('PersistentVolume'), "its phase is unknown, not Available or Bound"),
    (phased('Namespace', 'Terminating'), "its phase is Terminating, not Active"),
    (service('LoadBalancer'), "its load balancer has no address yet"),
    (crd(), "it has no condition Established yet"),
    (crd(Established='False'), "it is not established yet: Why: Because of it."),
    (make('apiregistration.k8s.io/v1', 'APIService'), "it has no condition Available yet"),
    (budget(1, 2), "1 of 2 pods are healthy"),
    (autoscaler(), "it has no condition AbleToScale yet"),
    (autoscaler(AbleToScale='False'), "it is not able to scale: Why: Because of it."),
    (autoscaler(AbleToScale='True', ScalingActive='False'), "the scaling is not active: Why: Because of it."),
    (custom(Ready='False'), "it is not ready: Why: Because of it."),
    (custom(Ready='Unknown'), "it is not ready: Why: Because of it."),
    (custom(Ready='True', Reconciling='True'), "it is being reconciled: Why: Because of it."),
    (
        custom(Ready={'status': 'True', 'observedGeneration': 1}),
        "its condition Ready is of a former state (generation 1 of 2)",
    ),
    (custom(observed=1, Ready='True'), "its controller has not seen its last change yet (generation 1 of 2)"),
]

FAILED = [
    (
        deployment(conditions={'Progressing': {'status': 'False', 'reason': 'ProgressDeadlineExceeded'}}),
        "it has exceeded its progress deadline: ProgressDeadlineExceeded",
    ),
    (job({'Failed': 'True'}), "it has failed: Why: Because of it."),
    (job({'FailureTarget': 'True'}), "it has failed: Why: Because of it."),
    (pod(phase='Failed', reason='Evicted', message='No memory.'), "it has failed: Evicted: No memory."),
    (phased('PersistentVolumeClaim', 'Lost'), "its volume is lost"),
    (phased('PersistentVolume', 'Failed', message='No plugin.'), "it has failed: No plugin."),
    (crd(NamesAccepted='False'), "its names are not accepted: Why: Because of it."),
    (custom(Ready='True', Stalled='True'), "it is stalled: Why: Because of it."),
]


def name(obj):
    return obj['kind'] if isinstance(obj, dict) else None


@pytest.mark.parametrize('obj', READY, ids=name)
def test_objects_that_do_their_work_are_ready(obj):
    readiness = check_readiness(obj)
    assert readiness
    assert readiness.ready
    assert not readiness.failed
    assert readiness.reason


@pytest.mark.parametrize('obj, reason', NOT_READY, ids=name)
def test_objects_that_can_still_become_ready_are_waited_for(obj, reason):
    assert check_readiness(obj) == Readiness(False, reason, failed=False)
    assert not check_readiness(obj)


@pytest.mark.parametrize('obj, reason', FAILED, ids=name)
def test_objects_that_have_failed_are_told_apart(obj, reason):
    assert check_readiness(obj) == Readiness(False, reason, failed=True)


@pytest.mark.parametrize('obj', READY, ids=name)
def test_objects_that_are_being_deleted_are_not_ready(obj):
    obj = copy.deepcopy(obj)
    obj['metadata']['deletionTimestamp'] = '2026-01-01T00:00:00Z'
    assert check_readiness(obj) == Readiness(False, "it is being deleted")


@pytest.mark.parametrize('obj', READY, ids=name)
@given(observed=st.integers(min_value=-1, max_value=100), behind=st.integers(min_value=1, max_value=100))
def test_the_status_of_a_former_generation_is_never_ready(obj, observed, behind):
    obj = copy.deepcopy(obj)
    obj['metadata']['generation'] = observed + behind
    obj.setdefault('status', {})['observedGeneration'] = observed
    assert not check_readiness(obj).ready


KINDS = st.sampled_from([*_RULES, ('example.com', 'Thing')])
KEYS = st.sampled_from(
    'replicas readyReplicas updatedReplicas availableReplicas conditions observedGeneration phase reason message '
    'containerStatuses state waiting name type status loadBalancer ingress updateStrategy rollingUpdate partition '
    'desiredNumberScheduled numberReady currentHealthy suspend completions'.split()
)
WORDS = st.sampled_from(['Ready', 'True', 'False', 'Available', 'Complete', 'Failed', 'Active', 'RollingUpdate', '\n'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(KEYS, children, max_size=5),
    max_leaves=30,
)
STATUSES = st.dictionaries(KEYS, VALUES, max_size=8) | VALUES


@given(kind=KINDS, spec=STATUSES, status=STATUSES, generation=st.none() | st.integers(0, 3) | VALUES)
def test_any_json_is_survived_and_explained_in_one_line(kind, spec, status, generation):
    group, word = kind
    obj = {
        'apiVersion': f'{group}/v1' if group else 'v1',
        'kind': word,
        'metadata': {'generation': generation},
        'spec': spec,
        'status': status,
    }
    before = repr(obj)
    readiness = check_readiness(obj)
    assert repr(obj) == before
    assert readiness.reason
    assert '\n' not in readiness.reason
    assert not (readiness.ready and readiness.failed)
