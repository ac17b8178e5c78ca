"""Servers and proxies that speak HTTP badly, and APIs that say strange things: nothing is lost or done twice."""

import asyncio
import gzip
import itertools
import json

import pytest
from hostile import HostileServer
from kinds import define

import kopf
from kopf._core.engines import peering_member
from kopf._core.reactor import child_release, watches

WATCH = '/kopfexamples.*watch=true'
OBJECT = '/kopfexamples/obj'


@pytest.fixture(autouse=True)
def pauses(monkeypatch, world):
    """Shorten the delays of clusters."""
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 0.05)
    monkeypatch.setattr(watches, 'FORBIDDEN_BACKOFF', 0.1)
    world.settings.networking.error_backoffs = [0.05, 0.05]
    world.settings.networking.login_backoffs = [0.05, 0.05]


@pytest.fixture
async def hostile(world):
    async with HostileServer.open(world.sandbox.url, world.sandbox.ca) as server:
        world.registry.activities._handlers.clear()

        @kopf.on.login(registry=world.registry)
        async def login(**_):
            return kopf.ConnectionInfo(server=server.url, token=world.sandbox.token)

        yield server


async def live(world):
    """One object with all its life, and a neighbour of another kind."""
    await world.create()
    await world.handled()
    await world.edit(field='v2')
    await world.handled(field='v2')
    await world.delete()
    await world.gone()


@pytest.fixture
def observed(world):
    world.declare(kopf.on.create, 'create')
    world.declare(kopf.on.update, 'update')
    world.declare(kopf.on.delete, 'delete')

    def check():
        assert [call.id for call in world.calls if call.name == 'obj' and call.id != 'event'] == [
            'create',
            'update',
            'delete',
        ]
        assert world.called('update')[0]['new']['spec'] == {'field': 'v2'}

    return check


# How an answer can be written.


async def as_http10(exchange):
    exchange.closing = True
    await exchange.send(b'HTTP/1.0 ' + exchange.status_line + b'\r\nContent-Type: application/json\r\n\r\n')
    async for chunk in exchange.chunks():
        await exchange.send(chunk)


async def by_single_bytes(exchange):
    await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\ntransfer-encoding: Chunked\r\n\r\n')
    async for chunk in exchange.chunks():
        for number in range(len(chunk)):
            await exchange.send(b'1\r\n', chunk[number : number + 1], b'\r\n')
    await exchange.send(b'0\r\n\r\n')


async def with_trailers(exchange):
    await exchange.send(b'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n')
    await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n')
    async for chunk in exchange.chunks():
        await exchange.send(b'%x;name="value"\r\n%s\r\n' % (len(chunk), chunk))
    await exchange.send(b'0\r\nX: y\r\nAnother: z\r\n\r\n')


async def slowly(exchange):
    for byte in b'HTTP/1.1 ' + exchange.status_line + b'\r\nTransfer-Encoding: chunked\r\n\r\n':
        await exchange.send(bytes([byte]))
        await asyncio.sleep(0.003)
    async for chunk in exchange.chunks():
        await exchange.send(b'%x\r\n%s\r\n' % (len(chunk), chunk))
    await exchange.send(b'0\r\n\r\n')


async def and_closed(exchange):
    exchange.closing = True
    if 'watch=true' in exchange.target:
        await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nConnection: close\r\n\r\n')
        async for chunk in exchange.chunks():
            await exchange.send(chunk)
    else:
        await exchange.send_all(await exchange.read(), b'Connection: close')


@pytest.mark.parametrize(
    'manner', [as_http10, by_single_bytes, with_trailers, slowly, and_closed], ids=lambda fn: fn.__name__
)
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_all_forms_of_http_are_understood(world, hostile, observed, manner, streamed):
    world.settings.watching.streaming_lists = streamed
    for method in ('GET', 'PATCH'):
        hostile.spoil(manner, method, '', times=None)
    async with world.operator():
        await live(world)
    observed()
    assert not [text for text in world.log.texts if 'failed;' in text or 'has failed' in text]


# Answers that are broken, or are none of the API.


async def before_it_is_answered(exchange):
    exchange.reset()


