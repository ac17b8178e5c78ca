import copy
import re

import pytest
import yaml
from kinds import define

import kopf
from kopf._core.reactor.condition_schemas import FIELDS, explain

CONDITIONS = {
    'type': 'array',
    'items': {'type': 'object', 'properties': {name: {'type': 'string'} for name in FIELDS}},
}
KEPT = [
    {'properties': {'status': {'properties': {'conditions': CONDITIONS}}}},
    {'x-kubernetes-preserve-unknown-fields': True},
    {'x-kubernetes-preserve-unknown-fields': True, 'properties': {'spec': {'type': 'object'}}},
    {'properties': {'status': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}},
    {'properties': {'status': {'type': 'object', 'additionalProperties': True}}},
    {
        'properties': {
            'status': {'properties': {'conditions': {'items': {'x-kubernetes-preserve-unknown-fields': True}}}}
        }
    },
]
PRUNED = {
    'status': {'type': 'object', 'properties': {'spec': {'type': 'object'}}},
    'status.conditions': {'type': 'object', 'properties': {'status': {'properties': {'other': {'type': 'string'}}}}},
    'observedGeneration': {
        'properties': {
            'status': {
                'properties': {
                    'conditions': {
                        'items': {'properties': {name: {} for name in FIELDS if name != 'observedGeneration'}},
                    }
                }
            }
        }
    },
    # Below a field of the schema, fields that it does not name are dropped, although its parent keeps them.
    "status.conditions'": {'x-kubernetes-preserve-unknown-fields': True, 'properties': {'status': {'type': 'object'}}},
}
SCHEMA = {'type': 'object', 'properties': {'spec': {'type': 'object'}}}
CRD = define('things', 'Thing', group='example.com', schema=SCHEMA)


def make_version(schema, **more):
    return {'name': 'v1', 'schema': {'openAPIV3Schema': schema}, 'subresources': {'status': {}}, **more}


@pytest.mark.parametrize('schema', KEPT, ids=range(len(KEPT)))
def test_nothing_is_wrong_with_schemas_that_keep_conditions(schema):
    assert explain(make_version(schema)) is None


@pytest.mark.parametrize('field', PRUNED)
def test_the_dropped_field_is_named_with_what_to_add(field):
    text = explain(make_version(PRUNED[field]))
    assert f'{field}' in text and 'add to schema.openAPIV3Schema' in text and '\n' not in text


def test_a_missing_subresource_is_named_with_what_to_add():
    text = explain(make_version(KEPT[0], subresources={'scale': {}}))
    assert "no status subresource" in text and text.endswith("add to the version: subresources: {status: {}}")
    both = explain(make_version(PRUNED['status'], subresources=None))
    assert "it drops 'status'" in both and "no status subresource" in both


@pytest.mark.parametrize('declared', ['option', 'argument', 'unused'])
async def test_an_operator_warns_of_it_once_if_its_handlers_set_conditions(world, declared):
    if declared == 'argument':

        @kopf.on.create('things', registry=world.registry)
        async def create(conditions, **_):
            pass
    else:

        @kopf.on.reconcile('things', conditions=declared == 'option', registry=world.registry)
        async def reconcile(**_):
            world.note('fn', None)

    await world.aio.create(CRD)
    async with world.operator():
        if declared != 'unused':
            await world.until_logged("are not kept by its CRD")
        # Another change of a CRD, after which the resources are discovered again.
        await world.aio.patch('customresourcedefinitions', 'things.example.com', {'metadata': {'labels': {'a': 'b'}}})
        kopf.on.event('others', registry=world.registry)(lambda **_: world.note('other', None))
        await world.aio.create(define('others', 'Other', group='example.com', schema=SCHEMA))
        await world.aio.create({'apiVersion': 'example.com/v1', 'kind': 'Other', 'metadata': {'name': 'x'}})
        await world.until_called('other')
    warnings = [text for text in world.log.texts if "are not kept by its CRD" in text]
    assert len(warnings) == (declared != 'unused')
    for text in warnings:
        assert text.startswith("Conditions of Thing (things.v1.example.com) are not kept by its CRD: it drops 'status'")


async def test_what_the_warning_says_mends_the_crd(world):
    @kopf.on.reconcile('things', conditions=True, interval=0.1, registry=world.registry)
    async def reconcile(**_):
        pass

    await world.aio.create(CRD)
    async with world.operator():
        await world.until_logged("are not kept by its CRD")
        await world.aio.create({'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'obj'}})
        [text] = [text for text in world.log.texts if "are not kept by its CRD" in text]
        _, first, second, *_ = re.split(r"add to [^{}]*?: (?=status|subresources)", text)
        version = copy.deepcopy(CRD['spec']['versions'][0])
        version['schema']['openAPIV3Schema']['properties'].update(yaml.safe_load(first.partition('; and ')[0]))
        version.update(yaml.safe_load(second.rstrip('.')))
        await world.aio.patch('customresourcedefinitions', 'things.example.com', {'spec': {'versions': [version]}})

        def is_ready(body):
            return [each['type'] for each in body.get('status', {}).get('conditions', [])] == ['Ready']

        await world.aio.wait_for('things', 'obj', is_ready)


async def test_an_operator_warns_if_it_is_to_keep_the_conditions_of_kinds_of_others(world):
    for resource in 'pods', 'deployments':
        kopf.on.reconcile(resource, id=resource, conditions=True, registry=world.registry)(lambda **_: None)
    kopf.on.reconcile('services', id='services', registry=world.registry)(lambda conditions, **_: None)
    async with world.operator():
        await world.until_logged("conditions=True of Reconciler 'deployments' has no effect on deployments.v1.apps")
        await world.until_logged("conditions=True of Reconciler 'pods' has no effect on pods.v1")
    assert len([text for text in world.log.texts if "has no effect" in text]) == 2
