"""
The promises "no update is lost" and "nothing runs twice", for any order of edits, outcomes, and restarts.

The object is simulated with real storages; everything else is the real code of deciding. A step is what the processor
does: decide, run one handler, store the progress, apply the patch.
"""

import copy
import dataclasses
import datetime
import itertools
import json
import logging
import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kopf._cogs.configs import storage_formats
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.configs.progress import AnnotationsProgressStorage, MultiProgressStorage, ProgressStorage
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch, combine
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Outcome, PermanentError, TemporaryError
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.decisions import Decider
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.registries import HandlerTable

RESOURCE = Resource(
    'kopf.dev', 'v1', 'kopfexamples', verbs=frozenset({'list', 'watch', 'patch'}), subresources=frozenset({'status'})
)
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'


def make_handler(id: str, **options) -> ChangingHandler:
    return ChangingHandler(id=HandlerId(id), fn=lambda **_: None, **options)


def make_table(*handlers: ChangingHandler) -> HandlerTable:
    return HandlerTable(
        resource=RESOURCE,
        changing=handlers,
        changing_ids=tuple(dict.fromkeys(handler.id for handler in handlers)),
        resuming_ids=frozenset(handler.id for handler in handlers if handler.initial),
        only_resuming_ids=frozenset(handler.id for handler in handlers if handler.initial)
        - {handler.id for handler in handlers if not handler.initial},
        finalizing=tuple(handler for handler in handlers if handler.requires_finalizer),
    )


class Simulation:
    """One object in a cluster, and one operator that handles it in steps."""

    def __init__(self, *handlers: ChangingHandler, spec=None) -> None:
        self.table = make_table(*handlers)
        self.decider = Decider(self.table, OperatorSettings().persistence)
        self.raw = {'metadata': {'name': 'obj', 'uid': 'uid1'}, 'spec': spec or {'a': 0, 'b': 0}}
        self.cycle = None
        self.handled_digest = None
        self.missing_fields = frozenset()
        self.initial = False
        self.deletion_handled = False
        self.resumed = frozenset()
        self.now = START
        self.pending_patch = Patch()
        self.runs: list[tuple[str, str, dict, bool]] = []  # the id, the reason, the spec seen, the success
        self.reasons: list[Reason] = []
        self.olds: list[dict | None] = []
        self.ends: Counter[str] = Counter()  # how many times a handler has succeeded or failed for good

    @property
    def last_handled(self):
        text = self.raw['metadata'].get('annotations', {}).get(LAST_HANDLED)
        return None if text is None else json.loads(text)

    @property
    def finalizers(self):
        return self.raw['metadata'].get('finalizers') or []

    @property
    def progress(self):
        """The records of handlers on the object."""
        return {key for key in self.raw['metadata'].get('annotations', ()) if key != LAST_HANDLED}

    @property
    def records(self):
        return [json.loads(self.raw['metadata']['annotations'][key]) for key in self.progress]

    def lose_digests(self) -> None:
        """Have records as upstream makes them, with times in microseconds."""
        annotations = {
            key: re.sub(r'(\.\d{6})\d+', r'\1', value) if key in self.progress else value
            for key, value in self.raw['metadata']['annotations'].items()
        }
        self.raw = {**self.raw, 'metadata': {**self.raw['metadata'], 'annotations': annotations}}

    def edit(self, **spec) -> None:
        self.raw = {**self.raw, 'spec': {**self.raw['spec'], **spec}}

    def delete(self) -> None:
        self.raw = {**self.raw, 'metadata': {**self.raw['metadata'], 'deletionTimestamp': '2030-01-01T00:00:00Z'}}

    def restart(self) -> None:
        self.cycle, self.initial, self.deletion_handled, self.resumed = None, True, False, frozenset()

    def decide(self):
        body, patch = Body(self.raw), Patch()

        def make_cause(*, reason, initial, old, new, diff):
            return ChangingCause(
                logger=logging.getLogger('test'),
                memo=None,
                resource=RESOURCE,
                body=body,
                patch=patch,
                reason=reason,
                initial=initial,
                old=old,
                new=new,
                diff=diff,
            )

        return self.decider.decide(body, self, make_cause, holding=False, now=self.now)

    def step(
        self,
        outcome=None,
        *,
        edit_meanwhile=None,
        patch_lost=False,
        own_patch=None,
        error=None,
        adjusted=None,
    ) -> bool:
        """
        Do one step; tell if the object is at rest.

        With an error, the patch is refused, or only its answer lost. The API can have it adjusted to something else.
        """
        decision = self.decide()
        if decision is None:
            return True
        self.reasons.append(decision.reason)
        self.olds.append(decision.cause.old)
        patch, bookkeeping = combine(self.pending_patch, Patch(own_patch or {})), Patch()
        self.pending_patch = Patch()
        if decision.add_finalizer:
            self.raw['metadata'] = {**self.raw['metadata'], 'finalizers': [self.decider.finalizer]}
            return False
        self.cycle, state, outcomes = decision.cycle, decision.cycle.state, {}
        if decision.due:
            handler = min(decision.due, key=lambda handler: state[handler.id].retries)
            outcome = outcome or Outcome(final=True)
            self.runs.append(
                (handler.id, str(decision.reason), dict(self.raw['spec']), outcome.final and outcome.exception is None)
            )
            outcomes[handler.id] = outcome
            self.ends[handler.id] += outcome.final
            state.note_outcome(handler.id, outcome, self.now)
            if outcome.final and self.initial:
                self.resumed |= self.table.resuming_ids & {handler.id}
        done = state.done(decision.matching)
        self.decider.store_progress(decision, patch, bookkeeping, done=done)
        self.decider.records.flush()
        if error is not None:
            self.pending_patch = patch
            state.mark_unsaved()
            self.decider.retract(decision, None)
            self.raw = combine(patch, bookkeeping).applied_to(self.raw) if error == 'lost' else self.raw
            if edit_meanwhile:
                self.edit(**edit_meanwhile)
            return False
        patch = combine(patch, bookkeeping)
        if edit_meanwhile:
            self.edit(**edit_meanwhile)
        if patch_lost:
            self.restart()
            return False
        self.raw = patch.applied_to(self.raw)
        if adjusted:
            self.edit(**adjusted)
        if patch and not done:
            self.decider.compare_with_response(decision, patch, Body(self.raw))
        if done:
            self.cycle, self.initial, self.resumed = decision.followup, False, frozenset()
            if decision.reason is Reason.DELETE or decision.remove_finalizer:
                finalizers = [
                    item for item in self.raw['metadata'].get('finalizers', ()) if item != self.decider.finalizer
                ]
                self.raw['metadata'] = {**self.raw['metadata'], 'finalizers': finalizers}
        return not patch and not decision.due and done

    def settle(self, limit=60) -> None:
        for _ in range(limit):
            self.now += datetime.timedelta(seconds=100)
            if self.step():
                return
        raise AssertionError(f"The object does not come to rest: {self.raw}, {self.runs}")


