"""The recorder of the inspector: what it writes into the timelines, and what it never does."""

import logging
import types

import pytest

import kopf
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import Diff
from kopf._cogs.structs.instruments import (
    ApiRequest,
    HandlerCall,
    Instruments,
    ObjectEvent,
    ObjectKey,
    ObjectStep,
    QueueEntry,
)
from kopf._cogs.structs.references import Resource
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines import recorders
from kopf._core.engines.recorders import LogRecorder, Recorder, find_fields, join_path
from kopf._core.engines.timelines import LIMITS, Timelines

KEY = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples', namespaced=True), 'default', 'obj', 'uid')
SECRET = ObjectKey(Resource('', 'v1', 'secrets', namespaced=True), 'default', 'obj', 'uid')
URL = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/obj'


@pytest.fixture
def timelines():
    return Timelines(1000)


@pytest.fixture
def instruments(timelines):
    return Instruments([Recorder(timelines)])


def read(timelines):
    return [{name: value for name, value in entry.items() if name not in ('id', 'at', 'seconds')}
            for entry in timelines.read('uid').entries]  # fmt: skip


def call(instruments, *, id='fn', key=KEY, diff=(), retry=0, **facts):
    cause = types.SimpleNamespace(occasion='update', key=key, diff=diff)
    return HandlerCall(instruments, id=id, kind='Handler', fn=call, cause=cause, retry=retry, **facts)


def send(instruments, path=URL, method='PATCH', payload=b'{}', status=200):
    with ApiRequest(instruments, server='https://x', method=method, path=path, payload=payload) as request:
        request.note_status(status)


def test_causes_are_written_if_handlers_are_due(instruments, timelines):
    with ObjectStep(instruments, KEY, event='MODIFIED', number=1) as step:
        step.decide('update', ['one', 'two'], None)
    with ObjectStep(instruments, KEY, event='MODIFIED', number=1) as step:
        step.decide('noop', [], None)
    assert read(timelines) == [{'type': 'cause', 'reason': 'update', 'event': 'MODIFIED', 'handlers': ['one', 'two']}]


def test_attempts_are_written_with_their_outcomes_and_delays(instruments, timelines):
    attempt = call(instruments, retry=2)
    with attempt:
        (begun,) = read(timelines)
        attempt.set_outcome('retried', delay=60, message="no database")
    (ended,) = read(timelines)
    assert begun == {'type': 'handler', 'handler': 'fn', 'kind': 'Handler', 'reason': 'update', 'retry': 2}
    assert ended == begun | {'outcome': 'retried', 'delay': 60, 'message': "no database"}
    assert timelines.read('uid').entries[0]['seconds'] >= 0


@pytest.mark.parametrize(
    'outcome, failing',
    [
        ('succeeded', False),
        ('refused', False),
        ('ignored', False),
        ('waiting', False),
        ('failed', True),
        ('retried', True),
    ],
)
def test_an_object_fails_until_the_handler_succeeds(instruments, timelines, outcome, failing):
    with call(instruments) as attempt:
        attempt.set_outcome(outcome, message="no" if failing else None)
    assert timelines.find_failure('uid') == (('fn', "no") if failing else None)
    with call(instruments) as attempt:
        attempt.set_outcome('succeeded')
    assert timelines.find_failure('uid') is None


def test_timers_do_not_displace_other_handlers(instruments, timelines):
    with call(instruments, id='rare') as attempt:
        attempt.set_outcome('succeeded')
    for _ in range(LIMITS['handler'] + LIMITS['frequent']):
        with call(instruments, id='tick', frequent=True) as attempt:
            attempt.set_outcome('succeeded')
    ids = [entry['handler'] for entry in read(timelines)]
    assert ids == ['rare'] + ['tick'] * LIMITS['frequent']


def test_activities_are_about_no_object(instruments, timelines):
    with call(instruments, key=None) as attempt:
        attempt.set_outcome('succeeded')
    assert timelines.weight == 0


