import copy
import datetime

import jsonpatch
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.conditions import Condition, ConditionEdits, Conditions, find_edits, format_time, merge
from kopf._cogs.structs.patches import Patch, Replacing

THEN, NOW = '2020-01-01T00:00:00Z', '2030-12-31T23:59:59Z'
TYPES = st.sampled_from(['Ready', 'Reconciling', 'Stalled', 'example.com/Other'])
CONDITIONS = st.builds(
    Condition, st.sampled_from([True, False, None]), st.sampled_from(['A', 'B']), st.sampled_from(['', 'x'])
)
CHANGES = st.dictionaries(TYPES, st.none() | CONDITIONS, max_size=4)
ENTRIES = st.builds(
    lambda type_, status, reason, since, more: {
        'type': type_,
        'status': status,
        'reason': reason,
        'message': '',
        'lastTransitionTime': since,
        **more,
    },
    TYPES,
    st.sampled_from(['True', 'False', 'Unknown']),
    st.sampled_from(['A', 'B']),
    st.sampled_from([THEN, '2021-01-01T00:00:00Z']),
    st.sampled_from([{}, {'observedGeneration': 1}, {'lastProbeTime': None}, {'severity': 'x'}]),
)
LISTS = st.lists(ENTRIES, max_size=4, unique_by=lambda entry: entry['type'])


def make_body(entries=None, generation=1, **more):
    body = {'metadata': {'name': 'obj', 'resourceVersion': '1', 'generation': generation}, 'spec': {}, **more}
    return body if entries is None else {**body, 'status': {'conditions': entries}}


def entry(type_, status='True', **more):
    return {
        'type': type_,
        'status': status,
        'reason': 'Reason',
        'message': '',
        'lastTransitionTime': THEN,
        'observedGeneration': 1,
        **more,
    }


def open_conditions(raw, *, counted=True):
    patch = Patch(body=Body(raw))
    return Conditions(Body(raw), patch, counted=counted), patch


def apply(raw, patch):
    """Return the state after the patch, as the API applies it."""
    return jsonpatch.apply_patch(copy.deepcopy(raw), patch.as_json_patch(raw))


def list_by_type(raw):
    return {each['type']: each for each in raw.get('status', {}).get('conditions', [])}


# Values.


@pytest.mark.parametrize('status', ['True', 1, 0, 'Unknown', object()])
def test_a_status_is_true_false_or_none(status):
    with pytest.raises(TypeError, match=r"kopf\.Condition: the status must be True, False, or None"):
        Condition(status, 'Reason')


@pytest.mark.parametrize('reason', ['', 'two words', '1st', 'with-dash', 'Trailing:', 'Line\n', 'x' * 1025])
def test_a_reason_is_one_word_as_the_api_demands(reason):
    with pytest.raises(ValueError, match=r"kopf\.Condition: the reason must be one word in CamelCase"):
        Condition(True, reason)


@pytest.mark.parametrize('reason', ['A', 'CamelCase', 'with_underscore', 'Http:404', 'x' * 1024])
def test_all_reasons_of_the_api_are_accepted(reason):
    assert Condition(True, reason).reason == reason


@pytest.mark.parametrize(('reason', 'message'), [(None, ''), (5, ''), ('Reason', None), ('Reason', ValueError('x'))])
def test_reasons_and_messages_are_strings(reason, message):
    with pytest.raises(TypeError, match="must be a string, not"):
        Condition(True, reason, message)


def test_a_message_has_at_most_32768_characters():
    assert len(Condition(True, 'Reason', 'x' * 32768).message) == 32768
    with pytest.raises(ValueError, match="the message has 32769 characters, but the API accepts only 32768"):
        Condition(True, 'Reason', 'x' * 32769)


def test_conditions_are_compared_by_what_they_say():
    assert Condition(True, 'A') == Condition(True, 'A', '') != Condition(None, 'A')
    assert len({Condition(True, 'A'), Condition(True, 'A'), Condition(True, 'A', 'x')}) == 2
    assert Condition(True, 'A') != 'A'
    assert repr(Condition(None, 'A', "x")) == "kopf.Condition(None, 'A', 'x')"


# The mapping.