OUTCOMES = {
    'success': Outcome(final=True),
    'retry': Outcome(final=False, delay=10, exception=TemporaryError('later', delay=10)),
    'failure': Outcome(final=True, exception=PermanentError('never')),
}
fields = st.sampled_from(['a', 'b'])
values = st.integers(0, 2)
edits = st.builds(lambda field, value: {field: value}, fields, values)
operations = st.one_of(
    st.tuples(st.just('step'), st.sampled_from(['success', 'retry']), st.none() | edits),
    st.tuples(st.just('edit'), edits, st.none()),
    st.tuples(st.just('restart'), st.none(), st.none()),
)


def updates():
    return (
        make_handler('first', reason=Reason.UPDATE, needs_change=True),
        make_handler('second', reason=Reason.UPDATE, needs_change=True),
        make_handler('field_a/spec.a', field=('spec', 'a'), needs_change=True),
    )


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(operations, max_size=25))
def test_no_update_is_lost_and_nothing_runs_twice(script):
    sim = Simulation(*updates())
    sim.settle()
    created = len(sim.runs)  # the field handler sees the creation
    history = [dict(sim.raw['spec'])]
    for what, first, second in script:
        if what == 'step':
            sim.now += datetime.timedelta(seconds=7)
            sim.step(OUTCOMES[first], edit_meanwhile=second)
        elif what == 'edit':
            sim.edit(**first)
        else:
            sim.restart()
        history.append(dict(sim.raw['spec']))
    sim.settle()

    final = sim.raw['spec']
    assert sim.last_handled['spec'] == final
    for id in ('first', 'second'):
        successes = [spec for handler, _, spec, success in sim.runs if handler == id and success]
        if successes:
            assert successes[-1] == final
        else:
            assert final == history[0]
        for one, other in itertools.pairwise(successes):
            assert one != other or _has_moved(history, one)
    seen = [spec['a'] for handler, _, spec, success in sim.runs if handler == 'field_a/spec.a' and success]
    assert seen[-1] == final['a']
    assert not any('/' in key and key != LAST_HANDLED for key in sim.raw['metadata'].get('annotations', ()))
    assert created == 1


def _has_moved(history, spec) -> bool:
    """Check whether the spec has come back after it was something else."""
    states = [state for state, _ in itertools.groupby(history)]
    return states.count(spec) > 1


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(st.tuples(st.sampled_from(['success', 'retry', 'failure']), st.none() | edits, st.booleans()), max_size=15)
)
def test_creation_handlers_run_once_and_edits_become_an_update(script):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    for outcome, edit, again in script:
        sim.now += datetime.timedelta(seconds=7)
        sim.step(OUTCOMES[outcome], edit_meanwhile=edit)
        if again:
            sim.now += datetime.timedelta(seconds=100)
    sim.settle()

    final = sim.raw['spec']
    assert sim.last_handled['spec'] == final
    finished = Counter(id for id, _, _, success in sim.runs if success)
    assert finished['create1'] <= 1 and finished['create2'] <= 1
    if 'failure' not in {outcome for outcome, _, _ in script}:
        seen = [spec for id, _, spec, success in sim.runs if id == 'update' and success]
        first_finished = next(spec for id, _, spec, success in sim.runs if id.startswith('create') and success)
        assert final == (seen[-1] if seen else first_finished)


SUCCESS = ('step', 'success')

lives = st.lists(
    st.one_of(
        st.tuples(st.just('step'), st.sampled_from(['success', 'retry', 'failure'])),
        st.tuples(st.just('edit'), edits),
        st.tuples(st.sampled_from(['restart', 'wait']), st.none()),
    ),
    max_size=20,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(life=lives, rest=st.booleans(), death=lives)
@example(life=[SUCCESS, SUCCESS, SUCCESS, ('restart', None), SUCCESS, ('edit', {'a': 5})], rest=True, death=[])
def test_whatever_happens_it_ends_and_what_has_succeeded_is_not_repeated(life, rest, death):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('both', reason=Reason.CREATE),
        make_handler('both', initial=True),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('resume', initial=True),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
        make_handler('delete1', reason=Reason.DELETE, requires_finalizer=True),
        make_handler('delete2', reason=Reason.DELETE),
        make_handler('farewell', initial=True, deleted=True),
    )

    def play(script):
        for what, value in script:
            if what == 'step':
                sim.now += datetime.timedelta(seconds=7)
                sim.step(OUTCOMES[value])
            elif what == 'edit':
                sim.edit(**value)
            elif what == 'restart':
                sim.restart()
            else:
                sim.now += datetime.timedelta(seconds=100)

    sim.step()  # the finalizer; before it, no handler is told of a deletion
    play(life)
    if rest:
        sim.settle()
        assert sim.last_handled['spec'] == sim.raw['spec']
        assert sim.finalizers and not sim.progress
    sim.delete()
    before = len(sim.runs)
    play(death)
    sim.settle()
    assert not sim.finalizers and not sim.progress

    assert all(sim.ends[id] <= 1 for id in ('create1', 'create2', 'delete1', 'delete2'))
    restarts = [what for what, _ in life + death].count('restart')
    assert all(sim.ends[id] <= restarts for id in ('resume', 'farewell')) and sim.ends['both'] <= restarts + 1
    assert {id for id, _, _, _ in sim.runs[before:]} <= {'delete1', 'delete2', 'farewell'}
    if ('step', 'failure') not in life + death:
        assert all(sim.ends[id] == 1 for id in ('delete1', 'delete2', *(['create1', 'create2'] if rest else [])))


