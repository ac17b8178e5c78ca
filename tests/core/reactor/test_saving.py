"""Progress that is only in memory is stored before the operator ends, pauses, or loses sight of the object."""

import asyncio
import datetime
import time

import pytest
from operatorworld import in_virtual_time

import kopf


@pytest.fixture
def impatient(world):
    world.settings.queueing.exit_timeout = 1.0
    return world


def hold(world, seconds):
    @kopf.daemon('kopfexamples', registry=world.registry, id='hold')
    async def daemon(name, stopped, **_):
        world.note('held', name)
        await stopped.wait()
        world.note('stopped', name)
        await asyncio.sleep(seconds)


@in_virtual_time
async def test_deletion_handlers_are_not_repeated_after_an_end_with_daemons(world):
    world.declare(kopf.on.delete, 'delete')
    hold(world, 0.3)
    async with world.operator():
        await world.create()
        await world.until_called('held')
        await world.delete()
        await world.until_called('delete')
    await world.gone()
    assert len(world.called('delete')) == 1


async def test_deletion_handlers_are_not_repeated_by_the_operator_that_takes_over(world):
    world.declare(kopf.on.delete, 'delete')
    hold(world, 0.3)
    world.sandbox.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    async with world.operator(standalone=False, clusterwide=True, peering_name='default'):
        await world.create()
        await world.until_called('held')
        await world.delete()
        await world.until_called('stopped')
        now = datetime.datetime.now(datetime.UTC).isoformat()
        await world.aio.patch(
            'clusterkopfpeerings', 'default', {'status': {'other': {'priority': 100, 'lastseen': now, 'lifetime': 60}}}
        )
        await world.aio.wait_for(
            'kopfexamples', 'obj', lambda obj: 'kopf.zalando.org/delete' in obj['metadata']['annotations']
        )
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'other': None}})
        await world.gone()
    assert len(world.called('delete')) == 1


async def test_successes_are_not_lost_when_those_after_them_are_cancelled(impatient):
    world = impatient

    async def succeed(patch, **_):
        patch.status['patched'] = True
        return 'result'

    world.declare(kopf.on.create, 'quick', does=succeed)
    world.declare(kopf.on.create, 'slow', does=[lambda **_: asyncio.sleep(60), None])
    async with world.operator(lifecycle=kopf.lifecycles.all_at_once):
        await world.create()
        await world.until_called('slow')
    assert (await world.get())['status'] == {'quick': 'result', 'patched': True}
    async with world.operator():
        await world.handled()
    assert world.ids == ['quick', 'slow', 'slow']


@in_virtual_time
async def test_successes_that_could_not_be_stored_are_stored_in_the_end(world):
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'create', does='result')
    world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=None)
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 60 seconds')
        world.sandbox.faults.clear()
    assert (await world.handled())['status'] == {'create': 'result'}
    assert len(world.called('create')) == 1


@in_virtual_time
async def test_successes_are_stored_in_the_end_although_the_storage_fails_once_more(world):
    class Storage(kopf.AnnotationsProgressStorage):
        failures = 2

        def store(self, **kwargs):
            if Storage.failures:
                Storage.failures -= 1
                raise RuntimeError("It is not available.")
            super().store(**kwargs)

    world.settings.persistence.progress_storage = Storage()
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'first')
    world.declare(kopf.on.create, 'second')
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 60 seconds')
    assert Storage.failures == 0
    async with world.operator():
        await world.handled()
    assert world.ids == ['first', 'second']


async def test_successes_that_can_never_be_stored_are_logged(impatient):
    world = impatient
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'create', does='result')
    world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=None)
    async with world.operator():
        await world.create()
        await world.until_logged('Throttling for 60 seconds')
    await world.until_logged("The results of the handlers of 1 objects can't be stored")
    world.sandbox.faults.clear()


@in_virtual_time
async def test_successes_are_stored_also_when_the_object_leaves_the_selection(world):
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'create', does='result')
    world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=None)
    async with world.operator():
        await world.create(labels={'app': 'x'})
        await world.until_logged('Throttling for 60 seconds')
        world.sandbox.faults.clear()
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.handled()
        await world.edit(metadata={'labels': {'app': 'x'}})
    assert len(world.called('create')) == 1