def test_reading_returns_all_fields():
    conditions, _ = open_conditions(make_body([entry('Ready', 'False', message='m'), entry('Other', 'Unknown')]))
    ready = conditions['Ready']
    assert (ready.status, ready.reason, ready.message) == (False, 'Reason', 'm')
    assert ready.observed_generation == 1
    assert ready.last_transition_time == datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert conditions['Other'].status is None
    assert list(conditions) == ['Ready', 'Other'] and len(conditions) == 2
    assert 'Ready' in conditions and conditions.get('Absent') is None


@pytest.mark.parametrize('other', [{'type': 'X'}, {'type': 'X', 'reason': None, 'lastTransitionTime': 'today'}])
def test_incomplete_conditions_of_other_clients_can_be_read(other):
    conditions, _ = open_conditions(make_body([other]))
    found = conditions['X']
    assert (found.status, found.reason, found.message) == (None, '', '')
    assert found.last_transition_time is found.observed_generation is None


def test_changes_can_be_read_at_once_by_all_handlers_of_the_patch():
    raw = make_body([entry('Ready'), entry('Other')], generation=7)
    conditions, patch = open_conditions(raw)
    conditions['Ready'] = Condition(False, 'Broken')
    del conditions['Other']
    again = Conditions(Body(raw), patch, counted=True)
    for each in conditions, again:
        assert dict(each) == {'Ready': Condition(False, 'Broken')}
        assert each['Ready'].observed_generation == 7
    with pytest.raises(KeyError):
        del again['Other']
    assert len(find_edits(patch)) == 1


def test_reading_requests_no_changes():
    conditions, patch = open_conditions(make_body([entry('Ready')]))
    assert dict(conditions) and repr(conditions) and not patch


@pytest.mark.parametrize('value', [True, 'True', None, {'status': 'True'}])
def test_only_conditions_can_be_set(value):
    conditions, _ = open_conditions(make_body())
    with pytest.raises(TypeError, match=r"conditions\['Ready'\] must be a kopf\.Condition, not "):
        conditions['Ready'] = value


@pytest.mark.parametrize('type_', ['', 'two words', '-x', 'x-', 'UP/x', 'x' * 317, 5])
def test_a_type_is_one_word_as_the_api_demands(type_):
    conditions, patch = open_conditions(make_body())
    with pytest.raises(ValueError, match="a type of conditions is one word in CamelCase"):
        conditions[type_] = Condition(True, 'Reason')
    assert not patch


def test_an_error_tells_if_the_conditions_are_no_list():
    conditions, patch = open_conditions(make_body({'Ready': True}))
    with pytest.raises(TypeError, match=r"status\.conditions of the object must be a list, but it is \{'Ready': True"):
        conditions['Ready'] = Condition(True, 'Reason')
    assert not patch


def test_a_list_that_is_none_any_more_is_left_alone():
    conditions, patch = open_conditions(make_body())
    conditions['Ready'] = Condition(True, 'Reason')
    assert patch.as_json_patch(make_body('text')) == []


def test_after_clearing_the_patch_the_conditions_are_as_before():
    conditions, patch = open_conditions(make_body())
    conditions['Ready'] = Condition(True, 'Reason')
    patch.clear()
    assert not conditions
    conditions['Other'] = Condition(True, 'Reason')
    assert list(list_by_type(apply(make_body(), patch))) == ['Other']


@pytest.mark.parametrize('status', [None, {}, {'conditions': None}, {'conditions': []}, {'other': 1}])
def test_conditions_are_written_into_any_status(status):
    raw = make_body() if status is None else make_body(status=status)
    conditions, patch = open_conditions(raw)
    conditions['Ready'] = Condition(True, 'Reason', 'm')
    written = apply(raw, patch)
    [ready] = written['status'].pop('conditions')
    assert written['status'] == {key: value for key, value in (status or {}).items() if key != 'conditions'}
    since = datetime.datetime.fromisoformat(ready.pop('lastTransitionTime'))
    assert abs((datetime.datetime.now(datetime.UTC) - since).total_seconds()) < 60
    assert ready == {'type': 'Ready', 'status': 'True', 'reason': 'Reason', 'message': 'm', 'observedGeneration': 1}


