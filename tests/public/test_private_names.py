"""Names that are private, but operators out there import them nevertheless: they stay where they are."""

import asyncio
import dataclasses
import functools
import importlib
import logging
import pathlib
import subprocess
import sys

import pytest

import kopf
from kopf.testing import KopfRunner

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = {
    'kopf._cogs.structs.bodies': [
        'Annotations',
        'Body',
        'BodyEssence',
        'Labels',
        'Meta',
        'RawBody',
        'RawEvent',
        'Spec',
        'Status',
    ],
    'kopf._cogs.configs.configuration': ['OperatorSettings', 'PostingSettings', 'ScanningSettings'],
    'kopf._cogs.helpers.loaders': ['preload'],
    'kopf._cogs.helpers.typedefs': ['Logger'],
    'kopf._cogs.structs.diffs': ['Diff', 'DiffItem', 'DiffOperation', 'diff'],
    'kopf._cogs.structs.dicts': ['FieldPath', 'FieldSpec', 'cherrypick', 'ensure', 'parse_field', 'remove', 'resolve'],
    'kopf._cogs.structs.ephemera': ['Memo'],
    'kopf._cogs.structs.patches': ['Patch'],
    'kopf._cogs.structs.references': ['Resource', 'Selector'],
    'kopf._core.actions.execution': [
        'ErrorsMode',
        'HandlerRetriesError',
        'HandlerTimeoutError',
        'Logger',
        'PermanentError',
        'TemporaryError',
    ],
    'kopf._core.actions.loggers': ['LogFormat', 'ObjectLogger', 'configure'],
    'kopf._core.engines.indexing': ['OperatorIndexers'],
    'kopf._core.engines.posting': ['event_queue_var'],
    'kopf._core.intents.causes': ['Reason'],
    'kopf._core.intents.handlers': ['TimerHandler'],
    'kopf._core.intents.registries': ['OperatorRegistry', 'SmartOperatorRegistry'],
    'kopf._core.reactor.running': ['operator', 'run', 'run_tasks', 'spawn_tasks'],
    'kopf._kits.runner': ['KopfRunner'],
    'kopf.cli': ['main'],
}


