"""What can be seen of a whole operator from outside: what runs and where, what waits and why, and what hangs."""

import asyncio
import inspect
import json
import threading
import time
import urllib.request

import pytest

import kopf
from kopf._cogs.helpers.runfiles import find_files

NAME = 'kopfexamples.kopf.dev'


def get_line(fn, text):
    lines, start = inspect.getsourcelines(fn)
    return next(start + number for number, line in enumerate(lines) if text in line)


class Window:
    """What an operator shows."""

    def __init__(self, folder):
        self.folder = folder

    def ask_now(self, path='/v1/now'):
        (file,) = find_files(self.folder)
        request = urllib.request.Request(f'{file.url}{path}', headers={'Authorization': f'Bearer {file.token}'})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    async def ask(self, path='/v1/now'):
        return await asyncio.to_thread(self.ask_now, path)

    async def until(self, predicate, path='/v1/now'):
        async with asyncio.timeout(60):
            while not predicate(facts := await self.ask(path)):
                pass
        return facts


@pytest.fixture
def window(world, tmp_path):
    world.settings.inspecting.folder = str(tmp_path / 'run')
    return Window(world.settings.inspecting.folder)


async def test_nothing_can_be_seen_unless_asked_for(world, window):
    async with world.operator():
        assert find_files(window.folder) == []


async def test_the_token_is_there_while_the_operator_runs(world, window):
    world.settings.inspecting.token = 'chosen'
    async with world.operator(inspect=True):
        (file,) = find_files(window.folder)
        assert file.token == 'chosen'
        facts = await window.ask()
    assert facts['running'] == facts['waiting'] == [] and not facts['paused'] and not facts['loop']['blocked']
    assert find_files(window.folder) == []


async def test_running_handlers_are_shown_with_their_lines(world, window):
    gate = asyncio.Event()

    async def wait(**_):
        await gate.wait()

    world.declare(kopf.on.create, 'create', does=wait)
    async with world.operator(inspect=True):
        await world.create()
        await world.until_called('create')
        (facts,) = (await window.until(lambda facts: facts['running']))['running']
        gate.set()
        await world.handled()
        await window.until(lambda facts: not facts['running'])
    assert (facts['handler'], facts['object']['name'], facts['kind']) == ('create', 'obj', 'Handler')
    assert (facts['place']['file'], facts['place']['line']) == (__file__, get_line(wait, 'gate.wait'))


async def test_a_thread_in_a_lock_is_found(world, window):
    lock = threading.Lock()
    lock.acquire()

    @kopf.on.create('kopfexamples', id='sync', registry=world.registry)
    def sync(name, **_):
        if name == 'obj':
            with lock:
                pass

    async with world.operator(inspect=True):
        await world.create()
        facts = await window.until(lambda facts: any(each['thread'] for each in facts['running']))
        lock.release()
        await world.handled()
    (call,) = facts['running']
    assert call['thread'].startswith('kopf-handlers-')
    assert (call['place']['file'], call['place']['line']) == (__file__, get_line(sync, 'with lock:'))


async def test_a_daemon_that_does_not_stop_is_found(world, window):
    release = asyncio.Event()

    async def stay(**_):
        await release.wait()

    world.declare(kopf.daemon, 'daemon', does=stay)
    async with world.operator(inspect=True):
        await world.create()
        await world.until_called('daemon')
        await world.delete()
        facts = await window.until(lambda facts: any(each['stopping'] for each in facts['running']))
        release.set()
        await world.gone()
    (call,) = facts['running']
    assert (call['kind'], call['handler']) == ('Daemon', 'daemon') and 'RESOURCE_DELETED' in call['stopping']
    assert (call['place']['file'], call['place']['line']) == (__file__, get_line(stay, 'release.wait'))


async def test_a_handler_that_blocks_the_loop_is_found(world, window, monkeypatch):
    monkeypatch.setattr('kopf._core.reactor.inspection.LAG_LIMIT', 0.05)
    found = []

    def look():
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            facts = window.ask_now()
            if facts['loop']['blocked'] and any(each['blocking'] for each in facts['running']):
                found.append(facts)

    def block():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    async def create(**_):
        block()

    world.declare(kopf.on.create, 'create', does=create)
    async with world.operator(inspect=True):
        await world.create()
        await world.handled()
    (facts,) = found
    (call,) = [each for each in facts['running'] if each['blocking']]
    assert call['handler'] == 'create' and facts['loop']['lag'] >= 0.05
    # The call can be seen a moment before it comes to the last line.
    assert call['place']['file'] == __file__ and call['place']['function'] == 'block'
    assert "Handler 'create'" in facts['loop']['by'] and __file__ in facts['loop']['by']


