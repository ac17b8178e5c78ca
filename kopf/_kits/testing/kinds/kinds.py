"""
The kinds that the API serves, in their groups and versions: the built-in ones and those of CRDs.

A `Kind` is one version of one resource, with everything that other modules need to know about it. The `Catalog` finds
kinds by the parts of a URL, or by the names that people use for them. Built-in kinds are rows of a table, as they
differ only in its columns.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson

from kopf._cogs.structs.references import Resource, rank_version
from kopf._kits.testing.kinds import shapes
from kopf._kits.testing.kinds.storage import Record, Table
from kopf._kits.testing.wire import statuses

VERBS = ('create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch')

BUILTINS = '''
v1
    bindings Binding namespaced - - - absent
    componentstatuses ComponentStatus cluster cs - - absent
    configmaps ConfigMap namespaced cm - - -
    endpoints Endpoints namespaced ep - - -
    events Event namespaced ev - - -
    limitranges LimitRange namespaced limits - - -
    namespaces Namespace cluster ns - finalize,status -
    nodes Node cluster no - proxy,status -
    persistentvolumeclaims PersistentVolumeClaim namespaced pvc - status -
    persistentvolumes PersistentVolume cluster pv - status -
    pods Pod namespaced po all * generation
    podtemplates PodTemplate namespaced - - - generation
    replicationcontrollers ReplicationController namespaced rc all scale,status generation
    resourcequotas ResourceQuota namespaced quota - status -
    secrets Secret namespaced - - - -
    serviceaccounts ServiceAccount namespaced sa - token -
    services Service namespaced svc all proxy,status -
apps/v1
    controllerrevisions ControllerRevision namespaced - - - -
    daemonsets DaemonSet namespaced ds all status generation
    deployments Deployment namespaced deploy all scale,status generation
    replicasets ReplicaSet namespaced rs all scale,status generation
    statefulsets StatefulSet namespaced sts all scale,status generation
events.k8s.io/v1
    events Event namespaced ev - - -
authentication.k8s.io/v1
    selfsubjectreviews SelfSubjectReview cluster - - - review
    tokenreviews TokenReview cluster - - - review
authorization.k8s.io/v1
    localsubjectaccessreviews LocalSubjectAccessReview namespaced - - - review
    selfsubjectaccessreviews SelfSubjectAccessReview cluster - - - review
    selfsubjectrulesreviews SelfSubjectRulesReview cluster - - - review
    subjectaccessreviews SubjectAccessReview cluster - - - review
autoscaling/v2
    horizontalpodautoscalers HorizontalPodAutoscaler namespaced hpa all status -
autoscaling/v1
    horizontalpodautoscalers HorizontalPodAutoscaler namespaced hpa all status -
batch/v1
    cronjobs CronJob namespaced cj all status generation
    jobs Job namespaced - all status generation
certificates.k8s.io/v1
    certificatesigningrequests CertificateSigningRequest cluster csr - approval,status -
networking.k8s.io/v1
    ingressclasses IngressClass cluster - - - generation
    ingresses Ingress namespaced ing - status generation
    ipaddresses IPAddress cluster ip - - -
    networkpolicies NetworkPolicy namespaced netpol - - generation
    servicecidrs ServiceCIDR cluster - - status -
policy/v1
    poddisruptionbudgets PodDisruptionBudget namespaced pdb - status generation
rbac.authorization.k8s.io/v1
    clusterrolebindings ClusterRoleBinding cluster - - - -
    clusterroles ClusterRole cluster - - - -
    rolebindings RoleBinding namespaced - - - -
    roles Role namespaced - - - -
storage.k8s.io/v1
    csidrivers CSIDriver cluster - - - -
    csinodes CSINode cluster - - - -
    csistoragecapacities CSIStorageCapacity namespaced - - - -
    storageclasses StorageClass cluster sc - - -
    volumeattachments VolumeAttachment cluster - - status -
    volumeattributesclasses VolumeAttributesClass cluster vac - - -
admissionregistration.k8s.io/v1
    mutatingadmissionpolicies MutatingAdmissionPolicy cluster - api-extensions - generation
    mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding cluster - api-extensions - generation
    mutatingwebhookconfigurations MutatingWebhookConfiguration cluster - api-extensions - generation
    validatingadmissionpolicies ValidatingAdmissionPolicy cluster - api-extensions status generation
    validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster - api-extensions - generation
    validatingwebhookconfigurations ValidatingWebhookConfiguration cluster - api-extensions - generation
apiextensions.k8s.io/v1
    customresourcedefinitions CustomResourceDefinition cluster crd,crds api-extensions status generation
scheduling.k8s.io/v1
    priorityclasses PriorityClass cluster pc - - generation
coordination.k8s.io/v1
    leases Lease namespaced - - - -
node.k8s.io/v1
    runtimeclasses RuntimeClass cluster - - - -
discovery.k8s.io/v1
    endpointslices EndpointSlice namespaced - - - generation
'''
"""
The built-in kinds: a line with the group and version, then a line for each kind.

