"""
The manifests of an operator, made from its handlers: all objects that a cluster needs to run it.

The result is equal for equal handlers and options, so that it can be committed and compared. Specified in the
documentation's "Create a project and its manifests".
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._core.intents.registries import OperatorRegistry
from kopf._core.intents.role_rules import Rule
from kopf._kits.packaging.operator_rules import list_rules

RBAC = 'rbac.authorization.k8s.io'
PROBES_PORT = 8080
METRICS_PORT = 9090
WEBHOOKS_PORT = 9443
USER = 65534
"""The uid of an unprivileged user, which is the same in all images."""


class Options(NamedTuple):
    """The options of a deployment."""

    name: str
    """The name of the operator, and of all its objects."""
    namespace: str
    """The namespace where it runs."""
    image: str
    paths: Sequence[str] = ()
    """The files with handlers, by their paths in the image."""
    modules: Sequence[str] = ()
    """The modules with handlers."""
    namespaces: Sequence[str] = ()
    """The namespaces that it serves; empty for the whole cluster."""
    replicas: int = 1
    shards: str | None = None
    """How the replicas share the objects (``auto``); otherwise, they elect a leader."""
    peering: str | None = None
    """The name of the peering object where it meets other operators."""
    no_scanning: bool = False
    """Whether the operator does not notice new resources and namespaces, so that it needs no permissions for them."""
    inspect: bool = False
    """Whether ``kopf top`` in the pod can look into the operator."""
    tracing: bool = False
    """Whether the operator makes traces."""
    metrics: bool = False
    """Whether the operator serves metrics."""
    monitoring: bool = False
    """Whether the Prometheus operator is told of the metrics, which are served then, too."""
    env: Sequence[tuple[str, str]] = ()
    """The variables of the environment, by their names and values."""
    env_from: Sequence[tuple[str, str]] = ()
    """The Secrets (``secret``) and config maps (``configmap``) whose keys are variables, by their kinds and names."""

    @property
    def elected(self) -> bool:
        """Return whether the replicas elect a leader."""
        return self.replicas > 1 and self.shards is None

    @property
    def sharded(self) -> bool:
        """Return whether the replicas share the objects, even if there is only one replica yet."""
        return self.shards is not None

    @property
    def coordinated(self) -> bool:
        """Return whether Leases prevent that two replicas handle the same object at the same time."""
        return self.elected or self.sharded

    @property
    def measured(self) -> bool:
        """Return whether the operator serves metrics."""
        return self.metrics or self.monitoring

    @property
    def lease(self) -> str:
        """
        Return the name of the Lease of the replicas, so that other operators in the namespace have another one.

        The Lease of a group of shards is not the one of a leader: replicas can be switched from one to the other.
        """
        return f'{self.name}-shards' if self.sharded else self.name


def make_manifests(
    registry: OperatorRegistry,
    crds: Collection[Mapping[str, Any]],
    options: Options,
) -> list[dict[str, Any]]:
    """
    Return the objects in the order in which they are to be applied.

    Args:
        registry: the handlers.
        crds: the CRDs of all resources that handlers name; the result does not contain them.
        options: the options of the deployment.

    Raises:
        UnknownResourceError: if a handler names a resource that is not known.
    """
    clusterwide = not options.namespaces
    rules = list_rules(
        registry,
        crds,
        clusterwide=clusterwide,
        elected=options.elected,
        sharded=options.sharded,
        lease=options.lease,
        peering=options.peering,
        scanning=not options.no_scanning,
    )
    called = len(registry.webhooks) + len(registry.conversions) > 0
    objects = [
        _make(options, 'v1', 'ServiceAccount'),
        *_make_roles(options, rules, called=called),
        _make_deployment(options, called=called),
    ]
    if options.replicas > 1:
        objects.append(
            _make(
                options,
                'policy/v1',
                'PodDisruptionBudget',
                spec={'minAvailable': 1, 'selector': {'matchLabels': _label(options)}},
            )
        )
    ports: list[tuple[str, int]] = [('webhooks', 443)] if called else []
    if options.measured:
        ports.append(('metrics', METRICS_PORT))
    if ports:
        items = [{'name': name, 'port': port, 'targetPort': name} for name, port in ports]
        spec = {'selector': _label(options), 'ports': items}
        service = _make(options, 'v1', 'Service', spec=spec)
        service['metadata']['labels'] = {**service['metadata'].get('labels', {}), **_label(options)}
        objects.append(service)
    objects.append(_make_network_policy(options, called=called))
    if options.monitoring:
        spec = {'selector': {'matchLabels': _label(options)}, 'endpoints': [{'port': 'metrics'}]}
        objects.append(_make(options, 'monitoring.coreos.com/v1', 'ServiceMonitor', spec=spec))
    return objects


def _label(options: Options) -> dict[str, str]:
    return {'app.kubernetes.io/name': options.name}


def _make(options: Options, api_version: str, kind: str, *, namespaced: bool = True, **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {'name': options.name}
    if namespaced:
        metadata['namespace'] = options.namespace
    return {'apiVersion': api_version, 'kind': kind, 'metadata': {**metadata, 'labels': _label(options)}, **fields}


def _make_roles(options: Options, rules: Collection[Rule], *, called: bool) -> list[dict[str, Any]]:
    """Return the roles with their bindings: of the cluster, of the served namespaces, and of the operator's own one."""
    cluster = [rule for rule in rules if rule.clusterwide or not options.namespaces]
    local = [rule for rule in rules if rule not in cluster]
    own: list[Rule] = []
    if options.coordinated:
        leases = [rule for rule in rules if rule.resource == 'leases']
        own += leases
        cluster = [rule for rule in cluster if rule not in leases]
        local = [rule for rule in local if rule not in leases]
    if called:
        own.append(Rule('', 'secrets', ('get', 'create', 'patch')))
    objects = _bind(options, 'ClusterRole', None, cluster)
    for namespace in options.namespaces:
        extra = own if namespace == options.namespace else []
        objects += _bind(options, 'Role', namespace, [*local, *extra])
    if own and options.namespace not in options.namespaces:
        objects += _bind(options, 'Role', options.namespace, own)
    return objects


