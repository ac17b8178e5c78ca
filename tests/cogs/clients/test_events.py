import asyncio
import datetime
import json

import pytest

from kopf._cogs.clients import api, events
from kopf._cogs.structs.credentials import Vault

REF = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'name': 'name', 'uid': 'uid', 'namespace': 'ns'}


@pytest.fixture
def post(client, settings):
    writer = events.EventWriter(client, settings)

    async def post(message='msg', ref=REF, **kwargs):
        return await writer.create(ref, type='Normal', reason='Because', message=message, **kwargs)

    return post


async def test_events_have_all_fields_of_the_api(post, server):
    server.add('POST', '/api/v1/namespaces/ns/events', (201, {}))
    await post()
    body = json.loads(server.seen[0].body)
    moments = [body.pop(key) for key in ['firstTimestamp', 'lastTimestamp', 'eventTime']]
    assert body == {
        'metadata': {'namespace': 'ns', 'generateName': 'kopf-event-'},
        'action': 'Action?',
        'type': 'Normal',
        'reason': 'Because',
        'message': 'msg',
        'reportingComponent': 'kopf',
        'reportingInstance': 'dev',
        'source': {'component': 'kopf'},
        'involvedObject': REF,
    }
    now = datetime.datetime.now(datetime.UTC)
    for moment in moments:
        assert abs(now - datetime.datetime.fromisoformat(moment)) < datetime.timedelta(seconds=10)
    assert moments[0] == moments[1]
    assert len(moments[0]) == len('2020-12-31T23:59:59Z')
    assert len(moments[2]) == len('2020-12-31T23:59:59.123456Z')


async def test_settings_name_the_reporter_of_events(post, server, settings):
    settings.posting.reporting_component = 'mine'
    settings.posting.reporting_instance = 'pod-1'
    settings.posting.event_name_prefix = 'mine-'
    server.add('POST', '/api/v1/namespaces/ns/events', (201, {}))
    await post()
    body = json.loads(server.seen[0].body)
    assert body['metadata']['generateName'] == 'mine-'
    assert (body['reportingComponent'], body['source'], body['reportingInstance']) == (
        'mine',
        {'component': 'mine'},
        'pod-1',
    )


@pytest.mark.parametrize('namespace', [{}, {'namespace': None}])
async def test_events_of_cluster_scoped_objects_go_to_the_default_namespace(post, server, namespace):
    server.add('POST', '/api/v1/namespaces/default/events', (201, {}))
    await post(ref={'kind': 'Node', 'name': 'n', **namespace})
    assert json.loads(server.seen[0].body)['involvedObject'] == {'kind': 'Node', 'name': 'n', 'namespace': 'default'}


@pytest.mark.parametrize(
    'message, expected',
    [
        ('', ''),
        ('x' * 1024, 'x' * 1024),
        ('x' * 600 + 'y' * 600, 'x' * 511 + '...' + 'y' * 510),
        ('ё' * 1025, 'ё' * 511 + '...' + 'ё' * 510),
    ],
)
async def test_long_messages_are_cut_in_the_middle(post, server, message, expected):
    server.add('POST', '/api/v1/namespaces/ns/events', (201, {}))
    await post(message)
    assert json.loads(server.seen[0].body)['message'] == expected


@pytest.mark.parametrize('kwargs, expected', [({}, [3, 4]), ({'backoffs': 5}, [5]), ({'backoffs': []}, [])])
async def test_failures_are_retried_and_logged(post, server, settings, sleeps, caplog, kwargs, expected):
    settings.posting.default_backoffs = [3, 4]
    server.add('POST', '/api/v1/namespaces/ns/events', 500)
    await post(**kwargs)
    assert sleeps == expected
    assert "Failed to post an event" in caplog.text


@pytest.mark.parametrize('status', [404, 409, 422])
async def test_refusals_are_logged(post, server, sleeps, caplog, status):
    server.add('POST', '/api/v1/namespaces/ns/events', status)
    await post()
    assert sleeps == []
    assert "Failed to post an event" in caplog.text


async def test_missing_permissions_are_told_once(post, server, caplog):
    server.add('POST', '/api/v1/namespaces/ns/events', 403)
    await post()
    await post()
    assert caplog.text.count("Grant the verbs create, patch for events") == 1


async def test_namespaces_that_are_being_terminated_are_no_matter_of_permissions(post, server, caplog):
    message = 'events "e" is forbidden: unable to create new content in namespace ns because it is being terminated'
    server.add('POST', '/api/v1/namespaces/ns/events', (403, {'kind': 'Status', 'code': 403, 'message': message}))
    await post()
    assert "Failed to post an event" in caplog.text and "Grant" not in caplog.text


@pytest.mark.parametrize('answer, name', [({'metadata': {'name': 'event-1'}}, 'event-1'), ({}, None)])
async def test_names_of_posted_events(post, server, answer, name):
    server.add('POST', '/api/v1/namespaces/ns/events', (201, answer))
    assert (await post()).name == name


async def test_long_messages_are_not_repeated_in_the_log(post, server, caplog):
    server.add('POST', '/api/v1/namespaces/ns/events', 422)
    await post('x' * 5000)
    assert len(caplog.messages[0]) < 500


async def test_absent_credentials_are_logged(settings, caplog):
    async with api.ApiClient(Vault(), settings) as client:
        await events.EventWriter(client, settings).create(REF, type='t', reason='r', message='m')
    assert "Failed to post an event" in caplog.text


async def test_posting_can_be_cancelled(post, server):
    async def hang(request):
        await asyncio.Event().wait()

    server.add('POST', '/api/v1/namespaces/ns/events', hang)
    task = asyncio.create_task(post())
    while not server.active:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
