"""Live updates: who gets which messages, how many of them, and what happens to slow readers."""

import asyncio
import json

import pytest

from kopf._core.engines import live_updates
from kopf._core.engines.live_updates import LiveUpdates


class Changes:
    """What can be told, and what was asked for."""

    def __init__(self):
        self.known = {'pods': frozenset('ab')}
        self.changed = set()
        self.following = False
        self.asked = 0

    def follow(self):
        self.following = True

    def unfollow(self):
        self.following = False

    def take_changed(self, limit):
        return [self.changed.pop() for _ in range(min(limit, len(self.changed)))]

    def get_known(self):
        return self.known

    def describe_objects(self, uids):
        return [{'resource': 'pods', 'uid': uid} for uid in sorted(uids)]

    async def describe_operator(self):
        self.asked += 1
        return {'pid': 1}


class Page:
    """A response that is read, unless it is stopped."""

    def __init__(self):
        self.messages = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.closed = False

    async def write(self, data):
        await self.reading.wait()
        if self.closed:
            raise ConnectionResetError
        head, body = data.decode().removesuffix('\n\n').split('\n')
        self.messages.append((head.removeprefix('event: '), json.loads(body.removeprefix('data: '))))

    def of(self, name):
        return [content for kind, content in self.messages if kind == name]


@pytest.fixture
def changes():
    return Changes()


@pytest.fixture
async def updates(changes):
    updates = LiveUpdates(changes)
    yield updates
    await updates.close()


async def open_page(updates):
    page = Page()
    task = asyncio.create_task(updates.send(page))
    await asyncio.sleep(0.01)
    return page, task


@pytest.mark.looptime
async def test_a_page_is_told_to_request_its_state_at_first(updates, changes):
    page, _ = await open_page(updates)
    assert [name for name, _ in page.messages] == ['state', 'operator'] and changes.following


@pytest.mark.looptime
async def test_the_operator_is_described_once_a_second(updates, changes):
    page, _ = await open_page(updates)
    await asyncio.sleep(3)
    assert len(page.of('operator')) == changes.asked == 4 and page.of('objects') == []


@pytest.mark.looptime
async def test_changes_are_collected_for_a_quarter_of_a_second(updates, changes):
    page, _ = await open_page(updates)
    for number in range(100):
        changes.changed.add(f'{number % 3}')
        await asyncio.sleep(0.01)
    assert 3 <= len(page.of('objects')) <= 4
    assert page.of('objects')[0] == {'objects': changes.describe_objects('012'), 'gone': {}}


@pytest.mark.looptime
async def test_objects_at_rest_that_come_and_go_are_noticed(updates, changes):
    page, _ = await open_page(updates)
    changes.known = {'pods': frozenset('bcd')}
    await asyncio.sleep(1)
    changes.known = {}
    await asyncio.sleep(1)
    first, second = page.of('objects')
    assert first == {'objects': changes.describe_objects('cd'), 'gone': {'pods': ['a']}}
    assert sorted(second['gone']['pods']) == ['b', 'c', 'd'] and second['objects'] == []


@pytest.mark.looptime
async def test_objects_that_come_and_go_at_once_are_gone(updates, changes):
    page, _ = await open_page(updates)
    await asyncio.sleep(0.3)
    changes.changed.add('x')
    await asyncio.sleep(1)
    assert [content['gone'] for content in page.of('objects')] == [{}, {'pods': ['x']}]


@pytest.mark.looptime
async def test_many_changes_are_spread_over_several_messages(updates, changes, monkeypatch):
    monkeypatch.setattr(live_updates, 'MAX_OBJECTS', 10)
    page, _ = await open_page(updates)
    changes.known = {'pods': frozenset(f'{number:02}' for number in range(25))}
    changes.changed = {f'x{number}' for number in range(12)}
    await asyncio.sleep(4)
    sizes = [len(content['objects']) for content in page.of('objects')]
    assert (
        max(sizes) == 10 and len({each['uid'] for content in page.of('objects') for each in content['objects']}) == 37
    )


@pytest.mark.looptime
async def test_a_slow_page_is_told_to_request_its_state_anew(updates, changes):
    fast, _ = await open_page(updates)
    slow, _ = await open_page(updates)
    slow.reading.clear()
    for number in range(100):
        changes.changed.add(f'{number}')
        await asyncio.sleep(0.25)
    slow.reading.set()
    await asyncio.sleep(0.01)
    assert len(slow.messages) <= 2 + 1 + live_updates.MAX_QUEUED + 1  # at first; in the hands of the response; queued
    assert len(slow.of('state')) == 2
    assert len(fast.of('objects')) >= 99 and len(fast.of('state')) == 1


@pytest.mark.looptime
async def test_nothing_is_looked_up_without_pages(updates, changes):
    page, task = await open_page(updates)
    page.closed = True
    await asyncio.sleep(2)
    assert task.done() and not changes.following
    asked = changes.asked
    await asyncio.sleep(10)
    assert changes.asked == asked


@pytest.mark.looptime
async def test_a_page_can_be_opened_while_the_last_one_is_closed(updates, changes):
    first, _ = await open_page(updates)
    first.closed = True
    await asyncio.sleep(0.98)
    second, _ = await open_page(updates)
    await asyncio.sleep(2)
    assert changes.following and len(second.of('operator')) >= 2


@pytest.mark.looptime
async def test_the_streams_end_with_the_server(updates, changes):
    _, task = await open_page(updates)
    await updates.close()
    await asyncio.wait_for(task, 1)
    assert not changes.following


@pytest.mark.looptime
async def test_an_error_is_logged_and_disconnects_the_pages(updates, changes, caplog):
    changes.describe_objects = None
    page, task = await open_page(updates)
    changes.changed.add('a')
    await asyncio.wait_for(task, 1)
    assert "The inspector has failed" in caplog.text


async def test_only_some_pages_can_be_open(updates):
    for _ in range(live_updates.MAX_PAGES):
        assert not updates.is_full
        await open_page(updates)
    assert updates.is_full
