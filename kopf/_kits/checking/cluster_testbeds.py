"""
The testbed on a real cluster: operators are processes that reach the cluster through a proxy.

Each course has a namespace of its own.

At its end, even after an interruption, a check removes the namespaces and the CRDs that it has created.
"""

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._kits.checking.cluster_proxies import ClusterProxy
from kopf._kits.checking.cluster_users import ClusterUser, Translation
from kopf._kits.checking.clusters import LABEL, Body, Cluster, ClusterError, ClusterKind, ClusterPlace, explain_scope
from kopf._kits.checking.end_states import StoredObject
from kopf._kits.checking.forks import ForkFailed, ForkPool
from kopf._kits.checking.outcomes import HIDDEN
from kopf._kits.checking.plans import Plan
from kopf._kits.checking.real_testbeds import RealTestbed, declare_crds, load_handlers
from kopf._kits.checking.subjects import Subject
from kopf._kits.checking.testbeds import CannotContinue, KindFacts, Pace
from kopf._kits.checking.user_writes import RecordedWrites
from kopf._kits.checking.virtual_testbeds import CallHost
from kopf._kits.testing.serving.faults import Faults, SeenRequest
from kopf._kits.testing.wire.statuses import Refusal

LOADING_TIMEOUT = 60.0
"""How long it may take to load the handlers (in seconds)."""

COLLECTING_TIMEOUT = 20.0
"""How long to wait until the garbage collector deletes objects whose owners are gone (in seconds)."""

DERIVED = frozenset({'controllerrevisions', 'endpoints', 'endpointslices'})
"""The resources whose objects the cluster's controllers derive from other objects."""

OF_NAMESPACES = frozenset({('configmaps', 'kube-root-ca.crt'), ('serviceaccounts', 'default')})
"""The objects that the cluster's controllers create in each namespace."""

WORKLOADS = frozenset(
    {'CronJob', 'DaemonSet', 'Deployment', 'Job', 'ReplicaSet', 'ReplicationController', 'StatefulSet'}
)
"""The kinds whose objects make the cluster's controllers create other objects."""

UNTRIED = 'On a cluster, the children were not compared with the condition Ready of their owners after each write.'


