import concurrent.futures
import dataclasses
import inspect
import logging
import threading
import warnings

import pytest

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.configs.diffbase import AnnotationsDiffBaseStorage
from kopf._cogs.configs.progress import SmartProgressStorage
from kopf._cogs.configs.selector_mappings import SelectorMapping


@pytest.fixture
def settings():
    return OperatorSettings()


DEFAULTS = {
    'process': {'ultimate_exiting_timeout': 600},
    'posting': {
        'enabled': True,
        'loggers': True,
        'level': logging.INFO,
        'default_backoffs': (1, 1, 2, 3, 5, 8, 13, 21),
        'logging_backoffs': (1, 1, 2, 3, 5),
        'worker_limit': None,
        'idle_timeout': 1.0,
        'reporting_component': 'kopf',
        'reporting_instance': 'dev',
        'event_name_prefix': 'kopf-event-',
    },
    'peering': {
        'name': 'default',
        'stealth': False,
        'priority': 0,
        'lifetime': 60,
        'mandatory': False,
        'standalone': False,
        'clusterwide': False,
        'namespaced': True,
    },
    'leadership': {
        'enabled': False,
        'name': None,
        'namespace': None,
        'duration': 15,
        'renew_deadline': 10,
        'retry_period': 2,
    },
    'sharding': {
        'enabled': False,
        'name': None,
        'namespace': None,
        'buckets': 256,
        'key': 'uid',
        'duration': 15,
        'renew_deadline': 10,
        'retry_period': 2,
    },
    'watching': {
        'server_timeout': None,
        'client_timeout': None,
        'connect_timeout': None,
        'reconnect_backoff': 0.1,
        'inactivity_timeout': 70.0,
        'chunk_size': None,
        'initial_streaming': False,
        'streaming_lists': True,
        'label_selectors': SelectorMapping(),
        'field_selectors': SelectorMapping(),
        'shard_selectors': SelectorMapping(),
    },
    'queueing': {
        'worker_limit': None,
        'idle_timeout': 5.0,
        'exit_timeout': 2.0,
        'error_delays': (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610),
    },
    'scanning': {'disabled': False},
    'admission': {'server': None, 'managed': None},
    'execution': {'default_backoff': 60, 'max_workers': None, 'blocking_limit': 1.0},
    'background': {
        'max_threads': 500,
        'cancellation_polling': 60,
        'instant_exit_timeout': None,
        'instant_exit_zero_time_cycles': 10,
    },
    'networking': {
        'request_timeout': 300,
        'connect_timeout': None,
        'error_backoffs': (1, 1, 2, 3, 5, 8, 13, 21),
        'login_backoffs': (1, 1, 2, 3, 5, 8),
        'enforce_retry_after': False,
        'trust_env': False,
        'max_connections': 16,
        'requests_per_second': 1000,
        'requests_burst': 1000,
    },
    'persistence': {'finalizer': 'kopf.zalando.org/KopfFinalizerMarker', 'consistency_timeout': 5.0},
    'probing': {'cache_lifetime': 10.0, 'timeout': 10.0, 'failing_watch_limit': 300.0, 'stuck_loop_limit': 60.0},
    'metrics': {'endpoint': None, 'registry': None, 'timeout': 10.0},
    'tracing': {'enabled': False, 'provider': None},
    'inspecting': {'enabled': False, 'port': 0, 'token': None, 'folder': None},
    'applying': {'operator': 'operator'},
}


def test_defaults_are_as_documented(settings):
    assert {field.name for field in dataclasses.fields(settings)} == set(DEFAULTS)
    for group, options in DEFAULTS.items():
        assert {name: getattr(getattr(settings, group), name) for name in options} == options
    assert isinstance(settings.persistence.progress_storage, SmartProgressStorage)
    assert isinstance(settings.persistence.diffbase_storage, AnnotationsDiffBaseStorage)


def test_nothing_is_shared_between_operators():
    settings1, settings2 = OperatorSettings(), OperatorSettings()
    settings1.watching.label_selectors['pods'] = 'a=b'
    settings1.posting.level = logging.ERROR
    settings1.persistence.progress_storage = None  # type: ignore[assignment]
    assert not settings2.watching.label_selectors
    assert settings2.posting.level == logging.INFO
    assert settings2.persistence.progress_storage is not None
    assert settings1.execution.executor is not settings2.execution.executor