def test_an_edit_during_an_update_reruns_the_handlers_that_had_finished():
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(edit_meanwhile={'b': 2})
    sim.settle()
    assert [(id, spec) for id, _, spec, _ in sim.runs] == [
        ('first', {'a': 1, 'b': 0}),
        ('first', {'a': 1, 'b': 2}),
        ('second', {'a': 1, 'b': 2}),
        ('field_a/spec.a', {'a': 1, 'b': 2}),
    ]


def test_an_edit_that_is_reverted_during_an_update_is_shown_to_handlers_that_saw_it():
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step()
    sim.edit(a=0)
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [('first', 1), ('first', 0)]
    assert sim.last_handled['spec'] == {'a': 0, 'b': 0}


@pytest.mark.parametrize('restarting', [False, True])
def test_what_has_failed_temporarily_is_tried_again_if_its_edit_is_reverted(restarting):
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(Outcome(final=False, delay=10, exception=TemporaryError()))
    if restarting:
        sim.restart()
    sim.edit(a=0)
    sim.settle()
    assert [(id, spec['a'], success) for id, _, spec, success in sim.runs] == [('first', 1, False), ('first', 0, True)]
    assert not sim.progress


@pytest.mark.parametrize('restarting', [False, True])
def test_what_has_failed_temporarily_is_tried_again_if_only_its_field_is_reverted(restarting):
    first, second, field_a = updates()
    sim = Simulation(field_a, first, second)
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1, b=1)
    sim.step(Outcome(final=False, delay=10, exception=TemporaryError()))
    if restarting:
        sim.restart()
    sim.edit(a=0)
    sim.settle()
    seen = [(spec['a'], success) for id, _, spec, success in sim.runs if id == 'field_a/spec.a']
    assert seen == [(1, False), (0, True)]
    assert not sim.progress


FAILURE = Outcome(final=False, delay=10, exception=TemporaryError())


@pytest.mark.parametrize('restarting', [False, True])
@pytest.mark.parametrize('outcome', [None, FAILURE], ids=['succeeded', 'failed'])
@pytest.mark.parametrize('others', [False, True], ids=['alone', 'with others'])
@pytest.mark.parametrize('reason', [None, Reason.UPDATE], ids=['field', 'update'])
@pytest.mark.parametrize(
    'values, options', [((None, 1, None), {}), (('y', 'x', 'z'), {'value': 'x'}), (('y', 'x', 'y'), {'value': 'x'})]
)
def test_handlers_of_a_field_are_told_of_its_removal_although_it_is_in_no_handled_state(
    restarting, outcome, others, reason, values, options
):
    before, between, after = values
    mine = make_handler('mine', field=('spec', 'c'), needs_change=True, reason=reason, **options)
    sim = Simulation(mine, *(updates()[:2] if others else [make_handler('create', reason=Reason.CREATE)]))
    sim.edit(c=before)
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1, c=between)
    sim.step() if outcome is None else sim.step(outcome)
    if restarting:
        sim.restart()
    sim.edit(c=after)
    sim.settle()
    seen = [spec['c'] for id, _, spec, _ in sim.runs if id == 'mine']
    # Alone, it has ended its update if it has succeeded, and the next one is for the removal.
    assert seen == [between, after]
    assert not sim.progress


@pytest.mark.parametrize('restarting', [False, True])
@pytest.mark.parametrize('outcome', [None, FAILURE], ids=['succeeded', 'failed'])
@pytest.mark.parametrize('others', [[], ['create'], ['create', 'update']], ids=len)
@pytest.mark.parametrize('options', [{}, {'value': 1}], ids=['any', 'value'])
def test_handlers_of_a_field_are_told_of_its_removal_during_a_creation(restarting, outcome, others, options):
    mine = make_handler('mine', field=('spec', 'c'), needs_change=True, **options)
    sim = Simulation(mine, *(make_handler(id, reason=Reason(id)) for id in others))
    sim.edit(c=1)
    sim.step() if outcome is None else sim.step(outcome)
    if restarting:
        sim.restart()
    sim.edit(c=None)
    sim.settle()
    assert [spec['c'] for id, _, spec, _ in sim.runs if id == 'mine'] == [1, None]
    assert not sim.progress
    sim.runs.clear()
    sim.edit(a=2)
    sim.settle()
    assert 'mine' not in [id for id, *_ in sim.runs]


def test_what_is_tried_again_for_a_reverted_edit_waits_until_it_is_due():
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(Outcome(final=False, delay=10, exception=TemporaryError()))
    sim.edit(a=0)
    sim.step()
    assert len(sim.runs) == 1
    sim.now += datetime.timedelta(seconds=10)
    sim.step()
    assert len(sim.runs) == 2


def test_an_edit_in_a_downtime_in_the_middle_of_an_update_is_noticed_by_the_digest():
    sim = Simulation(*updates())
    sim.settle()
    sim.edit(a=1)
    sim.step()
    sim.restart()
    sim.edit(b=1)
    sim.runs.clear()
    sim.settle()
    assert ('first', {'a': 1, 'b': 1}) in [(id, spec) for id, _, spec, _ in sim.runs]