class ClusterTestbed(RealTestbed):
    """The testbed on a cluster, in real time."""

    has_cheap_lists = False
    untried = (UNTRIED,)

    def __init__(self, subject: Subject, place: ClusterPlace, host: CallHost, plan: Plan, pace: Pace) -> None:
        super().__init__(subject, host, plan, pace)
        self._place = place
        self._writes = RecordedWrites(host, self.await_operators)
        self._kinds = [kind for kind in place.namespaced if kind.resource.plural not in HIDDEN | DERIVED]
        self._stack = contextlib.ExitStack()
        self._versions: Mapping[tuple[str, str], Any] = {}
        """The versions of the objects at the last call of `is_stable`."""
        self._left_since: float | None = None
        """Since when (in seconds) there are objects whose owners are gone; None if there are none."""

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the operators, which leads to the proxy."""
        return self._folder / 'kubeconfig'

    def open(self) -> None:
        """Create a namespace, and start the proxy."""
        with _typed_errors():
            self._cluster = self._stack.enter_context(Cluster(self._place.context, threaded=True))
            namespace = self._cluster.create_namespace(self._place.run)
            self._stack.callback(self._cluster.remove_namespace, namespace, self._place.namespaced)
            self._translation = Translation(self._place.namespace, namespace)
            proxy = ClusterProxy(self._cluster, namespace, self._place.namespace, self.kubeconfig)
            self._proxy = self._stack.enter_context(proxy)
        self.user = ClusterUser(self._cluster, self._place, self._translation, self._writes, wait=self.pace.patience)
        super().open()

    def close(self) -> None:
        """End all processes, and remove the namespace. If that fails, the end of the check removes it."""
        try:
            super().close()
        finally:
            with contextlib.suppress(ClusterError, Refusal):
                self._stack.close()

    @property
    def requests(self) -> Sequence[SeenRequest]:
        """The requests that the proxy has seen."""
        return self._proxy.requests

    @property
    def faults(self) -> Faults:
        """The faults of the proxy."""
        return self._proxy.faults

    def advance(self, seconds: float) -> None:
        """Let time pass; raise an error if the proxy has refused a write outside of the namespace."""
        super().advance(seconds)
        if self._proxy.refused:
            raise CannotContinue(self._proxy.refused)

    def _list_arguments(self) -> Sequence[str]:
        """Return the arguments of ``kopf run``."""
        return ['--namespace', self._translation.namespace, *super()._list_arguments()]

    def _load(self) -> None:
        """Load the handlers; raise an error if any of them handles cluster-scoped objects."""
        super()._load()
        handlers = [] if self.registry is None else list(self.registry.iter_resource_handlers())
        for kind in self._place.kinds:
            if not kind.resource.namespaced:
                for handler in handlers:
                    if handler.selector is not None and handler.selector.check(kind.resource):
                        what = f'The objects of {kind.name}, which {handler.id!r} handles,'
                        raise CannotContinue(explain_scope(what))

    def define(self, crds: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing: `prepared` has already created the kinds."""

    def is_stable(self) -> bool:
        """Check also whether no object has changed since the last call, and the garbage collector has no work left."""
        if not super().is_stable():
            return False
        found = self._list()
        versions = _get_versions(found)
        before, self._versions = self._versions, versions
        return versions == before and not self._is_collecting(found)

    def _is_collecting(self, found: Sequence[tuple[ClusterKind, Body]]) -> bool:
        """Check whether the garbage collector is going to delete objects; after a timeout, assume that it is not."""
        kinds = {kind.resource.kind for kind in self._kinds}
        uids = {body['metadata']['uid'] for _, body in found}
        owners = [body['metadata'].get('ownerReferences') or [] for _, body in found]
        is_left = any(
            items and all(item['kind'] in kinds and item['uid'] not in uids for item in items) for items in owners
        )
        self._left_since = (self._left_since or self.now) if is_left else None
        return self._left_since is not None and self.now - self._left_since < COLLECTING_TIMEOUT

    def _list(self) -> list[tuple[ClusterKind, Body]]:
        with _typed_errors():
            found = self._cluster.list_objects(self._kinds, self._translation.namespace)
        return [
            (kind, self._translation.to_plan(body))
            for kind, body in found
            if (kind.name, body['metadata']['name']) not in OF_NAMESPACES
        ]

    def list_objects(self) -> list[StoredObject]:
        """Return all objects in the namespace."""
        return [
            StoredObject(
                kind.name,
                body['metadata'].get('namespace', ''),
                body['metadata']['name'],
                body,
                any(
                    owner.get('controller') and owner['kind'] in WORKLOADS
                    for owner in body['metadata'].get('ownerReferences') or ()
                ),
            )
            for kind, body in self._list()
        ]

    def list_versions(self) -> Mapping[tuple[str, str], Any]:
        """Return the versions of all objects, by their resources and keys."""
        return _get_versions(self._list())

    def list_kinds(self) -> Mapping[str, KindFacts]:
        """Return the kinds of objects by the names of their resources."""
        return {kind.name: KindFacts(kind.resource, kind.schema) for kind in self._kinds}

    def name_resource(self, api_version: str, kind: str) -> str:
        """Return the name of the resource of an object."""
        return self._place.find(api_version, kind).name


def _get_versions(found: Sequence[tuple[ClusterKind, Body]]) -> Mapping[tuple[str, str], Any]:
    return {
        (kind.name, body['metadata']['name']): (body['metadata']['uid'], body['metadata']['resourceVersion'])
        for kind, body in found
    }


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    """Convert errors of the cluster to the error of a testbed."""
    try:
        yield
    except ClusterError as error:
        raise CannotContinue(str(error)) from None
    except Refusal as error:
        raise CannotContinue(f'The cluster refuses what a check needs: {error}') from None


