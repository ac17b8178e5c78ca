"""The permissions that handlers need: derived from the registry, with the groups of all resources."""

import dataclasses

import pytest

import kopf
from kopf._kits.packaging.operator_rules import UnknownResourceError, list_rules


@dataclasses.dataclass
class App:
    spec: dict[str, int]


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


def list_verbs(registry, crds=(), **options):
    return {
        f'{rule.resource}.{rule.group}'.rstrip('.'): ' '.join(rule.verbs)
        for rule in list_rules(registry, crds, **options)
    }


CRD = {
    'spec': {
        'group': 'example.com',
        'scope': 'Cluster',
        'names': {'plural': 'apps', 'kind': 'App', 'shortNames': ['ap']},
        'versions': [{'name': 'v1', 'subresources': {'status': {}}}],
    }
}


def test_every_operator_posts_events_and_notices_kinds(registry):
    general = {'events': 'create patch', 'customresourcedefinitions.apiextensions.k8s.io': 'list watch'}
    assert list_verbs(registry) == general
    assert list_verbs(registry, clusterwide=False) == {**general, 'namespaces': 'list watch'}


def test_handlers_of_events_only_read(registry):
    kopf.on.event('pods', registry=registry)(lambda **_: None)
    assert list_verbs(registry)['pods'] == 'get list watch'
    assert 'pods/status' not in list_verbs(registry)


@pytest.mark.parametrize('decorator', [kopf.on.create, kopf.daemon, kopf.on.reconcile])
def test_other_handlers_patch_the_objects_and_their_status(registry, decorator):
    decorator('deployments', registry=registry)(lambda **_: None)
    assert list_verbs(registry)['deployments.apps'] == 'get list watch patch'
    assert list_verbs(registry)['deployments/status.apps'] == 'patch'


def test_kinds_without_status_subresources_need_no_rule_for_them(registry):
    kopf.on.create('configmaps', registry=registry)(lambda **_: None)
    assert 'configmaps/status' not in list_verbs(registry)


def test_owned_resources_are_written_and_watched_ones_are_read(registry):
    options = {'owns': ['services', 'apps/v1/deployments'], 'watches': {'secrets': lambda **_: []}}
    kopf.on.reconcile('example.com', 'v1', 'apps', registry=registry, **options)(lambda **_: None)
    verbs = list_verbs(registry)
    assert verbs['services'] == verbs['deployments.apps'] == 'get list watch create patch delete'
    assert verbs['secrets'] == 'get list watch'


def test_owners_of_children_can_be_blocked(registry):
    """The admission plugin OwnerReferencesPermissionEnforcement, which is on in OpenShift, requires this."""
    kopf.on.reconcile('example.com', 'v1', 'apps', registry=registry, owns=['services'])(lambda **_: None)
    kopf.on.reconcile('pods', registry=registry, watches={'secrets': lambda **_: []})(lambda **_: None)
    verbs = list_verbs(registry)
    assert verbs['apps/finalizers.example.com'] == 'update'
    assert 'pods/finalizers' not in verbs


def test_rules_of_one_resource_are_merged(registry):
    kopf.on.event('pods', registry=registry)(lambda **_: None)
    kopf.on.create('pods', registry=registry)(lambda **_: None)
    assert [rule.verbs for rule in list_rules(registry) if rule.resource == 'pods'] == [
        ('get', 'list', 'watch', 'patch')
    ]


def test_crds_tell_of_groups_and_scopes(registry):
    kopf.on.create('ap', registry=registry)(lambda **_: None)
    [rule] = [rule for rule in list_rules(registry, [CRD]) if rule.resource == 'apps']
    assert (rule.group, rule.clusterwide) == ('example.com', True)


def test_an_unknown_resource_with_its_group_is_enough(registry):
    kopf.on.create('example.com', 'v1', 'widgets', registry=registry)(lambda **_: None)
    assert list_verbs(registry)['widgets.example.com'] == 'get list watch patch'


@pytest.mark.parametrize(
    'names, message',
    [
        (['widgets'], r"Handler 'fn': the API group of the resource is not known: .*Name the group, as in"),
        ([kopf.EVERYTHING], 'kopf.EVERYTHING would need all permissions'),
    ],
)
def test_what_roles_cannot_name_is_told_of(registry, names, message):
    kopf.on.create(*names, id='fn', registry=registry)(lambda **_: None)
    with pytest.raises(UnknownResourceError, match=message):
        list_rules(registry)


def test_webhooks_and_conversions_need_their_configurations(registry):
    kopf.on.validate('pods', registry=registry)(lambda **_: None)
    kopf.on.convert('example.com', 'apps', registry=registry)(lambda **_: None)
    rules = list_rules(registry, [CRD])
    assert [rule.names for rule in rules if rule.verbs == ('get', 'patch')] == [('apps.example.com',)]
    assert list_verbs(registry)['validatingwebhookconfigurations.admissionregistration.k8s.io'] == 'get create patch'


def test_replicas_need_leases(registry):
    assert list_verbs(registry, elected=True)['leases.coordination.k8s.io'] == 'get list watch create update'