def _bind(options: Options, kind: str, namespace: str | None, rules: Collection[Rule]) -> list[dict[str, Any]]:
    if not rules:
        return []
    placed = options._replace(namespace=namespace or '')
    role = _make(placed, f'{RBAC}/v1', kind, namespaced=namespace is not None)
    role['rules'] = [rule.as_role_rule() for rule in rules]
    binding = _make(placed, f'{RBAC}/v1', f'{kind}Binding', namespaced=namespace is not None)
    binding['roleRef'] = {'apiGroup': RBAC, 'kind': kind, 'name': options.name}
    binding['subjects'] = [{'kind': 'ServiceAccount', 'name': options.name, 'namespace': options.namespace}]
    return [role, binding]


def make_command(options: Options) -> list[str]:
    """Return the command that runs the operator in its container."""
    scope = [f'--namespace={name}' for name in options.namespaces] or ['--all-namespaces']
    return [
        'kopf',
        'run',
        *scope,
        # Leases coordinate the replicas, so a peering is needless, unless users want to pause the operator by it.
        '--standalone' if options.peering is None else f'--peering={options.peering}',
        f'--liveness=http://0.0.0.0:{PROBES_PORT}/healthz',
        *(['--leader-election'] if options.elected else []),
        *([f'--shards={options.shards}'] if options.sharded else []),
        *([f'--lease={options.lease}'] if options.coordinated else []),
        *(['--no-scanning'] if options.no_scanning else []),
        *(['--inspect'] if options.inspect else []),
        *(['--tracing'] if options.tracing else []),
        *([f'--metrics=http://0.0.0.0:{METRICS_PORT}/metrics'] if options.measured else []),
        *[f'--module={name}' for name in options.modules],
        *options.paths,
    ]


def _make_deployment(options: Options, *, called: bool) -> dict[str, Any]:
    ports = [{'name': 'probes', 'containerPort': PROBES_PORT}]
    if called:
        ports.append({'name': 'webhooks', 'containerPort': WEBHOOKS_PORT})
    if options.measured:
        ports.append({'name': 'metrics', 'containerPort': METRICS_PORT})
    container = {
        'name': 'operator',
        'image': options.image,
        'command': make_command(options),
        **_make_environment(options),
        'ports': ports,
        'livenessProbe': {'httpGet': {'path': '/healthz', 'port': 'probes'}, 'periodSeconds': 10, 'timeoutSeconds': 5},
        'readinessProbe': {'httpGet': {'path': '/readyz', 'port': 'probes'}, 'periodSeconds': 5, 'timeoutSeconds': 5},
        'resources': {'requests': {'cpu': '50m', 'memory': '64Mi'}, 'limits': {'memory': '512Mi'}},
        'securityContext': {
            'allowPrivilegeEscalation': False,
            'readOnlyRootFilesystem': True,
            'capabilities': {'drop': ['ALL']},
        },
        # The framework writes certificates and kubeconfigs to temporary files, and the root filesystem is read-only.
        'volumeMounts': [{'name': 'tmp', 'mountPath': '/tmp'}],
    }
    pod = {
        'serviceAccountName': options.name,
        'terminationGracePeriodSeconds': 60,
        'securityContext': {
            'runAsNonRoot': True,
            'runAsUser': USER,
            'runAsGroup': USER,
            'seccompProfile': {'type': 'RuntimeDefault'},
        },
        'containers': [container],
        'volumes': [{'name': 'tmp', 'emptyDir': {}}],
    }
    # Without Leases, a rolling update would let two operators handle the same objects for a moment.
    strategy = {'type': 'RollingUpdate'} if options.coordinated else {'type': 'Recreate'}
    spec = {
        'replicas': options.replicas,
        'strategy': strategy,
        'selector': {'matchLabels': _label(options)},
        'template': {'metadata': {'labels': _label(options)}, 'spec': pod},
    }
    return _make(options, 'apps/v1', 'Deployment', spec=spec)


def _make_environment(options: Options) -> dict[str, Any]:
    """Return the fields of the container with its variables, without those that are empty."""
    variables = [{'name': name, 'value': value} for name, value in options.env]
    sources = [{'secretRef' if kind == 'secret' else 'configMapRef': {'name': name}} for kind, name in options.env_from]
    return {**({'env': variables} if variables else {}), **({'envFrom': sources} if sources else {})}


def _make_network_policy(options: Options, *, called: bool) -> dict[str, Any]:
    """Return a policy that permits connections only to the ports of the operator, and all connections from it."""
    ports = [PROBES_PORT, *([WEBHOOKS_PORT] if called else []), *([METRICS_PORT] if options.measured else [])]
    spec = {
        'podSelector': {'matchLabels': _label(options)},
        'policyTypes': ['Ingress'],
        'ingress': [{'ports': [{'protocol': 'TCP', 'port': port} for port in ports]}],
    }
    return _make(options, 'networking.k8s.io/v1', 'NetworkPolicy', spec=spec)