async def after_it_is_done(exchange):
    await exchange.read()
    exchange.reset()


async def in_the_middle(exchange):
    await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nContent-Length: 1000000\r\n\r\n{"kind":')
    exchange.reset()


async def not_http(exchange):
    exchange.closing = True
    await exchange.send(b'SSH-2.0-OpenSSH_9.9\r\n')


def answer(status, body=b'', *headers):
    async def spoil(exchange):
        await exchange.send_all(body, *headers, status=status)

    return spoil


def changed(change, *headers):
    async def spoil(exchange):
        await exchange.send_all(change(await exchange.read()), *headers)

    return spoil


STATUS = json.dumps({'kind': 'Status', 'status': 'Failure', 'message': 'no', 'code': 500}).encode()
HTML = b'<html><body>This is not the page that you are looking for.</body></html>'
BAD_ANSWERS = {
    '200 empty': answer(b'200 OK'),
    '204': answer(b'204 No Content'),
    '200 HTML': answer(b'200 OK', HTML),
    '200 null': answer(b'200 OK', b'null'),
    '200 list': answer(b'200 OK', b'[]'),
    '200 {}': answer(b'200 OK', b'{}'),
    '200 status': answer(b'200 OK', STATUS),
    '302': answer(b'302 Found', HTML, b'Location: https://login.example.com/'),
    '307 JSON': answer(b'307 Temporary Redirect', b'{"metadata": null}', b'Location: /elsewhere'),
    '400 HTML': answer(b'400 Bad Request', HTML),
    '404': answer(b'404 Not Found', b'404 page not found'),
    '408': answer(b'408 Request Timeout'),
    '409': answer(b'409 Conflict', STATUS),
    '410 HTML': answer(b'410 Gone', HTML),
    '413': answer(b'413 Too Large', HTML),
    '418': answer(b"418 I'm a teapot", b'\xff\xfe'),
    '422': answer(b'422 Unprocessable', STATUS),
    '429 at some time': answer(b'429 Too Many', b'', b'Retry-After: soon'),
    '429 before': answer(b'429 Too Many', b'', b'Retry-After: -5'),
    '429 at a date': answer(b'429 Too Many', b'', b'Retry-After: Wed, 21 Oct 2015 07:28:00 GMT'),
    '429 at a bad date': answer(b'429 Too Many', b'', b'Retry-After: Wed, 99 Oct 99999 07:28:00 GMT'),
    '500 list': answer(b'500 Oh', b'[1]'),
    '500 details': answer(
        b'500 Oh', b'{"kind":"Status","code":"500","details":{"causes":[null,5],"retryAfterSeconds":"x"}}'
    ),
    '502 HTML': answer(b'502 Bad Gateway', HTML),
    '503 empty': answer(b'503'),
    '999': answer(b'599 What'),
    'not HTTP': not_http,
    'RST before': before_it_is_answered,
    'RST after': after_it_is_done,
    'RST within': in_the_middle,
    'gzip': changed(gzip.compress, b'Content-Encoding: gzip'),
    'truncated gzip': changed(lambda body: gzip.compress(body)[:-20], b'Content-Encoding: gzip'),
    'BOM': changed(lambda body: b'\xef\xbb\xbf' + body),
    'truncated': changed(lambda body: body[:-10]),
    'deep': changed(lambda body: b'[' * 100000),
    'trash after': changed(lambda body: body + b'{}'),
}


def parametrize(name, values, default):
    """Try these values by default, and all of them if there is time."""
    return pytest.mark.parametrize(
        name,
        [
            pytest.param(value, id=id, marks=[] if id in default else [pytest.mark.thorough])
            for id, value in values.items()
        ],
    )


@parametrize('spoil', BAD_ANSWERS, ['200 status', '307 JSON', '409', 'RST after', 'RST within', 'truncated gzip'])
async def test_bad_answers_to_patches(world, hostile, observed, spoil):
    async with world.operator():
        hostile.spoil(spoil, 'PATCH', OBJECT, times=3)
        await live(world)
    assert hostile.spoilt == 3
    observed()


@parametrize('spoil', BAD_ANSWERS, ['200 empty', '200 status', '302', '502 HTML', 'truncated'])
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_bad_answers_to_watches_and_lists(world, hostile, observed, spoil, streamed):
    world.settings.watching.streaming_lists = streamed
    hostile.spoil(
        spoil,
        'GET',
        '/kopfexamples',
        times=3,
    )
    async with world.operator():
        await live(world)
    assert hostile.spoilt == 3
    observed()


@pytest.mark.parametrize(
    'flaw',
    [
        lambda body: b'\xef\xbb\xbf' + body,
        lambda body: body.replace(b'"obj"', b'"obj","x":"\xff\xfe\xed\xa0\x80"'),
        lambda body: body.replace(b'"obj"', b'"obj","x":"\\ud800"'),
        lambda body: body.replace(b'"obj"', b'"obj","x":NaN'),
    ],
    ids=['mark of byte order', 'UTF-8', 'surrogates', 'NaN'],
)
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_harmless_flaws_of_objects_are_ignored(world, hostile, observed, flaw, streamed):
    world.settings.watching.streaming_lists = streamed
    await world.create()

    async def spoil(exchange):
        if 'watch=true' not in exchange.target:
            await exchange.send_all(flaw(await exchange.read()))
            return
        await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nConnection: close\r\n\r\n')
        exchange.closing = True
        async for chunk in exchange.chunks():
            await exchange.send(b''.join(flaw(line) + b'\n' for line in chunk.split(b'\n') if line))

    hostile.spoil(spoil, 'GET', '/kopfexamples', times=None)
    hostile.spoil(changed(flaw), 'PATCH', '', times=None)
    async with world.operator():
        await world.handled()
        await world.edit(field='v2')
        await world.handled(field='v2')
        await world.delete()
        await world.gone()
    observed()
    assert not [text for text in world.log.texts if 'processing has failed' in text or 'malformed' in text]


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_what_can_not_be_read_of_a_list_is_not_gone(world, hostile, streamed):
    world.settings.watching.streaming_lists = streamed
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        await world.create('one')
        await world.create('two')
        await world.until_called('event', 1, 'one')
        await world.until_called('event', 1, 'two')

        async def spoil(exchange):
            body = await exchange.read()
            if 'watch=true' not in exchange.target:
                document = json.loads(body)
                document['items'][0] = None
                await exchange.send_all(json.dumps(document).encode())
                return
            exchange.closing = True
            await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nConnection: close\r\n\r\n')
            await exchange.send(body.replace(b'{"type":"ADDED"', b'{"type":ADDED"', 1))
            async for chunk in exchange.chunks():
                await exchange.send(chunk)

        hostile.spoil(spoil, 'GET', '/kopfexamples' if streamed else 'limit')
        world.sandbox.faults.expire_watches(resource='kopfexamples')
        await world.until_logged('are not reported as deleted')
        await world.edit('one', field='v2')
        await world.edit('two', field='v2')
        await world.until(
            lambda: {call.name for call in world.calls if call.kwargs['spec'] == {'field': 'v2'}} == {'one', 'two'}
        )
    assert 'DELETED' not in [call.kwargs['type'] for call in world.calls]


# Events that no API should send.


def event(type_, name='strange', *, version='1', uid='some', **metadata):
    metadata = {'name': name, 'namespace': 'default', 'uid': uid, 'resourceVersion': version, **metadata}
    return {
        'type': type_,
        'object': {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfExample',
            'spec': {'field': 'x'},
            'metadata': {key: value for key, value in metadata.items() if value is not ...},
        },
    }


STRANGE_EVENTS = {
    'bookmark without metadata': {'type': 'BOOKMARK', 'object': {}},
    'bookmark without an object': {'type': 'BOOKMARK', 'object': None},
    'bookmark without a version': {'type': 'BOOKMARK', 'object': {'metadata': {'annotations': None}}},
    'bookmark of nonsense': {'type': 'BOOKMARK', 'object': {'metadata': {'resourceVersion': 'x', 'annotations': 5}}},
    'bookmark that ends a list that never was': {
        'type': 'BOOKMARK',
        'object': {'metadata': {'resourceVersion': '5', 'annotations': {'k8s.io/initial-events-end': 'true'}}},
    },
    'error without a code': {'type': 'ERROR', 'object': {}},
    'error with a code in words': {'type': 'ERROR', 'object': {'code': 'Gone', 'message': 5, 'reason': ['x']}},
    'error without an object': {'type': 'ERROR', 'object': None},
    'deleted but unknown': event('DELETED'),
    'added without a version': event('ADDED', version=...),
    'added with an empty version': event('ADDED', version=''),
    'added with a version in words': event('ADDED', version='eleven'),
    'added with a number for a version': event('ADDED', version=11),
    'added with an enormous version': event('ADDED', version='9' * 30),
    'added with a more than enormous version': event('ADDED', version='9' * 5000),
    'added with odd metadata': event('ADDED', finalizers=5, annotations=[], labels='x', ownerReferences={}),
    'added with a uid that is a number': event('ADDED', uid=5),
    'deletion at some time': event('MODIFIED', deletionTimestamp='yesterday'),
    'deletion at zero': event('MODIFIED', deletionTimestamp=0),
    'deletion in another format': event('MODIFIED', deletionTimestamp='2020-01-01', finalizers=[None, 5, 'x']),
    'object as a list': {'type': 'ADDED', 'object': []},
    'type as a list': {'type': [], 'object': {}},
    'a number': 5,
    'nothing': None,
}


@pytest.mark.parametrize(
    'strange',
    [
        list(STRANGE_EVENTS.values()),
        *(pytest.param([line], id=id, marks=pytest.mark.thorough) for id, line in STRANGE_EVENTS.items()),
    ],
)
async def test_strange_events_do_not_disturb_other_watches(world, observed, strange):
    world.declare(kopf.on.event, 'event')
    world.declare(kopf.on.event, 'neighbour', resource='configmaps')
    async with world.operator():
        await world.create('before')
        await world.handled('before')
        for line in strange:
            world.sandbox.faults.say(json.dumps(line), times=3, resource='kopfexamples')
        await live(world)
        world.sandbox.faults.end_watches(resource='kopfexamples')
        await world.edit('before', field='v2')
        await world.handled('before', field='v2')
        await world.aio.create({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'map'}})
        await world.until_called('neighbour', 1, 'map')
    observed()
    assert len([seen for seen in world.sandbox.requests if seen.verb == 'watch' and seen.resource == 'configmaps']) == 1


