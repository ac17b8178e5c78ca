"""The content of Leases, and the requests for them."""

import datetime
import json

import hypothesis
import pytest
from hypothesis import strategies

from kopf._cogs.clients import errors
from kopf._core.engines import leases
from kopf._core.engines.leases import LeaseRecord, LeaseStore, find_namespace, format_time


def test_all_fields_are_those_of_other_clients():
    spec = {
        'holderIdentity': 'me',
        'leaseDurationSeconds': 15,
        'acquireTime': '2030-01-01T00:00:00.000000Z',
        'renewTime': '2030-01-01T00:00:02.000000Z',
        'leaseTransitions': 3,
    }
    assert LeaseRecord.parse(spec).as_spec() == spec
    assert LeaseRecord.parse(spec).duration == 15.0


@hypothesis.given(
    strategies.one_of(
        strategies.none() | strategies.text() | strategies.lists(strategies.integers()),
        strategies.dictionaries(
            strategies.sampled_from(
                ['holderIdentity', 'leaseDurationSeconds', 'acquireTime', 'renewTime', 'leaseTransitions', 'other']
            ),
            strategies.none() | strategies.text() | strategies.integers() | strategies.floats() | strategies.booleans(),
        ),
    )
)
def test_any_content_is_understood_somehow(spec):
    record = LeaseRecord.parse(spec)
    assert record.duration is None or record.duration > 0
    assert record.holder is None or record.holder
    assert LeaseRecord.parse(record.as_spec()) == record


def test_times_are_written_as_the_api_wants_them():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert format_time(datetime.datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=zone)) == '2030-01-02T01:04:05.000006Z'


class Client:
    """An API that responds with what the test gives it."""

    default_namespace = None

    def __init__(self, answer=None):
        self.answer = answer
        self.requests = []

    async def request(self, method, path, *, payload=None, logger=None, backoffs=None):
        assert backoffs == ()
        self.requests.append((method, path, payload and json.loads(payload)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()


@pytest.mark.parametrize(
    'pod, context, expected',
    [('ops', 'dev', 'ops'), (None, 'dev', 'dev'), ('', None, 'default'), (None, None, 'default')],
)
def test_the_namespace_is_that_of_the_pod_or_of_the_context(monkeypatch, tmp_path, pod, context, expected):
    monkeypatch.setattr(leases, 'SERVICE_ACCOUNT', str(tmp_path))
    if pod is not None:
        (tmp_path / 'namespace').write_text(f'{pod}\n')
    client = Client()
    client.default_namespace = context
    assert find_namespace(client) == expected


async def test_what_others_have_put_into_the_lease_stays():
    body = {
        'metadata': {'name': 'x', 'resourceVersion': '5', 'labels': {'team': 'a'}, 'managedFields': [{}]},
        'spec': {'holderIdentity': 'other', 'strategy': 'OldestEmulationVersion', 'leaseTransitions': 2},
    }
    client = Client(body)
    await LeaseStore(client, namespace='ns', name='x').replace(body, LeaseRecord(None, 1, transitions=2))
    [(method, path, payload)] = client.requests
    assert (method, path) == ('PUT', '/apis/coordination.k8s.io/v1/namespaces/ns/leases/x')
    assert payload['metadata'] == {'name': 'x', 'resourceVersion': '5', 'labels': {'team': 'a'}}
    assert payload['spec'] == {'leaseDurationSeconds': 1, 'leaseTransitions': 2, 'strategy': 'OldestEmulationVersion'}


async def test_an_absent_lease_is_distinguished_from_an_absent_resource():
    store = LeaseStore(Client(errors.APINotFoundError('no', status=404, code=404)), namespace='ns', name='x')
    assert await store.read() is None
    store = LeaseStore(Client(errors.APINotFoundError('404 page', status=404)), namespace='ns', name='x')
    with pytest.raises(errors.APINotFoundError):
        await store.read()


async def test_an_answer_that_is_no_object_is_an_error():
    with pytest.raises(errors.APIServerError, match="is no object"):
        await LeaseStore(Client([1]), namespace='ns', name='x').read()


def test_the_number_of_transitions_stays_within_what_the_api_accepts():
    highest = LeaseRecord.parse({'holderIdentity': 'other', 'leaseTransitions': 2**31 - 1})
    assert highest._replace(transitions=highest.transitions + 1).as_spec()['leaseTransitions'] == 2**31 - 1