Each line has the plural, the kind, the scope, short names, categories, and subresources. The word "generation" marks
kinds whose ``metadata.generation`` is counted, "review" kinds that are answered but never stored, "absent" kinds that
are only listed in discovery.
"""

POD = (
    'attach',
    'binding',
    'ephemeralcontainers',
    'eviction',
    'exec',
    'log',
    'portforward',
    'proxy',
    'resize',
    'status',
)
"""The subresources of pods."""

ABSENT = frozenset({'bindings', 'componentstatuses'})
"""The kinds of which the sandbox has no objects."""

WARNINGS = {('', 'endpoints'): 'v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice'}
"""The warnings that a real server sends with every response about these kinds."""

Body = dict[str, Any]
View = Callable[[Body], Body]
Bodies = list[Body]
Schemas = Mapping[str, Mapping[str, Any]]


class Conversion(Protocol):
    """A converter between one version of a resource and the stored versions of its objects; see `converters`."""

    async def prepare(self, records: Iterable[Record], fresh: bool = False) -> None:
        """Convert these records for `to_served`; with ``fresh``, cached results of earlier conversions are not used."""

    def to_served(self, record: Record) -> Body:
        """Return the object in this version; the caller may change it."""
        ...

    async def to_stored(self, body: Body) -> Body:
        """Return the object in its stored version, as a new dict."""
        ...

    async def convert_back(self, stored: Body) -> Body:
        """Return the result of `to_stored`, converted back to this version."""
        ...


ConversionFactory = Callable[[Body, str, Schemas, bool], Conversion]
"""Creates the conversion of an API version of a CRD; also gets all schemas, and whether no stored object needs it."""


class Service:
    """The lifetime of one definition of a resource: it ends when the definition is removed or changed."""

    __slots__ = ('ended',)

    def __init__(self) -> None:
        self.ended = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """One version of one resource: its names, its verbs, and the form of its objects in that version."""

    group: str
    version: str
    plural: str
    singular: str
    name: str
    namespaced: bool
    list_name: str = ''
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    subresources: frozenset[str] = frozenset()
    counted: bool = False
    table: Table | None = None
    custom: bool = False
    schema: Mapping[str, Any] | None = None
    columns: Sequence[Mapping[str, Any]] = ()
    scale: Mapping[str, str] = dataclasses.field(default_factory=dict)
    selectable: tuple[str, ...] = ()
    warning: str = ''
    stored_version: str = ''
    to_served: Callable[[Body], Body] | None = None
    """The conversions of a stored object to this version and back; None if only the name of the version differs."""
    to_stored: Callable[[Body], Body] | None = None
    conversion: Conversion | None = None
    """The conversion of a kind whose objects can be stored in several versions."""
    service: Service = dataclasses.field(default_factory=Service)
    """Shared by all versions of a resource, until its definition changes."""

    @functools.cached_property
    def api_version(self) -> str:
        """The group and version as objects name them."""
        return f'{self.group}/{self.version}' if self.group else self.version

    @functools.cached_property
    def storage_api_version(self) -> str:
        """The group and version in which objects are stored."""
        return f'{self.group}/{self.stored_version}' if self.group else self.stored_version

    @functools.cached_property
    def list_kind(self) -> str:
        """The kind of lists of these objects."""
        return self.list_name or f'{self.name}List'

    @functools.cached_property
    def package(self) -> str:
        """The name of the kind's package in Go."""
        packages = {'events.k8s.io': 'core', 'rbac.authorization.k8s.io': 'rbac'}
        return packages.get(self.group) or self.group.partition('.')[0] or 'core'

    @functools.cached_property
    def prefix(self) -> bytes:
        """The first bytes of the JSON of every object of this kind."""
        return b'{"apiVersion":%s,"kind":%s,' % (orjson.dumps(self.api_version), orjson.dumps(self.name))

    @functools.cached_property
    def shape(self) -> shapes.Shape:
        """The shape of the objects."""
        if self.custom:
            return shapes.custom(self.schema or {})
        return shapes.builtin(self.group, self.version, self.name)

    @property
    def store(self) -> Table:
        """The table of the objects; raises 405 for kinds that are never stored."""
        if self.table is None:
            raise statuses.no_method()
        return self.table

    def as_resource(self) -> Resource:
        """Return the resource as the framework's discovery represents it."""
        return Resource(
            group=self.group,
            version=self.version,
            plural=self.plural,
            kind=self.name,
            singular=self.singular,
            shortcuts=frozenset(self.short_names),
            categories=frozenset(self.categories),
            subresources=frozenset(self.subresources),
            namespaced=self.namespaced,
            verbs=frozenset(self.verbs),
        )

    def raw(self, record: Record) -> bytes:
        """Return a stored object as JSON of this version."""
        # Most objects are sent without being decoded, as they are stored.
        if self.to_served is None and (self.conversion is None or record.stored == self.api_version):
            return self.prefix + record.rest
        return orjson.dumps(self.body(record))

    def body(self, record: Record) -> Body:
        """Return a stored object as one of this version; the caller may change it."""
        if self.conversion is not None and record.stored != self.api_version:
            body = self.conversion.to_served(record)
        else:
            body = record.body()
        if self.to_served is not None:
            body = self.to_served(body)
        return {**body, 'apiVersion': self.api_version, 'kind': self.name}

    async def ready(self, *records: Record, fresh: bool = False) -> None:
        """Convert these records for reading in this version; raise a 500 if the conversion webhook fails."""
        if self.conversion is not None:
            await self.conversion.prepare(records, fresh)

    async def stored(self, body: Body) -> Body:
        """Return an object of this version in its stored version."""
        if self.conversion is not None:
            return await self.conversion.to_stored(body)
        return self.to_stored(body) if self.to_stored is not None else body


