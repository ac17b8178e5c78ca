"""The base of webhooks: the fields of causes, the single attempt, and the texts of errors."""

import asyncio
import concurrent.futures
import logging
import threading

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.references import Resource
from kopf._core.engines.responders import Responder, describe
from kopf._core.intents.causes import WebhookCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import WebhookType

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
METADATA = {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}
BODY = Body({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': METADATA})


@pytest.fixture
def settings():
    return kopf.OperatorSettings()


@pytest.fixture
def responder(known, settings):
    context = OperatorContext(settings=settings, memo=kopf.Memo(shared='yes'), indices={'index1': 'i'})
    return Responder(context, memos=lambda resource, metadata: known.get((resource, metadata['uid'])))


@pytest.fixture
def respond(registry, responder):
    """Run a function as a validating handler; return the outcome."""

    async def respond(fn, **options):
        kopf.on.validate('kopfexamples', id='fn', registry=registry, **options)(fn)
        [handler] = registry.webhooks
        assert handler.type is WebhookType.VALIDATING
        cause = WebhookCause(
            **responder.get_basics(RESOURCE, BODY, METADATA),
            dryrun=False,
            reason=None,
            webhook=None,
            headers={},
            sslpeer={},
            userinfo={},
            warnings=[],
            operation='CREATE',
            subresource=None,
            name='name1',
            namespace='ns1',
            old=None,
            new=BODY,
            diff=(),
        )
        return await responder.run_once(handler, cause)

    return respond


def test_the_memo_of_a_known_object_is_that_of_its_other_handlers(responder, known):
    memo = known[RESOURCE, 'uid1'] = kopf.Memo(own='yes')
    assert responder.get_basics(RESOURCE, BODY, METADATA)['memo'] is memo


@pytest.mark.parametrize('metadata', [None, METADATA], ids=['new', 'unknown'])
def test_the_memo_of_a_new_or_unknown_object_is_a_copy_of_the_operators(responder, known, metadata):
    known[RESOURCE, 'uid2'] = kopf.Memo()
    first, second = (responder.get_basics(RESOURCE, BODY, metadata)['memo'] for _ in range(2))
    assert first == second == {'shared': 'yes'}
    assert first is not second


def test_causes_have_the_object_the_indices_and_an_empty_patch(responder):
    basics = responder.get_basics(RESOURCE, BODY, None)
    assert (basics['resource'], basics['body'], basics['indices']) == (RESOURCE, BODY, {'index1': 'i'})
    assert isinstance(basics['patch'], kopf.Patch) and not basics['patch']


def test_messages_refer_to_the_object_but_are_not_posted_as_events(responder, caplog):
    responder.get_basics(RESOURCE, BODY, None)['logger'].warning("hello")
    [record] = caplog.records
    assert record.k8s_ref['name'] == 'name1'
    assert record.k8s_skip


async def test_the_result_of_the_handler_is_the_outcome(respond):
    async def fn(name, memo, index1, **_):
        return name, memo.shared, index1

    outcome = await respond(fn)
    assert (outcome.final, outcome.result, outcome.exception) == (True, ('name1', 'yes', 'i'), None)


async def test_an_arbitrary_error_is_final_as_the_api_server_waits_for_the_response(respond, caplog):
    caplog.set_level(logging.ERROR)
    calls = []

    def fn(**_):
        calls.append(1)
        raise ValueError("boo")

    outcome = await respond(fn)
    assert (outcome.final, repr(outcome.exception), calls) == (True, "ValueError('boo')", [1])
    assert "will stop now" in caplog.text


async def test_a_temporary_error_is_returned_without_a_second_attempt(respond):
    calls = []

    def fn(**_):
        calls.append(1)
        raise kopf.TemporaryError("not yet", delay=0)

    outcome = await respond(fn)
    assert (str(outcome.exception), calls) == ("not yet", [1])


async def test_a_cancelled_review_cancels_its_handler(respond):
    started, ended = asyncio.Event(), asyncio.Event()

    async def fn(**_):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(respond(fn))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize(
    'error, text',
    [
        (kopf.PermanentError("It is bad."), "It is bad."),
        (kopf.TemporaryError("It is late."), "It is late."),
        (kopf.AdmissionError("It is denied."), "It is denied."),
        (ValueError("It is odd."), "It is odd."),
        (KeyError('key'), "KeyError: 'key'"),
        (ValueError(), "ValueError()"),
        (kopf.PermanentError(), "PermanentError()"),
        (kopf.AdmissionError(None), "AdmissionError(None)"),
    ],
    ids=repr,
)
def test_errors_are_described_by_their_texts_or_by_their_classes_if_the_texts_say_little(error, text):
    assert describe(error) == text


async def test_sync_handlers_do_not_wait_for_the_threads_of_other_handlers(respond, settings):
    settings.execution.max_workers, release = 1, threading.Event()
    settings.execution.executor.submit(release.wait)
    try:
        async with asyncio.timeout(10):
            outcome = await respond(lambda **_: None)
    finally:
        release.set()
    assert outcome.exception is None


async def test_sync_handlers_run_in_the_executor_of_the_user(respond, settings):
    with concurrent.futures.ThreadPoolExecutor(thread_name_prefix='mine') as executor:
        settings.execution.executor = executor
        outcome = await respond(lambda **_: threading.current_thread().name)
    assert outcome.result == 'mine_0'
