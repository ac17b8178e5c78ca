import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.structs.conditions import Condition, merge
from kopf._core.actions.execution import (
    ErrorsMode,
    Handler,
    HandlerRetriesError,
    HandlerTimeoutError,
    NotReadyError,
    Outcome,
    PermanentError,
    RunTimeoutError,
    TemporaryError,
)
from kopf._core.engines.verdicts import (
    READY,
    RECONCILING,
    STALLED,
    State,
    Verdict,
    begin,
    derive_conditions,
    describe,
    judge,
)

NOW = '2030-12-31T23:59:59Z'
SUCCESS = Outcome(final=True)


def make_handler(**options):
    return Handler(id='fn', fn=lambda **_: None, **options)


def entry(type_, status='True', generation=1):
    return {'type': type_, 'status': status, 'reason': 'Any', 'message': '', 'observedGeneration': generation}


def read_by_kstatus(entries):
    """Return how kstatus reads a custom resource: a true `Reconciling` or `Stalled` first, then `Ready`."""
    found = {each['type']: each['status'] for each in entries}
    if found.get(RECONCILING) == 'True':
        return 'InProgress'
    if found.get(STALLED) == 'True':
        return 'Failed'
    return 'Current' if found.get(READY, 'True') == 'True' else 'InProgress'


# Before a run.


@pytest.mark.parametrize('generation', [2, None])
@pytest.mark.parametrize('status', ['True', 'False', 'Unknown'])
def test_nothing_is_written_before_a_run_in_a_generation_that_has_a_verdict(status, generation):
    assert begin([entry('Other'), entry(READY, status, generation=2)], generation) == {}


@pytest.mark.parametrize('entries', [[], [entry(READY)], [entry(READY), entry(STALLED)], [entry('Other')], ['text']])
def test_a_new_generation_is_in_progress_before_its_run(entries):
    merged = merge(entries, begin(entries, 2), now=NOW, generation=2, newest=2)
    found = {each['type']: each['status'] for each in merged if each in merged and isinstance(each, dict)}
    assert found[READY] == 'Unknown' and found[RECONCILING] == 'True' and STALLED not in found


# The verdict.


@pytest.mark.parametrize(
    ('outcome', 'options', 'state', 'reason', 'message'),
    [
        (SUCCESS, {}, State.READY, '', ''),
        (Outcome(final=True, ignored=True), {}, State.READY, '', ''),
        (Outcome(final=False, exception=TemporaryError("x")), {}, State.RETRYING, 'Retrying', "TemporaryError: x"),
        (Outcome(final=False, exception=NotReadyError("x")), {}, State.RETRYING, 'Waiting', "x"),
        (Outcome(final=False, exception=KeyError('x')), {}, State.RETRYING, 'Retrying', "KeyError: 'x'"),
        (Outcome(final=False, exception=RunTimeoutError("x", 1)), {}, State.RETRYING, 'TimedOut', "RunTimeoutError: x"),
        (Outcome(final=True, exception=PermanentError("x")), {}, State.STALLED, 'Failed', "PermanentError: x"),
        (Outcome(final=True, exception=PermanentError("x")), {'retries': 5}, State.STALLED, 'Failed', None),
        (Outcome(final=True, exception=HandlerTimeoutError("x")), {}, State.STALLED, 'Failed', None),
        (Outcome(final=True, exception=HandlerRetriesError("x")), {}, State.STALLED, 'RetriesExhausted', None),
        (Outcome(final=True, exception=ValueError("x")), {'retries': 5}, State.STALLED, 'RetriesExhausted', None),
        (
            Outcome(final=True, exception=ValueError("x")),
            {'retries': 5, 'errors': ErrorsMode.PERMANENT},
            State.STALLED,
            'Failed',
            None,
        ),
    ],
)
def test_the_verdict_says_what_has_come_of_the_run(outcome, options, state, reason, message):
    verdict = judge(make_handler(**options), outcome, 7, {})
    assert (verdict.state, verdict.generation, verdict.reason) == (state, 7, reason)
    assert message is None or verdict.message == message