@pytest.mark.parametrize('way', ['comes back', 'stays away', 'is deleted'])
@in_virtual_time
async def test_successes_that_cannot_be_stored_yet_are_kept_while_the_object_is_out_of_the_selection(world, way):
    def failures():
        return sum('Throttling for 5 seconds' in text for text in world.log.texts)

    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [5]
    world.declare(kopf.on.create, 'create', does='result')
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        world.sandbox.faults.error(403, method='PATCH', resource='kopfexamples', times=None)
        await world.create(labels={'app': 'x'})
        await world.until(failures)
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.until(lambda: failures() == 3)
        started = time.monotonic()
        if way == 'is deleted':
            await world.delete()
        else:
            if way == 'comes back':
                await world.edit(metadata={'labels': {'app': 'x'}})
            await world.until(lambda: failures() == 5)
            assert time.monotonic() - started > (5 if way == 'comes back' else 9)
            if way == 'comes back':
                assert world.called('event')[-1]['type'] == 'ADDED'
            world.sandbox.faults.clear()
            await world.handled()
            await world.edit(field='edited', metadata={'labels': {'app': 'x'}})
            await world.handled(field='edited')
        await world.until_logged('Throttling is over')
    assert len(world.called('create')) == 1
    assert [kwargs['type'] for kwargs in world.called('event')].count('DELETED') == 1


async def delete_in_vain(world):
    """Let the operator handle the deletion of a new object, but not store that it has done so."""
    await world.create(labels={'app': 'x'})
    await world.handled()
    world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=None)
    await world.delete()
    await world.until_logged('Throttling for 60 seconds')
    world.sandbox.faults.clear()


@in_virtual_time
async def test_deletions_are_stored_also_when_the_object_leaves_the_selection(world):
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await delete_in_vain(world)
        await world.edit(metadata={'labels': {'app': 'y'}})
        await world.gone()  # it is freed at once, whether it ever comes back or not
    assert len(world.called('delete')) == 1


@pytest.mark.parametrize('leaving', [True, False])
@in_virtual_time
async def test_deletions_are_stored_at_last_even_if_the_object_changes_all_the_time(world, leaving):
    world.settings.watching.label_selectors['kopfexamples'] = 'app=x'
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.delete, 'delete')
    async with world.operator():
        await delete_in_vain(world)
        world.sandbox.faults.error(409, method='PATCH', resource='kopfexamples', user_agent='kopf', times=7)
        if leaving:
            await world.edit(metadata={'labels': {'app': 'y'}})
            await world.gone()
    await world.gone()
    assert len(world.called('delete')) == 1


class Database:
    """The records of one object, outside of the cluster."""

    def __init__(self):
        self.progress, self.handled = {}, None

    def install(self, persistence):
        database = self

        class Progress(kopf.ProgressStorage):
            def fetch(self, *, key, body):
                return database.progress.get(key)

            def store(self, *, key, record, body, patch):
                database.progress[key] = record

            def purge(self, *, key, body, patch):
                database.progress.pop(key, None)

        class DiffBase(kopf.AnnotationsDiffBaseStorage):
            def fetch(self, *, body):
                return super().fetch(body=body) if database.handled is None else database.handled

            def store(self, *, body, patch, essence):
                database.handled = None
                super().store(body=body, patch=patch, essence=essence)

        persistence.progress_storage, persistence.diffbase_storage = Progress(), DiffBase()


@pytest.mark.parametrize('touched', [None, 'progress', 'handled'])
async def test_successes_that_could_not_be_stored_before_a_pause_count_after_it_with_external_storages(world, touched):
    database = Database()
    database.install(world.settings.persistence)
    world.settings.queueing.error_delays = [60]
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    world.sandbox.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})

    async def put(record):
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'other': record}})

    async with world.operator(standalone=False, clusterwide=True, peering_name='default'):
        world.sandbox.faults.error(500, method='PATCH', resource='kopfexamples', times=None)
        await world.create()
        await world.until_logged('Throttling for 60 seconds')
        await put({'priority': 100, 'lastseen': datetime.datetime.now(datetime.UTC).isoformat(), 'lifetime': 60})
        # Tried at the beginning of the pause, and once more when all work has ended.
        await world.until(lambda: sum("1 objects can't be stored" in text for text in world.log.texts) == 2)
        if touched == 'progress':
            database.progress['update'] = {'purpose': 'create', 'started': '2020-01-01T00:00:00Z', 'success': True}
        if touched == 'handled':
            database.handled = {'spec': {'field': 'other'}}
        world.sandbox.faults.clear()
        await put(None)
        await world.handled()
    assert world.ids == {None: ['create'], 'progress': ['create', 'create'], 'handled': ['create', 'update']}[touched]


@in_virtual_time
async def test_the_update_after_an_edit_that_was_taken_back_begins_at_once_with_external_storages(world):
    Database().install(world.settings.persistence)
    world.declare(kopf.on.create, 'one')
    world.declare(kopf.on.create, 'two', does=[kopf.TemporaryError('wait', delay=10), None])
    world.declare(kopf.on.create, 'three', does=[kopf.TemporaryError('wait', delay=30), None])
    world.declare(kopf.on.update, 'update')
    async with world.operator():
        await world.create(spec={'field': 'v1'})
        await world.until_called('three')
        await world.edit(field='v2')
        await world.until_called('two', 2)
        await world.edit(field='v1')
        await world.until_called('three', 2)
        await world.until_called('update')
    assert [call['spec']['field'] for call in world.called('two')] == ['v1', 'v2']
