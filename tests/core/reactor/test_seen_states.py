"""
States that are seen ahead of the stream of a watch: the watch against a model of the API server.

The server is in memory. It has one object a name, with a log of all its events. The test decides when the stream
brings which of them, when writers tell the watch of their responses, and when the objects are listed anew.
"""

import asyncio
import collections
import contextlib
import copy
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kopf
from kopf._cogs.clients import errors
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Resource
from kopf._core.reactor import watches
from kopf._core.reactor.seen_states import SeenStates, Verdict
from kopf._core.reactor.sinks import EventSink
from kopf._core.reactor.watches import ResourceWatch, WatchState

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
LABELS = {'app': 'x'}
HERE, ELSEWHERE = ('ns', 'a'), ('ns', 'b')


class Server:
    """The API server: the objects, and the log of what a watch with the selector is sent."""

    def __init__(self):
        self.version = 10
        self.objects = {}
        self.log = []
        self.lists = 0
        self._uids = 0

    def write(self, name, *, labelled=True, namespace='ns'):
        """Create or change the object; return the response."""
        self.version += 1
        former = self.objects.get(name)
        if former is None:
            self._uids += 1
        uid = f'uid{self._uids}' if former is None else former['metadata']['uid']
        labels = dict(LABELS) if labelled else {}
        raw = {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfExample',
            'metadata': {'name': name, 'namespace': namespace, 'uid': uid, 'labels': labels},
        }
        raw['metadata']['resourceVersion'] = str(self.version)
        was, self.objects[name] = is_selected(former), raw
        if labelled or was:
            self._send('DELETED' if not labelled else 'MODIFIED' if was else 'ADDED', raw)
        return copy.deepcopy(raw)

    def delete(self, name):
        """Delete the object if it exists; return its last state."""
        raw = self.objects.pop(name, None)
        if raw is not None:
            self.version += 1
            if is_selected(raw):
                metadata = {**raw['metadata'], 'resourceVersion': str(self.version)}
                self._send('DELETED', {**raw, 'metadata': metadata})
        return copy.deepcopy(raw)

    def _send(self, type_, raw):
        self.log.append((self.version, {'type': type_, 'object': copy.deepcopy(raw)}))

    @property
    def selected(self):
        return [raw for raw in self.objects.values() if is_selected(raw)]


def is_selected(raw):
    return raw is not None and raw['metadata']['labels'] == LABELS


class Client:
    """The client of the watch: what comes by the stream, and when a list is answered, is up to the test."""

    cluster_generation = 0

    def __init__(self, server):
        self.server = server
        self.position = 0
        self.lines = asyncio.Queue()
        self.holding = False
        self.released = asyncio.Event()

    def lacks(self, feature):
        return True

    async def get_json(self, path, params=None, *, logger=None):
        self.server.lists += 1
        self.position = self.server.version
        items = copy.deepcopy(self.server.selected)
        page = {'items': items, 'metadata': {'resourceVersion': str(self.position)}}
        if self.holding:
            self.released.clear()
            await self.released.wait()
        return page

    def deliver(self, count):
        """Bring some of the next events by the stream."""
        pending = [(version, event) for version, event in self.server.log if version > self.position][:count]
        for version, event in pending:
            self.position = version
            self.lines.put_nowait(event)

    def bookmark(self):
        """Bring all events, and a bookmark."""
        self.deliver(10**6)
        metadata = {'resourceVersion': str(self.server.version)}
        self.lines.put_nowait({'type': 'BOOKMARK', 'object': {'metadata': metadata}})

    @contextlib.asynccontextmanager
    async def stream(self, path, params=None, *, opening=None):
        # Lines that the former stream has not brought are lost with it.
        self.lines, self.position = asyncio.Queue(), int(params['resourceVersion'])
        yield self._iterate(self.lines)

    async def _iterate(self, lines):
        while (event := await lines.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield [json.dumps(event).encode()]


class Sink(EventSink):
    """Checks the promises of a watch to its sink at each event, and knows what handlers would know."""

    def __init__(self):
        self.objects = {}
        self.reached = collections.Counter()
        self.types = []
        self.failures = []
        self.changed_by_others = 0
        self.gone = []

    def receive(self, record, event, *, listed_since):
        try:
            self.check(record, event, listed_since)
        except AssertionError as error:  # a watch logs the errors of its sink, and goes on
            self.failures.append(error)
            raise

    def check(self, record, event, listed_since):
        metadata = event['object']['metadata']
        uid, name, version = metadata['uid'], metadata['name'], int(metadata.get('resourceVersion', 0))
        assert uid == record.uid
        self.types.append(event['type'])
        if event['type'] == 'DELETED':
            assert self.objects.pop(uid)['metadata']['name'] == name
            self.reached[uid] = max(version, self.reached[uid])
            return
        assert version > self.reached[uid] or (listed_since is not None and version == self.reached[uid])
        assert [each for each, raw in self.objects.items() if raw['metadata']['name'] == name] in ([], [uid])
        self.objects[uid], self.reached[uid] = event['object'], version

    def outdated(self, record):
        assert record.uid in self.objects
        self.changed_by_others += 1

    def missed(self, uid):
        assert uid not in self.objects
        self.gone.append(uid)

    def find(self, name):
        return next((raw for raw in self.objects.values() if raw['metadata']['name'] == name), None)


class Scene:
    """A watch of the server."""

    def __init__(self, server, **options):
        self.server, self.client, self.sink = server, Client(server), Sink()
        settings = kopf.OperatorSettings()
        settings.watching.streaming_lists = False
        settings.watching.reconnect_backoff = 0
        self.settings = settings
        options = {'label_selector': LabelSelector.parse('app=x'), **options}
        self.watch = ResourceWatch(self.client, settings, RESOURCE, 'ns', self.sink, **options)

    @property
    def is_streaming(self):
        return self.watch.state is WatchState.STREAMING

    @contextlib.asynccontextmanager
    async def running(self):
        """Run the watch, which begins with its first list and waits for nothing before the later ones."""
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(watches, 'SHORT_LIFE', -1)
            patching.setattr(watches, 'EXPIRATION_PERIOD', -1)
            task = asyncio.create_task(self.watch.run())
            await self.settle()
            assert self.is_streaming
            yield
            task.cancel()
            await asyncio.wait({task})

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)

    async def catch_up(self):
        """Let the watch see all events, and a bookmark."""
        self.client.bookmark()
        await self.settle()

    async def expire(self):
        self.client.lines.put_nowait(errors.APIGoneError('too old', status=410))
        await self.settle()

    async def cut(self):
        self.client.lines.put_nowait(None)
        await self.settle()

    async def release(self):
        self.client.holding = False
        self.client.released.set()
        await self.settle()


