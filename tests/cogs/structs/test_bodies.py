import copy
import json
import pickle

import pytest
import yaml

from kopf._cogs.structs.bodies import Body, Meta, Spec, Status, build_object_reference, build_owner_reference

RAW = {
    'apiVersion': 'group/v1',
    'kind': 'Kind',
    'metadata': {
        'uid': 'uid1',
        'name': 'name1',
        'namespace': 'ns1',
        'labels': {'label1': 'value1'},
        'annotations': {'annotation1': 'value2'},
        'creationTimestamp': '2020-12-31T23:59:59Z',
        'deletionTimestamp': '2021-12-31T23:59:59.123456+01:00',
    },
    'spec': {'x': 1, 'nested': {'y': [1, 2]}},
    'status': {'z': None},
}


def test_parts_of_bodies_are_views_of_them():
    body = Body(RAW)
    assert body == RAW
    assert body.metadata == RAW['metadata']
    assert body.meta is body.metadata
    assert body.spec == RAW['spec']
    assert body.status == RAW['status']
    assert body['spec'] is RAW['spec']
    assert body['spec']['nested']['y'] == [1, 2]
    assert body.spec.get('x', 'default') == 1
    assert body.spec.get('absent', 'default') == 'default'
    assert body.status.get('z', 'default') is None


def test_parts_are_the_same_all_the_time():
    body = Body(RAW)
    assert body.spec is body.spec
    assert body.status is body.status
    assert body.meta.labels is body.meta.labels
    assert body.meta.annotations is body.meta.annotations


def test_metadata_has_attributes_for_its_fields():
    meta = Body(RAW).metadata
    assert meta.uid == 'uid1'
    assert meta.name == meta['name'] == 'name1'
    assert meta.namespace == 'ns1'
    assert meta.labels == {'label1': 'value1'}
    assert meta.labels.get('absent') is None
    assert meta.annotations == {'annotation1': 'value2'}
    assert meta.creation_timestamp == '2020-12-31T23:59:59Z'
    assert meta.deletion_timestamp == '2021-12-31T23:59:59.123456+01:00'


@pytest.mark.parametrize(
    'raw',
    [
        {},
        {'metadata': {}, 'spec': {}, 'status': {}},
        {'metadata': None, 'spec': None, 'status': None},
        {'metadata': {'labels': None, 'annotations': None}},
    ],
)
def test_absent_parts_are_empty(raw):
    body = Body(raw)
    assert body == raw
    assert body.spec == body.status == body.meta.labels == body.meta.annotations == {}
    assert body.meta.uid is None
    assert body.meta.name is None
    assert body.meta.namespace is None
    assert body.meta.creation_timestamp is None
    assert body.meta.deletion_timestamp is None


def test_new_states_are_seen_in_all_parts():
    body = Body(RAW)
    spec, meta, status, labels, annotations = (
        body.spec,
        body.meta,
        body.status,
        body.meta.labels,
        body.meta.annotations,
    )
    body._replace_with(
        {
            'metadata': {'name': 'name2', 'labels': {'a': 'b'}, 'annotations': {'c': 'd'}},
            'spec': {'x': 2},
            'status': {'z': 3},
        }
    )
    assert meta.name == 'name2'
    assert labels == {'a': 'b'}
    assert annotations == {'c': 'd'}
    assert spec == {'x': 2}
    assert status == {'z': 3}
    assert body.spec is spec
    body._replace_from(Body({}))
    assert body == spec == meta == status == labels == annotations == {}


def test_bodies_and_parts_are_readonly():
    body = Body(RAW)
    for view in body, body.spec, body.status, body.meta, body.meta.labels, body.meta.annotations:
        with pytest.raises(TypeError):
            view['key'] = 'value'
        with pytest.raises(AttributeError):
            view.attribute = 'value'


def test_parts_of_a_body_can_be_made_directly():
    body = Body(RAW)
    assert Spec(body) == RAW['spec']
    assert Status(body) == RAW['status']
    assert Meta(body).labels == {'label1': 'value1'}


@pytest.mark.parametrize(
    'get',
    [
        lambda body: body,
        lambda body: body.spec,
        lambda body: body.status,
        lambda body: body.metadata,
        lambda body: body.metadata.labels,
        lambda body: body.metadata.annotations,
    ],
)
@pytest.mark.parametrize('copier', [copy.copy, copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))])
def test_copies_do_not_follow_the_body(get, copier):
    body = Body(RAW)
    clone = copier(get(body))
    expected = dict(get(body))
    assert type(clone) is type(get(body))
    assert clone == expected
    body._replace_with({})
    assert clone == expected


def test_parts_of_copies_belong_to_the_copies():
    body = copy.deepcopy(Body(RAW))
    assert body.spec['nested'] is not RAW['spec']['nested']
    assert body.metadata.labels == {'label1': 'value1'}
    assert copy.deepcopy(body.metadata).labels == {'label1': 'value1'}


def test_bodies_are_serialised_as_dicts():
    body = Body(RAW)
    assert json.loads(json.dumps(dict(body))) == RAW
    assert json.loads(json.dumps(dict(body.spec))) == RAW['spec']
    assert yaml.safe_load(yaml.safe_dump(dict(body))) == RAW
    assert copy.deepcopy(dict(body.spec)) == RAW['spec']
    assert repr(body) == repr(RAW)
    assert repr(body.meta.labels) == repr(RAW['metadata']['labels'])


@pytest.mark.parametrize('wrap', [Body, dict])
def test_an_object_reference_identifies_the_object(wrap):
    assert build_object_reference(wrap(RAW)) == {
        'apiVersion': 'group/v1',
        'kind': 'Kind',
        'namespace': 'ns1',
        'name': 'name1',
        'uid': 'uid1',
    }


@pytest.mark.parametrize(
    'raw, expected',
    [
        ({}, {}),
        ({'metadata': None}, {}),
        ({'metadata': {'generateName': 'prefix-'}}, {}),
        ({'apiVersion': 'v1', 'kind': '', 'metadata': {'name': 'x', 'uid': None}}, {'apiVersion': 'v1', 'name': 'x'}),
    ],
)
def test_object_reference_of_what_is_known(raw, expected):
    assert build_object_reference(Body(raw)) == expected


@pytest.mark.parametrize('wrap', [Body, dict])
def test_an_owner_reference_identifies_the_owner(wrap):
    assert build_owner_reference(wrap(RAW)) == {
        'controller': True,
        'blockOwnerDeletion': True,
        'apiVersion': 'group/v1',
        'kind': 'Kind',
        'name': 'name1',
        'uid': 'uid1',
    }


@pytest.mark.parametrize(
    'kwargs, expected',
    [
        ({}, {'controller': True, 'blockOwnerDeletion': True}),
        ({'controller': False, 'block_owner_deletion': False}, {'controller': False, 'blockOwnerDeletion': False}),
        ({'controller': None}, {'blockOwnerDeletion': True}),
        ({'block_owner_deletion': None}, {'controller': True}),
    ],
)
def test_flags_of_owner_references_can_be_chosen(kwargs, expected):
    assert build_owner_reference(Body({}), **kwargs) == expected
