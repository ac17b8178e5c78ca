"""Breaking changes of CRDs: what breaks stored objects and clients is found, and nothing else."""

import copy
import re

import pytest

from kopf._kits.definitions.crd_changes import find_breaking_changes

SCHEMA = {
    'type': 'object',
    'properties': {
        'spec': {
            'type': 'object',
            'required': ['name'],
            'properties': {
                'name': {'type': 'string', 'minLength': 1, 'maxLength': 9},
                'size': {'type': 'integer', 'minimum': 1, 'maximum': 9, 'default': 3},
                'mode': {'type': 'string', 'enum': ['a', 'b'], 'nullable': True},
                'port': {'x-kubernetes-int-or-string': True},
                'ports': {'type': 'array', 'items': {'type': 'integer'}, 'x-kubernetes-list-type': 'set'},
                'free': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
                'labels': {'type': 'object', 'additionalProperties': {'type': 'string'}},
            },
        },
        'status': {'type': 'object', 'properties': {'ready': {'type': 'integer'}}},
    },
}


def make_crd():
    return copy.deepcopy(
        {
            'metadata': {'name': 'webapps.example.com'},
            'spec': {
                'group': 'example.com',
                'scope': 'Namespaced',
                'names': {'kind': 'WebApp', 'plural': 'webapps', 'singular': 'webapp', 'shortNames': ['wa']},
                'versions': [
                    {
                        'name': 'v1',
                        'served': True,
                        'storage': True,
                        'schema': {'openAPIV3Schema': SCHEMA},
                        'subresources': {'status': {}, 'scale': {'specReplicasPath': '.spec.size'}},
                        'additionalPrinterColumns': [{'name': 'Size', 'type': 'integer', 'jsonPath': '.spec.size'}],
                    },
                    {'name': 'v1beta1', 'served': True, 'storage': False},
                ],
            },
        }
    )


def edit(path, value):
    """Return the CRD with a new value in a field of the spec of its first version, or of the CRD itself."""
    crd = make_crd()
    place = crd['spec']
    if path[0] == 'schema':
        place, path = place['versions'][0]['schema']['openAPIV3Schema']['properties']['spec'], path[1:]
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return crd


PROPERTIES = ('schema', 'properties')

