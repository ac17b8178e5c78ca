"""
A watch against a scripted server: whatever the server does, nothing is missed, and nothing stays that is gone.

The answers of the server are those of the script, one a request. The sink puts together what it was told, as handlers
would.
"""

import asyncio
import contextlib
import json
import logging
import time
import types

import pytest
from aiohttp import web

import kopf
from kopf._cogs.clients import errors, sessions
from kopf._cogs.clients.api import ApiClient
from kopf._cogs.structs.credentials import ConnectionInfo, LoginError, Vault
from kopf._cogs.structs.references import Resource
from kopf._core.engines import shard_filters
from kopf._core.engines.assignments import Division
from kopf._core.engines.buckets import find_bucket
from kopf._core.engines.shard_filters import ShardFilter
from kopf._core.reactor import watches
from kopf._core.reactor.watches import ResourceWatch, WatchState

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
PATH = '/apis/kopf.dev/v1/kopfexamples'


def obj(name, version, uid=None, **metadata):
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {
            'name': name,
            'namespace': 'ns',
            'uid': uid or f'uid-{name}',
            'resourceVersion': str(version),
            **metadata,
        },
    }


def added(name, version, **metadata):
    return {'type': 'ADDED', 'object': obj(name, version, **metadata)}


def modified(name, version, **metadata):
    return {'type': 'MODIFIED', 'object': obj(name, version, **metadata)}


def deleted(name, version, **metadata):
    return {'type': 'DELETED', 'object': obj(name, version, **metadata)}


def bookmark(version, *, end=False):
    annotations = {'k8s.io/initial-events-end': 'true'} if end else {}
    return {'type': 'BOOKMARK', 'object': {'metadata': {'resourceVersion': str(version), 'annotations': annotations}}}


def failure(**status):
    return {'type': 'ERROR', 'object': {'kind': 'Status', 'status': 'Failure', **status}}


def page(*objs, version=None, token=None):
    items = [{key: value for key, value in each.items() if key not in ('apiVersion', 'kind')} for each in objs]
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExampleList',
        'items': items,
        'metadata': {'resourceVersion': str(version), **({'continue': token} if token else {})},
    }


def encode(line):
    """Return the line without spaces, as API servers send it."""
    return json.dumps(line, separators=(',', ':')).encode()


class Refusal(dict):
    def __init__(self, status, **kwargs):
        super().__init__(kind='Status', status='Failure', code=status, **kwargs)
        self.status = status


class Stream(list):
    """Lines of a stream; it stays open in the end, unless it is to be ended or cut, or is never even opened."""

    def __init__(self, *lines, ending='open', pace=0):
        super().__init__(line if isinstance(line, bytes) else encode(line) for line in lines)
        self.ending = ending
        self.pace = pace  # the seconds after each line


class Server:
    """Answers by the script; when it is over, lists nothing more, and keeps streams open."""

    def __init__(self):
        self.script = []
        self.requests = []
        self.released = asyncio.Event()

    @property
    def queries(self):
        """What distinguishes the requests."""
        return [
            {key: value for key, value in query.items() if key not in ('allowWatchBookmarks', 'timeoutSeconds')}
            for query in self.requests
        ]

    async def answer(self, request):
        self.requests.append(dict(request.query))
        answer = self.script.pop(0) if self.script else Stream() if 'watch' in request.query else page(version=999)
        if isinstance(answer, Refusal):
            return web.json_response(dict(answer), status=answer.status)
        if isinstance(answer, Stream):
            return await self.stream(request, answer)
        if isinstance(answer, str):
            return web.Response(text=answer, content_type='text/html')
        return web.json_response(answer)

    async def stream(self, request, lines):
        response = web.StreamResponse()
        if lines.ending == 'closed':
            await self.released.wait()
        await response.prepare(request)
        for line in lines:
            await response.write(line + b'\n')
            await asyncio.sleep(lines.pace)
        if lines.ending == 'cut':
            await response.write(json.dumps(modified('cut', 1)).encode()[:40])
            request.transport.abort()
        elif lines.ending == 'half':
            await response.write(json.dumps(modified('cut', 1)).encode()[:40])
        elif lines.ending == 'open':
            await self.released.wait()
        return response


class Sink:
    """What handlers are told."""

    def __init__(self):
        self.events = []
        self.objects = {}
        self.lists = 0
        self.refusals = []
        self.failures = []
        self.poison = None
        self.news = asyncio.Event()

    def receive(self, record, event, *, listed_since):
        name, uid = event['object']['metadata']['name'], record.uid
        if name == self.poison:
            raise ValueError("poisoned")
        self.events.append((event['type'], name))
        if event['type'] == 'DELETED':
            self.objects.pop(uid, None)
        else:
            assert (listed_since is not None) == (event['type'] is None)
            self.objects[uid] = event['object']
        self.news.set()

    def listed(self, watch):
        self.lists += 1
        self.news.set()

    def refused(self, watch, error):
        self.refusals.append(error.status)
        self.news.set()

    def failed(self, watch, error):
        self.failures.append(type(error))
        self.news.set()

    def dropped(self, watch):
        pass

    @property
    def versions(self):
        return {body['metadata']['name']: body['metadata']['resourceVersion'] for body in self.objects.values()}

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def has(self, **versions):
        await self.until(lambda: self.versions == {name: str(version) for name, version in versions.items()})


@pytest.fixture
async def server():
    server = Server()
    app = web.Application()
    app.router.add_get('/{path:.*}', server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, '127.0.0.1', 0)
    await site.start()
    server.url = 'http://127.0.0.1:{}'.format(*site._server.sockets[0].getsockname()[1:2])
    yield server
    server.released.set()
    await runner.cleanup()


@pytest.fixture
def settings():
    settings = kopf.OperatorSettings()
    settings.watching.reconnect_backoff = 0.001
    settings.networking.error_backoffs = []
    return settings


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
async def watch(server, settings, sink, monkeypatch):
    """Yield a watch that is not started yet; with short pauses."""
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 0.002)
    monkeypatch.setattr(watches, 'FORBIDDEN_BACKOFF', 0.01)
    vault = Vault({'login': ConnectionInfo(server=server.url)})
    async with ApiClient(vault, settings) as client:
        yield ResourceWatch(client, settings, RESOURCE, None, sink)


@contextlib.asynccontextmanager
async def running(watch):
    task = asyncio.create_task(watch.run())
    try:
        yield task
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


INITIAL = {'watch': 'true', 'sendInitialEvents': 'true', 'resourceVersionMatch': 'NotOlderThan'}
LIST = {'limit': '500'}


