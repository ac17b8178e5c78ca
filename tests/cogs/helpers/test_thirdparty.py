"""Fields of objects of other libraries; here, of classes that look like theirs, as the libraries are optional."""

import collections
import dataclasses
import sys
import types
from typing import Any

import pytest

from kopf._cogs.helpers.thirdparty import access


class OwnerReference:
    openapi_types = {'block_owner_deletion': 'bool'}
    attribute_map = {'block_owner_deletion': 'blockOwnerDeletion'}

    def __init__(self, block_owner_deletion=None):
        self.block_owner_deletion = block_owner_deletion


class ObjectMeta:
    openapi_types = {'owner_references': 'list[OwnerReference]', 'labels': 'dict(str, str)'}
    attribute_map = {'owner_references': 'ownerReferences', 'labels': 'labels'}
    owner_references = labels = None


class Pod:
    openapi_types = {'metadata': 'ObjectMeta'}
    attribute_map = {'metadata': 'metadata'}
    metadata = None


@dataclasses.dataclass
class Metadata:
    labels: dict[str, str] | None = None


@dataclasses.dataclass
class Deployment:
    metadata: Metadata | None = None
    items: list[Metadata] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {}


class Wrapper:
    def __init__(self, attribute):
        self.content = {'a': 1}
        setattr(self, attribute, self.content)


@pytest.fixture
def pod(monkeypatch):
    """Return an object like those of the official client."""
    for cls in (Pod, ObjectMeta, OwnerReference):
        monkeypatch.setattr(cls, '__module__', 'kubernetes.client.models')
    client = types.SimpleNamespace(ObjectMeta=ObjectMeta, OwnerReference=OwnerReference)
    monkeypatch.setitem(sys.modules, 'kubernetes.client', client)
    return type('OwnPod', (Pod,), {})()  # a class of its own, as libraries of classes are remembered


@pytest.mark.parametrize('obj', [{'a': 1}, collections.UserDict(a=1)], ids=['dict', 'mapping'])
def test_mappings_have_their_items_as_fields(obj):
    fields = access(obj)
    assert fields.get('a') == 1 and fields.get('b') is None
    fields.set('b', 2)
    fields.remove('a')
    fields.remove('a')
    assert obj == {'b': 2}
    assert fields.make('c') is obj['c'] is fields.make('c')
    assert fields.make_item('d', {'x': 1}) == {'x': 1}


def test_attributes_of_official_models_are_accessed_as_spelled_in_the_api(pod):
    metadata = access(pod).make('metadata')
    assert isinstance(metadata, ObjectMeta) and pod.metadata is metadata
    item = access(metadata).make_item('ownerReferences', {'blockOwnerDeletion': True})
    assert isinstance(item, OwnerReference) and item.block_owner_deletion is True
    access(metadata).set('ownerReferences', [item])
    assert metadata.owner_references == access(metadata).get('ownerReferences') == [item]
    access(metadata).remove('ownerReferences')
    assert metadata.owner_references is None
    assert access(metadata).make('labels') == {}


def test_attributes_of_lightkube_models_are_created_by_their_annotations(monkeypatch):
    monkeypatch.setattr(Deployment, '__module__', 'lightkube.models')
    monkeypatch.setitem(sys.modules, 'lightkube.models', sys.modules[__name__])
    deployment = type('OwnDeployment', (Deployment,), {'__module__': 'lightkube.models'})()
    assert access(deployment).make('metadata') == deployment.metadata == Metadata()
    assert access(deployment).make_item('items', {'labels': {'a': 'b'}}) == Metadata({'a': 'b'})


@pytest.mark.parametrize('library, attribute', [('pykube', 'obj'), ('kr8s', 'raw')])
def test_wrappers_have_the_fields_of_their_contents(library, attribute):
    wrapper = type('Wrapped', (Wrapper,), {'__module__': f'{library}.objects'})(attribute)
    access(wrapper).set('b', 2)
    assert wrapper.content == {'a': 1, 'b': 2}


@pytest.mark.parametrize('obj', ['text', [], object(), Wrapper('obj'), Deployment()])
def test_objects_of_unknown_libraries_have_no_fields(obj):
    assert access(obj) is None
