"""From which state a step of an object begins, and what is done with deleted objects."""

import asyncio
import logging
import types

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.contexts import OperatorContext
from kopf._core.reactor.echoes import Expectation
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.stale_events import StaleEventFilter
from kopf._core.reactor.stepping import ObjectStepper

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample')


class Parts:
    """What a stepper works with: a reconciler and an API that remember what they are asked for."""

    def __init__(self):
        self.calls = []
        self.delay = None
        self.error = self.saving_error = None
        self.exists = True
        self.pause = 0.0
        self.wanted = {}

    async def observe(self, record, event, body, patch, observed, guarded):
        self.calls.append(('observe', event['type']))
        patch.update(self.wanted)
        if self.error is not None:
            raise self.error
        return event

    def hold_back(self, record, patch, body, *, own, requeued):
        self.calls.append(('hold_back', own))
        return self.pause

    async def reconcile(self, record, patch, *, deciding):
        if self.error is not None:
            raise self.error
        self.calls.append(('reconcile', record.body['spec'], deciding))
        return self.delay

    async def save(self, record):
        self.calls.append(('save', record.name))
        if self.saving_error is not None:
            raise self.saving_error

    async def reload(self, record, raw):
        self.calls.append(('reload', raw['spec']))
        if self.exists:
            record.accept(make('newest'))
        else:
            record.forget_state()


class Meter:
    """Remembers the results of steps."""

    def __init__(self):
        self.results = []

    def note_reconciliation(self, began, result, uid):
        self.results.append(result)


class Stepped:
    """A stepper, and one object."""

    def __init__(self, *, observing=False, managing=True, meter=None, instruments=()):
        self.parts = Parts()
        self.record = ObjectRecord('uid', None, 'obj', initial=False)
        table = types.SimpleNamespace(watching=['handler'] if observing else [], managing=managing, resource=RESOURCE)
        settings = kopf.OperatorSettings()
        context = OperatorContext(settings=settings, lifecycle=kopf.lifecycles.asap, memo=kopf.Memo())
        for instrument in instruments:
            context.instruments.add(instrument)
        self.stepper = ObjectStepper(
            context,
            decider=types.SimpleNamespace(table=table, is_untouched=lambda earlier, body, cycle: False),
            applier=self.parts,
            reconciler=self.parts,
            stale_events=StaleEventFilter(settings, lambda record, event, *, listed_since: None),
            meter=meter,
        )

    async def step(self, spec=None, type='MODIFIED', *, version='5'):
        event = None if spec is None else {'type': type, 'object': make(spec, version=version)}
        return await self.stepper.step(self.record, event, number=1)

    def expect(self, version):
        raw = {'metadata': {'resourceVersion': version}}
        self.record.expect(Expectation.after_patch(raw, None, timeout=60))


def make(spec, *, version='5', api_version='kopf.dev/v1'):
    metadata = {'name': 'obj', 'uid': 'uid', 'resourceVersion': version}
    return {'apiVersion': api_version, 'kind': 'KopfExample', 'metadata': metadata, 'spec': spec}


@pytest.fixture
async def stepped():
    return Stepped()


async def test_a_step_begins_with_the_state_of_the_event_and_returns_the_delay(stepped):
    stepped.parts.delay = 12.3
    assert await stepped.step('v2') == 12.3
    assert stepped.parts.calls == [('reconcile', 'v2', True)]


async def test_a_stale_event_starts_nothing(stepped):
    stepped.expect('10')
    await stepped.step('v2', version='9')
    assert stepped.parts.calls == []


async def test_a_requeued_object_continues_with_its_known_state_when_the_event_is_stale(stepped):
    stepped.expect('10')
    stepped.record.accept(make('v3'))
    stepped.record.requeue()
    await stepped.step('v2', version='9')
    assert stepped.parts.calls == [('reconcile', 'v3', True)]
    assert not stepped.record.requeued