def since(version):
    return {'watch': 'true', 'resourceVersion': str(version)}


# Lists and streams without failures.


async def test_objects_are_listed_by_the_watch_itself(watch, server, sink):
    server.script = [
        Stream(added('a', 1), added('b', 2), bookmark(3, end=True), modified('a', 4), added('c', 5), deleted('b', 6))
    ]
    async with running(watch):
        await sink.has(a=4, c=5)
        assert watch.state is WatchState.STREAMING and watch.failure is None
    assert sink.events == [(None, 'a'), (None, 'b'), ('MODIFIED', 'a'), ('ADDED', 'c'), ('DELETED', 'b')]
    assert sink.lists == 1
    assert server.queries == [INITIAL]
    assert server.requests[0]['allowWatchBookmarks'] == 'true'


async def test_streamed_lists_count_only_when_they_are_complete(watch, server, sink):
    server.script = [Stream(added('a', 1), bookmark(3))]
    async with running(watch):
        await sink.has(a=1)
        assert watch.state is WatchState.LISTING
    assert sink.lists == 0


async def test_objects_are_listed_in_chunks(watch, server, sink, settings):
    settings.watching.streaming_lists = False
    settings.watching.chunk_size = 2
    server.script = [
        page(obj('a', 1), obj('b', 2), version=3, token='x'),
        page(obj('c', 1), version=3),
        Stream(modified('c', 4)),
    ]
    async with running(watch):
        await sink.has(a=1, b=2, c=4)
    assert sink.events == [(None, 'a'), (None, 'b'), (None, 'c'), ('MODIFIED', 'c')]
    assert server.queries == [{'limit': '2'}, {'limit': '2', 'continue': 'x'}, since(3)]
    assert sink.objects['uid-a']['kind'] == 'KopfExample' and sink.objects['uid-a']['apiVersion'] == 'kopf.dev/v1'


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_handlers_get_their_turn_in_the_middle_of_lists(watch, server, sink, settings, monkeypatch, streamed):
    monkeypatch.setattr(watches, 'MAX_AT_ONCE', 3)
    settings.watching.streaming_lists = streamed
    objs = [obj(f'x{number}', 1) for number in range(10)]
    waiting, receive, most = set(), sink.receive, []

    def receive_and_handle_later(record, event, **kwargs):
        waiting.add(record)
        most.append(len(waiting))
        asyncio.get_running_loop().call_soon(waiting.discard, record)
        receive(record, event, **kwargs)

    sink.receive = receive_and_handle_later
    lines = [{'type': 'ADDED', 'object': each} for each in objs]
    server.script = [Stream(*lines, bookmark(3, end=True))] if streamed else [page(*objs, version=3), Stream()]
    async with running(watch):
        await sink.has(**{f'x{number}': 1 for number in range(10)})
    assert max(most) <= 3


@pytest.mark.parametrize('status', [400, 422])
async def test_servers_without_streamed_lists(watch, server, sink, status):
    server.script = [
        Refusal(status),
        page(obj('a', 1), version=3),
        Stream(failure(code=410)),
        page(obj('a', 1), version=5),
        Stream(modified('a', 6)),
    ]
    async with running(watch):
        await sink.has(a=6)
    assert server.queries == [INITIAL, LIST, since(3), LIST, since(5)]
    assert sink.refusals == []


@pytest.mark.parametrize(
    'lines',
    [
        [],
        [added('a', 1)],
        [added('a', 1), bookmark(2)],
        [modified('b', 2), deleted('b', 3)],
    ],
    ids=['silence', 'objects', 'bookmark', 'changes'],
)
async def test_servers_that_ignore_the_request_for_a_streamed_list(watch, server, sink, monkeypatch, lines):
    monkeypatch.setattr(watches, 'LIST_SILENCE', 0.1)
    server.script = [
        Stream(*lines),
        page(obj('a', 1), version=3),
        Stream(modified('a', 4), failure(code=410)),
        page(obj('a', 4), version=5),
        Stream(modified('a', 6)),
    ]
    async with running(watch):
        await sink.has(a=6)
        assert watch.failure is None
    assert server.queries == [INITIAL, LIST, since(3), LIST, since(5)]
    assert sink.lists == 1 and sink.refusals == []


async def test_changes_do_not_put_the_list_off(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'LIST_SILENCE', 0.2)
    server.script = [
        Stream(*[modified('a', number) for number in range(1, 1000)], pace=0.02),
        page(obj('a', 2000), version=2000),
    ]
    async with running(watch):
        await sink.has(a=2000)
    assert server.queries[:2] == [INITIAL, LIST]


async def test_long_streamed_lists_are_not_given_up(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'LIST_SILENCE', 1.0)
    objs = {f'x{number}': number for number in range(30)}
    server.script = [Stream(*[added(*pair) for pair in objs.items()], bookmark(99, end=True), pace=0.05)]
    async with running(watch):
        await sink.has(**objs)
        await sink.until(lambda: sink.lists)
    assert server.queries == [INITIAL]


async def test_lists_that_take_long_to_handle_are_not_given_up(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'LIST_SILENCE', 0.5)
    monkeypatch.setattr(watches, 'MAX_AT_ONCE', 5)
    objs = {f'x{number}': number for number in range(50)}
    receive, sink.receive = sink.receive, lambda *args, **kwargs: (time.sleep(0.03), receive(*args, **kwargs))
    lines = [*(added(*pair) for pair in objs.items()), bookmark(99, end=True)]
    server.script = [Stream(b'\n'.join(json.dumps(line).encode() for line in lines))]  # they come at once
    async with running(watch):
        await sink.until(lambda: sink.lists)
    assert server.queries == [INITIAL]


async def test_silence_after_a_streamed_list_is_fine(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'LIST_SILENCE', 0.1)
    server.script = [Stream(bookmark(2, end=True), added('a', 3), pace=0.3)]
    async with running(watch):
        await sink.has(a=3)
    assert server.queries == [INITIAL]


async def test_streamed_lists_without_an_end_are_given_up(watch, server, sink):
    server.script = [*[Stream(added('a', 1), ending='end')] * 3, page(obj('a', 1), version=3), Stream(modified('a', 4))]
    async with running(watch):
        await sink.has(a=4)
    assert server.queries == [*[INITIAL] * 3, LIST, since(3)]


async def test_streamed_lists_that_do_not_begin(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'OPENING_TIMEOUT', 0.1)
    server.script = [
        Stream(ending='closed'),
        page(obj('a', 1), version=3),
        Stream(failure(code=410)),
        Stream(added('a', 5), bookmark(6, end=True)),
    ]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL, LIST, since(3), INITIAL]  # the server could have been busy