@given(st.text(max_size=3000) | st.text(st.characters(categories=['Cs']), max_size=3))
def test_any_text_of_an_error_can_be_stored(text):
    message = describe(ValueError(text))
    assert message.encode() and message.startswith("ValueError") and len(message) <= 1024
    assert Condition(False, 'Failed', message)


# After a run.

VERDICTS = st.one_of(
    st.none(),
    st.builds(
        Verdict,
        st.sampled_from(State),
        st.integers(1, 2),
        st.just('Reason'),
        st.just('x'),
        st.booleans(),
        st.none() | st.builds(Condition, st.sampled_from([True, False, None]), st.just('Own')),
    ),
)
OWN = st.dictionaries(
    st.sampled_from([READY, RECONCILING, STALLED]),
    st.none() | st.builds(Condition, st.sampled_from([True, False, None]), st.just('Own')),
)
LISTS = st.lists(st.builds(entry, st.sampled_from([READY, RECONCILING, STALLED, 'Other'])), unique_by=str, max_size=4)


@given(LISTS, st.dictionaries(st.sampled_from('ab'), VERDICTS, min_size=1))
def test_kstatus_reads_them_as_they_are_meant(entries, verdicts):
    entries = merge(entries, begin(entries, 2), now=NOW, generation=2, newest=2)
    changes = derive_conditions(verdicts, 2, {})
    states = [each.state for each in verdicts.values() if each is not None and each.generation == 2]
    merged = merge(entries, changes, now=NOW, generation=2, newest=2)
    if State.STALLED in states:
        assert read_by_kstatus(merged) == 'Failed'
    elif State.RETRYING in states or len(states) < len(verdicts):
        assert read_by_kstatus(merged) == 'InProgress'
    elif not any(each.is_explicit for each in verdicts.values()):
        assert read_by_kstatus(merged) == 'Current'
    assert sum(each['type'] in (RECONCILING, STALLED) for each in merged) <= 1


@given(st.dictionaries(st.sampled_from('ab'), VERDICTS, min_size=1), OWN)
def test_what_a_handler_has_set_stays_but_a_failed_one_is_never_ready(verdicts, own):
    changes = derive_conditions(verdicts, 2, own)
    failed = any(each and each.generation == 2 and each.state is not State.READY for each in verdicts.values())
    for type_ in own.keys() & changes.keys():
        assert type_ == READY and failed and own[READY].status and changes[READY].status is False
    result = {**own, **changes}
    assert not (failed and result[READY] is not None and result[READY].status)


def test_readiness_that_a_handler_has_set_is_not_replaced_by_the_success_of_another():
    own = Condition(True, 'Serving')
    explicit = Verdict(State.READY, 1, is_explicit=True, ready=own)
    assert derive_conditions({'a': explicit, 'b': Verdict(State.READY, 1)}, 1, {})[READY] is own
    removed = explicit._replace(ready=None)
    assert READY not in derive_conditions({'a': removed, 'b': Verdict(State.READY, 1)}, 1, {})


def test_of_the_readiness_that_several_handlers_have_set_what_is_wrong_is_shown():
    good, bad = [Verdict(State.READY, 1, is_explicit=True, ready=Condition(ok, 'Own')) for ok in (True, False)]
    for verdicts in ({'a': good, 'b': bad}, {'a': bad, 'b': good}, {'a': bad, 'b': good, 'c': Verdict(State.READY, 1)}):
        assert derive_conditions(verdicts, 1, {})[READY] is bad.ready


def test_the_message_names_the_handlers_if_there_are_several():
    bad = Verdict(State.RETRYING, 1, 'Retrying', "ValueError: x")
    assert derive_conditions({'a': bad}, 1, {})[READY].message == "ValueError: x"
    assert derive_conditions({'a': bad, 'b': None}, 1, {})[READY].message == "a: ValueError: x"
    assert derive_conditions({'a': bad, 'b': bad}, 1, {})[READY].message == "a: ValueError: x; b: ValueError: x"
