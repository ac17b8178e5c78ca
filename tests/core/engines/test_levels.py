"""What the level-triggered handlers of an object are triggered by: its states, in the order in which they come."""

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Outcome
from kopf._core.engines.levels import Leveler, Levels
from kopf._core.engines.spawning import OperatorDaemons
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.registries import HandlerTable
from kopf._core.reactor.object_records import ObjectRecord

KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)


class World:
    """One object, and the leveler of its resource; workers come when the test says so."""

    def __init__(self):
        self.registry = kopf.OperatorRegistry()
        self.record = ObjectRecord('uid', 'ns', 'obj', initial=False)
        self.called = 0
        self.mutations = []

    def start(self, **options):
        kopf.on.reconcile('kopfexamples', registry=self.registry, **options)(lambda **_: None)
        selectors = set(self.registry.iter_selectors())
        self.table = HandlerTable.build(self.registry, KEX, selectors)
        settings = kopf.OperatorSettings()
        context = OperatorContext(settings=settings, registry=self.registry)
        self.levels = Levels(context, OperatorDaemons(settings), self)
        self.leveler = Leveler(self, Decider(self.table, settings.persistence), self.levels)
        return self

    # The host.

    def call(self, record, *, urgent):
        self.called += 1
        return True

    def is_cancelled(self):
        return False

    def get_memo(self, record):
        return None

    def report_mutation(self, record, explanation, keys):
        self.mutations.append(explanation)

    # The object.

    @staticmethod
    def state(version, field='x', **metadata):
        return {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfExample',
            'metadata': {'name': 'obj', 'namespace': 'ns', 'uid': 'uid', 'resourceVersion': str(version), **metadata},
            'spec': {'field': field},
        }

    def receive(self, *args, asked_at=None, **kwargs):
        self.leveler.receive(self.record, self.state(*args, **kwargs), asked_at=asked_at)

    def run(self):
        """Run what is due; return for what reasons."""
        run = self.leveler.begin(self.record)
        if run is None:
            return None
        self.leveler.end(run, Outcome(final=True))
        return set(run.reasons)


@pytest.fixture
def world():
    return World()


async def test_only_new_essences_trigger(world):
    world.start()
    world.receive(1)
    assert world.run() == {'change'}
    world.receive(1)
    world.receive(2)
    world.receive(3, annotations={'kopf.zalando.org/x': 'y'})
    assert world.run() is None
    world.receive(4, 'y')
    assert world.run() == {'change'} and world.run() is None


async def test_older_states_do_not_trigger_unless_they_are_listed_later(world, monkeypatch):
    world.start()
    world.receive(5, 'y')
    world.run()
    world.receive(4, 'x')
    assert world.run() is None
    world.receive(4, 'x', asked_at=float('inf'))  # the storage was restored from a backup
    assert world.run() == {'change'}


async def patch(world, *during, answer, field='patched'):
    """Run the handler with a patch of the field; meanwhile, these states come by the stream."""
    run = world.leveler.begin(world.record)
    run.patch.spec['field'] = field
    with world.leveler.patching(run):
        for state in during:
            world.leveler.receive(world.record, state)
        if answer is not None:
            world.leveler.receive_response(run, answer, run.patch)
    world.leveler.end(run, Outcome(final=True))


async def test_echoes_that_are_faster_than_the_answer_do_not_trigger(world):
    world.start()
    world.receive(1)
    await patch(world, world.state(2, 'patched'), answer=world.state(2, 'patched'))
    world.receive(2, 'patched')
    assert world.run() is None
    world.receive(3, 'y')
    assert world.run() == {'change'}


@pytest.mark.parametrize('seen', [True, False], ids=['seen', 'unseen'])
async def test_edits_before_the_patch_trigger_even_if_the_stream_brings_them_late(world, seen):
    world.start()
    world.receive(1)
    edited = world.state(2, 'x', labels={'a': 'b'})
    await patch(world, *([edited] if seen else []), answer=world.state(3, 'patched', labels={'a': 'b'}))
    world.leveler.receive(world.record, edited)
    assert world.run() == {'change'} and world.run() is None


