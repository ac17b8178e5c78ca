"""What the processors of a sharded operator get: only the objects of this member, in states that are new enough."""

import time

import pytest

from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.shard_sinks import ShardSink


class Processor:
    def __init__(self):
        self.events = []
        self.relists = 0
        self.disowned_names = []

    def receive(self, record, event, *, listed_since):
        self.events.append((record.name, event['type']))

    def relisting(self, watch, taken):
        self.relists += 1

    def resumed(self, watch):
        pass

    def listed(self, watch):
        pass

    def surrendered(self, records):
        pass

    def disowned(self, records):
        self.disowned_names += [record.name for record in records]


class Watch:
    def __init__(self):
        self.records = {name: ObjectRecord(name, 'ns', name, initial=False) for name in 'xy'}

    def get_known(self):
        return self.records.values()


class World:
    def __init__(self):
        self.owned = {'x'}
        self.watch = Watch()
        self.processor = Processor()
        self.sink = ShardSink(self.processor, lambda record: record.name in self.owned)

    def receive(self, name, type, listed_since=None):
        self.sink.receive(self.watch.records[name], {'type': type, 'object': {}}, listed_since=listed_since)


@pytest.fixture
def world():
    return World()


def test_events_of_foreign_objects_are_not_passed_on(world):
    world.receive('x', 'MODIFIED')
    world.receive('y', 'MODIFIED')
    assert world.processor.events == [('x', 'MODIFIED')]
    assert world.watch.records['y'].initial and not world.watch.records['x'].initial


@pytest.mark.parametrize('begin', ['relisting', 'resumed'])
def test_an_object_exists_only_as_it_is_listed_after_it_was_taken(world, begin):
    before = time.monotonic() - 1
    world.owned = {'x', 'y'}
    if begin == 'relisting':
        world.sink.relisting(world.watch, lambda record: record.name == 'y')
    else:
        world.sink.resumed(world.watch)
    world.receive('y', 'MODIFIED')  # from the stream before the list
    world.receive('y', None, before)  # from a list before that, whose index functions have taken long
    assert world.processor.events == []
    world.receive('y', None, time.monotonic())
    world.receive('y', 'MODIFIED')
    assert world.processor.events == [('y', None), ('y', 'MODIFIED')]


def test_objects_that_were_handled_before_get_their_events_during_the_list(world):
    world.owned = {'x', 'y'}
    world.sink.relisting(world.watch, lambda record: record.name == 'y')
    world.receive('x', 'MODIFIED')
    assert world.processor.events == [('x', 'MODIFIED')]


def test_an_object_that_is_gone_before_it_is_listed_was_never_there(world):
    world.owned = {'x', 'y'}
    world.sink.relisting(world.watch, lambda record: record.name == 'y')
    world.receive('y', 'DELETED', time.monotonic())
    assert world.processor.events == []


@pytest.mark.parametrize('owned', [{'x', 'y'}, {'x'}])
def test_what_is_known_of_an_object_from_a_former_term_is_released_when_it_is_gone(world, owned):
    world.owned = {'x', 'y'}
    world.receive('y', 'MODIFIED')
    world.sink.resumed(world.watch)  # the member has lost its Lease, and has another one now
    world.owned = owned
    world.receive('y', 'DELETED', time.monotonic())
    assert world.processor.events == [('y', 'MODIFIED')]
    assert world.processor.disowned_names == ['y']


@pytest.mark.parametrize('begin', ['relisting', 'resumed'])
def test_an_object_that_is_absent_from_the_list_can_return_later(world, begin):
    world.owned = {'x', 'y'}
    if begin == 'relisting':
        world.sink.relisting(world.watch, lambda record: record.name == 'y')
    else:
        world.sink.resumed(world.watch)
    world.receive('y', 'MODIFIED')
    world.sink.listed(world.watch)
    world.receive('y', 'ADDED')
    assert world.processor.events == [('y', 'ADDED')]


def test_an_object_that_is_given_away_again_is_not_waited_for(world):
    world.owned = {'x', 'y'}
    world.sink.relisting(world.watch, lambda record: record.name == 'y')
    world.sink.surrendered(list(world.watch.get_known()))
    world.receive('y', 'MODIFIED')  # the next taking begins with `relisting` again
    assert world.processor.events == [('y', 'MODIFIED')]