def test_the_last_diff_is_kept(instruments, timelines):
    for value in (1, 2):
        with ObjectStep(instruments, KEY, event='MODIFIED', number=1):
            for id in 'ab':
                with call(instruments, id=id, diff=Diff([('change', ('spec', 'a'), value, {'b': None})])):
                    pass
    assert timelines.read('uid').diff == {
        'reason': 'update',
        'fields': [{'op': 'change', 'field': 'spec.a', 'old': '2', 'new': '{"b":null}'}],
        'total': 1,
    }


def test_long_diffs_are_cut(instruments, timelines):
    diff = Diff([('add', ('spec', f'a{number}'), None, 'x' * 9999) for number in range(99)])
    with call(instruments, diff=diff):
        pass
    found = timelines.read('uid').diff
    assert (len(found['fields']), found['total']) == (recorders.MAX_FIELDS, 99)
    assert max(len(each['new']) for each in found['fields']) == recorders.MAX_VALUE + 1
    assert 100 < timelines.weight < 110


def test_values_of_secrets_are_hidden(instruments, timelines):
    diff = Diff([('add', ('data', 'password'), None, 'aHVzaA=='), ('add', (), None, {'data': {'x': 'aHVzaA=='}})])
    with ObjectStep(instruments, SECRET, event='ADDED', number=1), call(instruments, key=SECRET, diff=diff):
        send(instruments, '/api/v1/namespaces/default/secrets/obj', payload=b'{"data": {"password": "aHVzaA=="}}')
    story = timelines.read('uid')
    assert [each['new'] for each in story.diff['fields']] == ['(hidden)', '(hidden)']
    assert story.entries[-1]['fields'] == ['data.password'] and 'aHVzaA' not in repr(story)


def test_patches_are_written_with_their_fields_only(instruments, timelines):
    payload = b'{"metadata": {"uid": "uid", "annotations": {"kopf.dev/x": "v"}}, "status": {"a": {"b": 1}, "c": {}}}'
    send(instruments, payload=payload)
    assert read(timelines) == [
        {
            'type': 'patch',
            'method': 'PATCH',
            'target': 'kopfexamples/obj',  # it is unknown for what object the request is made
            'fields': ["metadata.annotations['kopf.dev/x']", 'status.a.b', 'status.c'],
            'status': 200,
        }
    ]


def test_requests_for_other_objects_belong_to_the_object_that_is_handled(instruments, timelines):
    with ObjectStep(instruments, KEY, event='ADDED', number=1), call(instruments):
        send(instruments, payload=b'[{"op": "test", "path": "/a"}, {"op": "add", "path": "/metadata/x~1y/0"}]')
        send(instruments, f'{URL}/status')
        send(instruments, '/apis/apps/v1/namespaces/default/deployments/child', 'DELETE', payload=None, status=404)
        send(instruments, '/api/v1/namespaces/default/configmaps', 'POST', payload=b'not JSON')
    patches = [entry for entry in read(timelines) if entry['type'] == 'patch']
    assert [each['target'] for each in patches] == [None, None, 'deployments/child', 'configmaps']
    assert [each['fields'] for each in patches] == [["metadata['x/y'].0"], [], [], []]
    assert [each['status'] for each in patches] == [200, 200, 404, 200]


@pytest.mark.parametrize('method, path', [('GET', URL), ('POST', '/api/v1/namespaces/default/events')])
def test_reading_requests_and_posts_of_events_are_not_written(instruments, timelines, method, path):
    with ObjectStep(instruments, KEY, event='ADDED', number=1):
        send(instruments, path, method)
    assert read(timelines) == []


def test_events_are_written(instruments, timelines):
    event = ObjectEvent({'uid': 'uid'}, 'Warning', 'Reason', "text", 3)
    instruments.tell(instruments.events, 'event_posted', event)
    assert read(timelines) == [{'type': 'event', 'level': 'Warning', 'reason': 'Reason', 'message': "text", 'times': 3}]


def test_delays_after_unexpected_errors_are_written(instruments, timelines):
    for reason in ('delayed', 'failed'):
        entry = QueueEntry(KEY, True, 0, 5.0, reason)
        instruments.tell(instruments.queue, 'object_requeued', entry)
    assert read(timelines) == [{'type': 'wait', 'delay': 5.0}]


