"""Names that are private, but operators out there import them nevertheless: they stay where they are."""
import asyncio
import importlib
import logging

import pytest

import kopf

NAMES = {
    'kopf._cogs.structs.bodies': [
        'Annotations', 'Body', 'BodyEssence', 'Labels', 'Meta', 'RawBody', 'RawEvent', 'Spec', 'Status'],
    'kopf._cogs.structs.diffs': ['Diff', 'DiffItem', 'DiffOperation', 'diff'],
    'kopf._core.actions.execution': [
        'ErrorsMode', 'HandlerRetriesError', 'HandlerTimeoutError', 'Logger', 'PermanentError', 'TemporaryError'],
    'kopf._core.engines.indexing': ['OperatorIndexers'],
    'kopf._core.engines.posting': ['event_queue_var'],
    'kopf._core.intents.registries': ['OperatorRegistry', 'SmartOperatorRegistry'],
    'kopf.cli': ['main'],
}


@pytest.mark.parametrize('module, name', [(module, name) for module, names in NAMES.items() for name in names])
def test_names(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize('module', NAMES)
def test_public_names_are_the_same(module):
    for name in NAMES[module]:
        assert getattr(kopf, name, None) in (None, getattr(importlib.import_module(module), name))


def test_smart_registry_is_a_registry():
    from kopf._core.intents.registries import SmartOperatorRegistry
    assert isinstance(SmartOperatorRegistry(), kopf.OperatorRegistry)


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


def test_command_line_is_a_click_group():
    import click

    from kopf.cli import main
    assert isinstance(main, click.Group)
    assert {'run', 'freeze', 'resume'} <= set(main.commands)


def test_keys_of_progress_records():
    storage = kopf.AnnotationsProgressStorage()
    assert storage.make_v2_key('fn/spec.field') == 'kopf.zalando.org/fn.spec.field'


def test_logger_of_objects(caplog):
    body = kopf.Body({'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}})
    with caplog.at_level(logging.INFO, logger='kopf.objects'):
        kopf.ObjectLogger(body=body, settings=kopf.OperatorSettings()).info("hello")
    assert [record.name for record in caplog.records] == ['kopf.objects']


def test_old_name_of_queueing():
    settings = kopf.OperatorSettings()
    with pytest.warns(DeprecationWarning, match='queueing'):
        assert settings.batching is settings.queueing