async def test_events_that_come_twice_and_too_late(world, hostile, observed):
    lines = []

    async def repeat(exchange):
        exchange.closing = True
        await exchange.send(b'HTTP/1.1 ' + exchange.status_line + b'\r\nConnection: close\r\n\r\n')
        async for chunk in exchange.chunks():
            lines.extend(line for line in chunk.split(b'\n') if line)
            await exchange.send(chunk, chunk)  # each twice
            await asyncio.sleep(0.1)
            await exchange.send(b''.join(line + b'\n' for line in lines[-3:] if b'BOOKMARK' not in line))

    hostile.spoil(repeat, 'GET', WATCH, times=None)
    async with world.operator():
        await live(world)
    observed()


STRANGE_LISTS = {
    'null': {'items': None},
    'nothing': {},
    'odd items': {'items': [None, 5, {}, {'metadata': None}, {'metadata': {'name': None}}]},
    'a mapping': {'items': {}},
    'a number': {'items': 5},
    'no metadata': {'metadata': None},
    'an empty version': {'metadata': {'resourceVersion': ''}},
    'no version': {'items': [], 'metadata': {}},
    'null version': {'items': [], 'metadata': {'resourceVersion': None, 'continue': None, 'remainingItemCount': 'x'}},
    'odd kind': {
        'kind': 5,
        'apiVersion': None,
        'items': [event('ADDED')['object']],
        'metadata': {'resourceVersion': '1'},
    },
}