async def test_edits_after_the_patch_trigger_even_if_the_stream_brings_them_early(world):
    world.start()
    world.receive(1)
    await patch(world, world.state(2, 'patched'), world.state(3, 'edited'), answer=world.state(2, 'patched'))
    assert world.run() == {'change'} and world.run() is None


async def test_edits_during_a_patch_that_fails_trigger(world):
    world.start()
    world.receive(1)
    await patch(world, world.state(2, 'edited'), answer=None)
    assert world.run() == {'change'}


async def test_values_adjusted_by_the_server_do_not_trigger(world):
    world.start()
    world.receive(1)
    await patch(world, answer=world.state(2, 'PATCHED'))
    assert world.run() is None


async def test_a_handler_that_begins_to_match_is_triggered_and_is_not_run_when_it_does_not_match_any_more(world):
    world.start(labels={'a': 'b'})
    world.receive(1)
    assert world.run() is None
    world.receive(2, labels={'a': 'b'})
    world.receive(3)
    assert world.run() is None
    world.receive(4, labels={'a': 'b'})
    assert world.run() == {'change'}


async def test_a_removed_field_is_a_change_of_it(world):
    world.start(field='spec.field')
    world.receive(1, None)
    assert world.run() is None
    world.receive(2, 'x')
    assert world.run() == {'change'}
    world.receive(3, None)
    assert world.run() == {'change'}
    world.receive(4, None, labels={'a': 'b'})
    assert world.run() is None


async def test_filters_that_fail_leave_the_handler_as_it_is(world):
    def when(spec, **_):
        return spec['field'] != 'broken' or 1 / 0

    world.start(when=when)
    world.receive(1)
    world.receive(2, 'broken')
    assert world.run() == {'change'}
    world.receive(3, 'broken', labels={'a': 'b'})
    assert world.run() is None
    world.receive(4, 'mended')
    assert world.run() == {'change'}


async def test_objects_that_are_being_deleted_are_forgotten(world):
    world.start(interval=100)
    world.receive(1)
    assert world.run() == {'change'} and world.record.level.timer is not None
    level = world.record.level
    world.receive(2, 'y', deletionTimestamp='2020-01-01T00:00:00Z')
    assert world.record.level is None and level.timer is None and world.run() is None
    world.receive(3, 'z', deletionTimestamp='2020-01-01T00:00:00Z')
    assert world.record.level is None


async def test_no_timers_are_left_of_an_operator_that_has_ended(world):
    world.start(interval=100)
    world.receive(1)
    assert world.run() and (level := world.record.level).timer is not None
    world.receive(2, 'y')
    run = world.leveler.begin(world.record)
    world.leveler.end(run, Outcome(final=True))
    assert level.timer is not None
    world.levels.close()
    assert level.timer is None
    world.receive(3, 'z')
    assert world.run() and level.timer is None


async def test_a_run_that_ends_after_its_object_plans_nothing(world):
    world.start(interval=100)
    world.receive(1)
    run, level = world.leveler.begin(world.record), world.record.level
    world.leveler.forget(world.record)
    world.leveler.end(run, Outcome(final=False, delay=1))
    assert level.timer is None


async def test_after_a_pause_everything_is_run_again(world):
    world.start()
    world.receive(1)
    world.run()
    world.receive(2, 'y')
    run = world.leveler.begin(world.record)
    world.leveler.reset(world.record)
    world.leveler.end(run, Outcome(final=True))
    assert world.run() is None
    world.receive(2, 'y', asked_at=float('inf'))
    assert world.run() == {'start'}


async def test_after_a_pause_everything_is_run_again_even_if_a_patch_was_on_its_way(world):
    world.start()
    world.receive(1)
    run = world.leveler.begin(world.record)
    run.patch.spec['field'] = 'patched'
    with world.leveler.patching(run):
        world.leveler.reset(world.record)
        world.leveler.receive_response(run, world.state(2, 'patched'), run.patch)
    world.leveler.end(run, Outcome(final=True))
    world.receive(2, 'patched', asked_at=float('inf'))
    assert world.run() is not None