async def test_other_namespaces_need_not_find_out_again(watch, server, sink, settings):
    server.script = [Refusal(422), page(obj('a', 1), version=3), Stream(), page(obj('b', 1), version=3)]
    async with running(watch):
        while len(server.requests) < 3:
            await asyncio.sleep(0.01)
        async with running(ResourceWatch(watch._client, settings, RESOURCE, 'ns', sink)):
            await sink.has(a=1, b=1)
    assert [query for query in server.queries if 'sendInitialEvents' in query] == [INITIAL]


async def test_sinks_are_told_of_lists_that_fail_until_they_succeed(watch, server, sink):
    server.script = [
        Refusal(503),
        Stream(ending='end'),
        Refusal(403),
        Stream(bookmark(1, end=True), failure(code=500)),
        Stream(added('a', 2)),
    ]
    async with running(watch):
        await sink.has(a=2)
    assert sink.failures == [errors.APIServerError, watches.StreamBroken] and sink.refusals == [403]


async def test_failed_logins_are_no_refusals_of_a_resource(watch, server, sink):
    server.script = [Stream(failure(code=401)), Stream(added('a', 1), bookmark(2, end=True))]
    async with running(watch):
        await sink.has(a=1)
    assert sink.failures == [errors.APIUnauthorizedError] and sink.refusals == []


async def test_lists_and_watches_are_requested_with_the_selectors(watch, server, sink, settings):
    settings.watching.label_selectors['kopfexamples'] = 'a=b'
    settings.watching.field_selectors['kopfexamples'] = 'c=d'
    settings.watching.server_timeout = 123.4
    server.script = [Refusal(422), page(version=3), Stream(added('a', 4))]
    async with running(watch):
        await sink.has(a=4)
    assert all(query['labelSelector'] == 'a=b' and query['fieldSelector'] == 'c=d' for query in server.requests)
    assert [query.get('timeoutSeconds') for query in server.requests] == ['123', None, '123']


@pytest.mark.parametrize('timeout, sent', [(0.1, '1'), (1e9, '1000000000'), (float('inf'), None), (None, None)])
async def test_the_time_limit_of_streams_is_in_whole_seconds(watch, server, sink, settings, timeout, sent):
    settings.watching.server_timeout = timeout
    server.script = [page(version=3), Stream(added('a', 4))]
    async with running(watch):
        await sink.has(a=4)
    assert {query.get('timeoutSeconds') for query in server.requests if 'watch' in query} == {sent}


# Streams that end, and are continued.


async def test_continued_from_the_last_version(watch, server, sink):
    server.script = [
        Stream(added('a', 1), bookmark(3, end=True), modified('a', 4), ending='end'),
        Stream(bookmark(7), modified('a', 8), bookmark(9), ending='end'),
        Stream(deleted('a', 10), ending='end'),
        Stream(added('b', 11)),
    ]
    async with running(watch):
        await sink.has(b=11)
    assert server.queries == [INITIAL, since(4), since(9), since(10)]
    assert sink.events == [(None, 'a'), ('MODIFIED', 'a'), ('MODIFIED', 'a'), ('DELETED', 'a'), ('ADDED', 'b')]
    assert sink.lists == 1


