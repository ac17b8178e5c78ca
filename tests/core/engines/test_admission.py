"""Admission reviews: which handlers are called, what they get, and how requests are allowed and denied."""

import asyncio
import base64
import copy
import dataclasses
import http
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import jsonpatch  # type: ignore[import-untyped]
import pydantic
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.instruments import HandlerCall, Instruments
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import time_limit_var
from kopf._core.engines.admission import AdmissionReviewer
from kopf._core.engines.responders import ReviewError
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.declared_kinds import Kind

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)

Review = dict[str, Any]
Ask = Callable[..., Any]


def make_object(**parts: Any) -> dict[str, Any]:
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'KopfExample',
        'metadata': {'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'},
        'spec': {},
        **parts,
    }


def make_review(
    operation: str = 'CREATE', *, version: str = 'v1', resource: Resource = RESOURCE, **fields: Any
) -> Review:
    names = {'group': resource.group, 'version': resource.version}
    request = {
        'uid': 'review1',
        'kind': {**names, 'kind': resource.kind},
        'resource': {**names, 'resource': resource.plural},
        'name': 'name1',
        'namespace': 'ns1',
        'operation': operation,
        'dryRun': False,
        'userInfo': {'username': 'user1', 'uid': 'userid1', 'groups': ['group1']},
        'object': None if operation == 'DELETE' else make_object(),
        'oldObject': make_object() if operation in ('UPDATE', 'DELETE') else None,
    }
    return {'apiVersion': f'admission.k8s.io/{version}', 'kind': 'AdmissionReview', 'request': {**request, **fields}}


def decode(response: Mapping[str, Any]) -> Any:
    assert response['patchType'] == 'JSONPatch'
    return json.loads(base64.b64decode(response['patch']))


@pytest.fixture
def operator_memo() -> kopf.Memo:
    return kopf.Memo(shared='yes')


@pytest.fixture
def instruments() -> Instruments:
    return Instruments()


@pytest.fixture
def reviewer(
    known: dict[str, Any], operator_memo: kopf.Memo, instruments: Instruments, registry: kopf.OperatorRegistry
) -> AdmissionReviewer:
    indices = {'index1': 'an index'}
    return AdmissionReviewer(
        OperatorContext(settings=kopf.OperatorSettings(), memo=operator_memo, indices=indices, instruments=instruments),
        memos=lambda resource, metadata: known.get(metadata['uid']),
    )


@pytest.fixture
def ask(registry: kopf.OperatorRegistry, reviewer: AdmissionReviewer) -> Ask:
    """Review a request, give the response of the review."""

    async def ask(review: Review, **kwargs: Any) -> Any:
        resources = (RESOURCE, PODS)
        reviewer.serve(
            {
                handler: handler.selector.select(resources)  # type: ignore[union-attr]
                for handler in registry.webhooks
            }
        )
        answer = await reviewer(review, **kwargs)  # type: ignore[arg-type]
        assert answer['apiVersion'] == review['apiVersion']
        assert answer['kind'] == 'AdmissionReview'
        json.dumps(answer)
        return answer['response']

    return ask


@pytest.fixture
def calls(registry: kopf.OperatorRegistry) -> list[str]:
    return []


@pytest.fixture
def declare(registry: kopf.OperatorRegistry, calls: list[str]) -> Callable[..., None]:
    """Declare a handler that only notes that it is called."""

    def declare(id: str, *names: Any, on: Any = kopf.on.validate, **options: Any) -> None:
        @on(*(names or ('kopfexamples',)), id=id, registry=registry, **options)
        async def handler(**_: Any) -> None:
            calls.append(id)

    return declare


# What handlers are told.