# Generations.


def test_the_generation_is_that_of_the_object_as_the_handler_saw_it():
    conditions, patch = open_conditions(make_body(generation=3))
    conditions['Ready'] = Condition(True, 'Reason')
    newer = make_body(generation=4, spec={'edited': True})
    assert list_by_type(apply(newer, patch))['Ready']['observedGeneration'] == 3


def test_the_generation_that_the_own_patch_has_made_counts_as_seen():
    conditions, patch = open_conditions(make_body(generation=3))
    conditions['Ready'] = Condition(True, 'Reason')
    patch.spec['own'] = 'x'
    patched = make_body(generation=4, spec={'own': 'x'})
    edited = make_body(generation=5, spec={'own': 'x', 'edited': True})
    assert list_by_type(jsonpatch.apply_patch(patched, Patch(fns=patch.fns).as_json_patch(patched)))['Ready'][
        'observedGeneration'
    ] == (4)
    assert list_by_type(jsonpatch.apply_patch(edited, Patch(fns=patch.fns).as_json_patch(edited)))['Ready'][
        'observedGeneration'
    ] == (3)


def test_an_edit_to_a_value_that_only_python_takes_for_the_same_is_not_seen():
    conditions, patch = open_conditions(make_body(generation=3, spec={'on': True}))
    conditions['Ready'] = Condition(True, 'Reason')
    newer = make_body(generation=4, spec={'on': 1})
    assert list_by_type(apply(newer, patch))['Ready']['observedGeneration'] == 3


def test_what_the_edits_are_told_to_follow_counts_as_seen():
    edits = ConditionEdits(Patch(), make_body(generation=3), counted=True)
    edits.change('Ready', Condition(True, 'Reason'))
    raw = make_body(generation=5, spec={'of': 'functions'})
    edits.follow(raw)
    edits(raw)
    assert edits.observed == list_by_type(raw)['Ready']['observedGeneration'] == 5


@pytest.mark.parametrize('raw', [make_body(generation=3), make_body(generation=None)])
def test_no_generation_is_written_if_it_does_not_count_the_desired_state(raw):
    conditions, patch = open_conditions(raw, counted=raw['metadata']['generation'] is None)
    conditions['Ready'] = Condition(True, 'Reason')
    assert 'observedGeneration' not in list_by_type(apply(raw, patch))['Ready']


def test_a_condition_about_a_newer_generation_is_not_replaced():
    changes = {'Ready': Condition(True, 'Old'), 'Other': None}
    entries = [entry('Ready', 'False', observedGeneration=5), entry('Other', observedGeneration=5)]
    assert merge(entries, changes, now=NOW, generation=4, newest=5) == entries
    # After a restoration from a backup, the objects have old statuses and new generations.
    merged = merge(entries, changes, now=NOW, generation=1, newest=1)
    assert [(each['type'], each['reason'], each['observedGeneration']) for each in merged] == [('Ready', 'Old', 1)]


# Merging.


@given(LISTS, CHANGES)
def test_the_merged_list_has_the_changes_and_all_other_entries_in_their_order(entries, changes):
    before = copy.deepcopy(entries)
    merged = merge(entries, changes, now=NOW)
    types = [each['type'] for each in merged]
    assert entries == before
    assert [each for each in merged if each['type'] not in changes] == [
        each for each in entries if each['type'] not in changes
    ]
    assert types == [each['type'] for each in entries if changes.get(each['type'], entries) is not None] + [
        type_ for type_, change in changes.items() if change and type_ not in {each['type'] for each in entries}
    ]
    for type_, change in changes.items():
        if change is not None:
            [found] = [each for each in merged if each['type'] == type_]
            expected = {True: 'True', False: 'False', None: 'Unknown'}[change.status]
            assert (found['status'], found['reason'], found['message']) == (expected, change.reason, change.message)


@given(LISTS, CHANGES)
def test_the_transition_time_moves_only_with_the_status(entries, changes):
    known = {each['type']: each for each in entries}
    for each in merge(entries, changes, now=NOW):
        before = known.get(each['type'])
        moved = before is None or before['status'] != each['status']
        assert each['lastTransitionTime'] == (NOW if moved else before['lastTransitionTime'])
        assert before is None or {*before} <= {*each}


