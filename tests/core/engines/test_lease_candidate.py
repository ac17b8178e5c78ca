"""The candidacy for a Lease: who holds it when, by the candidate's own clock, whatever comes from the API and when."""

import asyncio
import contextlib

import pytest

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import LeadershipSettings
from kopf._core.engines import lease_candidate
from kopf._core.engines.lease_candidate import LeadershipError, LeaseCandidate, check_settings
from kopf._core.engines.leases import LeaseRecord

pytestmark = pytest.mark.looptime


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(lease_candidate, 'read_time', lambda: asyncio.get_running_loop().time())


class Store:
    """A Lease in memory; requests take time, fail, or lose their responses."""

    namespace, name = 'ns', 'x'

    def __init__(self):
        self.body = None
        self.version = 0
        self.delay = 0.0
        self.delays = []  # of the next requests, instead of that
        self.lag = 0.0  # of the response, after the request is executed
        self.errors = []
        self.writes = []

    def put(self, record):
        self.version += 1
        self.body = {'metadata': {'name': 'x', 'resourceVersion': str(self.version)}, 'spec': record.as_spec()}
        return self.body

    async def _begin(self):
        await asyncio.sleep(self.delays.pop(0) if self.delays else self.delay)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def read(self):
        await self._begin()
        return self.body

    async def create(self, record):
        await self._begin()
        if self.body is not None:
            raise errors.APIConflictError('exists', status=409)
        self.writes.append(asyncio.get_running_loop().time())
        body = self.put(record)
        await asyncio.sleep(self.lag)
        return body

    async def replace(self, body, record, *, is_dry=False):
        await self._begin()
        if self.body is None:
            raise errors.APINotFoundError('gone', status=404, code=404)
        if body['metadata']['resourceVersion'] != str(self.version):
            raise errors.APIConflictError('changed', status=409)
        if is_dry:
            return self.body
        self.writes.append(asyncio.get_running_loop().time())
        body = self.put(record)
        await asyncio.sleep(self.lag)
        return body


@pytest.fixture
def store():
    return Store()


class Candidates:
    def __init__(self, store):
        self.store = store
        self.terms = []  # the times when candidates begin and end to hold the Lease

    @contextlib.asynccontextmanager
    async def run(self, identity='me'):
        def changed():
            self.terms.append((identity, candidate.term is not None, asyncio.get_running_loop().time()))

        candidate = LeaseCandidate(self.store, LeadershipSettings(), identity=identity, changed=changed)
        task = asyncio.create_task(candidate.run())
        try:
            yield candidate
            assert not task.done(), task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def candidates(store):
    return Candidates(store)