@contextlib.asynccontextmanager
async def watching(server=None, **options):
    scene = Scene(server or Server(), **options)
    async with scene.running():
        yield scene


NAMES = st.sampled_from('ab')
WHEN = st.sampled_from(['now', 'later', 'never'])
STEPS = st.lists(
    st.tuples(st.just('write'), NAMES, WHEN, st.sampled_from([True, True, True, False]))
    | st.tuples(st.just('delete'), NAMES, WHEN)
    | st.tuples(st.just('tell'), st.integers(0, 5))
    | st.tuples(st.just('deliver'), st.integers(1, 3))
    | st.sampled_from([('cut',), ('expire',), ('bookmark',), ('hold',), ('release',)]),
    max_size=30,
)


class Play(Scene):
    """A scene with writers that tell of their responses at once, later, in any order, or never."""

    def __init__(self, server):
        super().__init__(server)
        self.untold = []
        self.expirations = 0

    def tell(self, raw, is_deleted):
        self.watch.see(copy.deepcopy(raw), is_deleted=is_deleted)
        if self.is_streaming:
            self.check_seen(raw, is_deleted)

    def check_seen(self, raw, is_deleted):
        """Check that the handlers know this state, or a newer one, right now."""
        uid, version = raw['metadata']['uid'], int(raw['metadata']['resourceVersion'])
        known = self.sink.objects.get(uid)
        if is_deleted or not is_selected(raw):
            assert known is None or (not is_deleted and int(known['metadata']['resourceVersion']) > version)
        elif known is None:
            assert self.is_gone_or_left(uid, version)
        else:
            assert int(known['metadata']['resourceVersion']) >= version

    def is_gone_or_left(self, uid, version):
        later = [event for number, event in self.server.log if number > version]
        return any(event['type'] == 'DELETED' and event['object']['metadata']['uid'] == uid for event in later) or (
            all(raw['metadata']['uid'] != uid for raw in self.server.objects.values())
        )

    async def play(self, step):
        match step:
            case 'write', name, when, labelled:
                self.note(self.server.write(name, labelled=labelled), False, when)
            case 'delete', name, when:
                raw = self.server.delete(name)
                if raw is not None:
                    self.note(raw, True, when)
            case 'tell', index if self.untold:
                self.tell(*self.untold.pop(index % len(self.untold)))
            case 'deliver', count:
                self.client.deliver(count)
            case ('cut',) if self.is_streaming:
                await self.cut()
            case ('expire',) if self.is_streaming:
                self.expirations += 1
                await self.expire()
            case ('bookmark',):
                self.client.bookmark()
            case ('hold',):
                self.client.holding = True
            case ('release',):
                await self.release()
        await self.settle()

    def note(self, raw, is_deleted, when):
        if when == 'now':
            self.tell(raw, is_deleted)
        elif when == 'later':
            self.untold.append((raw, is_deleted))


