"""
Readiness of objects: checks whether an object serves its purpose, according to its status.

The rules for built-in kinds are those of ``kubectl rollout status`` and of kstatus, the library of ``kubectl`` plugins
and GitOps tools; where these differ, the stricter one is used. There is one exception: a Job is ready when it is
complete, not when it is started. Objects of other kinds are ready according to their condition ``Ready``; without it,
as soon as they exist.

The rules are pure functions of the object. They accept any JSON, because the status of a custom resource can contain
anything.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeGuard

JSON: TypeAlias = Mapping[str, Any]

_LONGEST = 200
"""The limit of the texts that are quoted from the object (in characters)."""


class Readiness(NamedTuple):
    """The result of a check: ready or not, and the reason. It is true if the object is ready."""

    ready: bool
    reason: str
    """The reason in a few words, in one line: ``2 of 3 replicas are available``."""
    failed: bool = False
    """Whether its controller has given up, so that it is useless to wait."""

    def __bool__(self) -> bool:
        return self.ready


def check_readiness(obj: JSON) -> Readiness:
    """Return whether the object is ready, by the rules for its kind; an object that is being deleted is not ready."""
    if _get(obj, 'metadata').get('deletionTimestamp') is not None:
        return _wait("it is being deleted")
    kind = str(obj.get('kind'))
    group, found, _ = str(obj.get('apiVersion')).rpartition('/')
    rule = _RULES.get((group if found else '', kind))
    outdated = _check_generation(obj, is_required=rule in _OBSERVING)
    if outdated is not None:
        return outdated
    return (rule or _check_conditions)(obj)


def _check_generation(obj: JSON, *, is_required: bool) -> Readiness | None:
    """Check that the status is about the current spec; if required, also that ``status.observedGeneration`` exists."""
    generation = _get(obj, 'metadata').get('generation')
    observed = _get(obj, 'status').get('observedGeneration')
    if not _is_number(generation):
        return None
    if not _is_number(observed):
        return _wait("its controller has not written its status yet") if is_required else None
    if observed < generation:
        return _wait(f"its controller has not seen its last change yet (generation {observed} of {generation})")
    return None


# The rules for kinds.


def _check_deployment(obj: JSON) -> Readiness:
    status, wanted = _get(obj, 'status'), _get_replicas(obj)
    updated = _count(status, 'updatedReplicas')
    progress = _find_condition(obj, 'Progressing')
    if progress is not None and progress.get('reason') == 'ProgressDeadlineExceeded':
        return _fail(f"it has exceeded its progress deadline{_quote(progress)}")
    if updated < wanted:
        return _wait(f"{updated} of {wanted} replicas are updated")
    if (old := _count(status, 'replicas') - updated) > 0:
        return _wait(f"{old} old replicas are not terminated yet")
    if (available := _count(status, 'availableReplicas')) < wanted:
        return _wait(f"{available} of {wanted} replicas are available")
    if (ready := _count(status, 'readyReplicas')) < wanted:
        return _wait(f"{ready} of {wanted} replicas are ready")
    available_condition = _find_condition(obj, 'Available')
    if available_condition is not None and not _is_true(available_condition):
        return _wait(f"it is not available{_quote(available_condition)}")
    return _pass(f"all {wanted} replicas are available")


def _check_stateful_set(obj: JSON) -> Readiness:
    status, wanted = _get(obj, 'status'), _get_replicas(obj)
    strategy = _get(_get(obj, 'spec'), 'updateStrategy')
    if (ready := _count(status, 'readyReplicas')) < wanted:
        return _wait(f"{ready} of {wanted} replicas are ready")
    if (extra := _count(status, 'replicas') - wanted) > 0:
        return _wait(f"{extra} surplus replicas are not terminated yet")
    if strategy.get('type') == 'OnDelete':  # the old replicas stay until another client deletes them
        return _pass(f"all {wanted} replicas are ready")
    partition = _count(_get(strategy, 'rollingUpdate'), 'partition')
    updated = _count(status, 'updatedReplicas')
    if updated < (expected := wanted - partition):
        return _wait(f"{updated} of {expected} replicas are updated")
    if not partition and status.get('currentRevision') != status.get('updateRevision'):
        return _wait("the update to the new revision is not finished")
    return _pass(f"all {wanted} replicas are ready")


def _check_daemon_set(obj: JSON) -> Readiness:
    status = _get(obj, 'status')
    if not _is_number(status.get('desiredNumberScheduled')):
        return _wait("its controller has not written its status yet")
    wanted = _count(status, 'desiredNumberScheduled')
    manual = _get(_get(obj, 'spec'), 'updateStrategy').get('type') == 'OnDelete'
    for key, verb in (
        ('currentNumberScheduled', 'scheduled'),
        *(() if manual else (('updatedNumberScheduled', 'updated'),)),
        ('numberAvailable', 'available'),
        ('numberReady', 'ready'),
    ):
        if (number := _count(status, key)) < wanted:
            return _wait(f"{number} of {wanted} pods are {verb}")
    return _pass(f"all {wanted} pods are available")


def _check_replica_set(obj: JSON) -> Readiness:
    status, wanted = _get(obj, 'status'), _get_replicas(obj)
    failure = _find_condition(obj, 'ReplicaFailure')
    if failure is not None and _is_true(failure):
        return _wait(f"its pods cannot be created or deleted{_quote(failure)}")
    for key, verb in (('readyReplicas', 'ready'), ('availableReplicas', 'available')):
        if (number := _count(status, key)) < wanted:
            return _wait(f"{number} of {wanted} replicas are {verb}")
    if (extra := _count(status, 'replicas') - wanted) > 0:
        return _wait(f"{extra} surplus replicas are not terminated yet")
    return _pass(f"all {wanted} replicas are available")


def _check_job(obj: JSON) -> Readiness:
    conditions = {name: cond for name in _JOB_ENDS if (cond := _find_condition(obj, name)) and _is_true(cond)}
    if 'Complete' in conditions:
        return _pass("it is complete")
    for name in ('Failed', 'FailureTarget'):
        if name in conditions:
            return _fail(f"it has failed{_quote(conditions[name])}")
    spec, status = _get(obj, 'spec'), _get(obj, 'status')
    if spec.get('suspend') is True:
        return _wait("it is suspended")
    if not status.get('startTime'):
        return _wait("it is not started yet")
    succeeded, wanted = _count(status, 'succeeded'), spec.get('completions')
    return _wait(f"{succeeded} of {wanted if _is_number(wanted) else 1} pods are completed")


def _check_pod(obj: JSON) -> Readiness:
    status = _get(obj, 'status')
    phase = status.get('phase')
    if phase == 'Succeeded':
        return _pass("it is completed")
    if phase == 'Failed':
        return _fail(f"it has failed{_quote(status)}")
    condition = _find_condition(obj, 'Ready')
    if condition is not None and _is_true(condition):
        return _pass("it is ready")
    for name, state in _iter_waiting_containers(status):
        return _wait(f"the container {name!r} is waiting{_quote(state)}")
    scheduled = _find_condition(obj, 'PodScheduled')
    if scheduled is not None and not _is_true(scheduled):
        return _wait(f"it is not scheduled{_quote(scheduled)}")
    return _wait(f"it is not ready{_quote(condition or {})}")


def _check_claim(obj: JSON) -> Readiness:
    phase = _get(obj, 'status').get('phase')
    if phase == 'Lost':
        return _fail("its volume is lost")
    return _pass("it is bound") if phase == 'Bound' else _wait(f"its phase is {_name(phase)}, not Bound")


def _check_volume(obj: JSON) -> Readiness:
    status = _get(obj, 'status')
    phase = status.get('phase')
    if phase == 'Failed':
        return _fail(f"it has failed{_quote(status)}")
    ready = phase in ('Available', 'Bound')
    return (
        _pass(f"it is {str(phase).lower()}") if ready else _wait(f"its phase is {_name(phase)}, not Available or Bound")
    )


def _check_service(obj: JSON) -> Readiness:
    if _get(obj, 'spec').get('type') != 'LoadBalancer':
        return _pass("it exists")
    ingress = _get(_get(obj, 'status'), 'loadBalancer').get('ingress')
    return _pass("it has a load balancer") if ingress else _wait("its load balancer has no address yet")


def _check_crd(obj: JSON) -> Readiness:
    names = _find_condition(obj, 'NamesAccepted')
    if names is not None and names.get('status') == 'False':
        return _fail(f"its names are not accepted{_quote(names)}")
    return _require(obj, 'Established', "it is established", "it is not established yet")


def _check_api_service(obj: JSON) -> Readiness:
    return _require(obj, 'Available', "it is available", "it is not available")


def _check_disruption_budget(obj: JSON) -> Readiness:
    status = _get(obj, 'status')
    healthy, wanted = _count(status, 'currentHealthy'), _count(status, 'desiredHealthy')
    if healthy < wanted:
        return _wait(f"{healthy} of {wanted} pods are healthy")
    return _pass("enough pods are healthy")


def _check_namespace(obj: JSON) -> Readiness:
    phase = _get(obj, 'status').get('phase')
    return _pass("it is active") if phase == 'Active' else _wait(f"its phase is {_name(phase)}, not Active")


def _check_autoscaler(obj: JSON) -> Readiness:
    able = _require(obj, 'AbleToScale', "it is able to scale", "it is not able to scale")
    active = _find_condition(obj, 'ScalingActive')
    if not able:
        return able
    if active is not None and active.get('reason') == 'ScalingDisabled':  # its target is scaled to zero on purpose
        return _pass("the scaling is disabled")
    return _require(obj, 'ScalingActive', "the scaling is active", "the scaling is not active")


def _check_conditions(obj: JSON) -> Readiness:
    """Check an object of a kind without a rule of its own, by the conditions that most controllers use."""
    stalled = _find_condition(obj, 'Stalled')
    if stalled is not None and _is_true(stalled):
        return _fail(f"it is stalled{_quote(stalled)}")
    reconciling = _find_condition(obj, 'Reconciling')
    if reconciling is not None and _is_true(reconciling):
        return _wait(f"it is being reconciled{_quote(reconciling)}")
    if _find_condition(obj, 'Ready') is None:
        return _pass("it exists")
    return _require(obj, 'Ready', "it is ready", "it is not ready")


_Rule: TypeAlias = Callable[[JSON], Readiness]

_RULES: Mapping[tuple[str, str], _Rule] = {
    ('', 'Namespace'): _check_namespace,
    ('', 'PersistentVolume'): _check_volume,
    ('', 'PersistentVolumeClaim'): _check_claim,
    ('', 'Pod'): _check_pod,
    ('', 'ReplicationController'): _check_replica_set,
    ('', 'Service'): _check_service,
    ('apiextensions.k8s.io', 'CustomResourceDefinition'): _check_crd,
    ('apiregistration.k8s.io', 'APIService'): _check_api_service,
    ('apps', 'DaemonSet'): _check_daemon_set,
    ('apps', 'Deployment'): _check_deployment,
    ('apps', 'ReplicaSet'): _check_replica_set,
    ('apps', 'StatefulSet'): _check_stateful_set,
    ('autoscaling', 'HorizontalPodAutoscaler'): _check_autoscaler,
    ('batch', 'Job'): _check_job,
    ('policy', 'PodDisruptionBudget'): _check_disruption_budget,
}
"""The rules by the API group and the kind: kinds with the same name in other groups are different kinds."""

_OBSERVING: frozenset[_Rule | None] = frozenset(
    {_check_daemon_set, _check_deployment, _check_disruption_budget, _check_replica_set, _check_stateful_set}
)
"""The rules for the kinds whose controllers always write ``status.observedGeneration``."""

_JOB_ENDS = ('Complete', 'Failed', 'FailureTarget')


# Parts of objects.


def _require(obj: JSON, name: str, yes: str, no: str) -> Readiness:
    condition = _find_condition(obj, name)
    if condition is None:
        return _wait(f"it has no condition {name} yet")
    if not _is_true(condition):
        return _wait(f"{no}{_quote(condition)}")
    generation, observed = _get(obj, 'metadata').get('generation'), condition.get('observedGeneration')
    if _is_number(generation) and _is_number(observed) and observed < generation:
        return _wait(f"its condition {name} is of a former state (generation {observed} of {generation})")
    return _pass(yes)


def _find_condition(obj: JSON, name: str) -> JSON | None:
    conditions = _get(obj, 'status').get('conditions')
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get('type') == name:
            return condition
    return None


def _iter_waiting_containers(status: JSON) -> Iterator[tuple[str, JSON]]:
    """Yield the names and states of containers that cannot start, except for those that are about to start."""
    for key in ('initContainerStatuses', 'containerStatuses'):
        containers = status.get(key)
        for container in containers if isinstance(containers, list) else ():
            if isinstance(container, Mapping):
                waiting = _get(_get(container, 'state'), 'waiting')
                if waiting.get('reason') not in (None, 'PodInitializing', 'ContainerCreating'):
                    yield str(container.get('name')), waiting


def _get(value: JSON, key: str) -> JSON:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _get_replicas(obj: JSON) -> int:
    replicas = _get(obj, 'spec').get('replicas')
    return int(replicas) if _is_number(replicas) else 1  # the default of the API for all kinds with replicas


def _count(status: JSON, key: str) -> int:
    number = status.get(key)
    return int(number) if _is_number(number) else 0  # the API omits zeros


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_true(condition: JSON) -> bool:
    return condition.get('status') == 'True'


def _quote(source: JSON) -> str:
    """Return the reason and the message of a condition or a state, as the end of a sentence."""
    quoted = ': '.join(text for key in ('reason', 'message') if isinstance(text := source.get(key), str) and text)
    return f": {quoted if len(quoted) <= _LONGEST else f'{quoted[:_LONGEST]}…'}" if quoted else ''


def _name(phase: Any) -> str:
    return phase if isinstance(phase, str) and phase else 'unknown'


def _pass(reason: str) -> Readiness:
    return Readiness(True, _join_lines(reason))


def _wait(reason: str) -> Readiness:
    return Readiness(False, _join_lines(reason))


def _fail(reason: str) -> Readiness:
    return Readiness(False, _join_lines(reason), failed=True)


def _join_lines(text: str) -> str:
    return ' '.join(text.split())
