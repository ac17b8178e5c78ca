"""Operators warn of fields of handlers that the CRDs lack, without further requests."""

import asyncio
import dataclasses

import pytest
from kinds import define
from operatorworld import in_virtual_time, new_world

import kopf

SCHEMA = {
    'type': 'object',
    'properties': {'spec': {'type': 'object', 'properties': {'field': {'type': 'string'}}}},
}
OPEN = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
TEXT = "but the schema in the CRD 'things.example.com' has no such field. Did you mean 'spec.field'?"


@pytest.fixture
def world():
    with new_world(virtual_time=True) as world:
        yield world


def list_warnings(world):
    return [text for text in world.log.texts if "has no such field" in text]


def declare(world, field, **options):
    kopf.on.update('things', field=field, registry=world.registry, **options)(lambda **_: None)


@in_virtual_time
async def test_a_field_that_the_crd_lacks_is_told_once(world):
    declare(world, 'spec.feild')
    declare(world, 'spec.field')
    await world.aio.create(define('things', 'Thing', group='example.com', schema=SCHEMA))
    async with world.operator(clusterwide=True):
        await world.until_logged(TEXT)
        await world.aio.patch('customresourcedefinitions', 'things.example.com', {'metadata': {'labels': {'a': 'b'}}})
        await world.aio.create(define('others', 'Other', group='example.com', schema=SCHEMA))
        await asyncio.sleep(10)
    [text] = list_warnings(world)
    assert "has field='spec.feild', " in text


@in_virtual_time
async def test_a_crd_that_comes_later_is_compared_too(world):
    declare(world, 'spec.feild')
    async with world.operator(clusterwide=True):
        await asyncio.sleep(1)
        assert not list_warnings(world)
        await world.aio.create(define('things', 'Thing', group='example.com', schema=SCHEMA))
        await world.until_logged(TEXT)


@in_virtual_time
async def test_nothing_is_said_of_open_schemas_and_of_fields_that_exist(world):
    declare(world, 'spec.feild')
    declare(world, 'spec.field')
    await world.aio.create(define('things', 'Thing', group='example.com', schema=OPEN))
    async with world.operator(clusterwide=True):
        await asyncio.sleep(10)
    assert not list_warnings(world)


@in_virtual_time
async def test_no_requests_are_made_for_it(world):
    await world.aio.create(define('things', 'Thing', group='example.com', schema=SCHEMA))
    requests = []
    for field in (None, 'spec.feild'):
        world.replace_code()
        declare(world, field)
        before = len(world.sandbox.requests)
        async with world.operator(clusterwide=True):
            await asyncio.sleep(10)
        requests.append(sorted((each.method, each.path) for each in world.sandbox.requests[before:]))
    assert requests[0] == requests[1] and len(list_warnings(world)) == 1


@dataclasses.dataclass
class Model:
    spec: dict[str, str]


@in_virtual_time
async def test_declared_kinds_are_compared_with_their_classes_before_any_request(world):
    kopf.kind('example.com/v1', 'Thing', registry=world.registry)(Model)
    declare(world, 'spec.feild')  # which the class permits
    kopf.on.field(Model, field='spc', registry=world.registry)(lambda **_: None)
    world.sandbox.faults.refuse_connections()
    async with asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()
        tasks.create_task(kopf.operator(registry=world.registry, settings=world.settings, stop_flag=stop))
        await world.until_logged("the class Model has no such field. Did you mean 'spec'?")
        stop.set()
    assert len(list_warnings(world)) == 1