@settings(max_examples=4 * settings.default.max_examples)
@given(before=st.lists(st.tuples(NAMES, st.booleans()), max_size=3), steps=STEPS)
@example(
    before=[('a', True)],
    steps=[('delete', 'a', 'never'), ('write', 'a', 'later', True), ('delete', 'a', 'never')]
    + [('write', 'a', 'now', True), ('tell', 0), ('bookmark',)],
)
@example(
    before=[],
    steps=[('hold',), ('expire',), ('write', 'a', 'now', True), ('delete', 'a', 'never'), ('release',)],
)
@example(
    before=[],
    steps=[('write', 'a', 'now', True), ('write', 'a', 'now', False), ('write', 'a', 'now', True)]
    + [('delete', 'a', 'now')],
)
def test_handlers_see_writes_at_once_and_in_the_end_what_the_server_has(before, steps):
    async def main():
        server = Server()
        for name, labelled in before:
            server.write(name, labelled=labelled)
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(watches, 'SHORT_LIFE', -1)
            patching.setattr(watches, 'EXPIRATION_PERIOD', -1)
            play = Play(server)
            task = asyncio.create_task(play.watch.run())
            await play.settle()
            for step in steps:
                await play.play(step)
                assert not task.done()
            await play.release()
            play.client.bookmark()
            await play.settle()
            assert not play.sink.failures
            final = {raw['metadata']['uid']: raw for raw in server.selected}
            assert play.sink.objects == final
            assert play.watch.records.keys() == final.keys()
            # What was told too late changes nothing.
            for raw, is_deleted in play.untold:
                if not is_deleted:
                    play.tell(raw, is_deleted)
            assert play.sink.objects == final
            play.client.bookmark()
            await play.settle()
            assert server.lists == 1 + play.expirations  # nothing was suspected of being missed
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(main())


async def test_a_write_is_seen_at_once_and_its_echo_changes_nothing():
    async with watching() as scene:
        raw = scene.server.write('a')
        record = scene.watch.see(raw)
        assert scene.sink.find('a') == raw
        assert (record.name, record.initial) == ('a', False)
        raw = scene.server.write('a')
        assert scene.watch.see(raw) is record
        await scene.catch_up()
        assert scene.sink.find('a') == raw
        assert scene.sink.types == ['ADDED', 'MODIFIED']
        assert scene.server.lists == 1
        scene.server.write('a')
        await scene.catch_up()
        assert scene.sink.types == ['ADDED', 'MODIFIED', 'MODIFIED']


async def test_an_older_state_is_never_seen_after_a_newer_one():
    async with watching() as scene:
        older, newer = scene.server.write('a'), scene.server.write('a')
        record = scene.watch.see(newer)
        # The record is returned nevertheless: the writer waits for the index functions, which can still be running.
        assert scene.watch.see(older) is record
        assert scene.watch.see(newer) is record
        await scene.catch_up()
        assert scene.watch.see(newer) is record
        assert scene.sink.types == ['ADDED']
        assert scene.sink.find('a') == newer


async def test_changes_of_others_before_a_seen_one_are_no_states_but_are_told():
    async with watching() as scene:
        scene.watch.see(scene.server.write('a'))
        scene.watch.see(scene.server.write('a'))
        scene.server.write('a')  # by another client
        scene.watch.see(scene.server.write('a'))
        await scene.catch_up()
        assert scene.sink.types == ['ADDED', 'MODIFIED', 'MODIFIED']
        assert scene.sink.changed_by_others == 1


async def test_a_deletion_is_seen_at_once_and_nothing_comes_after_it():
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        older = server.write('a')
        scene.watch.see(server.delete('a'), is_deleted=True)
        assert scene.sink.find('a') is None
        assert scene.watch.see(older) is None
        await scene.catch_up()
        assert scene.sink.types == [None, 'DELETED']
        assert scene.sink.changed_by_others == 0
        assert not scene.watch.records


async def test_the_deletion_of_an_unknown_object_is_ignored():
    async with watching() as scene:
        server = scene.server
        server.write('a')
        assert scene.watch.see(server.delete('a'), is_deleted=True) is None
        await scene.catch_up()
        assert scene.sink.types == ['ADDED', 'DELETED']


