"""Sessions leave nothing behind, even if their event loop ends at once: over TLS, closing politely takes a while."""

import asyncio
import contextlib
import gc
import threading
import warnings

import pytest

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import ConnectionInfo
from kopf.testing import Sandbox


@pytest.fixture(scope='module')
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def hang(sandbox):
    """Make the server hang until the end of the test: it does not answer anything, not even good-byes."""
    hanging, over = threading.Event(), threading.Event()

    def predicate(body):
        hanging.set()
        return over.wait(100)

    def hang():
        thread.start()
        assert hanging.wait(60)

    thread = threading.Thread(target=sandbox.wait_for, args=('namespaces', 'default', predicate))
    yield hang
    over.set()
    thread.join()


async def request(client):
    await client.get_json('/api/v1/pods')


async def stream(client):
    async with client.stream('/api/v1/pods', {'watch': 'true'}):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    'operation, delay',
    [
        (request, 60),  # in the wait for the answer
        (stream, 60),  # the same
        (stream, 0),  # in the wait for events
    ],
)
def test_cancelled_operations_leave_no_open_sockets(sandbox, hang, make_vault, operation, delay):
    async def main():
        info = ConnectionInfo(server=sandbox.url, ca_data=sandbox.ca, token=sandbox.token)
        async with ApiClient(make_vault(info), OperatorSettings()) as client:
            count = len(sandbox.requests)
            task = asyncio.create_task(operation(client))
            while len(sandbox.requests) == count or not delay and sandbox.requests[-1].status == 0:
                await asyncio.sleep(0.01)
            hang()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    sandbox.faults.delay(delay, resource='pods')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(main())
        gc.collect()
    assert not [str(warning.message) for warning in caught if warning.category is ResourceWarning]