@pytest.mark.parametrize('field, times', [('a', 2), ('b', 1)])
def test_an_edit_in_a_downtime_concerns_a_finished_handler_only_if_its_field_has_changed(field, times):
    first, second, field_a = updates()
    sim = Simulation(field_a, first, second)
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step()
    sim.restart()
    sim.edit(**{field: 2})
    sim.settle()
    assert Counter(id for id, reason, _, _ in sim.runs if reason == 'update')['field_a/spec.a'] == times
    assert sim.runs[-1][2] == {'a': 1, 'b': 0, field: 2}


def test_edits_are_reverted_after_a_restart_while_handlers_that_saw_them_are_due_again():
    sim = Simulation(*updates())
    sim.settle()
    sim.edit(a=1)
    sim.step()
    sim.step()
    sim.edit(a=2)
    sim.step()
    sim.runs.clear()
    sim.restart()
    sim.edit(a=1)
    sim.step()
    sim.edit(a=0)
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [('first', 1), ('first', 0), ('second', 0)]


def test_finished_handlers_are_not_run_again_after_a_restart():
    sim = Simulation(*updates())
    sim.settle()
    sim.edit(a=1)
    sim.step()
    sim.restart()
    sim.settle()
    assert Counter(id for id, reason, _, _ in sim.runs if reason == 'update') == {
        'first': 1,
        'second': 1,
        'field_a/spec.a': 1,
    }


def test_own_patches_of_the_essence_do_not_rerun_finished_handlers():
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(own_patch={'spec': {'c': 5}})
    sim.settle()
    assert Counter(id for id, _, _, _ in sim.runs)['first'] == 1
    assert sim.last_handled['spec'] == {'a': 1, 'b': 0, 'c': 5}


def test_an_edit_between_creation_handlers_becomes_an_update_even_over_a_restart():
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step()
    sim.edit(a=1)
    sim.step(OUTCOMES['retry'])
    sim.restart()
    sim.settle()
    assert [(id, reason) for id, reason, _, success in sim.runs if success] == [
        ('create1', 'create'),
        ('create2', 'create'),
        ('update', 'update'),
    ]


@pytest.mark.parametrize('restarted', [True, False])
@pytest.mark.parametrize('edited', [True, False])
def test_a_late_patch_after_the_end_of_a_creation_does_not_repeat_it(edited, restarted):
    sim = Simulation(*(make_handler(f'create{number}', reason=Reason.CREATE) for number in range(3)))
    sim.step()
    late = {key: sim.raw['metadata']['annotations'][key] for key in sim.progress}
    sim.settle()
    if edited:
        sim.edit(a=1)
        sim.settle()
    # The API server executes the patch of an earlier step only now: its client has given up, or was killed.
    annotations = {**sim.raw['metadata']['annotations'], **late}
    sim.raw = {**sim.raw, 'metadata': {**sim.raw['metadata'], 'annotations': annotations}}
    if restarted:
        sim.restart()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create0', 'create1', 'create2']
    assert not sim.progress
    assert sim.last_handled['spec'] == {'a': int(edited), 'b': 0}


