"""The generated roles: with just these rights, an operator works; without any of the rules, its log names that rule.

On the sandbox and on a real control plane, both with RBAC. The operator has a service account of its own for each test.
"""

import json
import re
import secrets

import pytest
from kubeapi import KubeApi, make_kubeconfig
from operatorprocess import OperatorProcess
from sandboxplane import SandboxPlane

import kopf
from kopf._cogs.helpers.loaders import preload
from kopf._kits.definitions.crd_documents import make_crds
from kopf._kits.packaging.deployment_manifests import Options, make_manifests
from kopf._kits.packaging.observed_roles import find_needed
from kopf.testing import Sandbox

HANDLERS = """
import dataclasses
import os
import kopf

NAME = os.environ['ROLES_NAME']

@dataclasses.dataclass
class ShopSpec:
    size: int = 1

@dataclasses.dataclass
class ShopStatus:
    size: int | None = None

@kopf.kind('roles.example.dev/v1beta1', 'Shop')
@dataclasses.dataclass
class OldShop:
    spec: ShopSpec

@kopf.kind('roles.example.dev/v1')
@dataclasses.dataclass
class Shop:
    spec: ShopSpec
    status: ShopStatus | None = None

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookService(name=NAME, namespace=NAME, port=0)
    settings.admission.managed = f'{NAME}.example.dev'
    settings.leadership.namespace = NAME

@kopf.on.reconcile(Shop, owns=['configmaps'], watches={'services': lambda **_: []})
async def reconcile(spec: ShopSpec, name, children, patch, logger, **_):
    await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}})
    patch.status['size'] = spec.size
    logger.info("The shop is reconciled.")

@kopf.on.validate(Shop, operation='DELETE')
def check(**_):
    pass

@kopf.on.convert(OldShop, Shop, persistent=False)
def upgrade(obj: OldShop, **_) -> Shop:
    return Shop(obj.spec)
"""
RBAC = ('ServiceAccount', 'ClusterRole', 'ClusterRoleBinding', 'Role', 'RoleBinding')
SCOPES = {'cluster': ['-A'], 'namespace': ['-n', 'NAME']}
DONE = r"(?s)\A(?=.*Reconfiguring the conversion strategy)(?=.*Reconciler 'reconcile' succeeded)"


@pytest.fixture(autouse=True)
def only_some_on_the_sandbox(request, cluster):
    if isinstance(cluster, SandboxPlane) and not request.config.getoption('--thorough'):
        given = getattr(request.node, 'callspec', None)
        if given and (given.params.get('scope') == 'namespace' or given.params.get('left_out') not in (None, 5)):
            pytest.skip("run with --thorough, or with --cluster=real")


@pytest.fixture(scope='module')
def registry(tmp_path_factory):
    """Return the registry with the handlers, as ``kopf manifests`` loads them."""
    path = tmp_path_factory.mktemp('roles') / 'shop.py'
    path.write_text(HANDLERS)
    former, registry = kopf.get_default_registry(), kopf.OperatorRegistry()
    kopf.set_default_registry(registry)
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv('ROLES_NAME', 'x')
        preload([str(path)], [])
    kopf.set_default_registry(former)
    return registry


@pytest.fixture(scope='module')
def api(cluster, registry):
    """Yield the client of a cluster with RBAC, where the kind is defined."""
    with pytest.MonkeyPatch.context() as patching:
        sandbox = Sandbox(rbac=True) if isinstance(cluster, SandboxPlane) else None
        if sandbox is not None:
            sandbox.__enter__()
        patching.setenv('KUBECONFIG', str(cluster.kubeconfig if sandbox is None else sandbox.kubeconfig))
        api = KubeApi()
        api.sandbox = sandbox
        [crd] = make_crds(registry.kinds, warn=print)
        api.apply(crd)
        yield api
        api.delete('apiextensions.k8s.io/v1', 'CustomResourceDefinition', None, 'shops.roles.example.dev')
        if sandbox is not None:
            sandbox.__exit__(None, None, None)