class Catalog:
    """All kinds that are served at the moment; ``revision`` increases with every change of them."""

    def __init__(self) -> None:
        self.revision = 0
        self._kinds: dict[tuple[str, str], dict[str, Kind]] = {}
        self._named: dict[str, Kind] = {}
        """The results of `named` since the last change: tests ask for the same kind all the time."""

    def __iter__(self) -> Iterator[Kind]:
        for resources in self._kinds.values():
            yield from resources.values()

    def add(self, kind: Kind) -> None:
        """Start to serve a kind, or replace its description."""
        self._kinds.setdefault((kind.group, kind.version), {})[kind.plural] = kind
        self._note_change()

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a resource, in all of its versions."""
        for place, resources in list(self._kinds.items()):
            if place[0] == group and resources.pop(plural, None) is not None and not resources:
                del self._kinds[place]
        self._note_change()

    def _note_change(self) -> None:
        self.revision += 1
        self._named.clear()

    def find(self, group: str, version: str, plural: str) -> Kind:
        """Return the kind; raise a 404 in the form of a real server if it does not exist."""
        resources = self._kinds.get((group, version))
        if resources is None:
            if any(
                known == group and any(not kind.custom for kind in kinds.values())
                for (known, _), kinds in self._kinds.items()
            ):
                raise statuses.no_resource()
            raise statuses.UnknownPath
        if (kind := resources.get(plural)) is None:
            if any(other.custom for other in resources.values()):
                raise statuses.UnknownPath
            raise statuses.no_resource()
        return kind

    def groups(self) -> dict[str, list[str]]:
        """Return the groups with their versions: the core group and the preferred versions first."""
        groups: dict[str, list[str]] = {}
        for group, version in self._kinds:
            groups.setdefault(group, []).append(version)
        return {group: sorted(versions, key=priority) for group, versions in groups.items()}

    def resources(self, group: str, version: str) -> list[Kind]:
        """Return all kinds of one group and version by name; empty if there is no such version."""
        kinds = self._kinds.get((group, version), {})
        return [kinds[plural] for plural in sorted(kinds)]

    def of_object(self, api_version: str, name: str) -> Kind:
        """Return the kind of an object by its ``apiVersion`` and ``kind``; raise a 404 if it is not served."""
        group, _, version = api_version.rpartition('/')
        for kind in self._kinds.get((group, version), {}).values():
            if kind.name == name:
                return kind
        raise statuses.Refusal(404, 'NotFound', f'no matches for kind "{name}" in version "{api_version}"')

    def named(self, word: str) -> Kind:
        """
        Return the kind of a plural, singular, kind or short name; raise a 404 if there is none.

        The group and the version can follow the name (``.group``, ``.version.group``), or precede it with slashes.
        """
        if word in self._named:
            return self._named[word]
        if '/' in word:
            *place, name = word.split('/')
            rest = '.'.join(reversed(place))
        else:
            name, _, rest = word.partition('.')
        for group, versions in self.groups().items():
            for version in versions:
                if rest in ('', group, f'{version}.{group}' if group else version):
                    for kind in self.resources(group, version):
                        if name in (kind.plural, kind.singular, kind.name) or name in kind.short_names:
                            self._named[word] = kind
                            return kind
        raise statuses.Refusal(404, 'NotFound', f'the server doesn\'t have a resource type "{word}"')


def builtin_kinds(open_table: Callable[[str, str], Table | None]) -> Iterator[Kind]:
    """Yield the kinds that are always served; ``open_table`` returns the table for a group and a plural."""
    for kind, is_stored in _read_builtins():
        group = '' if kind.plural == 'events' else kind.group
        yield dataclasses.replace(kind, table=open_table(group, kind.plural) if is_stored else None, service=Service())


@functools.cache  # programs that test operators start a sandbox for each test
def _read_builtins() -> list[tuple[Kind, bool]]:
    """Return the rows of `BUILTINS`: the kinds without their tables, and whether their objects are stored."""
    kinds: list[tuple[Kind, bool]] = []
    group = version = ''
    for line in filter(None, BUILTINS.splitlines()):
        if not line.startswith(' '):
            group, _, version = line.rpartition('/')
            continue
        plural, name, scope, short, categories, subresources, flag = line.split()
        views = other_views(group, version, plural)
        kind = Kind(
            group=group,
            version=version,
            plural=plural,
            singular=name.lower(),
            name=name,
            namespaced=scope == 'namespaced',
            short_names=_words(short),
            categories=_words(categories),
            subresources=frozenset(_words(subresources) if subresources != '*' else POD),
            counted=flag == 'generation',
            verbs=_verbs(plural, flag),
            stored_version=version,
            to_served=views[0],
            to_stored=views[1],
            warning=WARNINGS.get((group, plural), ''),
            scale={'spec': '.spec.replicas', 'status': '.status.replicas', 'selector': '.spec.selector'},
        )
        kinds.append((kind, flag not in ('review', 'absent')))
    return kinds


def other_views(group: str, version: str, plural: str) -> tuple[View | None, View | None]:
    """Return the functions that convert from and to the stored version; None if only its name differs."""
    if group == 'events.k8s.io':
        return event_to_served, event_to_stored
    if (version, plural) == ('v1', 'horizontalpodautoscalers'):
        from kopf._kits.testing.kinds import autoscalers

        return autoscalers.to_served, autoscalers.to_stored
    return None, None


def priority(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of versions in a group: v2, v1, v1beta2, v1beta1, v1alpha1, and then all other names."""
    stage, major, minor = rank_version(version)
    return -stage, -major, -minor, version