def test_an_edited_creation_goes_on_over_several_restarts():
    sim = Simulation(
        *(make_handler(f'create{number}', reason=Reason.CREATE) for number in range(4)),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step()
    sim.edit(a=1)
    sim.step()
    assert sim.last_handled['spec'] == {'a': 0, 'b': 0} and all(record['edited'] for record in sim.records)
    sim.restart()
    sim.step(OUTCOMES['retry'])
    sim.edit(a=2)
    sim.restart()
    sim.step(OUTCOMES['retry'])
    sim.restart()
    sim.settle()
    assert sorted(id for id, _, _, success in sim.runs if success) == [
        'create0', 'create1', 'create2', 'create3', 'update',
    ]  # fmt: skip
    assert sim.olds[sim.reasons.index(Reason.UPDATE)]['spec'] == {'a': 0, 'b': 0}


def test_resuming_handlers_run_once_per_process_and_never_with_a_creation():
    sim = Simulation(make_handler('create', reason=Reason.CREATE), make_handler('resume', initial=True))
    sim.restart()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create']
    sim.settle()
    sim.restart()
    sim.settle()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create', 'resume']


def test_resuming_handlers_join_an_update_and_only_with_consent_a_deletion():
    sim = Simulation(
        make_handler('resume', initial=True),
        make_handler('resume_deleted', initial=True, deleted=True),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
        make_handler('delete', reason=Reason.DELETE, requires_finalizer=True),
    )
    sim.settle()
    sim.edit(a=1)
    sim.restart()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['resume', 'resume_deleted', 'update']
    sim.runs.clear()
    sim.restart()
    sim.delete()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['resume_deleted', 'delete']
    assert not sim.raw['metadata']['finalizers']


def test_a_deletion_supersedes_what_goes_on():
    sim = Simulation(
        make_handler('create', reason=Reason.CREATE),
        make_handler('delete', reason=Reason.DELETE, requires_finalizer=True),
    )
    sim.step()
    sim.step(OUTCOMES['retry'])
    assert 'kopf.zalando.org/create' in sim.raw['metadata']['annotations']
    sim.delete()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create', 'delete']
    assert 'kopf.zalando.org/create' not in sim.raw['metadata']['annotations']


@pytest.mark.parametrize('error', ['refused', 'lost'])
def test_a_reverted_edit_is_not_lost_if_its_success_was_never_stored_and_the_operator_restarts(error):
    sim = Simulation(
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
        make_handler('field/spec.a', reason=Reason.UPDATE, field=('spec', 'a'), needs_change=True),
    )
    sim.settle()
    sim.edit(a=1)
    sim.step()
    sim.step(error=error, edit_meanwhile={'a': 0, 'b': 1})
    sim.step()  # it stores the restarted records
    sim.restart()
    sim.settle()
    assert [spec['a'] for id, _, spec, _ in sim.runs if id == 'field/spec.a'] == [1, 0]
    assert [spec['a'] for id, _, spec, _ in sim.runs if id == 'update'] == [1, 0]


@pytest.mark.parametrize('restarted, known', [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize('edited', [False, True])
def test_a_deletion_calls_handlers_of_fields_only_for_what_they_have_missed(restarted, known, edited):
    sim = Simulation(
        make_handler('field/spec.a', field=('spec', 'a'), needs_change=True),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
        make_handler('delete', reason=Reason.DELETE, requires_finalizer=True),
    )
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(OUTCOMES['success'])
    sim.step(OUTCOMES['retry'])
    assert [id for id, *_ in sim.runs] == ['field/spec.a', 'update']
    sim.runs.clear()
    if restarted:
        sim.restart()
    if not known:  # upstream has begun the update
        sim.raw['metadata']['annotations'] = {
            key: re.sub(r',"digest":"\w+"', '', value) for key, value in sim.raw['metadata']['annotations'].items()
        }
    sim.edit(a=2 if edited else 1, b=2)
    sim.delete()
    sim.settle()
    assert [id for id, *_ in sim.runs] == (['field/spec.a', 'delete'] if edited and known else ['delete'])
    assert not sim.progress


def test_a_deletion_knows_the_successes_of_handlers_of_fields_that_are_not_stored_yet():
    sim = Simulation(
        make_handler('field/spec.a', field=('spec', 'a'), needs_change=True),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
        make_handler('delete', reason=Reason.DELETE, requires_finalizer=True),
    )
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(error='refused')
    sim.delete()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['field/spec.a', 'delete']
    assert not sim.progress


def test_a_deletion_handled_object_is_not_handled_again():
    sim = Simulation(make_handler('delete', reason=Reason.DELETE, requires_finalizer=True))
    sim.settle()
    sim.delete()
    sim.deletion_handled = True
    decision = sim.decide()
    assert not decision.due and decision.reason is Reason.DELETE


def test_storages_of_developers_may_modify_what_they_clear():
    class Custom(AnnotationsProgressStorage):
        def clear(self, *, essence):
            del essence['spec']['b']
            return super().clear(essence=essence)

    settings = OperatorSettings()
    settings.persistence.progress_storage = MultiProgressStorage([Custom()])
    body = Body({'metadata': {}, 'spec': {'a': 1, 'b': 2}})
    assert Decider(make_table(), settings.persistence).essences.of(body) == {'spec': {'a': 1}}
    assert body.spec == {'a': 1, 'b': 2}


def test_storages_of_developers_can_postpone_their_writes_until_they_are_flushed():
    class Database(ProgressStorage):
        def __init__(self):
            self.written, self.postponed = {}, {}

        def fetch(self, *, key, body):
            return self.written.get(key)

        def store(self, *, key, record, body, patch):
            self.postponed[key] = record

        def purge(self, *, key, body, patch):
            self.postponed[key] = None

        def flush(self):
            self.written.update(self.postponed)
            self.postponed.clear()

    settings = OperatorSettings()
    settings.persistence.progress_storage = database = Database()
    sim = Simulation(make_handler('one', reason=Reason.CREATE), make_handler('two', reason=Reason.CREATE))
    sim.decider = Decider(sim.table, settings.persistence)
    sim.step()
    assert database.written['one']['success'] and not database.written['two']['success']
    sim.restart()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['one', 'two']
    assert database.written == {'one': None, 'two': None} and not database.postponed


def test_an_object_of_no_handler_is_none_of_our_business():
    sim = Simulation(make_handler('create', reason=Reason.CREATE, labels={'served': 'yes'}))
    assert sim.decide() is None


def test_objects_are_followed_until_a_field_becomes_what_a_handler_waits_for():
    sim = Simulation(
        make_handler('done', reason=Reason.UPDATE, needs_change=True, field=('spec', 'a'), old=1, new=2), spec={'a': 1}
    )
    sim.settle()
    for value in (5, 2, 1, 2):
        sim.edit(a=value)
        sim.settle()
        assert sim.last_handled == {'spec': {'a': value}}
    assert sim.runs == [('done', 'update', {'a': 2}, True)]


def test_a_finalizer_without_need_is_removed():
    sim = Simulation(make_handler('create', reason=Reason.CREATE))
    sim.settle()
    sim.raw['metadata']['finalizers'] = [sim.decider.finalizer]
    assert sim.decide().remove_finalizer


@pytest.mark.parametrize(
    'change, settled',
    [
        ({}, True),
        ({'spec': {'a': 1}}, False),
        ({'status': {'x': 1}}, True),
        ({'metadata': {'deletionTimestamp': '2030-01-01T00:00:00Z'}}, False),
        ({'metadata': {'finalizers': ['kopf.zalando.org/KopfFinalizerMarker']}}, False),
        ({'metadata': {'annotations': {'kopf.zalando.org/create': '{"purpose":"update","retries":1}'}}}, False),
    ],
)
def test_settled_objects_are_seen_at_a_glance(change, settled):
    sim = Simulation(make_handler('create', reason=Reason.CREATE))
    sim.settle()
    sim.raw = Patch(change).applied_to(sim.raw)
    assert sim.decider.is_settled(Body(sim.raw)) is settled


def test_of_handlers_with_the_same_id_only_those_of_the_reason_are_run():
    updating = make_handler('same', reason=Reason.UPDATE, needs_change=True)
    sim = Simulation(make_handler('same', reason=Reason.CREATE), make_handler('same', initial=True), updating)
    sim.settle()
    sim.edit(a=1)
    assert list(sim.decide().matching) == [updating]
    sim.step(edit_meanwhile={'b': 1})
    assert list(sim.decide().matching) == [updating]


def test_a_function_of_all_reasons_runs_for_each():
    sim = Simulation(
        make_handler('same', reason=Reason.CREATE),
        make_handler('other', reason=Reason.CREATE),
        make_handler('same', initial=True),
        make_handler('same', reason=Reason.DELETE, requires_finalizer=True),
    )
    sim.step()
    sim.step()
    sim.delete()
    sim.settle()
    assert [(id, reason) for id, reason, *_ in sim.runs] == [('same', 'create'), ('same', 'delete')]


@pytest.mark.parametrize('own_patch', [None, {'spec': {'c': 5}}], ids=['no patch', 'patch'])
def test_an_edit_in_a_downtime_while_a_creation_is_put_off_becomes_an_update_too(own_patch):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step()
    sim.step(OUTCOMES['retry'], own_patch=own_patch)
    sim.restart()
    sim.edit(a=1)
    sim.step()
    sim.restart()
    sim.settle()
    assert [(id, reason, spec['a']) for id, reason, spec, success in sim.runs if success] == [
        ('create1', 'create', 0),
        ('create2', 'create', 1),
        ('update', 'update', 1),
    ]
    assert sim.last_handled['spec'] == {'a': 1, 'b': 0, **(own_patch or {}).get('spec', {})}
    assert sim.olds[sim.reasons.index(Reason.UPDATE)] == {'spec': {'a': 0, 'b': 0, **(own_patch or {}).get('spec', {})}}


@pytest.mark.parametrize('room, old', [(0, {}), (10**6, {'spec': {'a': 0, 'b': 0}})])
def test_what_does_not_fit_into_the_object_is_not_kept(monkeypatch, room, old):
    monkeypatch.setattr(storage_formats, 'MAX_ANNOTATIONS_SIZE', room)
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step()
    sim.step(OUTCOMES['retry'])
    sim.restart()
    sim.edit(a=1)
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create1', 'create2', 'create2', 'update']
    assert sim.olds[sim.reasons.index(Reason.UPDATE)] == old


MANAGED = {
    'manager': 'kubectl-label',
    'operation': 'Update',
    'time': '2030-01-01T00:00:09Z',
    'fieldsV1': {'f:metadata': {'f:labels': {'f:x': {}}}},
}
OURS = {
    'manager': 'kopf',
    'operation': 'Update',
    'time': '2030-01-01T00:00:05Z',
    'fieldsV1': {'f:metadata': {'f:annotations': {'f:kopf.zalando.org/create1': {}}}},
}


@pytest.mark.parametrize(
    'entries, told',
    [
        ([OURS, MANAGED], True),
        ([OURS, {**MANAGED, 'fieldsV1': {'f:metadata': {'f:annotations': {'f:y': {}}}}}], True),
        ([OURS, {**MANAGED, 'fieldsV1': {'f:metadata': {'f:annotations': {'f:x.kopf.zalando.org/y': {}}}}}], False),
        ([OURS, {**MANAGED, 'fieldsV1': {'f:metadata': {'f:finalizers': {}}}}], False),
        ([OURS, {**MANAGED, 'fieldsV1': {'f:spec': {}}}], False),  # the generation tells of that
        ([OURS, {**MANAGED, 'subresource': 'status'}], False),
        ([OURS, {**MANAGED, 'time': '2030-01-01T00:00:02Z'}], False),  # by the one who has created it
        ([OURS, {**OURS, 'time': '2030-01-01T00:00:09Z', 'fieldsV1': MANAGED['fieldsV1']}], False),
        ([MANAGED], False),
        ([OURS, {}], False),
        ([5, OURS], False),
        (None, False),
    ],
)
def test_labels_changed_after_records_of_upstream_are_known_by_their_managers(entries, told):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.raw['metadata']['generation'] = 1
    sim.step()
    sim.lose_digests()
    sim.restart()
    sim.raw = {**sim.raw, 'metadata': {**sim.raw['metadata'], 'labels': {'x': 'y'}, 'managedFields': entries}}
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create1', 'create2', *(['update'] if told else [])]


def test_a_downtime_without_edits_while_a_creation_is_put_off_is_no_reason_for_an_update():
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step(own_patch={'spec': {'c': 5}})
    sim.step(OUTCOMES['retry'], own_patch={'spec': {'c': 6}})
    sim.restart()
    sim.settle()
    assert [id for id, _, _, success in sim.runs if success] == ['create1', 'create2']


@pytest.mark.parametrize('restarting', [False, True])
def test_reverted_edits_are_shown_to_handlers_that_saw_them_also_while_resuming(restarting):
    sim = Simulation(*updates(), make_handler('resume', initial=True))
    sim.settle()
    sim.runs.clear()
    sim.restart()
    sim.edit(a=1)
    sim.step()
    if restarting:
        sim.restart()
    sim.edit(a=0)
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs if id == 'first'] == [('first', 1), ('first', 0)]
    assert [id for id, *_ in sim.runs].count('resume') == 1


def test_records_of_patches_whose_answers_are_lost_are_purged():
    sim = Simulation(make_handler('create1', reason=Reason.CREATE), make_handler('create2', reason=Reason.CREATE))
    before = sim.raw
    sim.step()
    sim.raw, stored = before, sim.raw
    sim.cycle.state.mark_unsaved()
    decision = sim.decide()
    sim.cycle.state.note_outcome(HandlerId('create2'), OUTCOMES['success'], sim.now)
    patch = Patch()
    sim.decider.store_progress(decision, Patch(), patch, done=True)
    assert list(patch.applied_to(stored)['metadata']['annotations']) == [LAST_HANDLED]


@pytest.mark.parametrize('edits', [[{'a': 0}], [{'a': 0, 'b': 1}], [{'a': 2}, {'a': 0}], [{'a': 1}]])
def test_handlers_that_saw_more_of_an_edited_creation_than_the_first_one_are_told_of_the_end(edits):
    sim = Simulation(
        make_handler('create', reason=Reason.CREATE),
        make_handler('field/spec.a', field=('spec', 'a'), needs_change=True),
        make_handler('last', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step(edit_meanwhile={'a': 1})
    sim.step()
    for edit in edits:
        sim.edit(**edit)
    sim.settle()
    seen = [spec['a'] for id, _, spec, _ in sim.runs if id == 'field/spec.a']
    assert seen == ([1, 0] if sim.raw['spec']['a'] == 0 else [1, 1])
    assert [id for id, reason, _, _ in sim.runs if reason == 'create'] == ['create', 'field/spec.a', 'last']
    assert sim.cycle is None


def test_edits_of_a_creation_that_are_reverted_during_its_last_handler_are_shown_to_it():
    sim = Simulation(
        make_handler('create', reason=Reason.CREATE),
        make_handler('field/spec.a', field=('spec', 'a'), needs_change=True),
    )
    sim.step(edit_meanwhile={'a': 1})
    sim.step(edit_meanwhile={'a': 0})
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [('create', 0), ('field/spec.a', 1), ('field/spec.a', 0)]
    assert sim.cycle is None


@pytest.mark.parametrize('restarting', [False, True])
@pytest.mark.parametrize('field, is_concerned', [(None, True), (('spec', 'a'), True), (('spec', 'b'), False)])
@pytest.mark.parametrize('final', [{'a': 0}, {'a': 0, 'c': 5}], ids=['reverted', 'partly reverted'])
def test_edits_that_creation_handlers_have_seen_are_undone_by_update_handlers(restarting, field, is_concerned, final):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('first', 'second', 'third')),
        make_handler('update', reason=Reason.UPDATE, field=field, needs_change=True),
    )
    sim.edit(a=0)
    sim.step()
    sim.edit(a=1)
    sim.step()
    if restarting:
        sim.restart()
    sim.edit(**final)
    sim.settle()
    seen = [(id, spec['a']) for id, _, spec, _ in sim.runs]
    expected = is_concerned or restarting  # what they have seen is unknown then
    assert seen[:3] == [('first', 0), ('second', 1), ('third', 0)]
    assert seen[3:] == [('update', 0)] * expected
    assert not sim.progress and sim.cycle is None


@pytest.mark.parametrize('restarting', [False, True])
@pytest.mark.parametrize('field, is_concerned', [(None, True), (('spec', 'a'), True), (('spec', 'b'), False)])
def test_edits_that_are_taken_back_at_the_end_of_a_creation_are_undone_too(restarting, field, is_concerned):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('first', 'second')),
        make_handler('update', reason=Reason.UPDATE, field=field, needs_change=True),
    )
    sim.edit(a=0)
    sim.step()
    sim.edit(a=1)
    sim.step(edit_meanwhile={'a': 0})
    if restarting:
        sim.restart()
    sim.settle()
    seen = [(id, spec['a']) for id, _, spec, _ in sim.runs]
    assert seen == [('first', 0), ('second', 1), *([('update', 0)] * is_concerned)]
    assert not sim.progress and sim.cycle is None