@given(LISTS, CHANGES)
def test_the_same_changes_again_change_nothing(entries, changes):
    merged = merge(entries, changes, now=THEN, generation=1, newest=1)
    assert merge(merged, changes, now=NOW, generation=1, newest=1) == merged


@given(LISTS, CHANGES)
def test_no_nested_value_is_modified_in_place(entries, changes):
    raw = make_body(entries)
    before = copy.deepcopy(raw)
    edits = ConditionEdits(Patch(), raw, counted=True)
    for type_, change in changes.items():
        edits.change(type_, change)
    edits.summarize()
    assert Patch(fns=[Replacing(edits)]).as_json_patch(raw) == Patch(fns=[edits]).as_json_patch(raw)
    assert raw == before


def test_a_missing_transition_time_is_added():
    [merged] = merge([{'type': 'Ready', 'status': 'True'}], {'Ready': Condition(True, 'A')}, now=NOW)
    assert merged['lastTransitionTime'] == NOW


def test_of_a_type_that_is_there_twice_the_first_entry_remains():
    entries = [entry('Ready'), entry('Other'), entry('Ready', 'False'), 'no condition']
    merged = merge(entries, {'Ready': Condition(True, 'New')}, now=NOW)
    assert merged == [entry('Ready', reason='New'), entry('Other'), 'no condition']


class Server:
    """One object; it accepts only patches for its newest version, as a test of the version in the patch makes it."""

    def __init__(self, entries):
        self.raw = make_body(entries)

    def patch(self, patch, known):
        if known['metadata']['resourceVersion'] != self.raw['metadata']['resourceVersion']:
            return False
        if ops := patch.as_json_patch(known):
            self.raw = jsonpatch.apply_patch(self.raw, ops)
            self.raw['metadata']['resourceVersion'] = str(int(self.raw['metadata']['resourceVersion']) + 1)
        return True


@given(LISTS, CHANGES, CHANGES, st.lists(st.integers(0, 1), max_size=12))
@example([entry('Ready')], {'Ready': None}, {'Other': Condition(True, 'A')}, [0, 1, 0, 1])
def test_two_writers_in_any_order_lose_nothing(entries, mine, yours, order):
    yours = {type_: change for type_, change in yours.items() if type_ not in mine}
    server = Server(entries)
    patches = []
    for changes in mine, yours:
        conditions, patch = open_conditions(server.raw)
        for type_, change in changes.items():
            if change is not None:
                conditions[type_] = change
            elif type_ in conditions:
                del conditions[type_]
        patches.append(patch)
    # Each writer reads, then writes; a refused one reads again. The order says whose turn it is.
    known, pending = [None, None], [0, 1]
    for writer in [*order, 0, 1, 0, 1, 0, 1, 0, 1]:
        if writer in pending and known[writer] is None:
            known[writer] = copy.deepcopy(server.raw)
        elif writer in pending and server.patch(patches[writer], known[writer]):
            pending.remove(writer)
        else:
            known[writer] = None
    assert not pending
    final, before = list_by_type(server.raw), {each['type']: each for each in entries}
    for type_, change in {**mine, **yours}.items():
        said = final.get(type_)
        assert (
            (said is None) if change is None else (said['reason'], said['message']) == (change.reason, change.message)
        )
    for type_ in before.keys() - mine.keys() - yours.keys():
        assert final[type_] == before[type_]
    assert final.keys() <= {*before, *mine, *yours}


@given(LISTS, CHANGES)
def test_the_json_patch_makes_the_merged_list(entries, changes):
    raw = make_body(entries)
    conditions, patch = open_conditions(raw, counted=False)
    for type_, change in changes.items():
        if change is not None:
            conditions[type_] = change
    expected = list(conditions)
    assert [each['type'] for each in apply(raw, patch)['status']['conditions'] or []] == expected
    edited = apply(raw, patch)
    assert patch.as_json_patch(edited) == []  # it can be applied again


def test_times_are_written_in_utc_and_whole_seconds():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert format_time(datetime.datetime(2020, 5, 1, 1, 2, 3, 456, tzinfo=zone)) == '2020-04-30T23:02:03Z'
