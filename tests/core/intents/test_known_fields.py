"""The fields that a schema has, and those that it lacks."""

import pytest

from kopf._core.intents.known_fields import Schema, UnknownField

STRUCTURAL = Schema(
    {
        'type': 'object',
        'properties': {
            'spec': {
                'type': 'object',
                'properties': {
                    'replicas': {'type': 'integer'},
                    'env': {'type': 'object', 'additionalProperties': {'type': 'string'}},
                    'limits': {
                        'type': 'object',
                        'additionalProperties': {'type': 'object', 'properties': {'cpu': {'type': 'string'}}},
                    },
                    'template': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True},
                    'object': {'type': 'object', 'x-kubernetes-embedded-resource': True},
                    'any': {'type': 'object', 'additionalProperties': True},
                },
            },
            'status': {'type': 'object'},
        },
    },
    is_structural=True,
)


@pytest.mark.parametrize(
    'path',
    [
        'metadata.labels.x',
        'kind',
        'spec',
        'spec.replicas',
        'spec.env.any',
        'spec.limits.any.cpu',
        'spec.template.any.field',
        'spec.object.spec',
        'spec.any.any.any',
        'status',
    ],
)
def test_fields_that_can_exist_are_not_unknown(path):
    assert STRUCTURAL.find_unknown(path.split('.')) is None


@pytest.mark.parametrize(
    'path, unknown, known',
    [
        ('spc', 'spc', {'spec', 'status'}),
        ('spec.replcas', 'spec.replcas', {'replicas', 'env', 'limits', 'template', 'object', 'any'}),
        ('spec.replicas.x', 'spec.replicas.x', set()),
        ('spec.env.any.x', 'spec.env.any.x', set()),
        ('spec.limits.any.memory', 'spec.limits.any.memory', {'cpu'}),
        ('status.phase.x', 'status.phase', set()),
    ],
)
def test_the_first_unknown_field_is_found(path, unknown, known):
    assert STRUCTURAL.find_unknown(path.split('.')) == UnknownField(tuple(unknown.split('.')), known)


def test_any_field_can_exist_without_a_schema_or_in_an_endless_one():
    assert Schema(None, is_structural=True).find_unknown(['spec', 'x']) is None
    endless = {'properties': {'spec': {'$ref': '#/$defs/A'}}, '$defs': {'A': {'$ref': '#/$defs/A'}}}
    assert Schema(endless, is_structural=False).find_unknown(['spec', 'x']) is None


def test_strangers_are_the_fields_that_the_schema_lacks_outside_of_lists():
    body = {
        'metadata': {'labels': {'a': 'b'}},
        'spec': {'replicas': 1, 'x': {'y': 1}, 'env': {'A': 'b'}, 'limits': {'a': {'cpu': '1', 'memory': '2'}}},
        'status': {'phase': 'x'},
        'other': 1,
    }
    assert set(STRUCTURAL.find_strangers(body)) == {
        ('spec', 'x'),
        ('spec', 'limits', 'a', 'memory'),
        ('status', 'phase'),
        ('other',),
    }
