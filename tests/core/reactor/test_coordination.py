"""Several ways to agree with other operators at once: the operator works where all of them permit it."""

import datetime
import threading

import pytest

import kopf
from kopf._core.reactor import orchestration
from kopf._core.reactor.coordination import Unanimity, make_coordinator

MINUTE = 60


class Switch:
    """A coordinator that a test decides for."""

    groups = ('switches.dev',)
    watches = ()
    keeps_warm = False
    owner_check = shard_filter = unowned = None
    runs_schedules = True

    def __init__(self, changed=lambda affected: None, noticed=lambda: None):
        self.changed = changed
        self.noticed = noticed
        self.leases = {}
        self.paused = False
        self.overdue = False
        self.closed = set()
        self.asked = 0
        self.asking = set()
        self.seen = []
        self.widening = False
        self.error = None

    @property
    def overdue_check(self):
        return self._check

    def _check(self):
        self.asked += 1
        self.asking.add(threading.current_thread())
        self.noticed()
        return self.overdue

    def is_open(self, namespace):
        return namespace not in self.closed

    def rediscover(self, resources, failed_groups):
        self.seen.append(('rediscover', resources))

    def adjust(self, namespaces, affected=None):
        self.seen.append(('adjust', namespaces, affected))
        return None if self.widening else affected

    def note_listing(self, listing):
        self.seen.append(('listing', listing))

    def note_ending(self, namespace, ending):
        self.seen.append(('ending', namespace, ending))

    def halt(self, halted):
        self.seen.append(('halt', halted))
        self.noticed()

    def end(self):
        self.seen.append(('end',))

    async def leave(self):
        self.seen.append(('leave',))
        if self.error is not None:
            raise self.error

    def pause(self, paused):
        self.paused = paused
        self.changed(None)


@pytest.fixture
def pair():
    return Switch(), Switch()


def test_one_that_pauses_is_enough(pair):
    both = Unanimity(pair)
    assert not both.paused
    pair[1].paused = True
    assert both.paused


def test_work_may_begin_where_all_permit_it(pair):
    both = Unanimity(pair)
    pair[0].closed, pair[1].closed = {'ns1'}, {'ns2'}
    assert [both.is_open(name) for name in ['ns1', 'ns2', 'ns3', None]] == [False, False, True, True]


def test_all_guards_are_asked_although_one_is_enough(pair):
    both = Unanimity(pair)
    assert not both.overdue_check()
    pair[0].overdue = True
    assert both.overdue_check()
    assert [each.asked for each in pair] == [2, 2]


def test_a_single_overdue_check_is_called_directly(pair):
    unchecked, checked = pair
    unchecked.__class__ = type('Unchecked', (Switch,), {'overdue_check': None})
    assert Unanimity([unchecked, checked]).overdue_check == checked.overdue_check


def test_everything_is_passed_on_to_all(pair):
    both = Unanimity(pair)
    both.rediscover(['resource'], set())
    both.adjust({'ns1'}, ['ns1'])
    both.note_ending('ns1', True)
    both.halt(True)
    expected = [('rediscover', ['resource']), ('adjust', {'ns1'}, ['ns1']), ('ending', 'ns1', True), ('halt', True)]
    assert [each.seen for each in pair] == [expected, expected]
    assert both.groups == {'switches.dev'}


def test_all_namespaces_are_affected_if_they_are_for_one(pair):
    both = Unanimity(pair)
    assert both.adjust({'ns1', 'ns2'}, ['ns1']) == ['ns1']
    pair[0].widening = True
    assert both.adjust({'ns1', 'ns2'}, ['ns1']) is None
    assert pair[1].seen[-1] == ('adjust', {'ns1', 'ns2'}, ['ns1'])


async def test_all_leave_although_one_fails(pair):
    pair[0].error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await Unanimity(pair).leave()
    assert pair[1].seen == [('leave',)]


async def test_without_any_the_operator_always_works():
    none = Unanimity([])
    assert not none.paused and none.is_open(None) and none.is_open('ns1') and none.overdue_check is None
    assert not none.groups and not none.watches
    assert none.adjust({'ns1'}, ['ns1']) == ['ns1']
    await none.leave()


@pytest.fixture
def switches(monkeypatch, world):
    """Return the second coordinators of all operators, beside their peerings."""
    switches = []

    def make_both(context):
        switches.append(Switch(context.controls.changed, world.changed.set))
        return Unanimity([make_coordinator(context), switches[-1]])

    monkeypatch.setattr(orchestration, 'make_coordinator', make_both)
    return switches


@pytest.fixture
async def peered(world):
    """Return a cluster with a peering, and an operator's handlers; the index shows what is seen during pauses."""
    world.sandbox.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    world.declare(kopf.index, 'index')
    world.declare(kopf.on.create, 'create')
    return world