async def test_what_is_no_list_is_not_taken_for_an_empty_one(world, hostile):
    world.settings.watching.streaming_lists = False
    world.declare(kopf.on.event, 'event')
    async with world.operator():
        await world.create()
        await world.until_called('event')
        for page in (STATUS, b'{}', b'{"items":{}}'):
            hostile.spoil(answer(b'200 OK', page), 'GET', 'limit=')
        world.sandbox.faults.expire_watches(resource='kopfexamples')
        await world.until(lambda: hostile.spoilt == 3 or not world.log.texts)
        await world.edit(field='v2')
        await world.until(lambda: world.called('event')[-1]['spec'] == {'field': 'v2'})
    assert 'DELETED' not in [kwargs['type'] for kwargs in world.called('event')]


@parametrize('page', {**STRANGE_LISTS, 'status': json.loads(STATUS)}, ['null', 'odd items', 'no version'])
async def test_strange_lists_are_retried(world, hostile, observed, page):
    world.settings.watching.streaming_lists = False

    async def spoil(exchange):
        await exchange.send_all(json.dumps(page).encode())

    hostile.spoil(spoil, 'GET', 'limit=', times=2)
    async with world.operator():
        await live(world)
    observed()


async def test_objects_of_odd_kinds(world):
    async def work(body, spec, status, labels, **_):
        return {'seen': True}

    world.declare(kopf.on.create, 'create', does=work, resource='things')
    world.declare(kopf.on.update, 'update', does=work, resource='things')
    world.declare(kopf.on.field, 'field', field='spec.some.field', resource='things')
    world.declare(kopf.on.create, 'fence')
    await world.aio.apply(define('things', 'Thing', group='other.dev'))
    specs, statuses = ['text', [1, 2], 5, None, {'': {'': None}}], ['text', [1], {'create': 'text'}, None]
    names = []
    for number, (spec, status) in enumerate(itertools.product(specs, statuses)):
        names.append(f'obj{number}')
        await world.aio.create(
            {
                'apiVersion': 'other.dev/v1',
                'kind': 'Thing',
                'metadata': {'name': names[-1]},
                'spec': spec,
                'status': status,
            }
        )
    async with world.operator():
        for name in names:
            await world.aio.wait_for('things', name, lambda body: is_seen(body, 'create'))
            await world.aio.patch('things', name, {'spec': {'some': {'field': 'v2'}}})
        for name in names:
            await world.aio.wait_for('things', name, lambda body: is_seen(body, 'update'))
        await world.settled()
    for name in names:
        assert [call.id for call in world.calls if call.name == name] == ['create', 'update', 'field']