@contextlib.contextmanager
def prepared_for(
    arguments: Sequence[str],
    context: str,
    *,
    crds: Sequence[Mapping[str, Any]],
    bodies: Sequence[Mapping[str, Any]],
    applies_crds: bool,
) -> Iterator[ClusterPlace]:
    """
    Do the same as `prepared`, also with the kinds that the operator declares as classes.

    Args:
        arguments: the arguments of ``kopf run``.
        context: the name of the context in the kubeconfig.
        crds: other definitions that the operator needs.
        bodies: the objects of the user, as far as they are known.
        applies_crds: whether missing CRDs may be created.

    Raises:
        ClusterError: the operator cannot be checked there.
    """
    # In a copy of this process, so that the modules of the operator are not imported here.
    declared = ForkPool[None](1, LOADING_TIMEOUT).call(lambda: declare_crds(load_handlers(arguments)), None)
    if isinstance(declared, ForkFailed):
        raise ClusterError(f'The handlers cannot be loaded: {declared}.')
    with prepared(context, crds=[*declared, *crds], bodies=bodies, applies_crds=applies_crds) as place:
        yield place


@contextlib.contextmanager
def prepared(
    context: str,
    *,
    crds: Sequence[Mapping[str, Any]],
    bodies: Sequence[Mapping[str, Any]],
    applies_crds: bool,
    tell: Callable[[str], object] = lambda text: print(text, file=sys.stderr),
) -> Iterator[ClusterPlace]:
    """
    Prepare the cluster for a check; at the end, remove everything that the check has created.

    Args:
        context: the name of the context in the kubeconfig.
        crds: the CRDs that the operator needs. If a CRD exists already, it is neither changed nor removed.
        bodies: the objects of the user.
        applies_crds: whether missing CRDs may be created.
        tell: called with a sentence about the objects that could not be removed.

    Raises:
        ClusterError: the operator cannot be checked there.
    """
    run, has_created = uuid.uuid4().hex[:10], False
    kinds: list[ClusterKind] = []
    try:
        with Cluster(context) as cluster, _explained():
            for crd in crds:
                if _is_missing(cluster, crd, context=context, applies_crds=applies_crds):
                    has_created = True  # noted before the request, because its response can be lost
                    cluster.create_crd(crd, run)
            kinds += cluster.list_kinds()
        place = ClusterPlace(context=context, run=run, namespace=_find_namespace(bodies), kinds=kinds)
        for body in bodies:
            place.find(body['apiVersion'], body['kind'])
        yield place
    finally:
        try:
            with Cluster(context) as cluster, _explained():
                if left := cluster.remove_namespaces(run, [kind for kind in kinds if kind.resource.namespaced]):
                    tell(f'Not removed yet: the namespaces {", ".join(left)}. Look at their status.')
                if has_created and (left := cluster.remove_crds(run)):
                    tell(f'Not removed yet: the CRDs {", ".join(left)}. Look at their status.')
        except ClusterError as error:
            kinds_left = 'namespace,crd' if has_created else 'namespace'
            tell(f'Not removed: {error} Run kubectl delete {kinds_left} -l {LABEL}={run}.')


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Refusal as error:
        raise ClusterError(f'The cluster refuses what a check needs: {error}') from None


def _is_missing(cluster: Cluster, crd: Mapping[str, Any], *, context: str, applies_crds: bool) -> bool:
    """Check whether the CRD must be created; raise an error if that is not permitted or useless."""
    name = crd['metadata']['name']
    if crd.get('kind') != 'CustomResourceDefinition':
        raise ClusterError(f'{crd.get("kind")} {name} of --crd is not a CustomResourceDefinition.')
    if crd['spec'].get('scope') != 'Namespaced':
        raise ClusterError(explain_scope(f'The objects of {name}'))
    if cluster.has_crd(name):
        return False
    if not applies_crds:
        raise ClusterError(
            f'The cluster of the context {context!r} has no CRD {name}: create it, or let the check create it, and '
            'delete it again, by --apply-crds.'
        )
    return True


def _find_namespace(bodies: Sequence[Mapping[str, Any]]) -> str:
    """Return the namespace of all objects."""
    found = sorted({(body.get('metadata') or {}).get('namespace') or 'default' for body in bodies})
    if len(found) > 1:
        raise ClusterError(
            f'The objects of --load are in several namespaces ({", ".join(found)}), but each run on a cluster has only '
            'one of its own. Check this in the sandbox, without --cluster.'
        )
    return found[0] if found else 'default'