async def test_the_patch_of_handlers_of_raw_events_is_applied_to_a_stale_state_without_a_decision():
    stepped = Stepped(observing=True)
    stepped.parts.wanted = {'status': {'x': 1}}
    stepped.expect('10')
    await stepped.step('v2', version='9')
    assert stepped.parts.calls == [('observe', 'MODIFIED'), ('hold_back', True), ('reconcile', 'v2', False)]


async def test_a_patch_that_is_held_back_ends_the_step():
    stepped = Stepped(observing=True)
    stepped.parts.wanted, stepped.parts.pause = {'status': {'x': 1}}, 2.5
    assert await stepped.step('v2') == 2.5
    assert stepped.parts.calls == [('observe', 'MODIFIED'), ('hold_back', False)]


async def test_an_event_is_kept_for_the_next_attempt_if_the_handlers_of_raw_events_cannot_be_run():
    stepped = Stepped(observing=True)
    stepped.parts.error = RuntimeError("boo")
    with pytest.raises(RuntimeError):
        await stepped.step('v2')
    assert stepped.record.take_pending()['object']['spec'] == 'v2'


async def test_without_handlers_of_changes_no_state_is_kept():
    stepped = Stepped(observing=True, managing=False)
    await stepped.step('v2')
    assert stepped.parts.calls == [('observe', 'MODIFIED')]
    assert stepped.record.body is None


async def test_a_step_without_an_event_needs_a_known_state(stepped):
    assert await stepped.step() is None
    assert stepped.parts.calls == []
    stepped.record.accept(make('v2'))
    await stepped.step()
    assert stepped.parts.calls == [('reconcile', 'v2', True)]


@pytest.mark.parametrize('with_event', [True, False])
@pytest.mark.parametrize('trouble', ['outdated', 'foreign'])
async def test_the_newest_state_is_requested_if_the_known_one_is_outdated_or_of_another_version(
    stepped, trouble, with_event
):
    if trouble == 'foreign':
        stepped.record.accept(make('v2', api_version='kopf.dev/v2'))
        stepped.expect('10')  # the event is older
        stepped.record.requeue()
    else:
        if not with_event:
            stepped.record.accept(make('v2'))
        stepped.record.mark_outdated()
    await stepped.step('v2' if with_event else None)
    assert stepped.parts.calls == [('reload', 'v2'), ('reconcile', 'newest', True)]


async def test_unverified_progress_waits_for_the_list_after_a_pause(stepped):
    record = stepped.record
    record.accept(make('v2'))
    record.keep_patch(kopf.Patch({'status': {'x': 1}}))
    record.begin_cycle(types.SimpleNamespace(state=types.SimpleNamespace(in_memory_only=True)))
    record.forget_plans(working=False)
    await stepped.step()
    assert stepped.parts.calls == []
    await stepped.step('v3')
    assert stepped.parts.calls == [('reconcile', 'v3', True)]
    assert record.cycle is None, "another operator has handled the object during the pause"


async def test_a_deleted_object_is_forgotten_after_what_is_only_in_memory_is_stored(stepped):
    stepped.record.accept(make('v1'))
    stepped.record.keep_patch(kopf.Patch({'status': {'x': 1}}))
    await stepped.step('v2', 'DELETED')
    assert stepped.parts.calls == [('save', 'obj')]
    assert stepped.record.body is stepped.record.pending_patch is None


async def test_an_object_that_is_back_in_the_selection_is_handled_although_its_results_are_not_stored_yet(stepped):
    stepped.record.accept(make('v1'))
    stepped.record.keep_patch(kopf.Patch({'status': {'x': 1}}))
    stepped.record.attach_daemons(daemons := Daemons())
    stepped.record.put_pending({'type': 'ADDED', 'object': make('v3')})
    stepped.parts.saving_error = RuntimeError("boo")
    await stepped.step('v2', 'DELETED')
    assert daemons.calls == ['forget', 'reappear']
    assert stepped.record.pending_patch and stepped.record.requeued
    assert stepped.record.take_pending()['type'] == 'ADDED'


