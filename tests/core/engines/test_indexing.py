"""Indices: the results of functions, concurrent readers, and retries after errors."""

import concurrent.futures
import copy
import datetime
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import ErrorsMode, Execution
from kopf._core.engines import indexing
from kopf._core.engines.indexing import OperatorIndexer, OperatorIndexers, ResourceIndexing, get_retry_delay
from kopf._core.intents.causes import IndexingCause
from kopf._core.intents.registries import OperatorRegistry

PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)


# The index as its readers see it.


@pytest.fixture
def indexer() -> OperatorIndexer:
    return OperatorIndexer()


def as_lists(index: kopf.Index[Any, Any]) -> dict[Any, list[Any]]:
    return {key: sorted(store) for key, store in index.items()}


def test_plain_dicts_are_merged_by_keys(indexer: OperatorIndexer) -> None:
    indexer.replace('obj1', {'key1': 'a', 'key2': 'b'})
    indexer.replace('obj2', {'key1': 'c'})
    assert as_lists(indexer.index) == {'key1': ['a', 'c'], 'key2': ['b']}


@pytest.mark.parametrize('value', ['text', 1, ('a', 'b'), ['a'], kopf.Memo(a=1), object(), {1, 2}])
def test_other_results_than_dicts_are_values(indexer: OperatorIndexer, value: Any) -> None:
    indexer.replace('obj1', value)
    (stored,) = indexer.index[None]
    assert stored is value


def test_nested_dicts_are_values(indexer: OperatorIndexer) -> None:
    indexer.replace('obj1', {'key': {'x': 1}})
    assert list(indexer.index['key']) == [{'x': 1}]


def test_replaced_and_discarded_keys_leave_nothing(indexer: OperatorIndexer) -> None:
    indexer.replace('obj1', {'key1': 'a', 'key2': 'b'})
    indexer.replace('obj2', {'key1': 'c'})
    indexer.replace('obj1', {'key2': 'd', 'key3': 'e'})
    assert as_lists(indexer.index) == {'key1': ['c'], 'key2': ['d'], 'key3': ['e']}
    indexer.discard('obj1')
    indexer.discard('obj1')
    indexer.discard('never-seen')
    assert as_lists(indexer.index) == {'key1': ['c']}
    indexer.replace('obj2', {})
    assert not indexer.index and len(indexer.index) == 0


def test_values_can_be_none(indexer: OperatorIndexer) -> None:
    indexer.replace('obj1', {'key': None})
    indexer.replace('obj2', {'key': None})
    assert list(indexer.index['key']) == [None, None]


def test_index_is_a_mapping_of_collections(indexer: OperatorIndexer) -> None:
    indexer.replace('obj1', {'key1': 'a'})
    index: kopf.Index[Any, Any] = indexer.index
    assert isinstance(index, kopf.Index) and isinstance(index['key1'], kopf.Store)
    assert 'key1' in index and 'key2' not in index and bool(index)
    assert index.get('key2') is None and index.get('key2', []) == []
    with pytest.raises(KeyError):
        index['key2']
    assert list(index) == list(index.keys()) == ['key1']
    assert [list(store) for store in index.values()] == [['a']]
    assert 'a' in index['key1'] and 'b' not in index['key1'] and len(index['key1']) == 1
    assert repr(index) == "{'key1': ['a']}" and repr(index['key1']) == "['a']"


@pytest.mark.parametrize('mutator', ['__setitem__', '__delitem__', 'pop', 'clear', 'update', 'append'])
def test_index_is_read_only(indexer: OperatorIndexer, mutator: str) -> None:
    indexer.replace('obj1', {'key1': 'a'})
    assert not hasattr(indexer.index, mutator)
    assert not hasattr(indexer.index['key1'], mutator)


@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_copies_stay_as_they_are(indexer: OperatorIndexer, copied: Callable[[Any], Any]) -> None:
    owner = threading.Lock()  # objects are known by what cannot be copied
    indexer.replace(owner, {'key': ['a']})
    index, store = copied(indexer.index), copied(indexer.index['key'])
    indexer.replace('other', {'key': ['b'], 'more': ['c']})
    indexer.discard(owner)
    assert isinstance(index, kopf.Index) and isinstance(store, kopf.Store)
    assert as_lists(index) == {'key': [['a']]} and list(store) == [['a']]