@pytest.mark.parametrize('restarting', [False, True])
def test_edits_during_a_creation_concern_only_the_update_handlers_of_their_fields(restarting):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('first', 'second', 'third')),
        make_handler('a', reason=Reason.UPDATE, field=('spec', 'a'), needs_change=True),
        make_handler('b', reason=Reason.UPDATE, field=('spec', 'b'), needs_change=True),
    )
    sim.edit(a=0, b=0)
    sim.step()
    sim.edit(b=1)
    sim.step()
    if restarting:
        sim.restart()
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['first', 'second', 'third', 'b']
    assert not sim.progress and sim.cycle is None


@pytest.mark.parametrize('restarting', [False, True])
def test_handlers_that_saw_an_edit_in_a_creation_are_told_when_it_is_reverted_after_its_end(restarting):
    sim = Simulation(
        make_handler('create', reason=Reason.CREATE),
        make_handler('field/spec.a', field=('spec', 'a'), needs_change=True),
        make_handler('other/spec.b', field=('spec', 'b'), needs_change=True),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step(edit_meanwhile={'a': 1})
    sim.step()
    sim.step()
    assert sim.last_handled['spec']['a'] == 0
    if restarting:
        sim.restart()
    sim.edit(a=0)
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [
        ('create', 0),
        ('field/spec.a', 1),
        ('other/spec.b', 1),
        ('field/spec.a', 0),
    ]
    assert not sim.progress and sim.cycle is None


def test_handlers_that_are_due_again_stay_so_over_a_restart_with_the_state_that_they_have_seen():
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(b=1)
    sim.step()  # the first one has seen this
    sim.edit(a=1)
    sim.step(OUTCOMES['retry'])  # but not this
    sim.edit(a=0)
    sim.restart()
    sim.step()
    sim.edit(b=0)
    sim.settle()
    assert [spec for id, _, spec, success in sim.runs if id == 'first' and success][-1] == {'a': 0, 'b': 0}
    assert not sim.progress


@pytest.mark.parametrize(
    'generation, subresources, status, told',
    [
        (2, {'status'}, {}, True),
        (2, {'status'}, {'x': 1}, True),
        (2, {}, {}, True),
        (1, {'status'}, {}, False),
        (None, {'status'}, {}, False),
        (2, {}, {'x': 1}, False),  # it may be the results of handlers that have changed the generation
    ],
)
def test_edits_after_records_of_upstream_are_known_by_the_generation(generation, subresources, status, told):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.table = sim.table._replace(resource=dataclasses.replace(RESOURCE, subresources=frozenset(subresources)))
    sim.decider.revise(sim.table)
    sim.raw['metadata']['generation'] = 1
    sim.raw['status'] = status
    sim.step()
    sim.lose_digests()
    sim.restart()
    sim.edit(a=1)
    sim.raw['metadata']['generation'] = generation
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [
        ('create1', 0),
        ('create2', 1),
        *([('update', 1)] if told else []),
    ]


@pytest.mark.parametrize('known', [{}, {'labels': {'l': 'v'}}])
@pytest.mark.parametrize(
    'edit',
    [
        None,
        {'spec': {'a': 1}},
        {'metadata': {'labels': {'l': 'w'}}},
        {'metadata': {'labels': {'l': None, 'm': 'n'}}},
        {'metadata': {'annotations': {'x': 'y'}}},
        {'metadata': {'labels': {'l': None}}},
    ],
)
def test_edits_in_a_downtime_of_a_creation_are_known_by_digests(known, edit):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.raw['metadata'] = {**sim.raw['metadata'], **known, 'generation': 7}
    before = copy.deepcopy(sim.raw)
    sim.step()
    assert all(
        set(record) <= {'started', 'stopped', 'purpose', 'retries', 'success', 'failure'} for record in sim.records
    )
    sim.restart()
    sim.raw = Patch(edit or {}).applied_to(sim.raw)
    sim.settle()
    changed = edit is not None and Patch(edit).applied_to(before) != before
    assert [id for id, *_ in sim.runs] == ['create1', 'create2', *(['update'] if changed else [])]


@pytest.mark.parametrize('edits, told', [({'a': 1}, True), ({}, False)])
def test_edits_in_a_downtime_are_known_by_digests_where_there_is_no_generation(edits, told):
    sim = Simulation(
        make_handler('create1', reason=Reason.CREATE),
        make_handler('create2', reason=Reason.CREATE),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.raw['metadata'].pop('generation', None)
    sim.step()
    (record,) = [record for record in sim.records if record.get('success')]
    assert 'digest' in record and 'base' in record  # so there is no need to hide it
    assert re.fullmatch(r'[\dT:-]+\.\d{6}\+00:00', record['stopped'])
    sim.restart()
    if edits:
        sim.edit(**edits)
    sim.settle()
    assert [(id, spec['a']) for id, _, spec, _ in sim.runs] == [
        ('create1', 0),
        ('create2', edits.get('a', 0)),
        *([('update', 1)] if told else []),
    ]


@pytest.mark.parametrize('error', ['refused', 'lost'])
@pytest.mark.parametrize('edit', [None, {'b': 1}])
def test_patches_of_the_spec_that_are_refused_or_not_answered_are_no_edits(error, edit):
    sim = Simulation(*updates())
    sim.settle()
    sim.runs.clear()
    sim.edit(a=1)
    sim.step(own_patch={'spec': {'c': 1}}, error=error, edit_meanwhile=edit)
    while 'second' not in {id for id, *_ in sim.runs}:
        sim.step()
    ids = [id for id, *_ in sim.runs]
    assert ids == (['first', 'second'] if edit is None else ['first', 'first', 'second'])
    assert sim.raw['spec']['c'] == 1


@pytest.mark.parametrize('error', ['refused', 'lost'])
def test_creations_whose_patches_are_refused_or_not_answered_are_followed_by_no_update(error):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('create1', 'create2', 'create3')),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step(own_patch={'spec': {'c': 1}}, error=error)
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create1', 'create2', 'create3']
    assert sim.last_handled['spec']['c'] == 1


@pytest.mark.parametrize('edit', [{}, {'a': 1}], ids=['no edit', 'edit'])
def test_values_that_the_api_adjusts_in_a_creation_hide_no_edits(edit):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('create1', 'create2', 'create3')),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.step()
    sim.edit(**edit)
    sim.step(own_patch={'spec': {'c': '1024Mi'}}, adjusted={'c': '1Gi'})
    sim.settle()
    assert [id for id, *_ in sim.runs] == ['create1', 'create2', 'create3', *(['update'] if edit else [])]
    assert sim.last_handled['spec'] == {'a': 0, 'b': 0, 'c': '1Gi', **edit}