async def test_an_object_that_was_deleted_by_its_last_change_is_deleted_by_the_echo_of_that():
    # A patch that removes the last finalizer: its response can have the version of the deletion.
    server = Server()
    raw = server.write('a')
    async with watching(server) as scene:
        server.delete('a')
        raw['metadata']['resourceVersion'] = str(server.version)
        scene.watch.see(raw)
        await scene.catch_up()
        assert scene.sink.types == [None, 'MODIFIED', 'DELETED']


async def test_a_new_object_of_the_same_name_replaces_the_former_one():
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        server.write('a')
        server.delete('a')
        raw = server.write('a')
        scene.watch.see(raw)
        assert scene.sink.types == [None, 'DELETED', 'ADDED']
        assert list(scene.sink.objects) == [raw['metadata']['uid']]
        await scene.catch_up()
        assert scene.sink.types == [None, 'DELETED', 'ADDED']
        assert not scene.sink.failures


async def test_an_object_is_created_anew_after_its_deletion_was_seen():
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        scene.watch.see(server.delete('a'), is_deleted=True)
        raw = server.write('a')
        scene.watch.see(raw)
        assert scene.sink.find('a') == raw
        await scene.catch_up()
        assert scene.sink.types == [None, 'DELETED', 'ADDED']


async def test_predecessors_of_a_deleted_object_do_not_come_back():
    async with watching() as scene:
        server = scene.server
        server.write('a')
        server.delete('a')
        scene.watch.see(server.write('a'))
        scene.watch.see(server.delete('a'), is_deleted=True)
        await scene.catch_up()
        assert scene.sink.types == ['ADDED', 'DELETED']
        scene.watch.see(server.write('a'))
        assert scene.sink.find('a')


async def test_what_is_written_during_a_list_is_seen_when_the_list_is_complete():
    server = Server()
    async with watching(server) as scene:
        scene.client.holding = True
        await scene.expire()
        older, newer = server.write('a'), server.write('a')
        assert scene.watch.see(newer) is None
        assert scene.watch.see(older) is None
        gone = server.write('b')
        scene.watch.see(gone)
        scene.watch.see(server.delete('b'), is_deleted=True)
        scene.watch.see(gone)
        assert scene.sink.types == []
        await scene.release()
        assert scene.sink.find('a') == newer
        assert scene.sink.types == ['ADDED']
        await scene.catch_up()
        # The list has never had the other object, so its deletion is no news; but neither is the object known.
        assert scene.sink.find('b') is None


async def test_objects_that_are_written_and_deleted_before_a_list_are_told_of():
    server = Server()
    async with watching(server) as scene:
        known = server.write('b')
        scene.watch.see(known)
        scene.settings.watching.reconnect_backoff = 0.01
        await scene.expire()
        assert not scene.is_streaming
        written, changed, unselected = server.write('a'), server.write('b'), server.write('c', labelled=False)
        for raw in (written, changed, unselected):
            scene.watch.see(raw)
        server.delete('a')
        while not scene.is_streaming:
            await asyncio.sleep(0.001)
        assert scene.sink.gone == [written['metadata']['uid']]
        assert scene.sink.find('b') == changed


async def test_a_list_is_newer_than_what_was_seen_before_it():
    server = Server()
    async with watching(server) as scene:
        scene.watch.see(server.write('a'))
        server.delete('a')
        await scene.expire()
        assert scene.sink.types == ['ADDED', 'DELETED']
        raw = server.write('a')
        await scene.catch_up()
        assert scene.sink.find('a') == raw


async def test_versions_that_went_back_are_accepted_after_a_list():
    server = Server()
    async with watching(server) as scene:
        server.version = 1000
        scene.watch.see(server.write('a'))
        server.version = 500  # restored from a backup
        server.log.clear()
        server.objects['a']['metadata']['resourceVersion'] = '500'
        scene.sink.reached.clear()
        await scene.expire()
        raw = server.write('a')
        await scene.catch_up()
        assert scene.sink.find('a') == raw


@pytest.mark.parametrize('by_others', [False, True], ids=['own edits', 'edits of others'])
async def test_an_object_that_was_back_before_its_deletion_was_seen_does_not_come_back_again(by_others):
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        for labelled in False, True:
            raw = server.write('a', labelled=labelled)
            if not by_others:
                scene.watch.see(raw)
        scene.watch.see(server.delete('a'), is_deleted=True)
        seen = list(scene.sink.types)
        await scene.catch_up()
        assert scene.sink.types == seen
        assert scene.sink.find('a') is None