@pytest.mark.parametrize('module, name', [(module, name) for module, names in NAMES.items() for name in names])
def test_private_names_can_be_imported(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize('module', NAMES)
def test_public_names_are_the_same(module):
    for name in NAMES[module]:
        assert getattr(kopf, name, None) in (None, getattr(importlib.import_module(module), name))


def test_all_public_names_are_listed_before_they_are_imported():
    check = "assert set(dir(m)) >= {*m.__all__, '__file__'}"
    subprocess.run([sys.executable, '-c', f"import kopf as m; {check}; import kopf.testing as m; {check}"], check=True)


def test_smart_registry_is_a_registry():
    from kopf._core.intents.registries import SmartOperatorRegistry

    assert isinstance(SmartOperatorRegistry(), kopf.OperatorRegistry)


def test_handlers_are_called_without_an_operator():
    from kopf._cogs.structs.bodies import RawBody, RawMeta
    from kopf._core.actions.execution import cause_var
    from kopf._core.actions.invocation import context
    from kopf._core.engines.indexing import OperatorIndexers
    from kopf._core.intents.causes import ChangingCause, Reason

    body = RawBody(apiVersion='v1', kind='Owner', metadata=RawMeta(name='owner', namespace='ns', uid='uid'))
    cause = ChangingCause(
        logger=logging.getLogger(),
        indices=OperatorIndexers().indices,
        resource='?',
        patch=kopf.Patch(),
        memo=kopf.Memo(),
        body=body,
        initial=False,
        reason=Reason.NOOP,
    )
    child = {}
    with context([(cause_var, cause)]):
        kopf.adopt(child)
    assert child['metadata']['ownerReferences'][0]['name'] == 'owner'
    assert cause_var.get(None) is None


def test_annotations_by_private_names_need_no_imports_of_their_own():
    subprocess.run(
        [sys.executable, '-c', ("import kopf; (kopf._cogs.helpers.typedefs.Logger, kopf._cogs.structs.bodies.Spec)")],
        check=True,
    )


@pytest.mark.parametrize(
    'sort, decorate',
    [
        ('spawning', functools.partial(kopf.timer, interval=1)),
        ('spawning', kopf.daemon),
        ('changing', kopf.on.create),
        ('changing', kopf.on.resume),
        ('changing', kopf.on.field),
        ('watching', kopf.on.event),
        ('indexing', kopf.index),
        ('webhooks', kopf.on.validate),
    ],
    ids=['timer', 'daemon', 'create', 'resume', 'field', 'event', 'index', 'validate'],
)
def test_handlers_are_found_and_wrapped_in_registries(sort, decorate):
    registry = kopf.OperatorRegistry()
    options = {'field': 'spec'} if decorate is kopf.on.field else {}

    @decorate('kopfexamples', id='fn', registry=registry, **options)
    def fn(**_):
        pass

    assert [handler.fn for handler in getattr(registry, f'_{sort}').get_all_handlers()] == [fn]
    handlers = getattr(registry, f'_{sort}')._handlers
    handlers[0] = dataclasses.replace(handlers[0], fn=print)
    assert [handler.fn for handler in getattr(registry, sort)] == [print]
    for name in {'activities', 'indexing', 'watching', 'spawning', 'changing', 'webhooks'} - {sort}:
        assert not getattr(registry, f'_{name}').get_all_handlers()


def test_kinds_of_handlers_are_told_apart():
    from kopf._core.intents.handlers import TimerHandler

    registry = kopf.OperatorRegistry()
    kopf.timer('kopfexamples', interval=5, registry=registry)(print)
    kopf.daemon('kopfexamples', registry=registry)(print)
    assert [
        handler.interval for handler in registry._spawning.get_all_handlers() if isinstance(handler, TimerHandler)
    ] == [5]


def test_reasons_are_words():
    from kopf._core.intents.causes import Reason

    assert [Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME] == ['create', 'update', 'delete', 'resume']


def test_nested_fields_are_read_and_written():
    from kopf._cogs.structs import dicts

    body = {'spec': {'a': 1}}
    assert dicts.parse_field('spec.a') == ('spec', 'a')
    assert dicts.resolve(body, 'spec.a') == 1 and dicts.resolve(body, 'spec.b', 2) == 2
    dicts.ensure(body, 'spec.b.c', 3)
    dicts.remove(body, 'spec.a')
    assert body == {'spec': {'b': {'c': 3}}}
    dicts.cherrypick(body, copy := {}, ['spec.b'])
    assert copy == body


def test_differences_are_those_of_handlers():
    from kopf._cogs.structs import diffs

    assert diffs.diff({'a': 1}, {'a': 2}) == (('change', ('a',), 1, 2),)
    assert diffs.reduce(diffs.diff({'a': {'b': 1}}, {'a': {'b': 2}}), ('a',)) == (('change', ('b',), 1, 2),)


def test_indexers_are_accepted_by_operators_and_give_indices():
    from kopf._core.engines.indexing import OperatorIndexers

    assert not OperatorIndexers().indices


def test_event_queue_is_not_set_outside_of_operators():
    from kopf._core.engines.posting import event_queue_var

    with pytest.raises(LookupError):
        event_queue_var.get()


def test_event_queue_can_be_replaced_to_see_the_events():
    from kopf._core.engines.posting import event_queue_var

    queue = asyncio.Queue()
    token = event_queue_var.set(queue)
    try:
        kopf.info({'kind': 'Kind', 'metadata': {'name': 'name1'}}, reason='Reason', message='hello')
    finally:
        event_queue_var.reset(token)
    event = queue.get_nowait()
    assert (event.ref['name'], event.type, event.reason, event.message) == ('name1', 'Normal', 'Reason', 'hello')


EVENTFUL = """
import kopf
from kopf._core.engines.posting import event_queue_var

@kopf.on.create('kopfexamples')
async def created(body, patch, **_):
    queue = event_queue_var.get()
    before = queue.qsize()
    kopf.info(body, reason='Reason', message='hello')
    patch.status['sizes'] = [before, queue.qsize()]
"""


def test_size_of_the_event_queue(kopf_sandbox, tmp_path):
    kopf_sandbox.apply(ROOT / 'examples' / 'crd.yaml')
    path = tmp_path / 'handlers.py'
    path.write_text(EVENTFUL)
    with KopfRunner(['run', '-A', '--standalone', str(path)], timeout=60):
        kopf_sandbox.create('kex', 'a')
        body = kopf_sandbox.wait_for('kex', 'a', lambda body: 'sizes' in body['status'])
    assert body['status']['sizes'] == [0, 1]


def test_command_line_is_a_click_group():
    import click

    from kopf.cli import main

    assert isinstance(main, click.Group)
    assert {'run', 'freeze', 'resume'} <= set(main.commands)


def test_keys_of_progress_records():
    storage = kopf.AnnotationsProgressStorage()
    assert storage.make_v2_key('fn/spec.field') == 'kopf.zalando.org/fn.spec.field'


def test_the_logger_of_objects_has_its_public_name(caplog):
    body = kopf.Body({'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}})
    with caplog.at_level(logging.INFO, logger='kopf.objects'):
        kopf.ObjectLogger(body=body, settings=kopf.OperatorSettings()).info("hello")
    assert [record.name for record in caplog.records] == ['kopf.objects']


def test_old_name_of_queueing():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='queueing') as warnings:
        assert settings.batching is settings.queueing
    assert warnings[0].filename == __file__  # it is their authors who can do something about it


def test_settings_under_the_old_name_of_queueing():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='queueing'):
        settings.batching.worker_limit = 5
    with pytest.warns(DeprecationWarning, match='queueing'):
        settings.batching.error_delays = [1]
    with pytest.warns(DeprecationWarning) as warnings:
        settings.batching.batch_window = 2
    assert ["no effect" in str(warning.message) for warning in warnings] == [False, True]
    with pytest.warns(DeprecationWarning, match='queueing'):
        assert settings.batching.worker_limit == 5
    assert settings.queueing.worker_limit == 5
    assert settings.queueing.error_delays == [1]


OPERATOR = """
import logging

import kopf
from kopf._cogs.structs.bodies import Annotations, Body, Labels, Meta, Spec, Status
from kopf._cogs.structs.diffs import Diff, DiffItem, DiffOperation, diff
from kopf._core.actions.execution import Logger, PermanentError, TemporaryError

logging.getLogger('kopf.objects').addFilter(lambda record: 'hush-hush' not in record.getMessage())

@kopf.on.create('kopfexamples')
def created(spec: Spec, body: Body, meta: Meta, labels: Labels, annotations: Annotations, status: Status,
            logger: Logger, retry: int, **_) -> None:
    logger.info("hush-hush")
    logger.info("all is well" if isinstance(body, Body) and isinstance(spec, Spec) else "bad")
    if retry == 0:
        raise TemporaryError("later", delay=0.01)
    raise PermanentError("never")

@kopf.on.update('kopfexamples')
def updated(diff: Diff, **_) -> None:
    for item in diff:
        assert isinstance(item, DiffItem) and item.operation is DiffOperation.CHANGE
        print(f"{'.'.join(item.field)} is {item.new} instead of {item.old}")
"""


def test_operators_that_import_them_work(kopf_sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger('kopf.objects'), 'filters', [])  # the operator adds one, in this process
    kopf_sandbox.apply(ROOT / 'examples' / 'crd.yaml')
    path = tmp_path / 'handlers.py'
    path.write_text(OPERATOR)
    kex = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'a'}, 'spec': {'field': 1}}
    with KopfRunner(['run', '-A', '--standalone', str(path)], timeout=60) as runner:
        kopf_sandbox.create(kex)
        kopf_sandbox.wait_for('kopfexamples', 'a', is_handled)
        kopf_sandbox.patch('kopfexamples', 'a', {'spec': {'field': 2}})
        kopf_sandbox.wait_for('kopfexamples', 'a', lambda body: '"field":2' in str(is_handled(body)))
    assert runner.stdout == "spec.field is 2 instead of 1\n"
    assert "all is well" in runner.stderr
    assert "hush-hush" not in runner.stderr
    assert "failed temporarily: later" in runner.stderr
    assert "failed permanently: never" in runner.stderr