@pytest.mark.parametrize('exists, released', [(False, False), (True, True)])
async def test_a_deleted_object_is_forgotten_even_if_its_results_cannot_be_stored(stepped, exists, released):
    stepped.record.accept(make('v1'))
    stepped.record.keep_patch(kopf.Patch({'status': {'x': 1}}))
    stepped.parts.saving_error, stepped.parts.exists = RuntimeError("boo"), exists
    if released:
        stepped.stepper.release()
    await stepped.step('v2', 'DELETED')
    assert stepped.record.pending_patch is stepped.record.pending is None


@pytest.mark.parametrize('error', [RuntimeError("boo"), kopf.LoginError("no credentials")])
async def test_an_object_out_of_the_selection_is_known_until_its_results_are_stored(error):
    stepped = Stepped(observing=True)
    stepped.record.accept(make('v1'))
    stepped.record.keep_patch(kopf.Patch({'status': {'x': 1}}))
    stepped.parts.saving_error = error
    with pytest.raises(type(error)):
        await stepped.step('v2', 'DELETED')
    assert stepped.record.pending_patch and stepped.record.is_vanishing
    stepped.parts.saving_error = None
    await stepped.stepper.step(stepped.record, stepped.record.take_pending(), number=1)
    assert stepped.parts.calls == [('observe', 'DELETED'), ('save', 'obj'), ('reload', 'v1'), ('save', 'obj')]
    assert stepped.record.pending_patch is stepped.record.pending is None


async def test_an_object_that_exists_again_is_not_expected_to_be_absent(stepped):
    stepped.expect('10')
    stepped.record.put_pending({'type': 'ADDED', 'object': make('v3', version='8')})
    await stepped.step('v2', 'DELETED', version='7')
    assert not stepped.record.expected.is_absent


class Daemons:
    """The daemons of an object."""

    def __init__(self):
        self.calls = []

    def forget(self):
        self.calls.append('forget')

    def reappear(self):
        self.calls.append('reappear')


async def test_daemons_forget_a_deleted_object_unless_it_exists_again(stepped):
    stepped.record.attach_daemons(daemons := Daemons())
    await stepped.step('v2', 'DELETED')
    assert daemons.calls == ['forget']
    stepped.record.put_pending({'type': 'ADDED', 'object': make('v3')})
    await stepped.step('v2', 'DELETED')
    assert daemons.calls == ['forget', 'forget', 'reappear']


async def test_a_deletion_ends_the_retries_and_the_expectations(stepped):
    stepped.expect('10')
    stepped.record.wake_by(timer := asyncio.get_running_loop().call_later(60, print))
    await stepped.step('v2', 'DELETED', version='11')
    assert timer.cancelled()
    assert stepped.record.expected is None


@pytest.mark.parametrize('managing', [True, False])
async def test_deletions_are_logged_for_the_handlers_of_changes(managing, caplog):
    caplog.set_level(logging.DEBUG)
    await Stepped(observing=True, managing=managing).step('v2', 'DELETED')
    assert ("Deleted, really deleted, and we are notified." in caplog.text) == managing


async def test_results_are_stored_by_the_last_successor(stepped):
    second, third = Stepped(), Stepped()
    stepped.stepper.retire(second.stepper)
    second.stepper.retire(third.stepper)
    await stepped.stepper.save(stepped.record)
    assert [each.parts.calls for each in (stepped, second, third)] == [[], [], [('save', 'obj')]]


@pytest.mark.parametrize('instruments', [False, True])
async def test_steps_are_measured_with_their_results(instruments):
    class Steps(kopf.Instrument):
        seen = []

        def step_ends(self, step):
            self.seen.append(step.delay)

    meter, instrument = Meter(), Steps()
    stepped = Stepped(meter=meter, instruments=[instrument] if instruments else [])
    await stepped.step('v1')
    stepped.parts.delay = 5
    await stepped.step('v2')
    stepped.parts.error = RuntimeError("boo")
    with pytest.raises(RuntimeError):
        await stepped.step('v3')
    assert meter.results == ['success', 'requeue_after', 'error']
    assert instrument.seen == ([None, 5, None] if instruments else [])


async def test_steps_that_only_plan_level_triggered_handlers_are_not_measured():
    meter = Meter()
    await Stepped(meter=meter, managing=False).step('v1')
    assert meter.results == []