async def test_an_absent_lease_is_created_and_renewed_periodically(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(9)
        assert candidate.term is not None and candidate.holder == 'me'
        assert store.writes == pytest.approx([0, 2, 4, 6, 8])


async def test_the_validity_counts_from_before_the_request(store, candidates):
    async with candidates.run() as candidate:
        store.lag = 1.5
        await asyncio.sleep(4)
        assert store.writes[1] == pytest.approx(2)
        assert candidate.term.deadline == pytest.approx(12) and candidate.term.expiry == pytest.approx(17)


@pytest.mark.parametrize('age', [0.0, 7.0])
async def test_a_holder_is_dead_when_its_record_has_not_changed_for_its_duration(store, candidates, age):
    store.put(LeaseRecord('other', 15, renewed='a'))
    async with candidates.run() as candidate:
        await asyncio.sleep(age)
        candidate.see(store.put(LeaseRecord('other', 15, renewed='b')))
        await asyncio.sleep(14.9)
        assert candidate.term is None
        await asyncio.sleep(0.2)
        assert candidate.term is not None
        assert LeaseRecord.parse(store.body['spec']).holder == 'me'


async def test_a_change_beside_the_record_is_no_renewal(store, candidates):
    store.put(LeaseRecord('other', 15))
    async with candidates.run() as candidate:
        for _ in range(2):
            await asyncio.sleep(5)
            candidate.see(store.put(LeaseRecord('other', 15)))
        await asyncio.sleep(5.1)
        assert candidate.term is not None


async def test_a_renewal_that_the_candidate_has_not_seen_keeps_it_from_acquiring(store, candidates):
    store.put(LeaseRecord('other', 15, renewed='a'))
    async with candidates.run() as candidate:
        candidate.note_watch(True)  # and it is silently broken
        await asyncio.sleep(1)
        for number in range(20):
            store.put(LeaseRecord('other', 15, renewed=str(number)))
            await asyncio.sleep(3)
        assert candidate.term is None and not store.writes


async def test_a_term_ends_at_its_deadline_even_while_a_request_hangs(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.delay = 1000
        await asyncio.sleep(8.9)
        assert candidate.term is not None
        await asyncio.sleep(0.2)
        assert candidate.term is None and candidate.last_term is not None
        assert candidates.terms[-1] == ('me', False, pytest.approx(10))


async def test_a_lost_term_is_not_renewed_before_its_work_has_ended(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(0.1)
        store.delay = 1000
        await asyncio.sleep(11)
        store.delay = 0
        writes = len(store.writes)
        await asyncio.sleep(100)
        assert candidate.term is None and len(store.writes) == writes
        candidate.stand()
        await asyncio.sleep(0.1)
        assert candidate.term is not None


async def test_the_term_goes_on_if_the_response_to_a_renewal_is_lost(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(0.1)
        store.lag = 1000
        await asyncio.sleep(3)
        store.lag = 0
        await asyncio.sleep(20)
        assert candidate.term is not None
        assert candidates.terms[-1][1] and len(store.writes) > 5
        assert [begins for _, begins, _ in candidates.terms].count(True) == 1


async def test_two_candidates_never_hold_it_at_once(store, candidates):
    async with contextlib.AsyncExitStack() as stack:
        both = [await stack.enter_async_context(candidates.run(name)) for name in ('a', 'b')]
        for round_ in range(20):
            store.errors += [errors.APIServerError('down', status=500)] * (round_ % 9)
            for _ in range(40):
                await asyncio.sleep(0.5)
                assert sum(each.term is not None for each in both) <= 1
                for each in both:
                    if each.term is None and each.last_term is not None:
                        each.stand()
    assert {name for name, begins, _ in candidates.terms if begins}


async def test_a_lease_that_vanishes_is_still_that_of_its_holder(store, candidates):
    store.put(LeaseRecord('other', 15))
    async with candidates.run() as candidate:
        await asyncio.sleep(5)
        store.body = None
        candidate.see(None)
        await asyncio.sleep(9.8)
        assert not store.writes
        await asyncio.sleep(0.4)
        assert candidate.term is not None


async def test_older_states_are_ignored_unless_they_were_requested_later(store, candidates):
    store.put(LeaseRecord('other', 15))
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        older = {'metadata': {'name': 'x', 'resourceVersion': '0'}, 'spec': {'holderIdentity': 'older'}}
        candidate.see(older)
        assert candidate.holder == 'other'
        candidate.see(older, asked_at=asyncio.get_running_loop().time() + 1)
        assert candidate.holder == 'older'


async def test_the_release_clears_the_holder_as_other_clients_do(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.put(LeaseRecord.parse(store.body['spec']))  # edited meanwhile by another client
        await candidate.release()
    spec = store.body['spec']
    assert (spec['holderIdentity'], spec['leaseDurationSeconds'], spec['leaseTransitions']) == (None, 1, 0)
    assert spec['renewTime'] and spec['acquireTime']


async def test_a_release_that_takes_too_long_is_repeated(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.delays = [100.0]
        await candidate.release()
    assert store.body['spec']['holderIdentity'] is None


@pytest.mark.parametrize(
    'error',
    [
        errors.APIServerError('boo', status=500),
        errors.APIServerError('boo', status=503),
        errors.APITooManyRequestsError('boo', status=429),
        errors.APIConnectionError('boo'),
        errors.APITimeoutError('boo'),
    ],
    ids=lambda error: f'{type(error).__name__} {error.status}',
)
async def test_a_release_that_fails_for_a_moment_is_repeated(store, candidates, error):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.errors = [error, error]
        await candidate.release()
    assert store.body['spec']['holderIdentity'] is None


async def test_a_release_that_is_not_permitted_is_not_repeated(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.errors = [errors.APIForbiddenError('no', status=403)]
        with pytest.raises(errors.APIForbiddenError):
            await candidate.release()


async def test_a_release_whose_response_takes_too_long_is_not_repeated(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.lag = 100.0
        await candidate.release()
    assert store.body['spec']['holderIdentity'] is None
    assert len(store.writes) == 2


async def test_a_release_is_given_up_after_some_attempts(store, candidates):
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.delay = 100.0
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await candidate.release()
        assert asyncio.get_running_loop().time() - began == pytest.approx(6.4)  # three time-outs, and two pauses


async def test_a_lease_of_another_holder_is_not_released(store, candidates):
    store.put(LeaseRecord('other', 15))
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        await candidate.release()
    assert not store.writes


async def test_a_refusal_at_the_start_ends_the_operator(store):
    store.errors = [errors.APIForbiddenError('no rights', status=403, reason='Forbidden')]
    candidate = LeaseCandidate(store, LeadershipSettings(), identity='me', changed=lambda: None)
    with pytest.raises(LeadershipError, match='no rights Grant these rules'):
        await candidate.run()


async def test_a_refusal_of_what_was_permitted_is_tolerated(store, candidates):
    refusal = errors.APIForbiddenError('no rights', status=403, reason='Forbidden')
    async with candidates.run() as candidate:
        await asyncio.sleep(3)
        store.errors = [refusal] * 3
        await asyncio.sleep(10)
        assert candidate.term is not None
    store.put(LeaseRecord(None))
    candidate = LeaseCandidate(store, LeadershipSettings(), identity='me', changed=lambda: None)
    task = asyncio.create_task(candidate.run())
    await asyncio.sleep(1)
    store.errors = [refusal] * 100
    await asyncio.sleep(9.2)
    assert candidate.term is None and not task.done()
    candidate.stand()
    await asyncio.sleep(100)
    assert candidate.term is None and not task.done()
    store.errors = []
    await asyncio.sleep(20)
    assert candidate.term is not None
    task.cancel()
    await asyncio.wait([task])


async def test_a_namespace_that_is_being_deleted_is_no_refusal(store, candidates):
    details = {'causes': [{'reason': 'NamespaceTerminating', 'field': 'metadata.namespace'}]}
    async with candidates.run() as candidate:
        await asyncio.sleep(1)
        store.body = None
        store.errors = [None, None] + [errors.APIForbiddenError('ends', status=403, details=details)] * 20
        await asyncio.sleep(10)
        assert candidate.term is None
        candidate.stand()
        await asyncio.sleep(100)
        assert candidate.term is not None


@pytest.mark.parametrize(
    'values, message',
    [
        ({'duration': 5}, 'settings.leadership.duration must be above renew_deadline, but 5 is not above 10.'),
        (
            {'retry_period': 10},
            'settings.leadership.renew_deadline must be above retry_period, but 10 is not above 10.',
        ),
        ({'retry_period': -1}, 'settings.leadership.retry_period must be above zero, but -1 is not above 0.'),
        ({'name': ''}, "settings.leadership.name must be lowercase letters, digits, hyphens and dots, not ''."),
        ({'namespace': 'a b'}, "settings.leadership.namespace must be lowercase letters, digits, hyphens and dots"),
    ],
)
def test_wrong_settings_are_explained_in_one_line(values, message):
    settings = LeadershipSettings()
    for name, value in values.items():
        setattr(settings, name, value)
    with pytest.raises(LeadershipError, match=message.replace('.', r'\.')):
        check_settings(settings)


def test_the_defaults_are_permitted():
    check_settings(LeadershipSettings())