@pytest.mark.parametrize('ending', ['cut', 'half'])
async def test_cut_in_the_middle_of_a_line(watch, server, sink, ending):
    server.script = [Stream(added('a', 1), bookmark(3, end=True), ending=ending), Stream(modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL, since(3)]


@pytest.mark.parametrize(
    'error', [failure(code=500), failure(code=504, reason='Timeout'), failure(), failure(code=429)]
)
async def test_errors_in_streams_reopen_them(watch, server, sink, error):
    server.script = [Stream(added('a', 1), bookmark(3, end=True), error), Stream(modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
        assert watch.failure is None
    assert server.queries == [INITIAL, since(3)]


@pytest.mark.parametrize('status', [429, 500, 503])
async def test_refused_streams_are_retried_from_the_same_version(watch, server, sink, status):
    server.script = [
        Stream(added('a', 1), bookmark(3, end=True), ending='end'),
        Refusal(status),
        Stream(modified('a', 5)),
    ]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL, since(3), since(3)]


@pytest.mark.parametrize('error', [failure(code=500), failure(), failure(code='Gone')])
async def test_versions_that_are_refused_again_and_again_are_given_up(watch, server, sink, error):
    server.script = [
        Stream(added('a', 1), bookmark(3, end=True), ending='end'),
        *[Stream(error)] * 4,
        Stream(added('a', 5), bookmark(5, end=True)),
    ]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL, *[since(3)] * 4, INITIAL]


async def test_inactive_streams_are_reopened(watch, server, sink, settings):
    settings.watching.inactivity_timeout = 0.1
    server.script = [Stream(added('a', 1), bookmark(3, end=True)), Stream(modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries[:2] == [INITIAL, since(3)]


async def test_listed_again_when_versions_go_back_in_bookmarks(watch, server, sink):
    server.script = [
        Stream(added('a', 11), added('b', 12), bookmark(13, end=True), bookmark(14), bookmark(5)),
        Stream(added('a', 4), bookmark(6, end=True), modified('a', 7)),
    ]
    async with running(watch):
        await sink.has(a=7)
    assert server.queries == [INITIAL, INITIAL]
    assert ('DELETED', 'b') in sink.events


@pytest.mark.parametrize(
    'version, queries',
    [
        (5, [INITIAL, since(13), {'limit': '1'}, INITIAL]),
        (13, [INITIAL, since(13), {'limit': '1'}, since(13)]),
    ],
    ids=['back', 'same'],
)
async def test_versions_are_compared_after_streams_that_are_silent(watch, server, sink, settings, version, queries):
    # Servers accept versions that they do not have yet, and send nothing until they have.
    settings.watching.inactivity_timeout = 0.1
    server.script = [
        Stream(added('a', 11), bookmark(13, end=True)),
        Stream(),
        page(version=version),
        Stream(added('a', 14), bookmark(14, end=True)),
    ]
    async with running(watch):
        await sink.has(a=14)
    assert server.queries[:4] == queries


async def test_streams_can_be_limited_in_time(watch, server, sink, settings):
    settings.watching.client_timeout = 0.1
    server.script = [Stream(added('a', 1), bookmark(3, end=True)), Stream(modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries[:2] == [INITIAL, since(3)]


# Versions that expire: everything is listed again.

EXPIRATIONS = {
    'in the stream': Stream(failure(code=410, reason='Expired')),
    'in the stream, without a code': Stream(failure(reason='Expired')),
    'of the request': Refusal(410, reason='Expired'),
    'invalid version': Refusal(400, reason='BadRequest'),
}


@pytest.mark.parametrize('expiration', EXPIRATIONS.values(), ids=EXPIRATIONS)
@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_expired_watches_list_again_and_report_the_differences(
    watch, server, sink, settings, expiration, streamed
):
    settings.watching.streaming_lists = streamed
    lists = [
        [obj('kept', 1), obj('changed', 2), obj('gone', 3), obj('replaced', 4, uid='old')],
        [obj('kept', 1), obj('changed', 8), obj('new', 9), obj('replaced', 10, uid='new')],
    ]
    answers = [
        [Stream(*({'type': 'ADDED', 'object': each} for each in objs), bookmark(version, end=True), ending=ending)]
        if streamed
        else [page(*objs, version=version), Stream(bookmark(version), ending=ending)]
        for version, objs, ending in zip([5, 20], lists, ['end', 'open'], strict=True)
    ]
    server.script = [*answers[0], expiration, *answers[1]]
    async with running(watch):
        await sink.has(kept=1, changed=8, new=9, replaced=10)
    assert sink.events[:4] == [(None, 'kept'), (None, 'changed'), (None, 'gone'), (None, 'replaced')]
    assert sorted(map(repr, sink.events[4:])) == sorted(
        map(
            repr,
            [
                (None, 'kept'),
                (None, 'changed'),
                (None, 'new'),
                (None, 'replaced'),
                ('DELETED', 'gone'),
                ('DELETED', 'replaced'),
            ],
        )
    )
    assert set(watch.records) == set(sink.objects) == {'uid-kept', 'uid-changed', 'uid-new', 'new'}
    assert [record.initial for record in watch.records.values()] == [True] * 4
    assert sink.lists == 1


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_an_object_is_reported_as_deleted_before_its_successor_is_listed(watch, server, sink, settings, streamed):
    settings.watching.streaming_lists = streamed
    first, second = [obj('a', 1), obj('b', 2), obj('c', 3)], [obj('a', 11, uid='x'), obj('b', 2), obj('d', 12)]
    server.script = (
        [
            Stream(*({'type': 'ADDED', 'object': each} for each in first), bookmark(5, end=True), ending='end'),
            Refusal(410),
            Stream(
                *({'type': 'ADDED', 'object': each} for each in second),
                modified('a', 13, uid='x'),
                bookmark(15, end=True),
            ),
        ]
        if streamed
        else [
            page(*first, version=5),
            Refusal(410),
            page(*second[:1], version=13, token='t'),
            page(*second[1:], version=13),
            Stream(modified('a', 14, uid='x')),
        ]
    )
    async with running(watch):
        await sink.until(lambda: ('MODIFIED', 'a') in sink.events and ('DELETED', 'c') in sink.events)
    assert [event for event in sink.events[3:] if event[1] == 'a'] == [('DELETED', 'a'), (None, 'a'), ('MODIFIED', 'a')]
    assert sorted(event for event in sink.events if event[0] == 'DELETED') == [('DELETED', 'a'), ('DELETED', 'c')]
    assert set(watch.records) == {'x', 'uid-b', 'uid-d'}


async def test_a_successor_in_a_list_that_makes_no_sense_replaces_its_predecessor(watch, server, sink):
    server.script = [
        Stream(added('a', 1), added('b', 2), bookmark(5, end=True), ending='end'),
        Refusal(410),
        Stream(
            {'type': 'ADDED', 'object': None},
            added('a', 11, uid='x'),
            bookmark(15, end=True),
            modified('a', 16, uid='x'),
        ),
    ]
    async with running(watch):
        await sink.until(lambda: ('MODIFIED', 'a') in sink.events)
    assert sink.events[2:] == [('DELETED', 'a'), (None, 'a'), ('MODIFIED', 'a')]
    assert set(watch.records) == {'x', 'uid-b'}


async def test_lists_that_break_are_compared_with_what_was_known_before(watch, server, sink):
    server.script = [
        Stream(added('a', 1), added('b', 2), bookmark(5, end=True), ending='end'),
        Refusal(410),
        Stream(added('a', 11, uid='x'), ending='end'),
        Stream(added('a', 12, uid='y'), bookmark(15, end=True)),
    ]
    async with running(watch):
        await sink.until(lambda: ('DELETED', 'b') in sink.events)
    assert sink.events[2:] == [('DELETED', 'a'), (None, 'a'), ('DELETED', 'a'), (None, 'a'), ('DELETED', 'b')]
    assert set(watch.records) == {'y'}


async def test_deletions_in_a_gap_tell_who_it_was(watch, server, sink):
    bodies = []
    receive, sink.receive = (
        sink.receive,
        lambda record, event, **kwargs: (bodies.append(event['object']), receive(record, event, **kwargs)),
    )
    server.script = [Stream(added('a', 1), bookmark(3, end=True), failure(code=410)), Stream(bookmark(5, end=True))]
    async with running(watch):
        await sink.until(lambda: ('DELETED', 'a') in sink.events)
    assert bodies[-1] == {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {'name': 'a', 'namespace': 'ns', 'uid': 'uid-a'},
    }


async def test_a_list_whose_token_expires_is_requested_as_a_whole(watch, server, sink, settings):
    settings.watching.streaming_lists = False
    server.script = [
        page(obj('a', 1), obj('b', 2), version=3, token='x'),
        Refusal(410, reason='Expired'),
        page(obj('a', 4), obj('c', 2), version=5),
        Stream(modified('a', 6)),
    ]
    async with running(watch):
        await sink.has(a=6, c=2)
    assert server.queries == [LIST, {**LIST, 'continue': 'x'}, {}, since(5)]


@pytest.mark.parametrize('ending', ['end', 'cut', 'half', 'error'])
async def test_broken_initial_streams_start_over(watch, server, sink, ending):
    error = [failure(code=500)] if ending == 'error' else []
    server.script = [
        Stream(added('a', 1), added('b', 2), bookmark(2), *error, ending=ending),
        Stream(added('a', 1), added('c', 3), bookmark(4, end=True), modified('c', 5)),
    ]
    async with running(watch):
        await sink.has(a=1, c=5)
    assert server.queries == [INITIAL, INITIAL]
    assert sink.events == [(None, 'a'), (None, 'b'), (None, 'a'), (None, 'c'), ('DELETED', 'b'), ('MODIFIED', 'c')]
    assert sink.lists == 1


async def test_deleted_while_being_listed(watch, server, sink):
    server.script = [
        Stream(added('a', 1), added('b', 2), deleted('a', 3), added('a', 4, uid='new'), bookmark(5, end=True))
    ]
    async with running(watch):
        await sink.until(lambda: sink.lists)
    assert sink.versions == {'a': '4', 'b': '2'}
    assert set(watch.records) == {'uid-b', 'new'}


@pytest.mark.parametrize('uid', ['uid-a', ''], ids=['uid', 'name'])
async def test_objects_that_come_back_while_they_are_worked_on_are_the_same_ones(watch, server, sink, uid):
    records, receive = [], sink.receive

    def employ(record, event, **kwargs):
        if record.name != 'idle':
            record.assign_worker()
        records.append(record)
        receive(record, event, **kwargs)

    sink.receive = employ
    server.script = [
        Stream(added('a', 1, uid=uid), bookmark(1, end=True), deleted('a', 2, uid=uid), failure(code=410)),
        Stream(added('a', 3, uid=uid), added('idle', 4), bookmark(5, end=True), deleted('idle', 6), added('idle', 7)),
    ]
    async with running(watch):
        await sink.has(a=3, idle=7)
    assert len({id(record) for record in records if record.name == 'a'}) == 1
    assert len({id(record) for record in records if record.name == 'idle'}) == 2


async def test_what_is_gone_is_freed_when_its_work_ends(watch, server, sink):
    def employ(record, event, **kwargs):
        record.assign_worker()
        sink.kept = record
        sink.news.set()

    sink.receive = employ
    server.script = [Stream(added('a', 1), bookmark(1, end=True), deleted('a', 2))]
    async with running(watch):
        await sink.until(lambda: sink.lists and not watch.records)
        assert list(watch.get_known()) == [sink.kept] and not watch.records
        del sink.kept
        assert not watch.get_known()


# Refusals.


@pytest.mark.parametrize('streamed', [True, False], ids=['streamed', 'chunked'])
async def test_forbidden_until_it_is_not(watch, server, sink, settings, caplog, streamed):
    settings.watching.streaming_lists = streamed
    server.script = [Refusal(403, message='no rights')]
    async with running(watch):
        await sink.until(lambda: sink.refusals)
        await sink.until(lambda: sink.lists) if not streamed else None
    assert sink.refusals == [403]
    assert 'Not permitted to list or watch kopfexamples.v1.kopf.dev cluster-wide' in caplog.text
    assert len(server.requests) >= 1


async def test_forbidden_streams_of_permitted_lists(watch, server, sink):
    server.script = [Stream(added('a', 1), bookmark(3, end=True), ending='end'), Refusal(403), Stream(modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL, since(3), since(3)]
    assert sink.refusals == []  # they were listed: the gate need not wait


async def test_the_failure_is_visible(watch, server, sink, monkeypatch):
    monkeypatch.setattr(watches, 'MIN_BACKOFF', 99)
    server.script = [Refusal(404, message='no such thing')]
    async with running(watch):
        await sink.until(lambda: sink.refusals)
        assert watch.state is WatchState.BACKING_OFF
        assert watch.failure == 'no such thing'


async def test_nothing_to_log_in_with(server, settings, sink):
    async with ApiClient(Vault(), settings) as client:
        watch = ResourceWatch(client, settings, RESOURCE, None, sink)
        with pytest.raises(LoginError):
            async with asyncio.timeout(60):
                await watch.run()


# Malformed events.


async def test_malformed_lines_are_skipped_with_a_warning(watch, server, sink, caplog):
    wrong = [
        b'{"type": "ADDED", "obj',
        b'null',
        b'[]',
        b'"text"',
        b'\xff\xfe',
        b'{}',
        b'{"type": "ADDED"}',
        {'type': 'ADDED', 'object': None},
        {'type': 'ADDED', 'object': []},
        {'type': 'ADDED', 'object': 'text'},
        {'type': 'ADDED', 'object': {}},
        {'type': 'ADDED', 'object': {'metadata': None}},
        {'type': 'ADDED', 'object': {'metadata': []}},
        {'type': 'MODIFIED', 'object': {'metadata': {'uid': 'x'}}},
        {'type': 'DELETED', 'object': {'metadata': 'text'}},
        {'type': 'BOOKMARK', 'object': None},
        {'type': 'BOOKMARK', 'object': {'metadata': []}},
        {'type': 'REPLACED', 'object': obj('x', 9)},
        {'type': None, 'object': obj('x', 9)},
        {'type': ['ADDED'], 'object': obj('x', 9)},
    ]
    server.script = [Stream(*wrong, added('a', 1), *wrong, bookmark(3, end=True), *wrong, modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert sink.events == [(None, 'a'), ('MODIFIED', 'a')]
    assert server.queries == [INITIAL]
    assert len(caplog.records) == 3 * (len(wrong) - 2)  # bookmarks are of no interest
    assert all(record.levelno == logging.WARNING and 'kopfexamples' in record.getMessage() for record in caplog.records)


async def test_objects_without_uids_are_identified_by_name(watch, server, sink):
    server.script = [
        Stream(
            added('a', 1, uid=''),
            added('b', 2, uid=''),
            bookmark(3, end=True),
            modified('a', 4, uid=''),
            failure(code=410),
        ),
        Stream(added('a', 4, uid=''), bookmark(5, end=True)),
    ]
    for event in server.script[0][:2]:
        assert b'"uid":"uid-' in event
    server.script = [
        Stream(*(line.replace(b'"uid":"uid-a",', b'').replace(b'"uid":"uid-b",', b'') for line in stream))
        for stream in server.script
    ]
    async with running(watch):
        await sink.has(a=4)
    assert sink.events == [(None, 'a'), (None, 'b'), ('MODIFIED', 'a'), (None, 'a'), ('DELETED', 'b')]
    assert set(watch.records) == {'ns/a'}


@pytest.mark.parametrize('answer', ['<html>Welcome!</html>', [], {'items': 123}])
async def test_lists_that_make_no_sense_are_requested_again(watch, server, sink, settings, answer):
    settings.watching.streaming_lists = False
    server.script = [answer, page(obj('a', 1), version=3)]
    async with running(watch):
        await sink.has(a=1)


async def test_pages_with_items_that_make_no_sense(watch, server, sink, settings):
    settings.watching.streaming_lists = False
    server.script = [{**page(version=3), 'items': [None, 'text', {}, {'metadata': None}, obj('a', 1)]}]
    async with running(watch):
        await sink.has(a=1)


async def test_errors_of_one_object_leave_the_others_alone(watch, server, sink, caplog):
    sink.poison = 'x'
    server.script = [Stream(added('x', 1), added('a', 2), bookmark(3, end=True), modified('x', 4), modified('a', 5))]
    async with running(watch):
        await sink.has(a=5)
    assert server.queries == [INITIAL]
    assert len([record for record in caplog.records if record.exc_info]) == 2


# The time: with a client that needs none.


class Client:
    """Answers at once, and remembers when it was asked."""

    cluster_generation = 0

    def __init__(self, *script, default=()):
        self.script = list(script)
        self.default = default
        self.times = []

    def lacks(self, feature):
        return False

    def note_lack(self, feature):
        pass

    async def get_json(self, path, params, *, logger):
        raise errors.APIServerError("only streams", status=500)

    @contextlib.asynccontextmanager
    async def stream(self, path, params, *, opening=None):
        self.times.append(asyncio.get_running_loop().time())
        answer = self.script.pop(0) if self.script else self.default
        if isinstance(answer, Exception):
            raise answer
        yield self.iterate(answer)

    async def iterate(self, answer):
        for each in answer:
            if isinstance(each, int | float):
                await asyncio.sleep(each)
            elif isinstance(each, Exception):
                raise each
            else:
                yield [json.dumps(each).encode()]

    @property
    def delays(self):
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(watches, 'time', types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
    monkeypatch.setattr(watches.random, 'uniform', lambda a, b: 1.0)


async def watch_for(client, settings, sink, seconds):
    settings.watching.reconnect_backoff = 0.1
    watch = ResourceWatch(client, settings, RESOURCE, None, sink)
    async with running(watch):
        await asyncio.sleep(seconds)
    return watch


class RelocatedClient(Client):
    """Lists in chunks; a login leads to another cluster between the first two of them."""

    def __init__(self):
        super().__init__(default=[1])
        self.pages = [page(obj('a', 1), token='next'), page(obj('b', 2), version=2), page(obj('c', 1), version=1)]
        self.tokens = []

    def lacks(self, feature):
        return True

    async def get_json(self, path, params, *, logger):
        self.tokens.append(params['continue'])
        self.cluster_generation = min(1, len(self.tokens) - 1)
        return self.pages.pop(0)


@pytest.mark.looptime
async def test_lists_have_no_chunks_of_two_clusters(clock, settings, sink):
    client, listed = RelocatedClient(), []
    sink.listed = lambda watch: listed.append(dict(sink.versions))
    await watch_for(client, settings, sink, 0.5)
    assert client.tokens == [None, 'next', None]
    assert listed == [{'c': '1'}]


START = [bookmark(1, end=True)]


@pytest.mark.looptime
async def test_back_off_grows_and_ends(clock, settings, sink):
    client = Client([*START, 1], default=errors.APIServerError('x', status=500))
    await watch_for(client, settings, sink, 200)
    assert client.delays[1:10] == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])


@pytest.mark.looptime
async def test_pauses_of_several_watches_differ(settings, sink):
    # Otherwise, all the watches of all the operators would come back at the same moment.
    clients = [Client(default=errors.APIServerError('x', status=500)) for _ in range(5)]
    await asyncio.gather(*[watch_for(client, settings, sink, 3) for client in clients])
    firsts = [client.delays[0] for client in clients]
    assert all(0.63 < delay < 0.97 for delay in firsts)
    assert max(firsts) - min(firsts) > 0.01


@pytest.mark.looptime
@pytest.mark.parametrize('nothing', [[], [bookmark(2)]], ids=['empty', 'bookmarks only'])
async def test_streams_closed_at_once_are_retried_ever_more_slowly(clock, settings, sink, nothing):
    client = Client(START, default=nothing)
    await watch_for(client, settings, sink, 10)
    assert len(client.times) < 6


@pytest.mark.looptime
async def test_back_off_is_reset_by_health(clock, settings, sink):
    error = errors.APIConnectionError('x')
    healthy = [seconds_or_line for _ in range(5) for seconds_or_line in (modified('a', 5), 60)]
    client = Client(START, error, error, error, [*healthy, error], error, default=[999])
    await watch_for(client, settings, sink, 500)
    assert client.delays[:4] == pytest.approx([0.8, 1.6, 3.2, 6.4])
    assert client.delays[4:6] == pytest.approx([300 + 0.8, 1.6])


@pytest.mark.looptime
async def test_back_off_is_reset_by_health_without_events(clock, settings, sink):
    settings.watching.inactivity_timeout = None
    error = errors.APIConnectionError('x')
    client = Client([*START, 1, error], error, error, [200, error], default=[999])
    await watch_for(client, settings, sink, 500)
    assert client.delays == pytest.approx([1 + 0.8, 1.6, 3.2, 200 + 0.8])


@pytest.mark.looptime
async def test_broken_initial_streams_again_and_again(clock, settings, sink):
    client = Client(default=[modified('a', 5)])
    await watch_for(client, settings, sink, 10)
    assert len(client.times) < 6


@pytest.mark.looptime
async def test_expirations_again_and_again(clock, settings, sink):
    client = Client(default=[*START, errors.APIGoneError('x', status=410)])
    await watch_for(client, settings, sink, 10)
    assert client.delays[0] == pytest.approx(0.1)
    assert len(client.times) < 8


@pytest.mark.looptime
async def test_expirations_once_in_a_while(clock, settings, sink):
    client = Client(default=[*START, 60, errors.APIGoneError('x', status=410)])
    await watch_for(client, settings, sink, 1000)
    assert client.delays == pytest.approx([60.1] * len(client.delays))


@pytest.mark.looptime
async def test_a_forbidden_watch_is_retried_soon_and_then_once_a_minute(clock, settings, sink):
    client = Client(default=errors.APIForbiddenError('x', status=403))
    watch = await watch_for(client, settings, sink, 200)
    assert client.delays == pytest.approx([0.8, 1.6, 3.2, 6.4, 60, 60, 60])
    assert watch.failure == 'x'


@pytest.mark.looptime
async def test_told_when_to_retry(clock, settings, sink):
    refusal = errors.APITooManyRequestsError('x', status=429, headers={'Retry-After': '17'})
    client = Client(refusal, default=[*START, 999])
    await watch_for(client, settings, sink, 30)
    assert client.delays == pytest.approx([17])


@pytest.mark.looptime
@pytest.mark.parametrize('limit', [70, 5])
async def test_inactivity_is_counted_from_the_last_line(clock, settings, sink, limit):
    settings.watching.inactivity_timeout = limit
    client = Client([*START, limit - 1, bookmark(2), limit - 1, bookmark(3), 999], default=[999])
    await watch_for(client, settings, sink, limit * 3 + 1)
    assert client.delays[0] == pytest.approx(limit * 3 - 2 + 0.8)


class SilentClient(Client):
    async def get_json(self, path, params, *, logger):
        return {'metadata': {'resourceVersion': '1'}, 'items': []}


@pytest.mark.looptime
async def test_silent_streams_are_replaced_soon_each_time(clock, settings, sink):
    settings.watching.inactivity_timeout = 3
    client = SilentClient([*START, 999], default=[999])
    watch = await watch_for(client, settings, sink, 40)
    assert client.delays == pytest.approx([3.8] * 10)
    assert watch.failure == 'the stream is inactive for 3 seconds; reconnecting'


@pytest.mark.looptime
async def test_silent_lists_are_replaced_ever_more_slowly(clock, settings, sink):
    settings.watching.inactivity_timeout = 3
    client = Client(default=[999])
    await watch_for(client, settings, sink, 40)
    assert client.delays[:3] == pytest.approx([3.8, 4.6, 6.2])


@pytest.mark.looptime
async def test_inactivity_is_not_of_the_consumer(settings, sink):
    # The loop is blocked for longer than the limit, while a line is there already.
    settings.watching.inactivity_timeout = 0.01
    receive, sink.receive = sink.receive, lambda *args, **kwargs: (time.sleep(0.02), receive(*args, **kwargs))
    client = Client([*START, *(modified('a', version) for version in range(2, 5)), 0.001, modified('a', 9)], default=[])
    await watch_for(client, settings, sink, 0.05)
    assert sink.versions == {'a': '9'}


@pytest.mark.looptime
async def test_reconnected_soon_after_an_ordinary_end(clock, settings, sink):
    client = Client(START, default=[60])
    await watch_for(client, settings, sink, 200)
    assert client.delays[1:] == pytest.approx([60.1] * (len(client.delays) - 1))


async def test_a_running_watch_knows_which_states_its_stream_can_still_bring(watch, server, sink):
    reached = []
    sink.receive = lambda *args, **kwargs: reached.append((watch.has_reached('3'), watch.has_reached('5')))
    server.script = [Stream(added('a', 1), bookmark(3, end=True), modified('a', 4), modified('a', 5), bookmark(6))]
    async with running(watch), asyncio.timeout(60):
        while watch.state is WatchState.STOPPED or not watch.has_reached('6'):
            await asyncio.sleep(0.001)
        assert not watch.has_reached('7') and watch.has_reached('opaque')
    assert reached == [(False, False), (True, False), (True, False)]
    assert watch.has_reached('7')  # it brings nothing any more


# Shards: only a part of the objects is of this operator.


class Buckets:
    """The buckets of this operator, so many that each object has its own."""

    NUMBER = 2**32

    def __init__(self, *names):
        self.filter = ShardFilter(Division(self.NUMBER, 'uid'), lambda: self.active)
        self.hold(*names)

    def hold(self, *names):
        self.active = frozenset(find_bucket(f'uid-{name}', self.NUMBER) for name in names)

    @property
    def selector(self):
        return {'shardSelector': str(self.filter.selection)}


@pytest.fixture
def buckets():
    return Buckets('a', 'b')


@pytest.fixture
async def sharded(server, settings, sink, buckets, watch):
    yield ResourceWatch(watch._client, settings, RESOURCE, None, sink, shard=buckets.filter)


@pytest.mark.parametrize('streamed', [True, False])
async def test_only_own_objects_are_requested_and_all_others_ignored(
    sharded, server, settings, sink, buckets, streamed
):
    settings.watching.streaming_lists = streamed
    stream = [modified('a', 5), modified('c', 6), deleted('c', 7), deleted('b', 8)]
    server.script = [
        *([] if streamed else [page(obj('a', 1), obj('b', 2), obj('c', 3), version=4)]),
        Stream(*([added('a', 1), added('b', 2), added('c', 3), bookmark(4, end=True)] if streamed else []), *stream),
    ]
    async with running(sharded):
        await sink.until(lambda: ('DELETED', 'b') in sink.events)
        assert set(sharded.records) == {'uid-a'}
    assert [name for _, name in sink.events] == ['a', 'b', 'a', 'b']
    first = INITIAL if streamed else LIST
    assert server.queries == [first | buckets.selector, *([] if streamed else [since(4) | buckets.selector])]


async def test_the_users_own_shards_win(sharded, server, settings, sink):
    settings.watching.shard_selectors['kopfexamples'] = 'mine'
    server.script = [Stream(added('a', 1), added('c', 3), bookmark(4, end=True))]
    async with running(sharded):
        await sink.has(a=1)
        await sink.until(lambda: sink.lists)
        assert server.queries == [INITIAL | {'shardSelector': 'mine'}]


async def test_no_selector_is_sent_if_the_settings_say_so(sharded, server, settings, sink):
    settings.sharding.server_side = False
    server.script = [Stream(added('a', 1), added('c', 3), bookmark(4, end=True))]
    async with running(sharded):
        await sink.until(lambda: sink.lists)
        assert sink.versions == {'a': '1'} and server.queries == [INITIAL]


@pytest.mark.parametrize(
    'refusal',
    [
        Refusal(400, message='unknown'),
        Refusal(500, message='invalid shard selector: no'),
        Refusal(422, message='shard selector'),
    ],
    ids=lambda refusal: refusal.status,
)
async def test_a_server_that_refuses_the_selector_sends_everything(sharded, server, sink, buckets, caplog, refusal):
    caplog.set_level(logging.INFO)
    server.script = [
        refusal,
        Stream(added('a', 1), added('c', 3), bookmark(4, end=True), ending='end'),
        Stream(modified('a', 5)),
    ]
    async with running(sharded):
        await sink.has(a=5)
    assert server.queries == [INITIAL | buckets.selector, INITIAL, since(4)]
    assert [record.message.partition(':')[0] for record in caplog.records if record.name == watches.__name__] == [
        'The API server refuses the shard selector for kopfexamples.v1.kopf.dev; reading all of them'
    ]


async def test_a_refusal_is_told_once_for_all_namespaces(sharded, server, settings, sink, buckets, watch, caplog):
    caplog.set_level(logging.INFO)
    server.script = [Refusal(400), Refusal(400), *[Stream(added('a', 1), bookmark(4, end=True)) for _ in range(2)]]
    other = ResourceWatch(watch._client, settings, RESOURCE, None, sink, shard=buckets.filter)
    async with running(sharded), running(other):
        await sink.until(lambda: sink.lists == 2)
    assert server.queries == [INITIAL | buckets.selector] * 2 + [INITIAL] * 2
    assert caplog.text.count('refuses the shard selector') == 1 and 'has failed' not in caplog.text


async def test_other_failures_keep_the_selector(sharded, server, sink, buckets):
    server.script = [
        Refusal(500),
        Refusal(422),
        page(obj('a', 1), version=4),
        Refusal(410),
        page(obj('a', 5), version=6),
    ]
    async with running(sharded):
        await sink.has(a=5)
    assert all(query.get('shardSelector') == buckets.selector['shardSelector'] for query in server.queries)


async def test_a_server_with_other_hashes_is_asked_for_everything(sharded, server, settings, sink, buckets, caplog):
    settings.watching.streaming_lists = False
    wrong = page(obj('c', 1), version=4)
    wrong['metadata']['shardInfo'] = buckets.selector
    server.script = [wrong, page(obj('a', 2), obj('c', 1), version=5), Stream(modified('a', 6))]
    async with running(sharded):
        await sink.has(a=6)
    assert server.queries == [LIST | buckets.selector, LIST, since(5)]
    assert 'selects wrong shards' in caplog.text


class ForeignUid(str):
    """The uid of an object of another watch: no watch looks for it, as there can be many."""

    looked_for = 0

    def __hash__(self):
        ForeignUid.looked_for += 1
        return super().__hash__()


async def test_a_smaller_part_continues_the_stream_from_its_position(sharded, server, sink, buckets):
    server.script = [Stream(added('a', 1), added('b', 2), bookmark(4, end=True), modified('a', 5))]
    async with running(sharded):
        await sink.has(a=5, b=2)
        before = buckets.selector
        assert not sharded.is_too_wide
        buckets.hold('a')
        assert sharded.is_too_wide
        uids = {*sharded.records, *(ForeignUid(number) for number in range(100))}
        ForeignUid.looked_for = 0
        sharded.forget(uids)
        assert ForeignUid.looked_for == 0
    server.script = [Stream(modified('a', 6))]
    async with running(sharded):
        await sink.has(a=6, b=2)
        assert set(sharded.records) == {'uid-a'} and not sharded.is_too_wide
    assert server.queries == [INITIAL | before, since(5) | buckets.selector]


@pytest.mark.parametrize('streamed', [True, False])
async def test_a_server_that_sends_everything_needs_no_narrower_request(
    sharded, server, settings, sink, buckets, streamed
):
    settings.watching.streaming_lists = streamed
    server.script = [
        *([] if streamed else [page(obj('a', 1), obj('c', 3), version=4)]),
        Stream(*([added('a', 1), added('c', 3), bookmark(4, end=True)] if streamed else []), modified('a', 5)),
    ]
    async with running(sharded):
        await sink.has(a=5)
        buckets.hold('a')
        assert not sharded.is_too_wide


@pytest.mark.parametrize('streamed', [True, False])
async def test_a_greater_part_is_listed(sharded, server, settings, sink, buckets, streamed):
    settings.watching.streaming_lists = streamed

    def list_all(*objs, version):
        lines = [{'type': 'ADDED', 'object': each} for each in objs]
        return [Stream(*lines, bookmark(version, end=True))] if streamed else [page(*objs, version=version), Stream()]

    server.script = list_all(obj('a', 1), obj('b', 2), version=4)
    async with running(sharded):
        await sink.until(lambda: sink.lists == 1)
    buckets.hold('a', 'c')
    sharded.relist()
    server.script = list_all(obj('a', 1), obj('c', 3), version=6)
    async with running(sharded):
        await sink.until(lambda: sink.lists == 2)
        assert set(sharded.records) == {'uid-a', 'uid-c'}
    assert (INITIAL if streamed else LIST) | buckets.selector in server.queries


async def test_states_of_foreign_objects_from_writes_are_not_waited_for(sharded, server, sink):
    server.script = [Stream(added('a', 1), bookmark(4, end=True))]
    async with running(sharded):
        await sink.until(lambda: sink.lists)
        assert sharded.see(obj('c', 7)) is None
        assert sharded.see(obj('b', 7)) is not None
        await sink.has(a=1, b=7)


async def test_states_of_objects_that_have_changed_hands_are_not_waited_for(sharded, server, settings, sink, buckets):
    settings.sharding.server_side = False  # otherwise, the lines would not come at all
    server.script = [Stream(added('a', 1), added('b', 2), bookmark(4, end=True))]
    async with running(sharded):
        await sink.until(lambda: sink.lists)
        assert sharded.see(obj('b', 7)) is not None
    buckets.hold('a')
    server.script = [Stream(modified('b', 7), bookmark(8), modified('a', 9))]
    async with running(sharded):
        await sink.has(a=9, b=7)
    assert server.queries == [INITIAL, since(4)]


async def test_many_foreign_lines_are_read_at_once(sharded, server, sink, monkeypatch):
    monkeypatch.setattr(shard_filters, 'MIN_RATE', 0)
    rests = []

    async def rest(lines, seconds):
        rests.append(seconds)

    monkeypatch.setattr(sessions.Lines, 'rest', rest)
    server.script = [
        Stream(
            *(added('c', 1), bookmark(4, end=True), modified('c', 5), modified('c', 6), modified('a', 7), bookmark(8)),
            pace=0.01,
        )
    ]
    async with running(sharded):
        await sink.has(a=7)
    # On a busy machine, several lines can come at once anyway.
    assert rests and all(0 < seconds <= shard_filters.MAX_REST for seconds in rests)


async def test_two_tasks_of_a_watch_do_not_run_at_once(watch, server, sink):
    probe = page(version=1)
    server.script = [Stream(added('a', 1), bookmark(4, end=True)), probe, Stream(modified('a', 5))]
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        await sink.until(lambda: sink.lists)
        second = asyncio.create_task(watch.run())
        await asyncio.sleep(0)  # it waits
        assert len(server.queries) == 1
        second.cancel()
        third = asyncio.create_task(watch.run())
        # A request of the third task would come before this one, and get its answer.
        assert await watch._client.get_json('/probe', {}, logger=logging.getLogger()) == probe
        assert len(server.queries) == 2 and watch.state is WatchState.STREAMING
        task.cancel()
        await sink.has(a=5)
        third.cancel()
        await asyncio.wait([task, second, third])
    assert server.queries == [INITIAL, {}, since(4)]