def is_seen(body, id):
    return isinstance(body.get('status'), dict) and isinstance(body['status'].get(id), dict)


# Requests that are not about the handled objects.

RARE = ['200 HTML', '200 {}', '404', '409']


async def until(fn):
    async with asyncio.timeout(20):
        while not await fn():
            await asyncio.sleep(0.02)


LEASE_ANSWERS = {id: spoil for id, spoil in BAD_ANSWERS.items() if id != '404'}  # that is a missing namespace


@parametrize('spoil', LEASE_ANSWERS, RARE)
@pytest.mark.parametrize('method', ['GET', 'POST', 'PUT'])
async def test_bad_answers_about_the_lease(world, hostile, observed, spoil, method):
    world.settings.leadership.retry_period = 0.2
    hostile.spoil(spoil, method, '/leases', times=2)

    async def is_spoilt():
        # If the creation is executed in spite of the response, it is not repeated.
        return hostile.spoilt == 2 or (method == 'POST' and hostile.spoilt)

    async with world.operator(leader_election=True):
        await live(world)
        await until(is_spoilt)
    observed()


@parametrize('spoil', BAD_ANSWERS, RARE)
@pytest.mark.parametrize('method', ['GET', 'PATCH'])
async def test_bad_answers_about_the_peering(world, hostile, observed, spoil, method, monkeypatch):
    monkeypatch.setattr(peering_member, 'RETRY_DELAY', 0.2)
    monkeypatch.setattr(peering_member, 'REFUSAL_DELAYS', [0.2, 0.2])
    world.settings.peering.lifetime = 3
    await world.aio.apply(world.root / 'peering.yaml')
    await world.aio.create({'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': 'default'}})
    hostile.spoil(spoil, method, '/clusterkopfpeerings', times=2)

    async def is_spoilt():
        return hostile.spoilt == 2

    async with world.operator(standalone=False, peering_name='default', clusterwide=True):
        await live(world)
        await until(is_spoilt)
    observed()


