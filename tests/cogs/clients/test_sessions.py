"""Sessions leave nothing behind, even if their event loop ends at once: over TLS, closing politely takes a while."""
import asyncio
import contextlib
import gc
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


async def request(client):
    await client.get_json('/api/v1/pods')


async def stream(client):
    async with client.stream('/api/v1/pods', {'watch': 'true'}):
        await asyncio.Event().wait()


@pytest.mark.parametrize('operation, seconds', [
    (request, 5),  # in the wait for the answer
    (stream, 5),  # the same
    (stream, 0),  # in the wait for events
])
def test_cancelled_operations(sandbox, make_vault, operation, seconds):
    async def main():
        info = ConnectionInfo(server=sandbox.url, ca_data=sandbox.ca, token=sandbox.token)
        async with ApiClient(make_vault(info), OperatorSettings()) as client:
            await client.get_json('/api')  # so that there is a connection
            count = len(sandbox.requests)
            task = asyncio.create_task(operation(client))
            while len(sandbox.requests) == count or seconds == 0 and sandbox.requests[-1].status == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    sandbox.faults.delay(seconds, resource='pods', times=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(main())
        gc.collect()
    assert not [str(warning.message) for warning in caught if warning.category is ResourceWarning]