def test_readers_are_not_disturbed_by_changes(indexer: OperatorIndexer) -> None:
    for number in range(3):
        indexer.replace(f'obj{number}', {'same': number, f'own{number}': number})
    readers: list[Iterator[Any]] = [
        iter(indexer.index),
        iter(indexer.index['same']),
        iter(indexer.index.items()),
        iter(indexer.index.values()),
    ]
    for reader in readers:
        next(reader)
    for number in range(3):
        indexer.discard(f'obj{number}')
    indexer.replace('obj9', {'same': 9})
    assert [len(list(reader)) for reader in readers] == [3, 2, 3, 3]


def test_threads_can_read_while_the_index_is_written(indexer: OperatorIndexer) -> None:
    stop, errors = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                assert all(value >= 0 for store in indexer.index.values() for value in store)
                assert 'stays' in indexer.index and len(list(indexer.index['stays'])) >= 1
                assert 'x' not in indexer.index['stays']
                repr(indexer.index)
            except Exception as error:
                errors.append(error)
                return

    indexer.replace('obj', {'stays': 0})
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(read) for _ in range(3)]
        for number in range(3000):
            indexer.replace('obj', {'stays': number, f'key{number % 7}': number})
            indexer.replace(number % 50, {f'key{number % 5}': number})
            indexer.discard(number % 37)
        stop.set()
    assert not errors, errors
    assert all(future.exception() is None for future in futures)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.one_of(st.none(), st.integers(), st.dictionaries(st.sampled_from('abc'), st.integers())),
        )
    )
)
def test_an_index_always_equals_the_latest_results(steps: list[tuple[int, Any]]) -> None:
    indexer, latest = OperatorIndexer(), dict[int, dict[Any, Any]]()
    for obj, result in steps:
        if result is None:
            indexer.discard(obj)
            latest.pop(obj, None)
        else:
            indexer.replace(obj, result)
            latest[obj] = result if isinstance(result, dict) else {None: result}
    expected: dict[Any, list[Any]] = {}
    for result in latest.values():
        for key, value in result.items():
            expected.setdefault(key, []).append(value)
    assert as_lists(indexer.index) == {key: sorted(values) for key, values in expected.items()}
    assert all(len(store) for store in indexer.index.values())


# Running the functions.