@parametrize('spoil', BAD_ANSWERS, RARE)
@pytest.mark.parametrize('method', ['GET', 'PATCH', 'DELETE'])
async def test_bad_answers_about_children(world, hostile, spoil, method):
    if (spoil, method) == (BAD_ANSWERS['422'], 'PATCH'):
        pytest.skip("an invalid child is a permanent error")
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'remote'}})

    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], backoff=(0.05, 0.2), registry=world.registry)
    async def reconcile(name, spec, children, **_):
        for namespace in spec['in']:
            await children.apply(
                {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name, 'namespace': namespace}}
            )

    def are_in(*namespaces):
        async def check():
            found = await world.aio.list('configmaps')
            return sorted(each['metadata']['namespace'] for each in found if each['metadata']['name'] == 'obj') == [
                *namespaces
            ]

        return check

    hostile.spoil(spoil, method, '/configmaps', times=2)
    async with world.operator(clusterwide=True):
        await world.create(spec={'in': ['default', 'remote']})
        await until(are_in('default', 'remote'))
        await world.edit(**{'in': ['remote']})
        await until(are_in('remote'))
        await world.delete()
        await world.gone()
        await until(are_in())
    assert hostile.spoilt >= 2  # two watches can take their turns at once


# A kind that is not served for a moment, e.g. by an API server that has just started.


unserved = answer(b'404 Not Found', b'404 page not found')


@pytest.mark.parametrize('decorator', [kopf.daemon, kopf.timer])
async def test_patches_of_daemons_are_not_lost_while_their_kind_is_not_served(world, hostile, decorator):
    world.settings.queueing.error_delays = [0.05]

    @decorator('kopfexamples', registry=world.registry, **({'idle': 0.2} if decorator is kopf.timer else {}))
    async def background(patch, name, **_):
        hostile.spoil(unserved, 'PATCH', OBJECT, times=2, executed=False)
        patch.status['seen'] = True

    async with world.operator():
        await world.create()
        await world.aio.wait_for('kopfexamples', 'obj', lambda body: body.get('status', {}).get('seen'))
    assert hostile.spoilt == 2


async def test_results_are_not_lost_if_their_kind_is_not_served_when_the_newest_state_is_requested(world, hostile):
    async def create(patch, **_):
        patch.fns.append(lambda body: body['spec'].update(ours='x'))
        world.sandbox.faults.error(409, times=2, verb='patch', name='obj')

    async def are_refused():
        return [request.status for request in world.sandbox.requests].count(409) == 2

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator():
        await world.create()
        await until(are_refused)
        hostile.spoil(unserved, 'GET', OBJECT, executed=False)
        await world.handled(ours='x')
    assert world.ids == ['create'] and hostile.spoilt == 1


@pytest.mark.parametrize(
    'spoil, method, pattern',
    [
        pytest.param(unserved, 'PATCH', OBJECT, id='the owner is not served'),
        pytest.param(unserved, 'DELETE', '/configmaps', id='the child is not served'),
        pytest.param(answer(b'200 OK', HTML), 'DELETE', '/configmaps', id='a proxy responds'),
    ],
)
async def test_owners_and_remote_children_are_not_left_behind(world, hostile, monkeypatch, spoil, method, pattern):
    monkeypatch.setattr(child_release, 'RELEASE_DELAY', 0.05)
    await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'remote'}})

    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], backoff=(0.05, 0.05), registry=world.registry)
    async def reconcile(name, children, **_):
        metadata = {'name': name, 'namespace': 'remote'}
        await children.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata})
        world.note('applied', name)

    async with world.operator(clusterwide=True):
        if method == 'PATCH':
            hostile.spoil(spoil, method, pattern, executed=False)
        await world.create()
        await world.until_called('applied')
        owner = await world.get()
        assert 'kopf.dev/children-operator' in str(owner['metadata']['finalizers'])
        hostile.spoil(spoil, method, pattern, executed=False)
        await world.delete()
        await world.gone()
        assert [each for each in await world.aio.list('configmaps') if each['metadata']['name'] == 'obj'] == []
    assert hostile.spoilt == (2 if method == 'PATCH' else 1)