BREAKING = {
    'the scope': (('scope',), 'Cluster', 'the scope changes'),
    'the kind': (('names', 'kind'), 'App', 'names.kind changes from WebApp to App'),
    'a short name': (('names', 'shortNames'), ['app'], "'wa' is removed from names.shortNames"),
    'a version': (('versions',), make_crd()['spec']['versions'][:1], 'v1beta1: the version is removed'),
    'a served version': (('versions', 1, 'served'), False, 'v1beta1: the version is not served any more'),
    'the status': (('versions', 0, 'subresources', 'status'), None, 'the status subresource is removed'),
    'the scale': (('versions', 0, 'subresources', 'scale'), None, 'the scale subresource is removed'),
    'a path of the scale': (
        ('versions', 0, 'subresources', 'scale', 'specReplicasPath'),
        '.spec.x',
        'specReplicasPath of the scale',
    ),
    'a column': (('versions', 0, 'additionalPrinterColumns'), [], "the column 'Size' is removed"),
    'a field': ((*PROPERTIES, 'size'), None, '.spec.size: the field is removed'),
    'a type': ((*PROPERTIES, 'size'), {'type': 'string'}, 'the type changes from integer to string'),
    'a narrower type': ((*PROPERTIES, 'port'), {'type': 'integer'}, 'from int-or-string to integer'),
    'a required field': (('schema', 'required'), ['name', 'mode'], '.spec.mode: the field becomes required'),
    'a minimum': ((*PROPERTIES, 'size', 'minimum'), 2, 'minimum becomes 2, which was 1'),
    'a maximum': ((*PROPERTIES, 'size', 'maximum'), 8, 'maximum becomes 8, which was 9'),
    'a length': ((*PROPERTIES, 'name', 'maxLength'), 5, 'maxLength becomes 5'),
    'a new limit': ((*PROPERTIES, 'ports', 'maxItems'), 5, 'maxItems becomes 5, which was absent'),
    'an exclusive limit': ((*PROPERTIES, 'size', 'exclusiveMinimum'), True, 'minimum becomes exclusive'),
    'a divisor': ((*PROPERTIES, 'size', 'multipleOf'), 2, 'multipleOf becomes 2'),
    'a pattern': ((*PROPERTIES, 'name', 'pattern'), '^a', r"the pattern becomes '\^a'"),
    'a format': ((*PROPERTIES, 'name', 'format'), 'uuid', "the format becomes 'uuid'"),
    'a value of an enum': ((*PROPERTIES, 'mode', 'enum'), ['a', 'c'], "the values 'b' are removed from the enum"),
    'a value of an enum in a branch': (
        (*PROPERTIES, 'mode'),
        {'type': 'string', 'nullable': True, 'allOf': [{'enum': ['a']}]},
        "the values 'b' are removed from the enum",
    ),
    'an enum': ((*PROPERTIES, 'name', 'enum'), ['a'], 'the values are restricted by an enum'),
    'a null': ((*PROPERTIES, 'mode', 'nullable'), False, 'null is not permitted any more'),
    'a default': ((*PROPERTIES, 'size', 'default'), 4, 'the default changes from 3 to 4'),
    'no default': ((*PROPERTIES, 'size', 'default'), None, 'the default changes from 3 to absent'),
    'a list type': ((*PROPERTIES, 'ports', 'x-kubernetes-list-type'), 'atomic', 'from set to atomic'),
    'items': ((*PROPERTIES, 'ports', 'items', 'type'), 'string', r'.spec.ports\[\]: the type changes'),
    'unknown fields': (
        (*PROPERTIES, 'free', 'x-kubernetes-preserve-unknown-fields'),
        None,
        'unknown fields are not preserved any more',
    ),
    'arbitrary keys': ((*PROPERTIES, 'labels', 'additionalProperties'), None, 'arbitrary keys are not permitted'),
    'a rule': (
        ('schema', 'x-kubernetes-validations'),
        [{'rule': 'self.size > 1'}],
        "the rule 'self.size > 1' is added",
    ),
    'an alternative': (('schema', 'anyOf'), [{'required': ['size']}], 'anyOf has changed'),
}

HARMLESS = {
    'a new field': ((*PROPERTIES, 'other'), {'type': 'string'}),
    'a required field with a default': (('schema', 'required'), ['name', 'size']),
    'an optional field': (('schema', 'required'), []),
    'a lower minimum': ((*PROPERTIES, 'size', 'minimum'), 0),
    'no maximum': ((*PROPERTIES, 'size', 'maximum'), None),
    'a wider type': ((*PROPERTIES, 'size'), {'type': 'number', 'minimum': 1, 'maximum': 9, 'default': 3}),
    'another value of an enum': ((*PROPERTIES, 'mode', 'enum'), ['a', 'b', 'c']),
    'an enum in a branch': (
        (*PROPERTIES, 'mode'),
        {'type': 'string', 'nullable': True, 'allOf': [{'enum': ['b', 'a']}]},
    ),
    'no enum': ((*PROPERTIES, 'mode', 'enum'), None),
    'a new default': ((*PROPERTIES, 'name', 'default'), 'x'),
    'a description': ((*PROPERTIES, 'name', 'description'), 'The name.'),
    'a new short name': (('names', 'shortNames'), ['wa', 'app']),
    'a deprecated version': (('versions', 1, 'deprecated'), True),
}


@pytest.mark.parametrize('path, value, message', BREAKING.values(), ids=BREAKING)
def test_a_breaking_change_is_found(path, value, message):
    changes = list(find_breaking_changes([make_crd()], [edit(path, value)]))
    assert len(changes) == 1
    assert re.search(message, str(changes[0]))
    assert str(changes[0]).startswith('webapps.example.com')


@pytest.mark.parametrize('path, value', HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_change_is_not_reported(path, value):
    assert list(find_breaking_changes([make_crd()], [edit(path, value)])) == []


def test_a_crd_that_is_gone_is_found():
    [change] = find_breaking_changes([make_crd()], [])
    assert str(change) == 'webapps.example.com: the CRD is removed; the API server would delete its objects.'


def test_a_new_crd_breaks_nothing():
    assert list(find_breaking_changes([], [make_crd()])) == []


def test_the_same_crd_breaks_nothing():
    assert list(find_breaking_changes([make_crd()], [make_crd()])) == []