EVENT_FIELDS = {
    'involvedObject': 'regarding',
    'message': 'note',
    'reportingComponent': 'reportingController',
    'source': 'deprecatedSource',
    'firstTimestamp': 'deprecatedFirstTimestamp',
    'lastTimestamp': 'deprecatedLastTimestamp',
    'count': 'deprecatedCount',
}
"""The fields of core Events, and their names in ``events.k8s.io``, which is the same resource in another group."""


def event_to_served(body: Body) -> Body:
    """Return a core Event as one of ``events.k8s.io``."""
    return {
        EVENT_FIELDS.get(key, key): value
        for key, value in body.items()
        if value or key not in ('reportingComponent', 'reportingInstance')
    }


def event_to_stored(body: Body) -> Body:
    """Return an Event of ``events.k8s.io`` as a core one."""
    names = {new: old for old, new in EVENT_FIELDS.items()}
    return {names.get(key, key): value for key, value in body.items()}


def _verbs(plural: str, flag: str) -> tuple[str, ...]:
    if flag in ('review', 'absent'):
        return ('get', 'list') if plural == 'componentstatuses' else ('create',)
    return tuple(verb for verb in VERBS if (plural, verb) != ('namespaces', 'deletecollection'))


def _words(text: str) -> tuple[str, ...]:
    return () if text == '-' else tuple(text.split(','))