@pytest.mark.parametrize('group', DEFAULTS)
def test_all_settings_are_described(settings, group):
    cls = type(getattr(settings, group))
    source = inspect.getsource(cls)
    assert cls.__doc__
    for field in dataclasses.fields(cls):
        if not field.name.startswith('_'):
            assert f'    {field.name}: ' in source
            _, _, rest = source.partition(f'    {field.name}: ')
            assert rest.splitlines()[1].startswith('    """'), field.name


def test_peering_scopes_are_opposites(settings):
    settings.peering.clusterwide = True
    assert not settings.peering.namespaced
    settings.peering.namespaced = True
    assert not settings.peering.clusterwide


# The executor


def test_executors_are_created_once_by_need(settings):
    assert isinstance(settings.execution.executor, concurrent.futures.ThreadPoolExecutor)
    assert settings.execution.executor is settings.execution.executor


def run_simultaneously(executor, count):
    """Check that this many functions can run at once: each one ends only when all of them have started."""
    barrier = threading.Barrier(count)
    futures = [executor.submit(barrier.wait, 5) for _ in range(count)]
    return len({future.result() for future in futures}) == count


@pytest.mark.parametrize('is_created_before', [False, True])
def test_thread_pools_are_resized(settings, is_created_before):
    before = settings.execution.executor if is_created_before else None
    settings.execution.max_workers = 50
    assert settings.execution.max_workers == 50
    assert before is None or settings.execution.executor is before
    with settings.execution.executor as executor:
        assert run_simultaneously(executor, 50)


def test_waiting_for_a_thread_is_logged_once(settings, caplog):
    caplog.set_level('INFO')
    settings.execution.max_workers = 2
    with settings.execution.executor as executor:
        run_simultaneously(executor, 2)
        run_simultaneously(executor, 2)
        assert caplog.messages == []
        release = threading.Event()
        futures = [executor.submit(release.wait, 5) for _ in range(2)]
        assert caplog.messages == []
        futures += [executor.submit(release.wait, 5) for _ in range(5)]
        release.set()
        assert all(future.result(60) for future in futures)
    assert len(caplog.messages) == 1
    assert "All the 2 threads" in caplog.text and "settings.execution.max_workers" in caplog.text


def test_executors_can_be_replaced(settings):
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        settings.execution.executor = executor
        assert settings.execution.executor is executor
        settings.execution.max_workers = 3
        assert run_simultaneously(executor, 3)


def test_executors_of_developers_are_not_resized(settings):
    class Custom(concurrent.futures.Executor):
        pass

    settings.execution.executor = Custom()
    with pytest.warns(UserWarning, match='not a thread pool'):
        settings.execution.max_workers = 3
    assert settings.execution.max_workers == 3


@pytest.mark.parametrize('value', [0, -1])
def test_thread_pools_cannot_be_empty(settings, value):
    with pytest.raises(ValueError, match='At least one'):
        settings.execution.max_workers = value
    assert settings.execution.max_workers is None


def test_settings_are_shown_and_copied(settings):
    assert 'default_backoff=60' in repr(settings)
    copied = dataclasses.replace(settings.execution, default_backoff=5)
    assert copied.executor is settings.execution.executor
    assert copied.default_backoff == 5


def test_names_that_are_suggested_are_those_to_be_used(settings):
    with pytest.raises(AttributeError, match="Did you mean 'max_workers'"):
        settings.execution.max_worker = 1


# Old names


def test_texts_become_numbers(settings):
    settings.watching.server_timeout, settings.peering.priority = '1.5', '5'
    assert (settings.watching.server_timeout, settings.peering.priority) == (1.5, 5)
    with pytest.raises(TypeError, match="'level' in PostingSettings must be a number, not 'WARNING'"):
        settings.posting.level = 'WARNING'
    settings.peering.name = '5'
    assert settings.peering.name == '5'
    settings.execution.max_workers = '7'
    assert settings.execution.max_workers == 7
    with pytest.raises(TypeError, match="'max_workers' in ExecutionSettings must be a number, not 'many'"):
        settings.execution.max_workers = 'many'


def test_batching_is_now_queueing(settings):
    with pytest.warns(DeprecationWarning, match='settings.queueing'):
        assert settings.batching is settings.queueing


def test_batch_window_has_no_effect(settings):
    with pytest.warns(DeprecationWarning, match='no effect'):
        settings.queueing.batch_window = 1.5
    with pytest.warns(DeprecationWarning, match='no effect'):
        assert settings.queueing.batch_window == 1.5


def test_nothing_else_is_deprecated():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        repr(OperatorSettings())