async def test_waiting_objects_are_shown_with_the_reason(world, window):
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError("the database is down", delay=100))
    world.declare(kopf.timer, 'timer', interval=50, initial_delay=50)
    world.declare(kopf.on.reconcile, 'level', interval=1000)
    async with world.operator(inspect=True):
        await world.create()
        facts = await window.until(
            lambda facts: {each['why'] for each in facts['waiting']} == {'retry', 'timer', 'interval'}
        )
        (limited,) = (await window.ask('/v1/now?limit=1'))['waiting']
    assert [each['why'] for each in facts['waiting']] == ['timer', 'retry', 'interval'] and facts['waiting_total'] == 3
    timer, retry, level = facts['waiting']
    assert retry['handlers'] == [{'handler': 'create', 'retry': 1, 'message': "the database is down"}]
    assert 0 < timer['seconds'] <= 50 < retry['seconds'] <= 100 < level['seconds']
    assert (retry['resource'], retry['namespace'], retry['name']) == (NAME, 'default', 'obj')
    assert limited['why'] == 'timer'


async def test_objects_that_wait_for_others_are_shown_with_what_they_wait_for(world, window):
    errors = [kopf.NotReadyError("deployments.v1.apps default/shop is not ready yet"), None]
    world.declare(kopf.on.reconcile, 'level', does=errors)
    world.declare(kopf.on.reconcile, 'calm', interval=1000)
    async with world.operator(inspect=True):
        await world.create()
        facts = await window.until(lambda facts: facts['waiting_total'] == 2)
        (obj,) = (await window.ask('/v1/objects?state=waiting'))['objects']
        await world.edit(field='changed')
        await window.until(lambda facts: facts['objects'][NAME]['resting'] == 1)
        (rested,) = (await window.ask('/v1/objects'))['objects']
    interval, unready = facts['waiting']
    assert interval['why'] == 'interval' and (unready['why'], unready['seconds']) == ('unready', None)
    message = "deployments.v1.apps default/shop is not ready yet"
    assert unready['handlers'] == [{'handler': 'level', 'retry': 0, 'message': message}]
    assert (obj['why'], obj['awaited'], obj['handlers']) == ('unready', message, ['level'])
    assert 'until' not in obj and 'error' not in obj
    assert 'awaited' not in rested and rested['why'] == 'interval'


@pytest.mark.parametrize(
    'decorator, options', [(kopf.on.reconcile, {}), (kopf.timer, {'interval': 1}), (kopf.daemon, {})]
)
async def test_retries_of_all_kinds_are_shown_with_the_error(world, window, decorator, options):
    errors = kopf.TemporaryError("the database is down", delay=100)
    world.declare(decorator, 'fn', does=errors, **options)
    async with world.operator(inspect=True):
        await world.create()
        facts = await window.until(lambda facts: facts['waiting'] and facts['objects'][NAME]['waiting'])
    (retry,) = facts['waiting']
    assert retry['handlers'] == [{'handler': 'fn', 'retry': 1, 'message': "the database is down"}]
    assert facts['objects'][NAME]['waiting'] == 1


async def test_throttled_objects_are_shown_with_the_error(world, window):
    world.settings.queueing.error_delays = [1000]
    world.declare(kopf.on.create, 'create')
    world.sandbox.faults.error(400, times=None, method='PATCH')
    async with world.operator(inspect=True):
        await world.create()
        facts = await window.until(lambda facts: facts['waiting'])
        world.sandbox.faults.clear()
    (waiting,) = facts['waiting']
    assert waiting['why'] == 'error' and '400' in waiting['error'] and waiting['handlers'] == []


async def test_watches_and_objects_are_shown(world, window):
    world.declare(kopf.on.event, 'event')
    async with world.operator(inspect=True):
        await world.create('one')
        await world.create('two', labels={'a': 'b'})
        await world.until_called('event', 2)
        facts = await window.until(lambda facts: facts['objects'].get(NAME, {}).get('resting') == 2)
        listed = await window.ask('/v1/objects?name=two')
        limited = await window.ask('/v1/objects?limit=1&state=resting')
    (watch,) = [each for each in facts['watches'] if each['resource'] == NAME]
    assert (watch['state'], watch['objects'], watch['failure'], watch['complete']) == ('streaming', 2, None, True)
    assert 0 <= watch['silent'] < 60
    (obj,) = listed['objects']
    assert (obj['resource'], obj['name'], obj['state'], obj['daemons']) == (NAME, 'two', 'resting', 0)
    assert len(limited['objects']) == 1 and limited['total'] == 2


async def test_contents_of_objects_are_not_shown(world, window):
    gate = asyncio.Event()

    async def wait(**_):
        await gate.wait()

    world.declare(kopf.on.create, 'create', does=wait)
    world.declare(kopf.timer, 'timer', interval=1000)
    async with world.operator(inspect=True):
        await world.create(spec={'password': 'hunter2'})
        await world.until_called('create')
        texts = [json.dumps(await window.ask(path)) for path in ('/v1/now', '/v1/objects')]
        gate.set()
        await world.handled()
    assert not any('hunter2' in text for text in texts) and 'create' in texts[0]


def get_uid(facts):
    return facts['objects'][0]['uid']


