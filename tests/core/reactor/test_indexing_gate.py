"""The gate of the indices: for which lists and objects which handlers wait."""

import asyncio

import pytest

from kopf._core.reactor import indexing_gate
from kopf._core.reactor.indexing_gate import IndexingGate

ANY = None  # handlers with **kwargs can use any index
NONE = frozenset({'body', 'spec'})
USER = frozenset({'body', 'idx'})


@pytest.fixture
async def gate():
    gate = IndexingGate()
    yield gate
    await gate.close()


@pytest.fixture
def openings(gate):
    """Return the numbers of calls of a listener, by the moments when they are read."""
    calls = []
    gate.listeners.append(lambda: calls.append(None))
    return lambda: len(calls)


def is_open(gate):
    return [gate.is_open(arguments) for arguments in (NONE, USER, ANY)]


async def test_a_gate_without_lists_is_open(gate):
    assert gate.is_complete and is_open(gate) == [True, True, True]


async def test_initial_lists_delay_all_handlers(gate, openings):
    gate.expect('pods', 'pods', ['idx'])
    gate.expect('jobs', 'jobs', ['other'])
    assert is_open(gate) == [False, False, False]
    gate.dismiss('pods')
    assert is_open(gate) == [False, False, False]
    gate.dismiss('jobs')
    assert gate.is_complete and is_open(gate) == [True, True, True]
    assert openings() >= 1


async def test_later_lists_delay_only_handlers_that_can_use_their_indices(gate, openings):
    gate.expect('pods', 'pods', ['idx'], initial=False)
    assert is_open(gate) == [True, False, False]
    gate.dismiss('pods')
    assert is_open(gate) == [True, True, True] and openings() == 1


@pytest.mark.parametrize('initial', [True, False])
async def test_waits_for_single_indices_end_when_these_are_complete(gate, initial):
    gate.expect('pods', 'pods', ['idx'], initial=initial)
    gate.expect('jobs', 'jobs', ['other'], initial=initial)
    await gate.wait_filled(NONE)
    waiting = [asyncio.create_task(gate.wait_filled(arguments)) for arguments in (USER, ANY, USER)]
    await asyncio.sleep(0)
    waiting[2].cancel()
    gate.dismiss('pods')
    await waiting[0]
    assert gate.is_filled(USER) and not gate.is_filled(ANY) and not waiting[1].done()
    gate.dismiss('jobs')
    await waiting[1]


async def test_indices_count_as_complete_while_their_objects_are_listed_once_more(gate):
    gate.expect('pods', 'pods', ['idx'], refilling=True)
    assert not gate.is_open(USER) and gate.is_filled(USER) and gate.is_filled(ANY)
    gate.expect('jobs', 'jobs', ['idx'], refilling=False)
    assert not gate.is_filled(USER) and not gate.is_filled(ANY)
    gate.dismiss('jobs')
    assert gate.is_filled(USER) and not gate.is_complete
    gate.dismiss('pods')
    assert gate.is_complete


async def test_an_incomplete_index_stays_incomplete_if_its_objects_are_listed_once_more(gate):
    gate.expect('pods', 'pods', ['idx'])
    gate.expect('pods', 'pods', ['idx'], refilling=True)
    assert not gate.is_filled(USER)
    gate.dismiss('pods')
    assert gate.is_filled(USER)


async def test_an_index_of_several_lists_is_complete_with_the_last_one(gate, openings):
    gate.expect('pods', 'pods', ['idx'], initial=False)
    gate.expect('jobs', 'jobs', ['idx'], initial=False)
    gate.dismiss('pods')
    assert is_open(gate) == [True, False, False] and openings() == 0
    gate.dismiss('jobs')
    assert is_open(gate) == [True, True, True]


async def test_an_excused_list_delays_only_handlers_that_can_use_its_indices(gate, openings):
    gate.expect('pods', 'pods', ['idx'])
    assert gate.stop_delaying_all('pods')
    assert is_open(gate) == [True, False, False] and openings() == 1
    assert not gate.stop_delaying_all('pods') and not gate.stop_delaying_all('unknown')


@pytest.mark.looptime
async def test_a_list_that_brings_nothing_delays_all_handlers_only_for_a_while(gate, openings, caplog):
    gate.expect('pods', 'the pods', ['idx'])
    await asyncio.sleep(indexing_gate.LIST_PATIENCE - 1)
    gate.start(asyncio.sleep(0), 'pods')  # a long list, whose objects keep coming
    await asyncio.sleep(indexing_gate.LIST_PATIENCE)
    assert is_open(gate) == [False, False, False] and openings() == 0
    await asyncio.sleep(indexing_gate.LIST_PATIENCE)
    assert is_open(gate) == [True, False, False] and openings() == 1
    assert "Only the handlers that can use the indices 'idx' wait for the list of the pods" in caplog.text
    gate.dismiss('pods')
    assert gate.is_complete and is_open(gate) == [True, True, True]