def test_changes_of_the_queue_are_noticed(instruments, timelines):
    timelines.follow()
    for hook in ('object_queued', 'object_taken', 'object_done', 'object_requeued'):
        instruments.tell(instruments.queue, hook, QueueEntry(KEY, True, 0, 1.0, 'delayed'))
        assert list(timelines.take_changed(10)) == ['uid']


@pytest.fixture
def logger(timelines):
    settings = OperatorSettings()
    body = Body({'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'obj', 'uid': 'uid'}})
    logging.getLogger('kopf.objects').setLevel(logging.DEBUG)
    with LogRecorder(timelines, settings):
        yield ObjectLogger(body=body, settings=settings)
    logging.getLogger('kopf.objects').setLevel(logging.NOTSET)


def test_lines_of_the_log_are_written(logger, timelines):
    logger.debug("no")
    logger.info("Hello, %s!", "world")
    logger.warning("x" * 99999)
    first, second = read(timelines)
    assert first == {
        'type': 'log',
        'level': 'INFO',
        'message': "Hello, world!",
        'framework': False,
        'traceback': None,
    }
    assert len(second['message']) == recorders.MAX_MESSAGE + 1


def test_tracebacks_are_written_with_their_ends(logger, timelines):
    def fail(depth):
        raise ValueError("boo") if depth == 0 else ValueError("x" * 9999) from None

    try:
        fail(0)
    except ValueError:
        logger.exception("It has failed.")
    (line,) = read(timelines)
    assert line['level'] == 'ERROR' and line['traceback'].endswith("ValueError: boo") and __file__ in line['traceback']


def test_lines_of_other_operators_are_skipped(logger, timelines):
    other = ObjectLogger(body=logger._body, settings=OperatorSettings())
    other.info("Hello!")
    logging.getLogger('kopf.objects').info("Hello!")
    assert read(timelines) == []


def test_lines_with_wrong_arguments_do_not_break_anything(logger, timelines):
    record = logging.LogRecord('kopf.objects', logging.INFO, __file__, 1, "%d", ("text",), None)
    vars(record).update(logger.extra)
    LogRecorder(timelines, logger._settings).handle(record)
    assert read(timelines) == []


def test_the_log_handler_is_there_only_while_it_is_needed(timelines):
    before = list(logging.getLogger('kopf.objects').handlers)
    with LogRecorder(timelines, OperatorSettings()):
        assert len(logging.getLogger('kopf.objects').handlers) == len(before) + 1
    assert logging.getLogger('kopf.objects').handlers == before


@pytest.mark.parametrize(
    'path, text',
    [
        (('spec', 'a'), 'spec.a'),
        ((), ''),
        (('a.b', 'c'), "['a.b'].c"),
        (('metadata', 'labels', 'app_x-y'), 'metadata.labels.app_x-y'),
    ],
)
def test_paths_are_written_as_people_do(path, text):
    assert join_path(path) == text


def test_payloads_without_fields_have_no_paths():
    assert list(find_fields(None)) == list(find_fields({'metadata': {'uid': 'x'}})) == []


async def test_the_timeline_of_a_retry_in_a_whole_operator(world, timelines):
    world.declare(kopf.on.create, 'create', does=[kopf.TemporaryError("not yet", delay=0.01), None])
    async with world.operator(instruments=[Recorder(timelines)]):
        body = await world.create()
        await world.handled()
    entries = timelines.read(body['metadata']['uid']).entries
    handlers = [entry for entry in entries if entry['type'] == 'handler']
    assert [(each['retry'], each['outcome'], each['delay']) for each in handlers] == [
        (0, 'retried', 0.01),
        (1, 'succeeded', None),
    ]
    assert [each['type'] for each in entries][:2] == ['cause', 'handler']
    patches = [entry for entry in entries if entry['type'] == 'patch']
    assert {each['target'] for each in patches} == {None} and {each['status'] for each in patches} == {200}
    assert any('last-handled' in field for field in patches[-1]['fields'])