async def test_the_timeline_of_an_object_is_shown_with_its_diff(world, window):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.01), None])
    world.declare(kopf.on.update, 'update')
    async with world.operator(inspect=True):
        await world.create(spec={'a': 1})
        await world.handled()
        await world.edit(a=2)
        await world.until_called('update')
        await world.handled()
        uid = get_uid(await window.ask('/v1/objects?name=obj'))
        story = await window.until(lambda story: story['objects'][0]['state'] == 'resting', f'/v1/timeline?uid={uid}')
        news = await window.ask(f'/v1/timeline?uid={uid}&after={story["number"]}')
    handlers = [each for each in story['entries'] if each['type'] == 'handler']
    assert [(each['handler'], each['retry'], each['outcome']) for each in handlers] == [
        ('create', 0, 'retried'),
        ('create', 1, 'succeeded'),
        ('update', 0, 'succeeded'),
    ]
    assert {each['type'] for each in story['entries']} >= {'cause', 'handler', 'patch', 'log'}
    assert story['diff']['fields'] == [{'op': 'change', 'field': 'spec.a', 'old': '1', 'new': '2'}]
    assert story['running'] == [] and abs(story['time'] - time.time()) < 60
    assert news['entries'] == [] and news['number'] == story['number']


async def test_running_handlers_are_in_the_timeline_with_their_stacks(world, window):
    gate = asyncio.Event()

    async def wait(**_):
        await gate.wait()

    world.declare(kopf.on.create, 'create', does=wait)
    async with world.operator(inspect=True):
        await world.create()
        await world.create('other')
        await world.until_called('create', 2)
        uid = get_uid(await window.ask('/v1/objects?name=obj'))
        story = await window.ask(f'/v1/timeline?uid={uid}')
        gate.set()
        await world.handled()
    (call,) = story['running']
    assert call['object']['name'] == 'obj' and call['place']['line'] == get_line(wait, 'gate.wait')
    (entry,) = [each for each in story['entries'] if each['type'] == 'handler']
    assert entry['handler'] == 'create' and 'outcome' not in entry


async def test_objects_that_wait_for_retries_are_failing(world, window):
    world.declare(kopf.on.create, 'create', does=kopf.TemporaryError("no database", delay=100))
    async with world.operator(inspect=True):
        await world.create()
        (waiting,) = (await window.until(lambda facts: facts['objects'], '/v1/objects?state=waiting'))['objects']
    assert (waiting['failed'], waiting['error']) == ('create', "no database")
    assert (waiting['why'], waiting['handlers']) == ('retry', ['create'])
    assert 0 < waiting['until'] - time.time() <= 100.1  # it is rounded


async def test_objects_whose_handlers_have_failed_for_good_are_failing(world, window):
    world.declare(kopf.on.create, 'create', does=kopf.PermanentError("never"))
    async with world.operator(inspect=True):
        await world.create()
        await world.handled()
        facts = await window.until(lambda facts: facts['objects'], '/v1/objects?state=resting')
    (obj,) = facts['objects']
    assert (obj['failed'], obj['error']) == ('create', "never") and 'until' not in obj


async def test_nothing_is_recorded_if_there_are_to_be_no_entries(world, window):
    world.settings.inspecting.entries = 0
    world.declare(kopf.on.create, 'create')
    async with world.operator(inspect=True):
        await world.create()
        await world.handled()
        uid = get_uid(await window.ask('/v1/objects?name=obj'))
        story = await window.ask(f'/v1/timeline?uid={uid}')
    assert (story['entries'], story['diff'], story['number']) == ([], None, 0) and story['objects']


@pytest.mark.parametrize('token, asks', [(None, False), ('chosen', True)])
async def test_the_link_has_only_random_tokens(world, window, caplog, token, asks):
    world.settings.inspecting.token = token
    async with world.operator(inspect=True):
        (file,) = find_files(window.folder)
    assert (f"The inspector is at {file.url}/ and asks for the token." in caplog.text) is asks
    assert (f"The inspector is at {file.url}/#token={file.token}" in caplog.text) is not asks
    assert 'chosen' not in caplog.text


async def test_values_of_secrets_are_shown_nowhere(world, window):
    done = asyncio.Event()

    @kopf.on.update('secrets', registry=world.registry)
    async def update(patch, name, **_):
        if name == 'guarded':
            patch.setdefault('data', {})['other'] = 'aHVzaDI='
            done.set()

    secret = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'guarded', 'namespace': 'default'}}
    async with world.operator(inspect=True):
        await world.aio.create(secret | {'data': {'password': 'aHVzaA=='}})
        await window.until(lambda facts: facts['total'], '/v1/objects?name=guarded&state=resting')
        await world.aio.patch('secrets', 'guarded', {'data': {'password': 'aHVzaDM='}})
        await done.wait()
        uid = get_uid(await window.until(lambda facts: facts['total'], '/v1/objects?name=guarded&state=resting'))
        story = await window.ask(f'/v1/timeline?uid={uid}')
        others = [await window.ask(path) for path in ('/v1/now', '/v1/objects')]
    assert {each['new'] for each in story['diff']['fields']} == {'(hidden)'}
    assert any('data.other' in each['fields'] for each in story['entries'] if each['type'] == 'patch')
    assert 'aHVzaD' not in json.dumps([story, others])