def make_objects(registry, scope, name):
    """Return the roles and their bindings as ``kopf manifests`` makes them, for two replicas."""
    namespaces = () if scope == 'cluster' else (name,)
    crds = make_crds(registry.kinds, warn=print)
    objects = make_manifests(
        registry, crds, Options(name=name, namespace=name, image='x', namespaces=namespaces, replicas=2)
    )
    return [obj for obj in objects if obj['kind'] in RBAC]


def list_rules(objects):
    """Return the rules that any cluster asks for: others need an admission plugin that is off by default."""
    rules = [rule for obj in objects for rule in obj.get('rules', ())]
    return [rule for rule in rules if not rule['resources'][0].endswith('/finalizers')]


@pytest.fixture
def run(api, registry, tmp_path):
    """Run the operator with the generated roles, but without one of their rules, until the pattern is in its log."""
    name = f'roles-{secrets.token_hex(4)}'
    made = []

    def run(scope, pattern, left_out=None):
        objects = make_objects(registry, scope, name)
        left_out = json.loads(json.dumps(left_out).replace('NAME', name))
        for obj in objects:
            if left_out is not None and left_out in obj.get('rules', ()):
                obj['rules'] = [rule for rule in obj['rules'] if rule != left_out]
        meta = {'name': name, 'namespace': name}
        for obj in [
            {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': name}},
            *objects,
            {'apiVersion': 'roles.example.dev/v1', 'kind': 'Shop', 'metadata': meta, 'spec': {'size': 2}},
        ]:
            api.apply(obj)
            made.append(obj)
        path = tmp_path / 'shop.py'
        path.write_text(HANDLERS)
        args = [arg.replace('NAME', name) for arg in SCOPES[scope]]
        process = OperatorProcess(
            *args,
            '--standalone',
            '--leader-election',
            f'--lease={name}',
            path,
            log=tmp_path / 'log',
            kubeconfig=str(make_kubeconfig(api, name, tmp_path)),
            ROLES_NAME=name,
        )
        with process as operator:
            operator.wait_output(pattern, timeout=60)
            if operator.process.poll() is None:
                operator.stop()
            return operator.output

    yield run
    for kind in ('ValidatingWebhookConfiguration', 'MutatingWebhookConfiguration'):
        api.delete('admissionregistration.k8s.io/v1', kind, None, f'{name}.example.dev')
    for obj in reversed(made):
        api.delete(obj['apiVersion'], obj['kind'], obj['metadata'].get('namespace'), obj['metadata']['name'])


@pytest.mark.parametrize('scope', SCOPES)
def test_the_generated_roles_are_enough_and_none_is_needless(api, registry, run, scope):
    before = 0 if api.sandbox is None else len(api.sandbox.requests)
    output = run(scope, DONE)
    assert 'permission' not in output and 'orbidden' not in output, output
    if api.sandbox is not None:
        needed = {(group, resource) for group, resource, _ in find_needed(api.sandbox.requests[before:])}
        granted = {
            (rule['apiGroups'][0], rule['resources'][0]) for rule in list_rules(make_objects(registry, scope, 'x'))
        }
        assert granted - needed == set()


def list_cases():
    """Return the scopes with the numbers of rules; a test checks that these are all of them."""
    return [('cluster', number) for number in range(12)] + [('namespace', number) for number in range(13)]


def test_all_rules_are_tried(registry):
    counts = {scope: len(list_rules(make_objects(registry, scope, 'x'))) for scope in SCOPES}
    assert {scope: sum(each == scope for each, _ in list_cases()) for scope in SCOPES} == counts


@pytest.mark.parametrize('scope, left_out', list_cases())
def test_each_rule_that_is_left_out_is_named(registry, run, scope, left_out):
    rule = list_rules(make_objects(registry, scope, 'NAME'))[left_out]
    # All messages have the rule as YAML in one line; those of leases and secrets are of their own.
    resource = re.escape(json.dumps(rule['resources'][0]).strip('"'))
    output = run(scope, rf'(Add this rule to|Grant these rules|with the rule) .*\b{resource}\b', rule)
    assert 'Traceback' not in output