class Bench:
    """One resource with its handlers, and one object at a time."""

    def __init__(self) -> None:
        self.registry = OperatorRegistry()
        self.indexers = OperatorIndexers()
        self.excluded: dict[Any, Any] = {}

    async def index(self, name: str = 'obj', *, again: bool = False, **body: Any) -> None:
        cause = IndexingCause(
            logger=logging.getLogger('kopf.objects'),
            memo=kopf.Memo(),
            indices=self.indexers.indices,
            resource=PODS,
            body=kopf.Body({'metadata': {'name': name}, **body}),
            patch=kopf.Patch(),
        )
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            rules = Execution(
                find_executor=lambda: executor, default_errors=ErrorsMode.IGNORED, find_backoff=lambda: 60
            )
            await ResourceIndexing(list(self.registry.indexing), self.indexers, rules).index(
                name, cause, self.excluded, retrying=again
            )

    def get(self, name: str) -> dict[Any, list[Any]]:
        return as_lists(self.indexers.indices[name])


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)]
    monkeypatch.setattr(indexing, 'utcnow', lambda: now[0])
    monkeypatch.setattr('kopf._core.actions.execution.utcnow', lambda: now[0])
    monkeypatch.setattr('kopf._core.intents.causes.utcnow', lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += datetime.timedelta(seconds=seconds)

    return advance


async def test_indexing_functions_can_be_sync_and_async(bench: Bench) -> None:
    @kopf.index('pods', registry=bench.registry, id='in_thread')
    def in_thread(name: str, **_: Any) -> Any:
        return {name: threading.current_thread() is threading.main_thread()}

    @kopf.index('pods', registry=bench.registry, id='another-name')
    async def in_loop(name: str, **_: Any) -> Any:
        return {name: threading.current_thread() is threading.main_thread()}

    await bench.index('a')
    assert bench.get('in_thread') == {'a': [False]}
    assert bench.get('another-name') == {'a': [True]}


async def test_indexing_functions_get_the_kwargs_of_the_object(bench: Bench) -> None:
    seen: dict[str, Any] = {}

    @kopf.index('pods', registry=bench.registry, id='name', param=123)
    async def name(**kwargs: Any) -> Any:  # an index can take the name of a framework's kwarg
        seen.update(kwargs)

    await bench.index()
    assert set(seen) == {
        'annotations',
        'body',
        'labels',
        'logger',
        'memo',
        'meta',
        'name',
        'namespace',
        'param',
        'patch',
        'resource',
        'retry',
        'runtime',
        'spec',
        'started',
        'status',
        'uid',
    }
    assert (seen['param'], seen['retry'], seen['resource']) == (123, 0, PODS)
    assert seen['name'] is bench.indexers.indices['name']


async def test_mismatching_objects_are_removed(bench: Bench) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn', field='spec.x', value=1)
    async def fn(name: str, **_: Any) -> Any:
        return name

    await bench.index(spec={'x': 1})
    assert bench.get('fn') == {None: ['obj']}
    await bench.index(spec={'x': 2})
    assert bench.get('fn') == {}


async def test_none_keeps_the_previous_values(bench: Bench) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn')
    async def fn(spec: Any, **_: Any) -> Any:
        return spec.get('x')

    await bench.index(spec={'x': 'old'})
    await bench.index(spec={})
    assert bench.get('fn') == {None: ['old']}


async def test_of_two_functions_with_one_name_the_last_matching_one_is_called(bench: Bench) -> None:
    @kopf.index('pods', registry=bench.registry, id='idx', labels={'kind': 'a'})
    async def fn_a(**_: Any) -> Any:
        return 'a'

    @kopf.index('pods', registry=bench.registry, id='idx', labels={'kind': 'b'})
    async def fn_b(**_: Any) -> Any:
        return 'b'

    for kind, expected in [('a', {None: ['a']}), ('b', {None: ['b']}), ('c', {})]:
        await bench.index(metadata={'name': 'obj', 'labels': {'kind': kind}})
        assert bench.get('idx') == expected


async def test_failed_filters_keep_the_values_and_other_indices(bench: Bench, caplog: Any) -> None:
    @kopf.index('pods', registry=bench.registry, id='broken', when=lambda spec, **_: 1 / spec['x'])
    async def broken(spec: Any, **_: Any) -> Any:
        return spec['x']

    @kopf.index('pods', registry=bench.registry, id='good')
    async def good(spec: Any, **_: Any) -> Any:
        return spec['x']

    await bench.index(spec={'x': 1})
    await bench.index(spec={'x': 0})
    assert bench.get('broken') == {None: [1]}
    assert bench.get('good') == {None: [0]}
    assert "'broken'" in caplog.text and 'ZeroDivisionError' in caplog.text


async def test_ignored_errors_keep_the_values(bench: Bench, caplog: Any) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn')
    async def fn(spec: Any, **_: Any) -> Any:
        return 1 / spec['x']

    await bench.index(spec={'x': 1})
    await bench.index(spec={'x': 0})
    assert bench.get('fn') == {None: [1]}
    assert not bench.excluded
    assert 'Traceback' in caplog.text
    await bench.index(spec={'x': 2})
    assert bench.get('fn') == {None: [0.5]}


@pytest.mark.parametrize(
    'mode, error', [(None, kopf.PermanentError("boo")), (kopf.ErrorsMode.PERMANENT, ValueError("boo"))]
)
async def test_permanent_errors_exclude_the_object_from_the_index(bench: Bench, mode: Any, error: Exception) -> None:
    calls = []

    @kopf.index('pods', registry=bench.registry, id='fn', errors=mode)
    async def fn(spec: Any, **_: Any) -> Any:
        calls.append(spec.get('fail'))
        if spec.get('fail'):
            raise error
        return 'value'

    await bench.index()
    await bench.index(spec={'fail': True})
    assert bench.get('fn') == {}
    assert get_retry_delay(bench.excluded) is None
    await bench.index()
    assert bench.get('fn') == {}
    assert calls == [None, True]


@pytest.mark.parametrize(
    'options, error, delay',
    [
        ({}, kopf.TemporaryError("boo", delay=30), 30),
        ({'errors': kopf.ErrorsMode.TEMPORARY}, ValueError("boo"), 60),
        ({'errors': kopf.ErrorsMode.TEMPORARY, 'backoff': 5}, ValueError("boo"), 5),
    ],
)
async def test_temporary_errors_exclude_for_a_time(
    bench: Bench, clock: Callable[[float], None], options: Any, error: Exception, delay: float
) -> None:
    calls = []

    @kopf.index('pods', registry=bench.registry, id='fn', **options)
    async def fn(spec: Any, retry: int, runtime: datetime.timedelta, **_: Any) -> Any:
        calls.append((retry, runtime.total_seconds()))
        if spec.get('fail'):
            raise error
        return 'value'

    await bench.index()
    clock(100)
    await bench.index(spec={'fail': True})
    assert bench.get('fn') == {}
    assert get_retry_delay(bench.excluded) == delay
    clock(delay - 1)
    await bench.index()
    assert bench.get('fn') == {}
    clock(1)
    await bench.index()
    assert bench.get('fn') == {None: ['value']}
    clock(1)
    await bench.index()  # the success has reset the counters
    assert calls == [(0, 0), (0, 0), (1, delay), (0, 0)]
    assert not bench.excluded


@pytest.mark.parametrize('delay', [0, None, -1])
async def test_temporary_errors_without_delay_are_over_at_once(
    bench: Bench, clock: Callable[[float], None], delay: Any
) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn')
    async def fn(spec: Any, **_: Any) -> Any:
        if spec.get('fail'):
            raise kopf.TemporaryError("boo", delay=delay)
        return 'value'

    pauses = []
    for _ in range(14):
        await bench.index(spec={'fail': True})
        pauses.append(get_retry_delay(bench.excluded))
        clock(0.001)
    assert pauses == [0, 0, 0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]  # it must not spin
    await bench.index()  # an event ends the pause
    assert bench.get('fn') == {None: ['value']}
    assert get_retry_delay(bench.excluded) is None


async def test_an_object_is_indexed_again_only_where_it_was_excluded(
    bench: Bench, clock: Callable[[float], None]
) -> None:
    calls = []

    @kopf.index('pods', registry=bench.registry, id='good')
    async def good(**_: Any) -> Any:
        calls.append('good')
        return 'value'

    @kopf.index('pods', registry=bench.registry, id='bad')
    async def bad(**_: Any) -> Any:
        calls.append('bad')
        raise kopf.TemporaryError("boo", delay=0)

    await bench.index()
    await bench.index(again=True)
    assert calls == ['good', 'bad', 'bad']
    assert bench.get('good') == {None: ['value']}


@pytest.mark.parametrize('options', [{'retries': 2}, {'timeout': 10}])
async def test_limits_end_the_attempts(bench: Bench, clock: Callable[[float], None], options: Any) -> None:
    calls = []

    @kopf.index('pods', registry=bench.registry, id='fn', **options)
    async def fn(retry: int, **_: Any) -> Any:
        calls.append(retry)
        raise kopf.TemporaryError("boo", delay=6)

    for _ in range(5):
        await bench.index()
        clock(6)
    assert calls == [0, 1]
    assert get_retry_delay(bench.excluded) is None


async def test_an_exclusion_ends_when_the_object_does_not_match_any_more(
    bench: Bench, clock: Callable[[float], None]
) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn', field='spec.x')
    async def fn(**_: Any) -> Any:
        raise kopf.TemporaryError("boo", delay=6)

    await bench.index(spec={'x': 1})
    assert bench.excluded
    clock(7)
    await bench.index()
    assert not bench.excluded


async def test_successes_are_not_logged_above_debug(bench: Bench, caplog: Any) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn')
    async def fn(**_: Any) -> Any:
        return 1

    caplog.set_level(logging.DEBUG)
    await bench.index()
    assert {record.levelname for record in caplog.records} == {'DEBUG'}


def test_indices_are_there_as_soon_as_they_are_declared(bench: Bench) -> None:
    @kopf.index('pods', registry=bench.registry, id='fn')
    def fn(**_: Any) -> Any: ...

    indices = bench.indexers.indices
    bench.indexers.ensure(bench.registry.indexing)
    first = indices['fn']
    bench.indexers.ensure(bench.registry.indexing)
    assert indices['fn'] is first and not first
