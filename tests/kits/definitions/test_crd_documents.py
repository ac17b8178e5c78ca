"""CRDs of declared kinds: names, versions, columns, subresources, rules."""

import pydantic
import pytest

import kopf
from kopf._cogs.structs.references import rank_version
from kopf._kits.definitions.crd_documents import make_crds


class Spec(pydantic.BaseModel):
    replicas: int = 1
    since: str | None = None


class Status(pydantic.BaseModel):
    ready: int | None = None
    when: None | pydantic.AwareDatetime = None


@pytest.fixture
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture
def declare(registry):
    def declare(version='v1', name='WebApp', **options):
        cls = pydantic.create_model(f'{name}{version}', spec=(Spec, ...), status=(Status | None, None))
        return kopf.kind(f'example.com/{version}', name, registry=registry, **options)(cls)

    return declare


def make(registry):
    return make_crds(registry.kinds, warn=print)


def test_a_crd_has_the_names_and_the_scope(registry, declare):
    declare(short_names=['wa'], categories=['all'], scope='Cluster')
    [crd] = make(registry)
    assert crd['metadata'] == {'name': 'webapps.example.com'}
    assert crd['spec']['scope'] == 'Cluster'
    assert crd['spec']['names'] == {
        'kind': 'WebApp',
        'listKind': 'WebAppList',
        'plural': 'webapps',
        'singular': 'webapp',
        'shortNames': ['wa'],
        'categories': ['all'],
    }


def test_the_version_of_the_highest_priority_is_stored(registry, declare):
    for version in ['v1alpha1', 'v2', 'v10', 'v11beta1']:
        declare(version)
    [crd] = make(registry)
    assert [(each['name'], each['storage']) for each in crd['spec']['versions']] == [
        ('v10', True),
        ('v2', False),
        ('v11beta1', False),
        ('v1alpha1', False),
    ]


def test_another_version_can_be_stored(registry, declare):
    declare('v1', storage=True)
    declare('v2', served=True)
    [crd] = make(registry)
    assert [(each['name'], each['storage']) for each in crd['spec']['versions']] == [('v2', False), ('v1', True)]


def test_a_version_must_be_stored(registry, declare):
    declare(storage=False)
    with pytest.raises(kopf.ModelError, match='one needs storage=True'):
        make(registry)


def test_unknown_versions_have_the_lowest_priority():
    assert rank_version('v1alpha1') > rank_version('weird')


def test_crds_are_sorted_by_their_names(registry, declare):
    declare(name='Zebra')
    declare(name='Ant')
    assert [crd['metadata']['name'] for crd in make(registry)] == ['ants.example.com', 'zebras.example.com']


def test_columns_have_the_types_of_their_fields_and_an_age_follows(registry, declare):
    declare(
        columns={
            'Replicas': '.spec.replicas',
            'When': '.status.when',
            'Wide': {'path': '.status.ready', 'priority': 1},
            'Owner': '.metadata.labels.owner',
        }
    )
    [crd] = make(registry)
    assert crd['spec']['versions'][0]['additionalPrinterColumns'] == [
        {'name': 'Replicas', 'type': 'integer', 'jsonPath': '.spec.replicas'},
        {'name': 'When', 'type': 'date', 'jsonPath': '.status.when'},
        {'name': 'Wide', 'type': 'integer', 'jsonPath': '.status.ready', 'priority': 1},
        {'name': 'Owner', 'type': 'string', 'jsonPath': '.metadata.labels.owner'},
        {'name': 'Age', 'type': 'date', 'jsonPath': '.metadata.creationTimestamp'},
    ]


def test_a_column_of_no_field_is_refused_with_the_nearest_name(registry, declare):
    declare(columns={'Replicas': '.spec.replcas'})
    with pytest.raises(kopf.ModelError, match=r"'.spec.replcas', but the class has no such field. Did you mean 'repl"):
        make(registry)


def test_rules_can_have_messages(registry, declare):
    declare(rules=['self.a', ('self.b', 'B!'), {'rule': 'self.c', 'reason': 'FieldValueInvalid'}])
    [crd] = make(registry)
    schema = crd['spec']['versions'][0]['schema']['openAPIV3Schema']
    assert schema['x-kubernetes-validations'] == [
        {'rule': 'self.a'},
        {'rule': 'self.b', 'message': 'B!'},
        {'rule': 'self.c', 'reason': 'FieldValueInvalid'},
    ]


def test_the_status_is_a_subresource_and_so_can_be_the_scale(registry, declare):
    declare(scale={'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.ready'})
    [crd] = make(registry)
    assert crd['spec']['versions'][0]['subresources'] == {
        'status': {},
        'scale': {'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.ready'},
    }


def test_deprecated_versions_warn(registry, declare):
    declare(deprecated='Use v2.')
    [crd] = make(registry)
    version = crd['spec']['versions'][0]
    assert (version['deprecated'], version['deprecationWarning']) == (True, 'Use v2.')


def test_equal_declarations_give_equal_crds(declare, registry):
    declare(columns={'B': '.spec.replicas', 'A': '.spec.since'})
    assert make(registry) == make(registry)
    assert repr(make(registry)) == repr(make(registry))


def test_conditions_can_be_added_to_the_status(registry, declare):
    declare(conditions=True)
    [crd] = make(registry)
    properties = crd['spec']['versions'][0]['schema']['openAPIV3Schema']['properties']['status']['properties']
    assert set(properties) == {'ready', 'when', 'conditions'}
    assert properties['conditions']['x-kubernetes-list-map-keys'] == ['type']


def test_groups_that_kubernetes_reserves_are_warned_of(registry):
    cls = pydantic.create_model('Shop', spec=(Spec, ...))
    kopf.kind('shops.k8s.io/v1', registry=registry)(cls)
    warnings = []
    make_crds(registry.kinds, warn=warnings.append)
    assert ['shops.shops.k8s.io: Kubernetes reserves this group' in text for text in warnings] == [True]
