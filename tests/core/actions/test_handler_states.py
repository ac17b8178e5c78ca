"""The progress of handlers: its records are stored, loaded, restarted, and purged without losses."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._core.actions import handler_states
from kopf._core.actions.execution import Handler, HandlerChildrenRetry, Outcome
from kopf._core.actions.handler_states import HandlerState, State, digest_essence, parse_time

NOW = datetime.datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
PREFIX = 'kopf.zalando.org'

times = st.datetimes(
    min_value=datetime.datetime(1971, 1, 1),
    max_value=datetime.datetime(2200, 1, 1),
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=-3, minutes=30))]),
)
ids = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=80)
states = st.builds(
    HandlerState,
    started=times,
    stopped=st.none() | times,
    delayed=st.none() | times,
    purpose=st.none() | st.sampled_from(['create', 'update', 'delete', 'resume']),
    retries=st.integers(0, 10**9),
    waits=st.integers(0, 10**9),
    success=st.booleans(),
    failure=st.booleans(),
    message=st.none() | st.text(),
    subrefs=st.lists(ids, unique=True, max_size=3).map(tuple),
    digest=st.none() | st.text('0123456789abcdef', min_size=12, max_size=12),
    delay=st.none() | st.integers(301, 10**6) | st.floats(301, 1e8),
    base=st.none() | st.text(),
)
storages = st.sampled_from(
    [
        kopf.SmartProgressStorage(),
        kopf.AnnotationsProgressStorage(),
        kopf.AnnotationsProgressStorage(verbose=True),
        kopf.AnnotationsProgressStorage(prefix='example.com', v1=False),
        kopf.StatusProgressStorage(),
    ]
)


class Object:
    """An object in a cluster, reduced to what patches do to it."""

    def __init__(self, **annotations):
        self.raw = {
            'metadata': {
                'name': 'x',
                'annotations': {f'{PREFIX}/{key}': json.dumps(value) for key, value in annotations.items()},
            }
        }

    @property
    def body(self):
        return Body(self.raw)

    @property
    def records(self):
        return {
            key.removeprefix(f'{PREFIX}/'): json.loads(value)
            for key, value in self.raw['metadata'].get('annotations', {}).items()
        }

    def patch(self, patch):
        self.raw = json.loads(json.dumps(patch.applied_to(self.raw)))


class Setup(Object):
    """An object, and the state of its handlers in an operator."""

    def __init__(self, *ids, purpose='create', **annotations):
        super().__init__(**annotations)
        self.ids = ids
        self.handlers = [Handler(id=id, fn=lambda **_: None) for id in ids]
        self.storage = kopf.AnnotationsProgressStorage()
        self.restart(purpose)

    def restart(self, purpose='create', keep=()):
        self.state = State(purpose)
        self.state.load(self.ids, storage=self.storage, body=self.body, now=NOW, keep=keep)
        self.state.begin(self.ids, NOW)

    def store(self):
        patch = kopf.Patch()
        self.state.store(storage=self.storage, body=self.body, patch=patch)
        self.patch(patch)
        return patch

    def purge(self):
        patch = kopf.Patch()
        self.state.purge(storage=self.storage, body=self.body, patch=patch)
        self.patch(patch)
        return patch

    def succeed(self, id):
        self.state.note_outcome(id, Outcome(final=True), NOW)

    def retry(self, id, delay=None):
        self.state.note_outcome(id, Outcome(final=False, delay=delay, exception=kopf.TemporaryError('boo')), NOW)


def after(seconds):
    return NOW + datetime.timedelta(seconds=seconds)


# One record.


@given(state=states)
def test_records_come_back_the_same(state):
    record = json.loads(json.dumps(state.as_record()))
    assert HandlerState.from_record(record, NOW) == state
    assert HandlerState.from_record({key: value for key, value in record.items() if value is not None}, NOW) == state


@given(state=states, id=ids, storage=storages)
def test_records_come_back_the_same_through_storages(state, id, storage):
    obj, patch = Object(), kopf.Patch()
    storage.store(key=id, record=state.as_record(), body=obj.body, patch=patch)
    obj.patch(patch)
    record = storage.fetch(key=id, body=obj.body)
    assert record is not None
    assert HandlerState.from_record(record, NOW) == state


@pytest.mark.parametrize('usual', [True, False])
@pytest.mark.parametrize('digest', ['0123456789ab', 'ffffffffffff', ''])
def test_digests_come_back_the_same(digest, usual):
    state = HandlerState(started=NOW, digest=digest, **({'stopped': NOW, 'success': True} if digest else {}))
    assert HandlerState.from_record(state.as_record(usual=usual), NOW).digest == digest


def test_old_records_are_read():
    state = HandlerState.from_record({'started': '2020-02-03T04:05:06', 'retries': 3}, NOW)
    assert state == HandlerState(started=datetime.datetime(2020, 2, 3, 4, 5, 6, tzinfo=datetime.UTC), retries=3)


def test_empty_records_are_read():
    assert HandlerState.from_record({}, NOW) == HandlerState(started=NOW)


@pytest.mark.parametrize(
    'record',
    [
        'not json',
        '[]',
        '"text"',
        'null',
        '123',
        '{"started": 123}',
        '{"started": "yesterday"}',
        '{"delayed": "soon"}',
        '{"retries": "many"}',
        '{"success": "maybe"}',
        '{"subrefs": "fn"}',
        '{"subrefs": [1]}',
    ],
)
def test_broken_records_are_absent(record):
    setup = Setup()
    setup.raw['metadata']['annotations'] = {f'{PREFIX}/fn': record}
    setup.ids = ['fn']
    setup.restart()
    assert setup.state['fn'] == HandlerState(started=NOW, purpose='create')
    setup.succeed('fn')
    setup.store()
    assert setup.records['fn']['success'] is True


@pytest.mark.parametrize(
    'text, seconds',
    [
        ('2030-01-02T03:04:05', 0),
        ('2030-01-02T03:04:05Z', 0),
        ('2030-01-02T03:04:05.500000+00:00', 0.5),
        ('2030-01-02T05:04:05+02:00', 0),
    ],
)
def test_times_are_read_with_and_without_offsets(text, seconds):
    expected = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC) + datetime.timedelta(seconds=seconds)
    assert parse_time(text) == expected


@pytest.mark.parametrize('text', [None, ''])
def test_an_absent_time_is_none(text):
    assert parse_time(text) is None


def test_records_have_the_fields_of_other_versions():
    setup = Setup('fn')
    setup.retry('fn', delay=5)
    setup.store()
    assert setup.records == {
        'fn': {
            'started': '2030-01-02T03:04:05.000678+00:00',
            'delayed': '2030-01-02T03:04:10.000678+00:00',
            'purpose': 'create',
            'retries': 1,
            'success': False,
            'failure': False,
            'message': 'boo',
        }
    }


# Outcomes.


@pytest.mark.parametrize(
    'outcome, success, failure, delayed, message',
    [
        (Outcome(final=True, result=1), True, False, None, None),
        (Outcome(final=True, exception=kopf.PermanentError('boo')), False, True, None, 'boo'),
        (Outcome(final=True, exception=ValueError()), False, True, None, 'ValueError()'),
        (Outcome(final=False, exception=kopf.TemporaryError('boo'), delay=7), False, False, after(7), 'boo'),
        (Outcome(final=False, exception=kopf.TemporaryError('boo'), delay=0), False, False, NOW, 'boo'),
        (Outcome(final=False, exception=kopf.TemporaryError('boo'), delay=None), False, False, None, 'boo'),
        (
            Outcome(final=False, exception=HandlerChildrenRetry(7), delay=7, uncounted=True),
            False,
            False,
            after(7),
            None,
        ),
    ],
)
def test_outcomes_of_attempts_change_the_state(outcome, success, failure, delayed, message):
    old = HandlerState(started=after(-9), purpose='create', retries=2, message='old', subrefs=('fn/a',))
    new = old.with_outcome(outcome, NOW)
    assert new == HandlerState(
        started=after(-9),
        purpose='create',
        retries=3,
        subrefs=('fn/a',),
        success=success,
        failure=failure,
        delayed=delayed,
        message=message,
        stopped=NOW if success or failure else None,
        waits=outcome.uncounted,
    )
    assert new.finished is (success or failure)


@pytest.mark.parametrize(
    'state, due',
    [
        (HandlerState(started=NOW), True),
        (HandlerState(started=NOW, delayed=NOW), True),
        (HandlerState(started=NOW, delayed=after(-1)), True),
        (HandlerState(started=NOW, delayed=after(0.001)), False),
        (HandlerState(started=NOW, success=True), False),
        (HandlerState(started=NOW, failure=True), False),
    ],
)
def test_when_handlers_are_due(state, due):
    assert state.is_due(NOW) is due


# All records of a cycle.


def test_a_stored_state_is_continued_after_a_restart():
    setup = Setup('fn1', 'fn2', 'fn3')
    setup.succeed('fn1')
    setup.retry('fn2', delay=10)
    setup.store()
    before = dict(setup.state)
    setup.restart()
    assert dict(setup.state) == before
    assert setup.state.due(setup.handlers, NOW) == [setup.handlers[2]]
    assert setup.state.due(setup.handlers, after(10)) == setup.handlers[1:]
    assert not setup.state.done(setup.handlers)
    assert setup.state.done(setup.handlers[:1])


def test_only_changes_are_stored():
    setup = Setup('fn1', 'fn2')
    assert setup.store()
    assert not setup.store()
    setup.succeed('fn1')
    assert list(setup.store()['metadata']['annotations']) == [f'{PREFIX}/fn1']
    setup.restart()
    assert not setup.store()


def test_stored_again_if_not_saved():
    setup = Setup('fn1', 'fn2')
    setup.succeed('fn1')
    setup.state.store(storage=setup.storage, body=setup.body, patch=kopf.Patch())  # and it gets lost
    setup.state.mark_unsaved()
    setup.store()
    assert setup.records['fn1']['success'] and not setup.records['fn2']['success']


def test_purging_leaves_nothing():
    setup = Setup('fn1', 'fn2', other={'foreign': 'record'})
    setup.store()
    setup.purge()
    assert setup.records == {'other': {'foreign': 'record'}}


def test_purging_leaves_nothing_of_lost_patches_beside_the_records():
    setup, storage = Setup('fn1', purpose='update'), kopf.StatusProgressStorage()
    lost, patch = kopf.Patch(), kopf.Patch()
    setup.succeed('fn1')
    setup.state.see(['fn1'], 'd1')
    setup.state.store(storage=storage, body=setup.body, patch=lost)
    setup.state.mark_unsaved()
    setup.state.note_outcome('fn1', Outcome(final=True), NOW)  # the new record has no digest yet
    setup.state.purge(storage=storage, body=setup.body, patch=patch)
    assert patch.applied_to(lost.applied_to({}))['status'] == {'kopf': {'progress': {}}}


def test_purging_of_nothing_is_nothing():
    assert not Setup('fn1', 'fn2').purge()


def test_purging_removes_records_that_the_patch_would_store():
    setup, patch = Setup('fn'), kopf.Patch()
    setup.state.store(storage=setup.storage, body=setup.body, patch=patch)
    setup.state.purge(storage=setup.storage, body=setup.body, patch=patch)
    setup.patch(patch)
    assert not setup.records


def test_records_of_another_purpose_do_not_count_but_are_purged():
    setup = Setup('fn1', 'fn2', purpose='create')
    setup.ids = ['fn1', 'fn2']
    setup.succeed('fn1')
    setup.store()
    setup.ids = ['fn1']
    setup.restart(purpose='update')
    assert setup.state['fn1'] == HandlerState(started=NOW, purpose='update')
    setup.ids = ['fn1', 'fn2']
    setup.restart(purpose='update')
    setup.purge()
    assert not setup.records


def test_records_of_another_purpose_can_be_kept():
    setup = Setup('fn1', 'fn2', purpose='resume')
    setup.succeed('fn1')
    setup.retry('fn2')
    setup.store()
    setup.restart(purpose='update', keep={'fn1', 'fn2'})
    assert setup.state['fn1'].success
    assert setup.state['fn2'] == HandlerState(started=NOW, purpose='update')


def test_records_without_a_purpose_count():
    assert Setup('fn', fn={'retries': 5}).state['fn'].retries == 5


def test_the_delay_is_that_of_the_first_handler_to_be_due():
    setup = Setup('fn1', 'fn2', 'fn3')
    assert setup.state.delay(setup.handlers, NOW) == 0
    setup.retry('fn1', delay=10)
    setup.retry('fn2', delay=20)
    setup.succeed('fn3')
    assert setup.state.delay(setup.handlers, NOW) == 10
    assert setup.state.delay(setup.handlers, after(15)) == 0
    assert setup.state.delay(setup.handlers[1:], NOW) == 20
    assert setup.state.delay(setup.handlers[2:], NOW) is None


def test_successes_and_failures_of_the_cycle_are_counted():
    setup = Setup('fn1', 'fn2', 'fn3', 'fn4')
    setup.succeed('fn1')
    setup.succeed('fn2')
    setup.retry('fn3')
    setup.state.note_outcome('fn4', Outcome(final=True, exception=kopf.PermanentError('boo')), NOW)
    ids = [handler.id for handler in setup.handlers]
    assert setup.state.counts(ids) == setup.state.counts([*ids, *ids, 'fn5']) == (2, 1)


def test_subhandlers_are_loaded_and_purged_with_their_parents():
    setup = Setup('fn')
    setup.state.begin(['fn/a'], NOW)
    setup.state.adopt('fn', ['fn/a'])
    setup.state.begin(['fn/a/x', 'fn/a/y'], NOW)
    setup.state.adopt('fn/a', ['fn/a/x', 'fn/a/y'])
    setup.succeed('fn/a/x')
    setup.store()
    assert setup.records['fn']['subrefs'] == ['fn/a', 'fn/a/x', 'fn/a/y']
    assert setup.records['fn.a']['subrefs'] == ['fn/a/x', 'fn/a/y']
    setup.restart()
    assert setup.state['fn/a/x'].success and not setup.state['fn/a/y'].success
    setup.purge()
    assert not setup.records


def test_records_that_refer_to_each_other_do_not_loop():
    setup = Setup('fn', **{'fn': {'subrefs': ['fn/a', 'fn']}, 'fn.a': {'subrefs': ['fn']}})
    assert set(setup.state) == {'fn', 'fn/a'}


def test_restarting_a_handler_restarts_its_subhandlers():
    setup = Setup('fn', 'other')
    setup.state.begin(['fn/a'], NOW)
    setup.state.adopt('fn', ['fn/a'])
    for id in ['fn', 'fn/a', 'other']:
        setup.succeed(id)
    setup.state.restart('fn', after(5))
    assert setup.state['fn'] == HandlerState(started=after(5), purpose='create', subrefs=('fn/a',))
    assert setup.state['fn/a'] == HandlerState(started=after(5), purpose='create')
    assert setup.state['other'].success


def test_only_finished_handlers_are_marked_to_have_seen_an_essence():
    setup = Setup('fn1', 'fn2')
    setup.succeed('fn1')
    setup.store()
    setup.state.see(['fn1', 'fn2', 'unknown'], 'abc')
    assert (setup.state['fn1'].digest, setup.state['fn2'].digest) == ('abc', None)
    assert list(setup.store()['metadata']['annotations']) == [f'{PREFIX}/fn1']
    setup.state.see(['fn1'], 'abc')
    assert not setup.store()


# Digests.

essences = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=10,
).map(lambda value: {'spec': value})


def reverse(value):
    if isinstance(value, dict):
        return {key: reverse(val) for key, val in reversed(value.items())}
    return [reverse(val) for val in value] if isinstance(value, list) else value


@given(essences, essences)
def test_digests_are_equal_for_equal_essences_only(one, two):
    assert digest_essence(one) == digest_essence(reverse(one))
    assert (digest_essence(one) == digest_essence(two)) == (
        json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    )


# Clocks.


@pytest.mark.parametrize(
    'stored, seconds, expected',
    [
        (HandlerState(started=after(-9), delayed=after(60)), 0, (-9, 60)),
        (HandlerState(started=after(-9), delayed=after(3600)), 0, (-9, 3600)),  # as others store it
        (HandlerState(started=after(-9), delayed=after(3600), delay=3600), 0, (-9, 3600)),
        (HandlerState(started=after(-9), delayed=after(7200), delay=3600), 0, (-9, 3600)),
        (HandlerState(started=after(7200), delayed=after(7260)), 0, (0, 60)),
        (HandlerState(started=after(7200)), 0, (0, None)),
        (HandlerState(started=after(3591), delayed=after(3660)), 3600, (-9, 60)),  # the clock of both was set
    ],
)
def test_times_of_wrong_clocks_do_not_put_handlers_off(monkeypatch, stored, seconds, expected):
    setup = Setup('fn', fn=stored.as_record())
    monkeypatch.setattr(handler_states, 'get_shift', lambda: datetime.timedelta(seconds=seconds))
    setup.restart()
    state = setup.state['fn']
    assert (state.started, state.delayed) == tuple(None if value is None else after(value) for value in expected)
    setup.state.begin(['fn', 'other'], NOW)
    setup.store()
    assert parse_time(setup.records['other']['started']) == after(seconds)


@pytest.mark.parametrize('delay, told', [(300, None), (301, 301), (float('inf'), 315360000.0)])
def test_long_delays_are_stored_as_such(delay, told):
    setup = Setup('fn')
    setup.retry('fn', delay=delay)
    setup.store()
    assert setup.records['fn'].get('delay') == told
    setup.restart()
    assert setup.state['fn'].delay == told and setup.state['fn'].delayed == after(min(delay, 315360000))


@pytest.mark.parametrize('delay', [-5, -1e15, float('-inf')])
def test_negative_delays_are_over_at_once(delay):
    setup = Setup('fn')
    setup.retry('fn', delay=delay)
    setup.store()
    setup.restart()
    assert setup.state['fn'].delay is None and setup.state['fn'].is_due(NOW)


@pytest.mark.parametrize('delay', ['600', True, [], -1, 5, 1e300])
def test_delays_that_make_no_sense_are_none(delay):
    assert HandlerState.from_record({'delay': delay}, NOW).delay is None
