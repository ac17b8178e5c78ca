"""The registration of webhook servers: when objects are written, how failures are retried, and the clean-up."""

import asyncio
import contextlib

import pytest

from kopf._cogs.clients import errors
from kopf._cogs.structs.credentials import LoginError
from kopf._core.engines.webhook_registration import CLEANUP_TIMEOUT, WebhookRegistration, attempt_all

pytestmark = pytest.mark.looptime

FIRST, SECOND = {'url': 'https://first'}, {'url': 'https://second'}
REFUSED = errors.APIForbiddenError('forbidden', status=403)
BROKEN = errors.APIServerError('broken', status=500)


class Registration(WebhookRegistration):
    """A registration in no cluster: it notes its requests with the time, and fails as it is told."""

    rule = "{verbs: [write]}"
    consequence = "it can block requests"
    title = "test object"

    def __init__(self):
        super().__init__(client=None)
        self.requests = []
        self.failures = []
        self.latency = 0

    async def write(self, client_config):
        await self._request('write', client_config)

    async def remove(self, client_config):
        await self._request('remove', client_config)

    async def _request(self, what, client_config):
        await asyncio.sleep(self.latency)
        self.requests.append((asyncio.get_running_loop().time(), what, client_config['url']))
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def registration():
    return Registration()


@contextlib.asynccontextmanager
async def running(registration):
    task = asyncio.create_task(registration.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_nothing_is_written_before_the_address_is_known(registration):
    async with running(registration):
        registration.recheck()
        await asyncio.sleep(100)
        registration.connect(FIRST)
        await asyncio.sleep(100)
    assert registration.requests == [(100, 'write', 'https://first')]


@pytest.mark.parametrize(
    ('failures', 'seconds'),
    [([], 0), ([REFUSED], 0), ([OSError('gone')], 1), ([OSError('gone'), BROKEN], 1)],
    ids=['written', 'refused', 'lost', 'refused after it was lost'],
)
async def test_it_is_settled_when_the_api_server_has_answered_for_the_first_time(registration, failures, seconds):
    registration.failures = failures
    async with running(registration):
        await asyncio.sleep(100)
        assert not registration.settled.is_set()
        registration.connect(FIRST)
        await registration.settled.wait()
        assert asyncio.get_running_loop().time() == 100 + seconds


async def test_each_new_address_and_each_check_is_a_write(registration):
    async with running(registration):
        for change in (lambda: registration.connect(FIRST), registration.recheck, lambda: registration.connect(SECOND)):
            change()
            await asyncio.sleep(1)
    assert registration.requests == [
        (0, 'write', 'https://first'),
        (1, 'write', 'https://first'),
        (2, 'write', 'https://second'),
    ]


async def test_changes_during_a_write_are_written_after_it(registration):
    registration.latency = 5
    async with running(registration):
        registration.connect(FIRST)
        await asyncio.sleep(1)
        registration.connect(SECOND)
        await asyncio.sleep(100)
    assert registration.requests == [(5, 'write', 'https://first'), (10, 'write', 'https://second')]


async def test_failures_are_retried_with_growing_delays_until_a_write_succeeds(registration):
    registration.failures = [BROKEN] * 6
    async with running(registration):
        registration.connect(FIRST)
        await asyncio.sleep(1000)
        registration.failures = [BROKEN]
        registration.recheck()
        await asyncio.sleep(1000)
    assert [time for time, *_ in registration.requests] == [0, 1, 3, 8, 18, 48, 78, 1000, 1001]


async def test_unexpected_failures_are_retried_and_do_not_end_the_operator(registration, caplog):
    registration.failures = [KeyError('spec'), TypeError('no object'), BROKEN]
    async with running(registration):
        registration.connect(FIRST)
        await asyncio.sleep(1000)
    assert [time for time, *_ in registration.requests] == [0, 1, 3, 8]
    assert caplog.messages[0] == "The test object cannot be written; trying again in 1 s." and 'spec' in caplog.text


async def test_failed_logins_end_the_operator(registration):
    registration.failures = [LoginError('no credentials')]
    async with running(registration) as task:
        registration.connect(FIRST)
        await asyncio.wait([task], timeout=10)
        assert isinstance(task.exception(), LoginError)


async def test_unexpected_failures_of_the_clean_up_are_logged(registration, caplog):
    registration.connect(FIRST)
    registration.failures = [KeyError('spec')]
    await registration.clean_up()
    assert "The test object cannot be cleaned up; it can block requests: KeyError('spec')" in caplog.messages


@pytest.mark.parametrize('error, is_named', [(REFUSED, True), (BROKEN, False)], ids=['forbidden', 'broken'])
async def test_the_missing_permission_is_named_if_that_is_the_reason(registration, caplog, error, is_named):
    registration.failures = [error]
    async with running(registration):
        registration.connect(FIRST)
        await asyncio.sleep(10)
    [message] = caplog.messages
    assert message.startswith("The test object cannot be written; trying again in 1 s: ")
    assert ("It needs the permission {verbs: [write]}." in message) is is_named


async def test_the_clean_up_comes_after_a_write_in_progress_and_is_the_last_request(registration):
    registration.latency = 5
    async with running(registration) as task:
        registration.connect(FIRST)
        await asyncio.sleep(1)
        registration.recheck()
        await registration.clean_up()
        await asyncio.wait_for(task, 100)
    assert registration.requests == [(5, 'write', 'https://first'), (10, 'remove', 'https://first')]


async def test_there_is_no_clean_up_if_the_address_was_never_known(registration):
    await registration.clean_up()
    assert registration.requests == []


async def test_a_failed_clean_up_is_reported_with_its_consequence(registration, caplog):
    registration.connect(FIRST)
    registration.failures = [REFUSED]
    await registration.clean_up()
    [message] = caplog.messages
    assert message.startswith("The test object cannot be cleaned up; it can block requests: APIForbiddenError(")


async def test_a_clean_up_that_hangs_is_given_up(registration, caplog):
    registration.connect(FIRST)
    registration.latency = 1000
    await registration.clean_up()
    assert asyncio.get_running_loop().time() == CLEANUP_TIMEOUT
    assert caplog.messages == ["The test object cannot be cleaned up; it can block requests: TimeoutError()"]


async def test_all_steps_are_attempted_and_the_first_failure_is_raised():
    attempted = []

    def make(name, error=None):
        async def step():
            attempted.append(name)
            if error is not None:
                raise error

        return step

    with pytest.raises(errors.APIForbiddenError):
        await attempt_all([make('a'), make('b', REFUSED), make('c', BROKEN), make('d')])
    assert attempted == ['a', 'b', 'c', 'd']


async def test_other_errors_than_those_of_the_api_end_the_attempts():
    async def step():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await attempt_all([step, lambda: pytest.fail("This step must not be reached.")])