@pytest.mark.parametrize('error', ['refused', 'lost'])
def test_edits_beside_patches_that_are_refused_or_not_answered_are_told_apart_from_them(error):
    sim = Simulation(
        make_handler('field_c/spec.c', field=('spec', 'c'), reason=Reason.UPDATE, needs_change=True),
        make_handler('field_b/spec.b', field=('spec', 'b'), reason=Reason.UPDATE, needs_change=True),
        make_handler('patching', reason=Reason.UPDATE, needs_change=True),
        make_handler('slow', reason=Reason.UPDATE, needs_change=True),
    )
    sim.settle()
    sim.runs.clear()
    sim.edit(b=1, c=1)
    sim.step()
    sim.step()
    assert [id for id, *_ in sim.runs] == ['field_c/spec.c', 'field_b/spec.b']
    sim.step(own_patch={'spec': {'c': 2, 'd': 2}}, error=error, edit_meanwhile={'b': 2})
    sim.settle()
    counts = Counter(id for id, *_ in sim.runs)
    assert (counts['field_c/spec.c'], counts['field_b/spec.b']) == (1, 2)
    assert sim.last_handled['spec'] == {'a': 0, 'b': 2, 'c': 2, 'd': 2}


@pytest.mark.parametrize(
    'delays, stored',
    [
        ([10, 10], True),
        ([10, 0], False),
        ([0, 10], False),
        ([0, 0], False),
        ([10], False),
        ([0.9, 10], False),
        ([1, 10], True),
    ],
)
def test_the_state_is_stored_in_a_creation_only_if_all_the_rest_of_it_is_put_off(delays, stored):
    sim = Simulation(
        *(make_handler(id, reason=Reason.CREATE) for id in ('create1', 'create2', 'create3')),
        make_handler('update', reason=Reason.UPDATE, needs_change=True),
    )
    sim.raw['metadata']['generation'] = 1
    sim.step()
    for delay in delays:
        sim.step(Outcome(final=False, delay=delay, exception=TemporaryError('later')))
    assert any('base' in record for record in sim.records) is stored
