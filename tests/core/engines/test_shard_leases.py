"""The Leases of shards as they are stored: they survive writing and reading; what others have written is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.clients.errors import APIServerError
from kopf._core.engines import shard_leases
from kopf._core.engines.assignments import Assignment, Division, Grant, Report, Seen
from kopf._core.engines.shard_leases import MemberState

DIVISION = Division(16, 'uid')
some_buckets = st.frozensets(st.integers(0, 15))
grants = st.builds(Grant, some_buckets, some_buckets, st.integers(0, 99))
names = st.text('abc/-09', min_size=1, max_size=5)


@given(names, st.integers(0, 99), st.dictionaries(names, grants), st.booleans())
def test_assignments_survive_being_written_and_read(generation, revision, granted, settled):
    assignment = Assignment(generation, revision, DIVISION, granted, settled)
    assert shard_leases.decode_assignment(shard_leases.encode_assignment(assignment)) == assignment


@given(st.builds(Seen, names, st.integers(0, 99)) | st.none(), some_buckets, some_buckets)
def test_reports_survive_being_written_and_read(seen, held, draining):
    state = MemberState(Report('x-1/3', DIVISION, seen, held, draining), '2026-01-01T00:00:00.000000Z')
    assert shard_leases.decode_member('x-1', shard_leases.encode_member(3, state)) == state


FIELDS = {'epoch': 1, 'buckets': 16, 'key': 'uid', 'generation': 'g', 'revision': 2, 'holds': '0-3', 'drains': ''}


@pytest.mark.parametrize(
    'text',
    [
        None,
        '',
        'x',
        '[]',
        json.dumps({**FIELDS, 'holds': '0-16'}),
        json.dumps({**FIELDS, 'holds': None}),
        json.dumps({**FIELDS, 'epoch': '1'}),
        json.dumps({**FIELDS, 'revision': None}),
        json.dumps({**FIELDS, 'buckets': True}),
    ],
)
def test_malformed_reports_are_refused(text):
    shard_leases.decode_member('x', json.dumps(FIELDS))
    with pytest.raises(ValueError):
        shard_leases.decode_member('x', text)


RECORD = {
    'generation': 'g',
    'revision': 1,
    'settled': True,
    'buckets': 16,
    'key': 'uid',
    'members': {'a/1': {'granted': '0-15', 'revoked': '', 'revokedAt': 0}},
}


@pytest.mark.parametrize('field, value', [('members', {'a/1': 'all'}), ('members', []), ('settled', 1), ('buckets', 8)])
def test_malformed_assignments_are_refused(field, value):
    shard_leases.decode_assignment(json.dumps(RECORD))
    with pytest.raises(ValueError):
        shard_leases.decode_assignment(json.dumps({**RECORD, field: value}))


@pytest.mark.parametrize(
    'answer, names', [({'items': [{'metadata': {'name': 'x'}}]}, ['x']), ({'items': None}, []), ({'items': []}, [])]
)
async def test_all_leases_are_listed(answer, names):
    assert [body['metadata']['name'] for body in await make_store(answer).list_all()] == names


@pytest.mark.parametrize('answer', [{}, {'kind': 'Status'}, {'items': {}}])
async def test_an_answer_without_items_does_not_mean_that_there_are_no_leases(answer):
    with pytest.raises(APIServerError, match='no list of Leases'):
        await make_store(answer).list_all()


def make_store(answer):
    class Client:
        async def request(self, *args, **kwargs):
            return json.dumps({'metadata': {}} | answer).encode()

    return shard_leases.GroupLeaseStore(Client(), namespace='ns', name='g', group='g')