async def test_handlers_get_the_new_object_on_creation(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    seen: dict[str, Any] = {}

    @kopf.on.validate('kopfexamples', registry=registry, param='param1')
    def handler(**kwargs: Any) -> None:
        seen.update(kwargs)

    obj = make_object(spec={'field': 'value'})
    await ask(make_review(object=obj, dryRun=True), headers={'Host': 'here'}, sslpeer={'subject': ()})
    assert seen['body'] == seen['new'] == obj
    assert seen['old'] is None
    assert seen['diff'] == (('add', (), None, obj),)
    assert seen['spec'] == {'field': 'value'}
    assert (seen['name'], seen['namespace'], seen['uid']) == ('name1', 'ns1', 'uid1')
    assert (seen['operation'], seen['subresource'], seen['dryrun']) == ('CREATE', None, True)
    assert seen['userinfo'] == {'username': 'user1', 'uid': 'userid1', 'groups': ['group1']}
    assert (seen['headers'], seen['sslpeer']) == ({'Host': 'here'}, {'subject': ()})
    assert (seen['param'], seen['resource'], seen['index1']) == ('param1', RESOURCE, 'an index')
    assert {'warnings', 'patch', 'memo', 'logger', 'status', 'meta', 'labels', 'annotations'} <= set(seen)
    assert (seen['retry'], 'started' in seen, 'runtime' in seen) == (0, True, True)


async def test_absent_headers_and_peers_are_empty(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    seen: list[Any] = []

    @kopf.on.validate('kopfexamples', registry=registry)
    def handler(headers: Any, sslpeer: Any, **_: Any) -> None:
        seen.extend([headers, sslpeer])

    await ask(make_review())
    assert seen == [{}, {}]


async def test_handlers_get_the_old_object_on_update_and_deletion(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    seen: list[Any] = []

    @kopf.on.validate('kopfexamples', registry=registry)
    def handler(body: Any, old: Any, new: Any, diff: Any, **_: Any) -> None:
        seen.append((dict(body['spec']), old and dict(old['spec']), new and dict(new['spec']), diff))

    old, new = make_object(spec={'x': 1}), make_object(spec={'x': 2})
    await ask(make_review('UPDATE', object=new, oldObject=old))
    await ask(make_review('DELETE', oldObject=old))
    assert seen == [
        ({'x': 2}, {'x': 1}, {'x': 2}, (('change', ('spec', 'x'), 1, 2),)),
        ({'x': 1}, {'x': 1}, None, (('remove', (), old, None),)),
    ]


async def test_subresources_without_names_have_those_of_their_objects(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    seen: list[Any] = []

    @kopf.on.validate('pods', registry=registry, operation='CONNECT', subresource='exec')
    def handler(name: Any, namespace: Any, spec: Any, body: Any, **_: Any) -> None:
        seen.append((name, namespace, dict(spec), body['command']))

    options = {'apiVersion': 'v1', 'kind': 'PodExecOptions', 'command': ['sh']}
    response = await ask(make_review('CONNECT', resource=PODS, subResource='exec', object=options))
    assert response == {'uid': 'review1', 'allowed': True}
    assert seen == [('name1', 'ns1', {}, ['sh'])]


async def test_memos_are_those_of_existing_objects(
    registry: kopf.OperatorRegistry, ask: Ask, known: dict[str, Any], operator_memo: kopf.Memo
) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    def handler(memo: kopf.Memo, warnings: list[str], **_: Any) -> None:
        warnings.append(f"{memo.get('shared')} {memo.get('own')} {memo.get('count')}")
        memo.count = memo.get('count', 0) + 1

    known['uid1'] = kopf.Memo(own='mine')
    for operation, expected in [
        ('CREATE', 'yes None None'),
        ('CREATE', 'yes None None'),
        ('UPDATE', 'None mine None'),
        ('UPDATE', 'None mine 1'),
        ('DELETE', 'None mine 2'),
    ]:
        assert (await ask(make_review(operation)))['warnings'] == [expected]
    del known['uid1']
    assert (await ask(make_review('UPDATE')))['warnings'] == ['yes None None']
    assert operator_memo == {'shared': 'yes'}


# Who is asked.


async def test_all_handlers_are_called_unless_the_path_names_one(ask: Ask, calls: list[str], declare: Any) -> None:
    declare('one')
    declare('two/three', on=kopf.on.mutate)
    await ask(make_review())
    assert calls == ['one', 'two/three']
    calls.clear()
    await ask(make_review(), webhook='two/three')
    assert calls == ['two/three']


@pytest.mark.parametrize(
    'operation, expected',
    [
        ('CREATE', ['any', 'create', 'both', 'mutating']),
        ('UPDATE', ['any', 'both', 'mutating']),
        ('DELETE', ['any', 'deleting']),
        ('CONNECT', ['any', 'mutating']),
    ],
)
async def test_handlers_are_called_for_their_operations_only(
    ask: Ask, calls: list[str], declare: Any, operation: str, expected: list[str]
) -> None:
    declare('any')
    declare('create', operation='CREATE')
    declare('both', operations=['CREATE', 'UPDATE'])
    declare('mutating', on=kopf.on.mutate)
    declare('deleting', on=kopf.on.mutate, operation='DELETE')
    await ask(make_review(operation))
    assert calls == expected


@pytest.mark.parametrize(
    'subresource, expected',
    [
        (None, ['main', 'every']),
        ('', ['main', 'every']),
        ('status', ['status', 'every']),
        ('scale', ['every']),
    ],
)
async def test_handlers_are_called_for_their_subresources_only(
    ask: Ask, calls: list[str], declare: Any, subresource: str | None, expected: list[str]
) -> None:
    declare('main')
    declare('status', subresource='status')
    declare('every', subresource='*')
    await ask(make_review(subResource=subresource))
    assert calls == expected


async def test_handlers_are_called_for_matching_objects_only(ask: Ask, calls: list[str], declare: Any) -> None:
    declare('label', labels={'a': 'b'})
    declare('absent', labels={'a': kopf.ABSENT})
    declare('annotation', annotations={'x': kopf.PRESENT})
    declare('field', field='spec.field', value='value')
    declare('when', when=lambda operation, userinfo, **_: operation == 'UPDATE' and userinfo['username'] == 'user1')
    metadata = {'name': 'name1', 'labels': {'a': 'b'}, 'annotations': {'x': 'y'}}
    await ask(make_review('UPDATE', object=make_object(metadata=metadata, spec={'field': 'value'})))
    assert calls == ['label', 'annotation', 'field', 'when']
    calls.clear()
    await ask(make_review('CREATE', object=make_object(metadata={'name': 'name1'})))
    assert calls == ['absent']


async def test_failing_filters_refuse(ask: Ask, declare: Any, calls: list[str]) -> None:
    declare('when', when=lambda spec, **_: spec['absent'])
    response = await ask(make_review())
    assert response['allowed'] is False
    assert response['status']['code'] == 500
    assert not calls


async def test_one_function_for_validation_and_mutation_is_called_separately(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    @kopf.on.validate('kopfexamples', registry=registry, id='same')
    @kopf.on.mutate('kopfexamples', registry=registry, id='same')
    def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1

    assert 'patch' not in await ask(make_review(), webhook='same/validating')
    assert 'patch' in await ask(make_review(), webhook='same/mutating')


async def test_handlers_are_known_by_the_names_of_services_too(ask: Ask, calls: list[str], declare: Any) -> None:
    declare('with_underscore/sub.field')
    await ask(make_review(), webhook='with-underscore/sub.field')
    assert calls == ['with_underscore/sub.field']


async def test_stacked_decorators_call_once(registry: kopf.OperatorRegistry, ask: Ask, calls: list[str]) -> None:
    @kopf.on.validate('kopfexamples', operation='CREATE', registry=registry)
    @kopf.on.validate('kopfexamples', registry=registry, id='handler')
    async def handler(**_: Any) -> None:
        calls.append('called')

    await ask(make_review(), webhook='handler')
    assert calls == ['called']


# What the API is told.


@pytest.mark.parametrize('version', ['v1', 'v1beta1'])
async def test_requests_are_allowed_if_no_handler_fails(ask: Ask, declare: Any, version: str) -> None:
    declare('handler')
    assert await ask(make_review(version=version)) == {'uid': 'review1', 'allowed': True}


async def test_warnings_of_handlers_are_returned(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    def handler(warnings: list[Any], **_: Any) -> None:
        warnings.extend(['text', 123])

    assert await ask(make_review()) == {'uid': 'review1', 'allowed': True, 'warnings': ['text', '123']}


ERRORS = [  # from the least to the most important ones
    (ValueError('arbitrary'), 'arbitrary', 500),
    (kopf.TemporaryError('temporary'), 'temporary', 500),
    (kopf.PermanentError('permanent'), 'permanent', 500),
    (kopf.AdmissionError('refused', code=418), 'refused', 418),
]


@pytest.mark.parametrize(
    'error, message, code',
    [
        *ERRORS,
        (kopf.AdmissionError('text'), 'text', 500),
        (kopf.AdmissionError('text', code=None), 'text', 500),
        (kopf.AdmissionError(), "AdmissionError('')", 500),
        (ValueError(), 'ValueError()', 500),
        (SystemExit(1), 'SystemExit: 1', 500),
        (KeyError('nosuch'), "KeyError: 'nosuch'", 500),
    ],
)
@pytest.mark.parametrize('on', [kopf.on.validate, kopf.on.mutate])
async def test_errors_of_handlers_deny_the_request(
    registry: kopf.OperatorRegistry, ask: Ask, on: Any, error: BaseException, message: str, code: int
) -> None:
    @on('kopfexamples', registry=registry)
    async def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1
        raise error

    assert await ask(make_review()) == {
        'uid': 'review1',
        'allowed': False,
        'status': {'message': message, 'code': code},
    }


@pytest.mark.parametrize('first', range(len(ERRORS)))
@pytest.mark.parametrize('second', range(len(ERRORS)))
async def test_the_most_specific_error_is_reported(
    registry: kopf.OperatorRegistry, ask: Ask, first: int, second: int
) -> None:
    for number, index in enumerate([first, second]):

        @kopf.on.validate('kopfexamples', registry=registry, id=f'handler{number}', param=ERRORS[index][0])
        async def handler(param: BaseException, **_: Any) -> None:
            raise param

    response = await ask(make_review())
    assert response['status'] == {'message': ERRORS[max(first, second)][1], 'code': ERRORS[max(first, second)][2]}


async def test_slow_handlers_refuse_in_time(
    registry: kopf.OperatorRegistry, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    async def slow(**_: Any) -> None:
        await asyncio.Event().wait()

    @kopf.on.validate('kopfexamples', registry=registry)
    def late(**_: Any) -> None:
        raise AssertionError("There is no time left for it.")

    time_limit_var.set(0.01)
    response = await ask(make_review(), webhook=None)
    assert response['allowed'] is False
    assert response['status']['code'] == 504
    assert "Webhook 'test_slow" in response['status']['message']
    assert "has not answered within 0.01 seconds." in response['status']['message']


async def test_slow_sync_handlers_refuse_in_time(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    def slow(**_: Any) -> None:
        release.wait(60)
        ended.append('slow')

    release, ended = threading.Event(), list[str]()
    time_limit_var.set(0.01)
    try:
        response = await ask(make_review())
        assert response['status']['code'] == 504 and not ended
    finally:
        release.set()


async def test_slow_handlers_with_failures_ignored_only_warn(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.validate('kopfexamples', registry=registry, ignore_failures=True, id='slow')
    async def slow(**_: Any) -> None:
        await asyncio.Event().wait()

    time_limit_var.set(0.01)
    assert await ask(make_review()) == {
        'uid': 'review1',
        'allowed': True,
        'warnings': [
            "Webhook 'slow' has failed, which is ignored: Webhook 'slow' has not answered within 0.01 seconds."
        ],
    }


class Outcomes(kopf.Instrument):
    """The outcomes of all calls."""

    def __init__(self) -> None:
        self.found: list[str | None] = []

    def handler_ends(self, call: HandlerCall) -> None:
        self.found.append(call.outcome)


@pytest.mark.parametrize(
    'error, outcome',
    [
        (kopf.AdmissionError("No."), 'refused'),
        (kopf.PermanentError("No."), 'refused'),
        (ZeroDivisionError(), 'failed'),
    ],
)
async def test_refusals_are_told_apart_from_failures(
    registry: kopf.OperatorRegistry, ask: Ask, instruments: Instruments, error: Exception, outcome: str
) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    def refuse(**_: Any) -> None:
        raise error

    instruments.add(outcomes := Outcomes())
    assert not (await ask(make_review()))['allowed']
    assert outcomes.found == [outcome]


@pytest.mark.parametrize(
    'error',
    [
        kopf.AdmissionError("refused", code=400),
        kopf.PermanentError("refused"),
        kopf.TemporaryError("refused"),
        ValueError("refused"),
    ],
)
async def test_refusals_with_failures_ignored_only_warn(
    registry: kopf.OperatorRegistry, ask: Ask, error: Exception
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry, id='good')
    def good(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['good'] = {'kept': True}

    @kopf.on.mutate('kopfexamples', registry=registry, ignore_failures=True, id='bad')
    def bad(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['good']['half'] = 'done'
        patch.fns.append(lambda body: body.clear())
        raise error

    response = await ask(make_review())
    assert response['allowed']
    assert response['warnings'] == ["Webhook 'bad' has failed, which is ignored: refused"]
    assert decode(response) == [{'op': 'add', 'path': '/spec/good', 'value': {'kept': True}}]


async def test_bad_patches_and_filters_with_failures_ignored_only_warn(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry, ignore_failures=True, id='patching')
    def patching(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['bad'] = object()

    @kopf.on.mutate('kopfexamples', registry=registry, ignore_failures=True, id='filtering', when=lambda **_: 1 / 0)
    def filtering(**_: Any) -> None:
        pass

    response = await ask(make_review())
    assert response['allowed'] and 'patch' not in response
    assert [warning.partition(': ')[0] for warning in response['warnings']] == [
        "Webhook 'filtering' has failed, which is ignored",
        "The patch cannot be applied, which is ignored",
    ]


async def test_timeouts_of_handlers_themselves_are_their_errors(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.validate('kopfexamples', registry=registry)
    async def handler(**_: Any) -> None:
        raise TimeoutError("not yours")

    assert (await ask(make_review()))['status'] == {'message': 'TimeoutError: not yours', 'code': 500}


async def test_slow_handlers_do_not_hold_up_others(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    release = asyncio.Event()

    @kopf.on.validate('kopfexamples', registry=registry)
    async def handler(name: str, **_: Any) -> None:
        if name == 'slow':
            await release.wait()

    slow = asyncio.create_task(ask(make_review(object=make_object(metadata={'name': 'slow'}))))
    assert (await ask(make_review()))['allowed']
    assert not slow.done()
    release.set()
    assert (await slow)['allowed']


# Patches.


async def test_changes_of_mutating_handlers_are_returned_as_a_json_patch(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry, id='handler')
    def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['new'] = {'deep': [1, (2, 3)]}
        patch.spec['gone'] = None
        patch.meta.labels['a/b~c'] = 'd'
        patch.fns.append(lambda body: body['spec']['items'].append('added'))

    obj = make_object(spec={'gone': 1, 'kept': 2, 'items': ['x']})
    expected = copy.deepcopy(obj)
    expected['spec'] = {'kept': 2, 'items': ['x', 'added'], 'new': {'deep': [1, [2, 3]]}}
    expected['metadata']['labels'] = {'a/b~c': 'd'}
    for review in (make_review(object=obj), make_review('UPDATE', object=obj)):
        response = await ask(review, webhook='handler')
        assert response['allowed'] is True
        assert jsonpatch.apply_patch(obj, decode(response)) == expected


async def test_values_changed_in_place_can_be_put_into_the_patch(
    registry: kopf.OperatorRegistry,
    ask: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry, id='handler')
    def handler(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
        spec['items'].append('added')
        spec['others'].clear()
        patch.spec['items'] = spec['items']

    obj = make_object(spec={'items': ['x'], 'others': [1]})
    response = await ask(make_review(object=copy.deepcopy(obj)), webhook='handler')
    assert jsonpatch.apply_patch(obj, decode(response))['spec'] == {'items': ['x', 'added'], 'others': [1]}
    assert "Webhook 'handler': The object was changed in place: spec.items, spec.others." in caplog.text


@pytest.mark.parametrize(
    'on, review',
    [
        (kopf.on.validate, make_review()),
        (kopf.on.mutate, make_review('DELETE')),
    ],
)
async def test_patches_that_the_api_would_not_take(
    registry: kopf.OperatorRegistry, ask: Ask, on: Any, review: Review
) -> None:
    @on('kopfexamples', registry=registry, operations=['CREATE', 'DELETE'])
    def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1

    assert await ask(review) == {'uid': 'review1', 'allowed': True}


async def test_patches_that_change_nothing(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry)
    def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1

    assert await ask(make_review(object=make_object(spec={'x': 1}))) == {'uid': 'review1', 'allowed': True}


@pytest.mark.parametrize(
    'spoil',
    [
        lambda patch: patch.spec.update(x=object()),
        lambda patch: patch.fns.append(lambda body: body['absent'].clear()),
    ],
)
async def test_patches_that_cannot_be_encoded_deny_the_request(
    registry: kopf.OperatorRegistry, ask: Ask, spoil: Callable[[Any], None]
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry)
    def handler(patch: kopf.Patch, **_: Any) -> None:
        spoil(patch)

    response = await ask(make_review())
    assert response['allowed'] is False
    assert response['status']['code'] == 500


# Malformed reviews.


@pytest.mark.parametrize(
    'review',
    [
        None,
        [],
        'text',
        1,
        {},
        {'kind': 'AdmissionReview'},
        {**make_review(), 'kind': 'Pod'},
        {**make_review(), 'apiVersion': 'admission.k8s.io/v2'},
        {**make_review(), 'request': None},
        {**make_review(), 'request': []},
        make_review(resource=PODS, userInfo=None),
        make_review(userInfo='user'),
        make_review(uid=123),
        make_review('PATCH'),
        make_review(operation=None),
        make_review(operation=['CREATE']),
        make_review(object=None),
        make_review(object='text'),
        make_review(object={'metadata': 'text'}),
        make_review(object={'metadata': {'labels': ['a']}}),
        make_review(object={'metadata': {'annotations': 1}}),
        make_review(object={'metadata': {'name': {}}}),
        make_review('UPDATE', oldObject=[1]),
        {**make_review(), 'request': {**make_review()['request'], 'resource': 'pods'}},
        {**make_review(), 'request': {**make_review()['request'], 'resource': {'resource': 1}}},
    ],
)
async def test_malformed_reviews_raise_errors_before_any_handler_is_called(
    ask: Ask, declare: Any, calls: list[str], reviewer: AdmissionReviewer, review: Any
) -> None:
    declare('handler')
    with pytest.raises(ReviewError) as error:
        await reviewer(review)
    assert error.value.status == 400
    assert str(error.value)
    assert not calls


async def test_reviews_for_unknown_handlers_and_resources_are_not_found(
    ask: Ask, declare: Any, calls: list[str]
) -> None:
    declare('handler')
    for review, webhook in [
        (make_review(), 'other'),
        (make_review(resource=PODS), 'handler'),
        (make_review(resource=Resource('kopf.dev', 'v2', 'kopfexamples')), 'handler'),
    ]:
        with pytest.raises(ReviewError) as error:
            await ask(review, webhook=webhook)
        assert error.value.status == 404
    assert not calls


async def test_objects_that_are_nested_too_deep_are_refused(ask: Ask, declare: Any) -> None:
    declare('handler')
    old: Any = 'x'
    new: Any = 'y'
    for _ in range(5000):
        old, new = {'x': old}, {'x': new}
    with pytest.raises(ReviewError) as error:
        await ask(make_review('UPDATE', object=make_object(spec=new), oldObject=make_object(spec=old)))
    assert error.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


def iter_paths(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from iter_paths(value[key], (*path, key))


FULL = make_review(
    'UPDATE',
    options={'kind': 'UpdateOptions'},
    subResource=None,
    object=make_object(
        metadata={'name': 'x', 'labels': {'a': 'b'}, 'annotations': {'c': 'd'}, 'uid': 'uid1', 'namespace': 'ns1'},
        spec={'field': {'sub': 1}},
        status={'x': 'y'},
    ),
)


@st.composite
def malformed(draw: st.DrawFn) -> Any:
    review = copy.deepcopy(FULL)
    for path in draw(st.lists(st.sampled_from(list(iter_paths(FULL))), min_size=1, max_size=3)):
        value = draw(JSON)
        if not path:
            return value
        target = review
        for key in path[:-1]:
            target = target.get(key) if isinstance(target, dict) else None  # type: ignore[assignment]
        if isinstance(target, dict):
            if draw(st.booleans()):
                target[path[-1]] = value
            else:
                target.pop(path[-1], None)
    return review


@hypothesis.given(review=malformed(), webhook=st.none() | st.sampled_from(['validating', 'mutating', 'unknown']))
def test_malformed_reviews_are_refused_or_answered(review: Any, webhook: str | None) -> None:
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('kopfexamples', registry=registry, id='validating', labels={'a': 'b'}, annotations={'c': 'd'})
    async def validating(**_: Any) -> None:
        pass

    @kopf.on.mutate('kopfexamples', registry=registry, id='mutating')
    async def mutating(patch: kopf.Patch, **_: Any) -> None:
        patch.meta.labels['x'] = 'y'
        patch.spec['x'] = {'y': {'z': 1}}

    reviewer = AdmissionReviewer(
        OperatorContext(settings=kopf.OperatorSettings(), memo=kopf.Memo()), memos=lambda resource, metadata: None
    )
    reviewer.serve({handler: [RESOURCE] for handler in registry.webhooks})
    try:
        answer = asyncio.run(reviewer(review, webhook=webhook))
    except ReviewError as error:
        assert 400 <= error.status < 500
    else:
        json.dumps(answer)
        assert answer['response']['allowed'] is True


def test_an_empty_list_of_operations_is_refused_by_the_decorator() -> None:
    with pytest.raises(ValueError, match='operations='):
        kopf.on.validate('kopfexamples', operations=[], registry=kopf.OperatorRegistry())


async def test_errors_are_freed_without_the_garbage_collector(
    registry: kopf.OperatorRegistry, ask: Ask, failing: Any
) -> None:
    kopf.on.validate('kopfexamples', registry=registry)(failing.fn)
    response = await ask(make_review())
    assert response['status']['message'] == "boo"
    assert failing.errors and not failing.remaining


@pytest.mark.parametrize(
    'result, text',
    [
        (False, "Webhook 'fn' has returned False, which refuses nothing"),
        ({'spec': {}}, "Webhook 'fn' has returned a mapping, which changes nothing"),
        ("No!", "raise kopf.AdmissionError('No!')"),
        (True, None),
        (None, None),
    ],
)
async def test_results_that_are_meant_to_deny_are_reported_once(
    registry: kopf.OperatorRegistry, ask: Ask, caplog: Any, result: Any, text: str | None
) -> None:
    @kopf.on.validate('kopfexamples', registry=registry, id='fn')
    async def fn(**_: Any) -> Any:
        return result

    for _ in range(3):
        assert (await ask(make_review()))['allowed']
    assert caplog.text.count("Webhook 'fn' has returned") == (text is not None)
    assert text is None or text in caplog.text


async def test_patches_of_validating_handlers_are_reported_once(
    registry: kopf.OperatorRegistry, ask: Ask, caplog: Any
) -> None:
    @kopf.on.mutate('kopfexamples', registry=registry, id='fn1')
    async def fn1(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1

    @kopf.on.validate('kopfexamples', registry=registry, id='fn2')
    async def fn2(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['x'] = 1

    for webhook in ['fn1', 'fn2', 'fn2']:
        await ask(make_review(), webhook=webhook)
    assert caplog.text.count("has changed its patch, which has no effect") == 1
    assert "Webhook 'fn2' has changed its patch" in caplog.text


@dataclasses.dataclass
class CountedSpec:
    replicas: int = 1

    def __post_init__(self) -> None:
        made.append(self.replicas)


@dataclasses.dataclass
class Counted:
    spec: CountedSpec


made: list[int] = []


@pytest.mark.parametrize('metadata', [{'name': 'name1'}, {'name': 'name1', 'uid': 'u', 'resourceVersion': '1'}])
async def test_an_object_is_validated_once_a_review(
    registry: kopf.OperatorRegistry, ask: Ask, metadata: dict[str, str]
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    got: list[Any] = []

    @kopf.on.validate(Counted, registry=registry)
    def first(spec: CountedSpec, obj: Counted, **_: Any) -> None:
        got.extend([obj, spec is obj.spec])

    @kopf.on.validate(Counted, registry=registry)
    def second(obj: Counted, status: Any, **_: Any) -> None:
        got.append(obj)

    for replicas in (3, 4):  # the same version, as of an object that is not stored yet
        made.clear()
        got.clear()
        answer = await ask(make_review(object=make_object(metadata=metadata, spec={'replicas': replicas})))
        assert answer['allowed'] and made == [replicas]
        assert got[0].spec.replicas == replicas and got[1] and got[2] is got[0]


async def test_an_object_that_does_not_conform_is_validated_once_and_refused(
    registry: kopf.OperatorRegistry, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    loads: list[Any] = []
    load = Kind.load

    def count(self: Kind, body: Mapping[str, Any], **options: Any) -> Any:
        loads.append(body)
        return load(self, body, **options)

    monkeypatch.setattr(Kind, 'load', count)
    for name in ('first', 'second'):
        kopf.on.validate(Counted, id=name, registry=registry)(lambda spec, **_: None)
    answer = await ask(make_review(object=make_object(spec={'replicas': 'many'})))
    assert not answer['allowed'] and len(loads) == 1
    assert 'does not conform to the class Counted: spec.replicas' in answer['status']['message']


async def test_a_mutating_handler_can_correct_by_the_body_what_the_class_refuses(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)

    @kopf.on.mutate(Counted, registry=registry)
    def fill(body: Any, patch: Any, **_: Any) -> None:
        patch.spec['replicas'] = len(body['spec']['replicas'])

    answer = await ask(make_review(object=make_object(spec={'replicas': 'many'})))
    assert answer['allowed'] and answer['patch']


@pytest.mark.parametrize('ignored', [False, True])
async def test_a_mutating_handler_that_cannot_get_what_it_is_to_fill_is_told_of_the_body(
    registry: kopf.OperatorRegistry, ask: Ask, ignored: bool
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    kopf.on.mutate(Counted, registry=registry, ignore_failures=ignored)(lambda spec, **_: None)
    answer = await ask(make_review(object=make_object(spec={'replicas': 'many'})))
    text = answer['warnings'][0] if ignored else answer['status']['message']
    assert 'does not conform to the class Counted' in text
    assert text.endswith("; to fill it, take body instead of obj, spec, or status")


async def test_a_validating_handler_is_not_told_how_to_fill_fields(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    kopf.on.validate(Counted, registry=registry)(lambda spec, **_: None)
    answer = await ask(make_review(object=make_object(spec={'replicas': 'many'})))
    assert 'does not conform' in answer['status']['message'] and 'take body' not in answer['status']['message']


async def test_an_object_that_does_not_conform_is_refused_as_a_mistake_of_the_client(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    kopf.on.validate(Counted, registry=registry)(lambda spec, **_: None)
    answer = await ask(make_review(object=make_object(spec={'replicas': 'many'})))
    assert answer['status']['code'] == 422


WRONG = {'spec': {'replicas': 'many'}}
RIGHT = {'spec': {'replicas': 1}}
LEAVING = {'metadata': {'name': 'name1', 'uid': 'uid1', 'deletionTimestamp': '2030-01-01T00:00:00Z'}}
LABELLED = {'metadata': {'name': 'name1', 'uid': 'uid1', 'labels': {'some': 'label'}}}


@pytest.mark.parametrize('on', [kopf.on.validate, kopf.on.mutate])
@pytest.mark.parametrize(
    'operation, old, new',
    [
        pytest.param('DELETE', WRONG, None, id='deletion'),
        pytest.param('UPDATE', WRONG, WRONG, id='same'),
        pytest.param('UPDATE', WRONG, WRONG | LABELLED, id='metadata'),
        pytest.param('UPDATE', WRONG, WRONG | {'status': {'done': 1}}, id='status'),
        pytest.param('UPDATE', WRONG | {'status': 1}, WRONG | {'status': 2}, id='wrong status'),
        pytest.param('UPDATE', WRONG | LEAVING, WRONG | LEAVING, id='finalizer'),
        pytest.param('UPDATE', RIGHT | LEAVING, WRONG | LEAVING, id='changed while it is deleted'),
    ],
)
async def test_objects_that_are_stored_already_need_not_conform(
    registry: kopf.OperatorRegistry, ask: Ask, calls: list[str], on: Any, operation: str, old: Any, new: Any
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    on(Counted, id='typed', operation=operation, registry=registry)(lambda spec, **_: calls.append('typed'))
    on(Counted, id='plain', operation=operation, registry=registry)(lambda body, **_: calls.append('plain'))
    new = None if new is None else make_object(**new)
    answer = await ask(make_review(operation, oldObject=make_object(**old), object=new))
    assert answer['allowed'] and calls == ['plain']
    [warning] = answer['warnings']
    assert warning.startswith("Webhook 'typed' is not called, as what is stored already cannot be checked: ")
    assert 'does not conform to the class Counted: spec.replicas' in warning


async def test_failing_validators_of_stored_objects_do_not_block_deletions(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    @kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)
    class Failing(pydantic.BaseModel):
        spec: dict[str, Any]

        @pydantic.field_validator('spec')
        @classmethod
        def check(cls, spec: dict[str, Any]) -> dict[str, Any]:
            return {'size': spec['size']}

    kopf.on.validate(Failing, registry=registry)(lambda spec, **_: None)
    answer = await ask(make_review('DELETE'))
    assert answer['allowed'] and "KeyError: 'size'" in answer['warnings'][0]
    assert not (await ask(make_review('CREATE')))['allowed']


@pytest.mark.parametrize('on', [kopf.on.validate, kopf.on.mutate])
@pytest.mark.parametrize(
    'operation, old, new',
    [
        pytest.param('CREATE', None, WRONG, id='creation'),
        pytest.param('UPDATE', RIGHT, WRONG, id='value'),
        pytest.param('UPDATE', WRONG, {'spec': {'replicas': 'few'}}, id='another wrong value'),
        pytest.param('UPDATE', RIGHT, RIGHT | {'status': {'ready': 'all'}}, id='status'),
    ],
)
async def test_changes_must_conform(
    registry: kopf.OperatorRegistry, ask: Ask, on: Any, operation: str, old: Any, new: Any
) -> None:
    @dataclasses.dataclass
    class Status:
        ready: int

    @kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)
    @dataclasses.dataclass
    class Example:
        spec: CountedSpec
        status: Status | None = None

    on(Example, registry=registry)(lambda spec, **_: None)
    old = None if old is None else make_object(**old)
    answer = await ask(make_review(operation, oldObject=old, object=make_object(**new)))
    assert not answer['allowed'] and answer['status']['code'] == 422
    assert 'warnings' not in answer


async def test_typed_handlers_are_called_for_stored_objects_that_conform(
    registry: kopf.OperatorRegistry, ask: Ask, calls: list[str]
) -> None:
    kopf.kind('kopf.dev/v1', 'KopfExample', registry=registry)(Counted)
    kopf.on.validate(Counted, registry=registry)(lambda operation, spec, **_: calls.append(operation))
    same = make_object(**RIGHT)
    for review in (
        make_review('DELETE', oldObject=same),
        make_review('UPDATE', oldObject=same, object=same),
        make_review('UPDATE', oldObject=make_object(**WRONG), object=same),  # it is repaired
    ):
        answer = await ask(review)
        assert answer['allowed'] and 'warnings' not in answer
    assert calls == ['DELETE', 'UPDATE', 'UPDATE']


def test_codes_of_refusals_are_numbers():
    with pytest.raises(TypeError, match="code= must be a number, such as 422, not '422'"):
        kopf.AdmissionError("No.", code='422')
    assert kopf.AdmissionError("No.", code=http.HTTPStatus.CONFLICT).code == 409