@pytest.mark.looptime
async def test_objects_of_a_complete_list_delay_all_handlers_until_they_are_indexed(gate):
    gate.expect('pods', 'pods', ['idx'])
    gate.start(asyncio.sleep(999), 'pods')
    gate.dismiss('pods')
    await asyncio.sleep(indexing_gate.LIST_PATIENCE * 3)
    assert is_open(gate) == [False, False, False]


@pytest.mark.looptime
@pytest.mark.parametrize('refilling, patience', [(False, 'NAMESPACE_PATIENCE'), (True, 'LIST_PATIENCE')])
async def test_a_namespace_that_brings_nothing_delays_handlers_of_others_only_for_a_while(
    gate, openings, caplog, refilling, patience
):
    limit = getattr(indexing_gate, patience)
    gate.expect('pods', 'the pods', ['idx'], initial=False, namespace='ns', refilling=refilling)
    await asyncio.sleep(limit - 1)
    gate.start(asyncio.sleep(0), 'pods')  # a long list, whose objects keep coming
    await asyncio.sleep(limit)
    assert is_open(gate) == [True, False, False]
    others = [asyncio.create_task(gate.wait_filled(USER, namespace)) for namespace in ('other', None)]
    own = asyncio.create_task(gate.wait_filled(USER, 'ns'))
    await asyncio.sleep(limit)
    assert is_open(gate) == [True, True, True] and gate.is_open(ANY, 'other')
    assert [gate.is_open(arguments, 'ns') for arguments in (NONE, USER, ANY)] == [True, False, False]
    assert all(task.done() for task in others) and own.done() == refilling and openings() == 1
    assert "in the namespace 'ns' wait for the list of the pods" in caplog.text
    await asyncio.sleep(indexing_gate.REMINDER_INTERVAL)
    assert "'idx' are not run in the namespaces 'ns' until these are complete" in caplog.text
    gate.dismiss('pods')
    await own
    assert gate.is_complete and gate.is_open(ANY, 'ns') and openings() == 2


async def test_only_lists_of_later_namespaces_can_stop_delaying_handlers_of_others(gate):
    gate.expect('initial', 'initial', ['idx'], namespace='ns')
    gate.expect('pods', 'pods', ['idx'], initial=False)
    assert not any(gate.stop_delaying_others(key) for key in ('initial', 'pods', 'unknown'))
    gate.dismiss('initial')
    gate.dismiss('pods')
    gate.expect('pods', 'pods', ['idx'], initial=False, namespace='ns')
    assert gate.stop_delaying_others('pods') and not gate.stop_delaying_others('pods')
    gate.expect('pods', 'pods', ['idx'], initial=False, namespace='ns')  # after a pause
    assert gate.is_open(USER) and not gate.is_open(USER, 'ns')


async def test_waits_for_new_lists_end_while_former_ones_are_repeated(gate):
    gate.expect('pods', 'pods', ['idx'], refilling=True)
    gate.expect('jobs', 'jobs', ['idx'])
    waiting = asyncio.create_task(gate.wait_filled(USER))
    await asyncio.sleep(0)
    gate.dismiss('jobs')
    await asyncio.wait_for(waiting, 5)


async def test_objects_of_a_list_delay_handlers_until_they_are_indexed(gate):
    async def index():
        await going.wait()

    going = asyncio.Event()
    gate.expect('pods', 'pods', ['idx'])
    gate.start(index(), 'pods')
    gate.dismiss('pods')
    assert is_open(gate) == [False, False, False]
    going.set()
    await asyncio.sleep(0.01)
    assert is_open(gate) == [True, True, True]


async def test_objects_of_no_list_delay_no_handlers(gate):
    gate.start(asyncio.sleep(999))
    assert is_open(gate) == [True, True, True]


async def test_an_error_of_an_indexing_task_is_reported_as_the_failure_of_the_gate(gate):
    async def index():
        raise ValueError("boo")

    gate.start(index())
    with pytest.raises(ValueError, match="boo"):
        await asyncio.wait_for(gate.failure, 1)


async def test_a_closed_gate_cancels_its_tasks_and_starts_no_others(gate):
    async def index():
        seen.append('started')
        try:
            await asyncio.sleep(999)
        except asyncio.CancelledError:
            seen.append('cancelled')
            raise

    seen = []
    gate.start(index())
    await asyncio.sleep(0)
    await gate.close()
    gate.start(index())
    await asyncio.sleep(0)
    assert seen == ['started', 'cancelled']


@pytest.mark.looptime
async def test_handlers_that_wait_are_reported_until_the_gate_opens(gate, caplog):
    gate.expect('pods', 'list of pods', ['idx'])
    gate.start(asyncio.sleep(0), 'pods')
    await asyncio.sleep(indexing_gate.REMINDER_INTERVAL + 1)
    assert "No handlers are run until all indices are complete" in caplog.text and "list of pods" in caplog.text
    gate.stop_delaying_all('pods')
    await asyncio.sleep(indexing_gate.REMINDER_INTERVAL)
    assert "The handlers that can use the indices 'idx' are not run until these are complete" in caplog.text
    gate.dismiss('pods')
    caplog.clear()
    await asyncio.sleep(indexing_gate.REMINDER_INTERVAL * 2)
    assert not caplog.text
