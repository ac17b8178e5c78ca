"""Wall clocks that are set forward and back, by hours: delays stay as they are, and no operator waits longer."""

import asyncio
import datetime
import json

import pytest
from operatorworld import in_virtual_time

import kopf
from kopf._cogs.helpers import clocks
from kopf._core.engines import peering_member

HOUR = datetime.timedelta(hours=1)


class Clock:
    """The wall clock of the machine, which can be set."""

    def __init__(self):
        self.shift = datetime.timedelta()

    def read(self):
        return datetime.datetime.now(datetime.UTC) + self.shift


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    for module in (clocks, peering_member):
        monkeypatch.setattr(module, 'read_wall_clock', clock.read)
    yield clock
    # Virtual time has read the clock that was set, when it ended: the next test would have it.
    clock.shift = datetime.timedelta()
    clocks.restart()


def progress_of(body, id='create'):
    return json.loads((body['metadata'].get('annotations') or {}).get(f'kopf.zalando.org/{id}', '{}'))


@pytest.mark.parametrize('shift', [HOUR, -HOUR], ids=['forward', 'back'])
@in_virtual_time
async def test_delays_and_timers_do_not_depend_on_the_wall_clock(world, clock, shift):
    loop, times = asyncio.get_running_loop(), []

    async def work(retry, **_):
        times.append(loop.time())
        if not retry:
            clock.shift += shift
            raise kopf.TemporaryError('later', delay=0.3)

    world.declare(kopf.on.create, 'create', does=work, timeout=600)
    world.declare(kopf.timer, 'timer', interval=0.1)
    async with world.operator():
        await world.create()
        await world.until_called('create')
        await world.aio.patch('kopfexamples', 'obj', {'status': {'it': 'is looked at again'}})
        await world.handled()
        await world.until_called('timer', len(world.called('timer')) + 2)
    first, second = world.called('create')
    assert 0.29 < times[1] - times[0] < 60
    assert first['started'] == second['started']
    assert 0.29 < second['runtime'].total_seconds() < 60


@pytest.mark.parametrize('correction', [datetime.timedelta(), -HOUR, HOUR], ids=['same', 'back', 'forward'])
@in_virtual_time
async def test_times_are_stored_by_the_wall_clock_and_never_stall_others(world, clock, correction):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError('later', delay=0.2)])
    async with world.operator():
        await world.create()
        clock.shift += HOUR
        body = await world.aio.wait_for('kopfexamples', 'obj', progress_of)
    stored = {
        key: datetime.datetime.fromisoformat(progress_of(body)[key]) - clock.read() for key in ('started', 'delayed')
    }
    assert all(abs(distance.total_seconds()) < 60 for distance in stored.values())
    clock.shift += correction
    async with world.operator():
        await world.handled()
    assert [kwargs['retry'] for kwargs in world.called('create')] == [0, 1]


@in_virtual_time
async def test_peers_are_believed_by_our_own_patience(world, clock):
    """An operator that renews its record is alive, whatever the clocks say."""
    await world.aio.apply((world.root / 'peering.yaml').read_text())
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    world.declare(kopf.on.create, 'create')
    world.settings.peering.name, world.settings.peering.clusterwide = 'default', True

    async def tell(**status):
        await world.aio.patch('clusterkopfpeerings', 'default', {'status': status})

    boss = {'priority': 100, 'lifetime': 60, 'lastseen': clock.read().isoformat()}
    async with world.operator(standalone=False):
        await world.create('before')
        await world.handled('before')
        await tell(boss=boss)
        await world.until_logged('Pausing operations')
        for number, shift in enumerate([HOUR, -2 * HOUR]):
            lastseen = clock.read().isoformat()
            clock.shift += shift
            await tell(boss={**boss, 'lastseen': lastseen})
            await world.create(f'after{number}')
            await asyncio.sleep(0.1)
            assert world.ids == ['create']
        await tell(boss=None)
        await world.handled('after1')
