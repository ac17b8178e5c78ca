"""Adoption: what a child gets from its owner, and by what the owner is found again."""

import pytest

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import PermanentError
from kopf._core.engines.adoption import Adopter, ChildError, adopt, check_object, find_handler, find_key, find_owners

KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
KIND = 'kopf.dev', 'KopfExample'
CONFIG_MAPS = Resource('', 'v1', 'configmaps', kind='ConfigMap', namespaced=True)
ROLES = Resource('rbac.authorization.k8s.io', 'v1', 'clusterroles', kind='ClusterRole', namespaced=False)

OWNER = Body(
    {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'owner'}}
)
CLUSTER_OWNER = Body({**OWNER, 'metadata': {'name': 'obj', 'uid': 'owner'}})


def child(resource=CONFIG_MAPS, owner=OWNER, handler='fn', **metadata):
    desired = check_object({'apiVersion': 'v1', 'kind': 'X', 'metadata': {'name': 'child', **metadata}})
    key = find_key(desired, resource, owner)
    return key, adopt(desired, key, Adopter(owner, KEX, 'operator', handler))['metadata']


def test_a_near_child_gets_an_owner_reference_and_labels():
    key, metadata = child(labels={'a': 'b'}, annotations={'c': 'd'})
    assert key.namespace == metadata['namespace'] == 'ns'
    [reference] = metadata['ownerReferences']
    assert (reference['uid'], reference['controller'], reference['blockOwnerDeletion']) == ('owner', True, True)
    assert metadata['labels'] == {'a': 'b', 'kopf.dev/owner-uid': 'owner', 'kopf.dev/pruned-by': 'operator'}
    assert metadata['annotations'] == {'c': 'd', 'kopf.dev/handler': 'fn'}


@pytest.mark.parametrize(
    ('resource', 'namespace'), [(CONFIG_MAPS, 'other'), (ROLES, None)], ids=['namespace', 'cluster']
)
def test_a_remote_child_gets_an_annotation_instead_of_the_owner_reference(resource, namespace):
    _, metadata = child(resource, **({} if namespace is None else {'namespace': namespace}))
    assert 'ownerReferences' not in metadata and metadata.get('namespace') == namespace
    assert metadata['annotations']['kopf.dev/owner'] == 'kopfexamples.v1.kopf.dev/ns/obj'
    assert find_owners({'metadata': metadata}) == find_owners({'metadata': metadata}, {KIND}) == {'owner'}
    # Kubernetes copies the labels of Services to EndpointSlices.
    assert find_owners({'metadata': {**metadata, 'annotations': {}}}) == set()


def test_children_of_a_cluster_scoped_owner_are_all_near():
    _, metadata = child(owner=CLUSTER_OWNER, namespace='any')
    assert metadata['ownerReferences'] and 'kopf.dev/owner' not in metadata['annotations']
    _, metadata = child(ROLES, owner=CLUSTER_OWNER)
    assert metadata['ownerReferences'] and 'namespace' not in metadata


def test_children_that_are_not_pruned_have_no_mark_of_it():
    _, metadata = child(handler=None)
    assert metadata['labels'] == {'kopf.dev/owner-uid': 'owner'} and 'annotations' not in metadata
    assert find_handler({'metadata': metadata}, 'operator') is None


def test_other_owners_stay_and_the_own_reference_is_not_doubled():
    _, metadata = child(ownerReferences=[{'uid': 'another', 'kind': 'X'}, {'uid': 'owner', 'kind': 'stale'}])
    assert [(each['uid'], each['kind']) for each in metadata['ownerReferences']] == [
        ('another', 'X'),
        ('owner', 'KopfExample'),
    ]


def test_the_given_object_is_not_changed_and_what_the_server_refuses_is_left_out():
    given = {
        'apiVersion': 'v1',
        'kind': 'X',
        'metadata': {'name': 'x', 'uid': 'u', 'managedFields': []},
        'list': (1, 2),
    }
    desired = check_object(given)
    key = find_key(desired, CONFIG_MAPS, OWNER)
    adopted = adopt(desired, key, Adopter(OWNER, KEX, 'operator', 'fn'))
    assert given['metadata'] == {'name': 'x', 'uid': 'u', 'managedFields': []}
    assert not {'uid', 'managedFields'} & adopted['metadata'].keys() and adopted['list'] == [1, 2]


@pytest.mark.parametrize(
    ('kind', 'given', 'expected'),
    [
        ('Secret', {'stringData': {'a': 'ä', 'b': ''}}, {'data': {'a': 'w6Q=', 'b': ''}}),
        (
            'Secret',
            {'stringData': {'a': '0'}, 'data': {'a': 'eA==', 'b': 'eA=='}},
            {'data': {'a': 'MA==', 'b': 'eA=='}},
        ),
        ('Secret', {'stringData': {'a': 1}}, {'stringData': {'a': 1}}),
        ('Secret', {'stringData': None, 'data': None}, {'stringData': None, 'data': None}),
        ('Sealed', {'stringData': {'a': '0'}}, {'stringData': {'a': '0'}}),
    ],
)
def test_texts_of_secrets_are_applied_as_the_data_that_the_server_stores(kind, given, expected):
    desired = check_object({'apiVersion': 'v1', 'kind': kind, 'metadata': {'name': 'x'}, **given})
    adopted = adopt(desired, find_key(desired, CONFIG_MAPS, OWNER), Adopter(OWNER, KEX, 'operator', 'fn'))
    assert {key: adopted[key] for key in adopted if key not in ('apiVersion', 'kind', 'metadata')} == expected


def test_owners_are_found_by_their_kind():
    references = [{'uid': 'a', 'kind': 'KopfExample', 'apiVersion': 'kopf.dev/v2'}, {'uid': 'b', 'kind': 'Pod'}]
    assert find_owners({'metadata': {'ownerReferences': references}}) == {'a', 'b'}
    assert find_owners({'metadata': {'ownerReferences': references}}, {KIND}) == {'a'}


@pytest.mark.parametrize(
    ('owner', 'resource', 'metadata', 'message'),
    [
        (OWNER, ROLES, {'namespace': 'ns'}, "is cluster-scoped, so it cannot be in the namespace 'ns'"),
        (CLUSTER_OWNER, CONFIG_MAPS, {}, "needs metadata.namespace, as its owner is cluster-scoped"),
        (OWNER, CONFIG_MAPS, {'namespace': 5}, "needs metadata.namespace"),
    ],
)
def test_impossible_namespaces_are_told(owner, resource, metadata, message):
    with pytest.raises(ChildError, match=message):
        child(resource, owner, **metadata)


@pytest.mark.parametrize(
    ('obj', 'message'),
    [
        (None, "takes an object as a dict, not NoneType"),
        ({'metadata': []}, r"metadata must be a dict, not \[\]"),
        ({'apiVersion': 1, 'kind': 'X', 'metadata': {'name': 'x'}}, "apiVersion must be a non-empty string, not 1"),
        ({'apiVersion': 'v1', 'kind': 'X', 'metadata': {'generateName': 'x-'}}, "cannot be generated"),
    ],
)
def test_wrong_objects_are_told_with_the_remedy(obj, message):
    with pytest.raises(PermanentError, match=message):
        check_object(obj)


def test_objects_of_other_libraries_are_unwrapped():
    pykube = pytest.importorskip('pykube')
    obj = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'x'}}
    assert check_object(pykube.ConfigMap(None, obj)) == obj
