"""Operators warn of CRDs that drop what the storages store in the status."""

import asyncio
import dataclasses

import pytest
from kinds import define
from operatorworld import in_virtual_time, new_world

import kopf
from kopf._core.intents.declared_kinds import get_kind
from kopf._kits.definitions.crd_documents import make_crds

KEPT = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}


@dataclasses.dataclass
class Status:
    ready: int | None = None


@dataclasses.dataclass
class Thing:
    spec: dict[str, str]
    status: Status | None = None


@pytest.fixture
def world():
    with new_world(virtual_time=True) as world:
        yield world


def list_warnings(world):
    return [text for text in world.log.texts if 'settings.persistence.' in text]


def make_schema(**fields):
    status = {'type': 'object', 'properties': {'ready': {'type': 'integer'}, **fields}}
    return {'type': 'object', 'properties': {'status': status}}


async def operate(world, schema, on=kopf.on.create):
    on('things', registry=world.registry)(lambda **_: None)
    await world.aio.create(define('things', 'Thing', group='example.com', schema=schema))
    async with world.operator(clusterwide=True):
        await asyncio.sleep(10)
    return list_warnings(world)


@in_virtual_time
async def test_the_generated_crd_of_a_class_drops_the_state(world):
    kopf.kind('example.com/v1', registry=world.registry)(Thing)
    kopf.on.create(Thing, registry=world.registry)(lambda **_: None)
    world.settings.persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
    [crd] = make_crds([get_kind(Thing)], warn=print)
    await world.aio.create(crd)
    async with world.operator(clusterwide=True):
        await asyncio.sleep(10)
    [text] = list_warnings(world)
    assert text.startswith(
        "settings.persistence.diffbase_storage stores in 'status.kopf.last-handled-configuration', but the schema in "
        "the CRD 'things.example.com' drops this field, so creation handlers are called again for each change"
    )
    assert 'status: {type: object, properties: {kopf: {type: object, x-kubernetes-preserve-unknown-fields: t' in text


@in_virtual_time
async def test_each_storage_is_named(world):
    world.settings.persistence.progress_storage = kopf.StatusProgressStorage(field='status.records')
    world.settings.persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
        [
            kopf.StatusDiffBaseStorage(field='status.state'),
        ]
    )
    essence, progress = await operate(world, make_schema(records={'type': 'object'}))
    assert "diffbase_storage stores in 'status.state'" in essence and '{state: {type: string}}' in essence
    assert "progress_storage stores in 'status.records'" in progress and '{records: {type: object, x-' in progress


@in_virtual_time
async def test_nothing_is_said_if_the_state_is_kept(world):
    world.settings.persistence.progress_storage = kopf.StatusProgressStorage()
    world.settings.persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
    assert not await operate(world, make_schema(kopf=KEPT))


@in_virtual_time
async def test_nothing_is_said_if_it_is_in_annotations_too(world):
    world.settings.persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
        [
            kopf.StatusDiffBaseStorage(),
            kopf.AnnotationsDiffBaseStorage(),
        ]
    )
    assert not await operate(world, make_schema())


@in_virtual_time
async def test_nothing_is_said_if_no_state_is_stored(world):
    world.settings.persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
    assert not await operate(world, make_schema(), on=kopf.on.event)