async def test_objects_that_do_not_match_the_selector_are_not_seen():
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        assert scene.watch.see(server.write('b', labelled=False)) is None
        assert scene.sink.types == [None]
        left = server.write('a', labelled=False)
        scene.watch.see(left)
        assert scene.sink.types == [None, 'DELETED']
        back = server.write('a')
        scene.watch.see(back)
        assert scene.sink.types == [None, 'DELETED', 'ADDED']
        await scene.catch_up()
        assert scene.sink.types == [None, 'DELETED', 'ADDED']
        assert scene.sink.find('a') == back


async def test_only_known_objects_are_seen_if_selectors_cannot_be_evaluated_here():
    server = Server()
    server.write('a')
    async with watching(server) as scene:
        scene.settings.watching.field_selectors['kopfexamples'] = 'metadata.name!=b'
        assert scene.watch.see(server.write('b')) is None
        raw = server.write('a')
        assert scene.watch.see(raw)
        assert scene.sink.find('a') == raw


async def test_objects_of_other_namespaces_are_not_seen():
    async with watching() as scene:
        assert scene.watch.see(scene.server.write('a', namespace='other')) is None
        assert not scene.sink.types


@pytest.mark.parametrize('version', [None, '', 'abc', '0x1'])
async def test_states_without_comparable_versions_are_left_to_the_stream(version):
    async with watching() as scene:
        raw = scene.server.write('a')
        written = copy.deepcopy(raw)
        written['metadata']['resourceVersion'] = version
        assert scene.watch.see(written) is None
        await scene.catch_up()
        assert scene.sink.find('a') == raw


@pytest.mark.parametrize('raw', [{}, {'metadata': None}, {'metadata': {'name': 'a'}}, {'metadata': {'uid': 'a'}}, []])
async def test_what_is_no_object_is_not_seen(raw):
    async with watching() as scene:
        assert scene.watch.see(raw) is None


async def test_nothing_is_seen_before_the_first_list():
    server = Server()
    scene = Scene(server)
    assert scene.watch.see(server.write('a')) is None
    assert not scene.sink.types


async def test_what_is_deleted_before_the_first_list_is_told_of():
    scene = Scene(Server())
    gone, kept = scene.server.write('a'), scene.server.write('b')
    scene.watch.see(gone)
    scene.watch.see(kept)
    scene.server.delete('a')
    async with scene.running():
        assert scene.sink.gone == [gone['metadata']['uid']]
        assert scene.sink.find('b') == kept and scene.sink.types == [None]


async def test_a_state_of_another_cluster_does_not_stay():
    server = Server()
    async with watching(server) as scene:
        other = Server()
        other.version = server.version + 1
        scene.watch.see(other.write('a'))
        assert scene.sink.find('a')
        server.version += 10
        await scene.catch_up()
        assert scene.sink.find('a') is None
        assert server.lists == 2


def test_nothing_is_remembered_when_the_stream_has_caught_up():
    seen = SeenStates()
    for number in range(200):
        assert seen.admit('uid', HERE, str(number + 11), '10', is_absent=False)
    assert len(seen) == 1
    assert seen.judge('uid', HERE, 'MODIFIED', '150') is Verdict.ECHO
    assert seen.judge('uid', HERE, 'MODIFIED', '210') is Verdict.ECHO
    assert len(seen) == 0
    assert seen.judge('uid', HERE, 'MODIFIED', '211') is Verdict.NEWS


def test_versions_of_other_objects_are_not_compared():
    seen = SeenStates()
    assert seen.admit('uid', HERE, '20', '10', is_absent=False)
    assert seen.judge('other', ELSEWHERE, 'MODIFIED', '15') is Verdict.NEWS
    assert seen.judge('uid', HERE, 'MODIFIED', 'abc') is Verdict.NEWS
    assert not seen.reach('19')
    assert seen.reach('20')
    assert not seen.reach('abc')


def test_a_deletion_is_forgotten_when_the_stream_has_brought_it():
    seen = SeenStates()
    seen.note_name('uid', HERE)
    seen.admit_deletion('uid', HERE)
    seen.forget_name('uid', HERE)
    assert seen.find(HERE) == 'uid'
    assert seen.judge('uid', HERE, 'MODIFIED', '20') is Verdict.ECHO
    assert seen.judge('predecessor', HERE, 'DELETED', '19') is Verdict.ECHO
    assert len(seen) == 1
    assert seen.judge('uid', HERE, 'DELETED', '21') is Verdict.ECHO
    assert len(seen) == 0
    assert seen.find(HERE) is None