def is_handled(body):
    return body['metadata'].get('annotations', {}).get('kopf.zalando.org/last-handled-configuration', '')


def test_registries_and_indexers_of_embedded_operators(kopf_sandbox):
    from kopf._core.engines.indexing import OperatorIndexers
    from kopf._core.intents.registries import SmartOperatorRegistry

    kopf_sandbox.apply(ROOT / 'examples' / 'crd.yaml')
    kopf_sandbox.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'a'}})
    registry, indexers = SmartOperatorRegistry(), OperatorIndexers()

    @kopf.index('kopfexamples', id='names', registry=registry)
    def names(name, **_):
        return {'names': name}

    @kopf.on.create('kopfexamples', registry=registry)
    def created(names, **_):
        pass

    with KopfRunner(kopf.operator, registry=registry, indexers=indexers, clusterwide=True, standalone=True, timeout=60):
        kopf_sandbox.wait_for('kopfexamples', 'a', is_handled)
        assert list(indexers.indices['names']['names']) == ['a']


def test_the_command_line_called_from_python(kopf_sandbox, tmp_path):
    import click

    from kopf.cli import main

    tmp_path.joinpath('handlers.py').write_text("")
    with pytest.raises(click.UsageError, match='not both'):
        main(['run', '-A', '-n', 'default', str(tmp_path / 'handlers.py')], standalone_mode=False)
    with pytest.raises(SystemExit) as exit:
        main(['run', '-A', '-n', 'default', str(tmp_path / 'handlers.py')])
    assert exit.value.code == 2