async def put_boss(world, *, present):
    now = datetime.datetime.now(datetime.UTC).isoformat()
    record = {'priority': 100, 'lastseen': now, 'lifetime': MINUTE} if present else None
    await world.aio.patch('clusterkopfpeerings', 'default', {'status': {'boss': record}})


async def test_an_operator_works_only_if_its_peers_and_the_other_coordinator_permit_it(peered, switches):
    world = peered
    async with world.operator(standalone=False, clusterwide=True, identity='me'):
        [switch] = switches
        await world.create('first')
        await world.until_called('create')
        switch.pause(True)
        await world.create('second')
        await world.until(lambda: world.called('index', 'second'))
        await put_boss(world, present=True)
        await world.until_logged("boss")
        switch.pause(False)
        await world.create('third')
        await world.until(lambda: world.called('index', 'third'))
        assert [call.name for call in world.calls if call.id == 'create'] == ['first']
        assert ('halt', True) in switch.seen and ('halt', False) not in switch.seen
        await put_boss(world, present=False)
        await world.until(lambda: len(world.called('create')) == 3)
        assert ('leave',) not in switch.seen
    assert switch.seen[-1] == ('leave',)
    assert not (await world.aio.get('clusterkopfpeerings', 'default')).get('status')


async def test_nothing_begins_while_the_other_coordinator_is_overdue(peered, switches):
    world = peered
    async with world.operator(standalone=False, clusterwide=True, identity='me'):
        [switch] = switches
        switch.overdue = True
        await world.create('obj')
        await world.until(lambda: world.called('index', 'obj'))
        asked = switch.asked
        await world.until(lambda: switch.asked > asked)
        assert not world.called('create')
        switch.overdue = False
        await world.until_called('create')


@pytest.mark.parametrize('declare', [kopf.on.create, kopf.on.reconcile], ids=lambda each: each.__name__)
async def test_no_function_begins_in_a_thread_that_is_free_only_when_the_operator_is_overdue(world, switches, declare):
    released, begun = threading.Event(), []

    @kopf.on.startup(registry=world.registry)
    def configure(settings, **_):
        settings.execution.max_workers = 1

    @declare('kopfexamples', registry=world.registry)
    def handle(name, **_):
        begun.append(name)
        world.wake()
        assert released.wait(MINUTE)

    async with world.operator():
        [switch] = switches
        await world.create('first')
        await world.until(lambda: begun)
        await world.create('second')
        await world.until_logged("All the 1 threads of sync handlers are in use")
        switch.overdue = True
        switch.asking.clear()
        released.set()
        await world.until(lambda: switch.asking - {threading.current_thread()})
        assert begun == ['first']
        switch.overdue = False
        await world.until(lambda: begun == ['first', 'second'])


@pytest.mark.parametrize('limited', [False, True], ids=['unlimited', 'limited'])
@pytest.mark.parametrize('declare', [kopf.on.create, kopf.on.reconcile, kopf.timer], ids=lambda each: each.__name__)
async def test_no_function_begins_in_a_thread_that_is_free_only_in_a_pause(world, switches, declare, limited):
    released, begun = threading.Event(), []

    @kopf.on.startup(registry=world.registry)
    def configure(settings, **_):
        settings.execution.max_workers = 1

    @kopf.on.create('kopfexamples', registry=world.registry, labels={'blocking': 'yes'})
    def block(name, **_):
        begun.append((name, 0))
        world.wake()
        assert released.wait(MINUTE)

    options = {'interval': 1000} if declare is kopf.timer else {}
    if limited:
        options['retries'] = 1

    @declare('kopfexamples', registry=world.registry, labels={'blocking': kopf.ABSENT}, **options)
    def handle(name, retry, **_):
        begun.append((name, retry))

    async with world.operator():
        [switch] = switches
        await world.create('first', labels={'blocking': 'yes'})
        await world.until(lambda: begun)
        await world.create('second')
        await world.until_logged("All the 1 threads of sync handlers are in use")
        switch.pause(True)
        released.set()
        # The operator that takes over waits for this: it says that nothing is running here any more.
        await world.until(lambda: ('halt', True) in switch.seen)
        assert begun == [('first', 0)]
        switch.pause(False)
        await world.until(lambda: begun == [('first', 0), ('second', 0)])


async def test_a_standalone_operator_asks_no_one(world):
    world.declare(kopf.on.create, 'create')
    async with world.operator():
        await world.create()
        await world.until_called('create')
    assert not [seen for seen in world.sandbox.requests if 'peering' in seen.path]


def test_the_leases_of_all_coordinators_are_known():
    one, two = Switch(), Switch()
    one.leases, two.leases = {'lease1': True}, {'lease2': False}
    assert Unanimity([one, two]).leases == {'lease1': True, 'lease2': False}
