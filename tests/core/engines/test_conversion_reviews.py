"""Conversion reviews: the chains of handlers, the fields that they can change, and their failures."""

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import time_limit_var
from kopf._core.engines.conversion_reviews import Converter
from kopf._core.engines.responders import ReviewError
from kopf._core.intents.contexts import OperatorContext

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
OTHER = Resource('kopf.dev', 'v1', 'others', kind='Other', namespaced=True)

Ask = Callable[..., Any]


def make_object(version: str = 'v1', name: str = 'name1', **parts: Any) -> dict[str, Any]:
    return {
        'apiVersion': f'kopf.dev/{version}',
        'kind': 'KopfExample',
        'spec': {},
        **parts,
        'metadata': {'name': name, 'namespace': 'ns1', 'uid': f'uid-{name}', **parts.get('metadata', {})},
    }


def make_review(*objects: Any, to: str = 'v2', **fields: Any) -> dict[str, Any]:
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'ConversionReview',
        'request': {'uid': 'review1', 'desiredAPIVersion': f'kopf.dev/{to}', 'objects': list(objects), **fields},
    }


@pytest.fixture
def converter(known: dict[str, Any]) -> Converter:
    return Converter(
        OperatorContext(settings=kopf.OperatorSettings(), memo=kopf.Memo(shared='yes'), indices={'index1': 'an index'}),
        memos=lambda resource, metadata: known.get(metadata['uid']),
    )


@pytest.fixture
def ask(registry: kopf.OperatorRegistry, converter: Converter) -> Ask:
    """Review a request, give the response of the review."""

    async def ask(review: Any, **kwargs: Any) -> Any:
        converter.serve(
            {
                handler: handler.selector.select((RESOURCE, OTHER))  # type: ignore[union-attr]
                for handler in registry.conversions
            }
        )
        answer = await converter(review, **kwargs)
        assert (answer['apiVersion'], answer['kind']) == ('apiextensions.k8s.io/v1', 'ConversionReview')
        assert answer['response']['uid'] == 'review1'
        json.dumps(answer)
        return answer['response']

    return ask


@pytest.fixture
def declare(registry: kopf.OperatorRegistry) -> Any:
    """Declare a handler that notes in the object that it was there."""

    def declare(id: str, *names: Any, **options: Any) -> None:
        @kopf.on.convert(*(names or ('kopfexamples',)), id=id, registry=registry, **options)
        async def handler(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
            patch.spec['by'] = [*spec.get('by', []), id]

    return declare


def get_ways(response: Any) -> list[Any]:
    assert response['result'] == {'status': 'Success'}
    return [obj['spec']['by'] for obj in response['convertedObjects']]


def get_failure(response: Any) -> str:
    assert response['result']['status'] == 'Failed'
    assert 'convertedObjects' not in response
    return str(response['result']['message'])


# What handlers are told, and what they do.


async def test_handlers_get_the_object_and_both_versions(
    registry: kopf.OperatorRegistry, ask: Ask, known: dict[str, Any]
) -> None:
    seen: dict[str, Any] = {}

    @kopf.on.convert('kopfexamples', registry=registry, param='a param')
    async def convert(**kwargs: Any) -> None:
        seen.update(kwargs)

    known['uid-name1'] = 'a memo'
    obj = make_object(spec={'x': 1}, status={'y': 2}, metadata={'labels': {'a': 'b'}})
    await ask(make_review(obj), headers={'X': 'y'}, sslpeer={'subject': ()})
    assert (seen['from_version'], seen['to_version'], seen['resource']) == ('v1', 'v2', RESOURCE)
    assert (seen['name'], seen['namespace'], seen['uid']) == ('name1', 'ns1', 'uid-name1')
    assert (seen['body'], seen['spec'], seen['status'], seen['labels']) == (obj, {'x': 1}, {'y': 2}, {'a': 'b'})
    assert (seen['memo'], seen['param'], seen['index1'], seen['retry']) == ('a memo', 'a param', 'an index', 0)
    assert (seen['headers'], seen['sslpeer']) == ({'X': 'y'}, {'subject': ()})
    assert {'annotations', 'meta', 'patch', 'logger', 'started', 'runtime'} <= seen.keys()
    await ask(make_review(make_object(name='unknown')))
    assert seen['memo'] == {'shared': 'yes'}


async def test_returned_objects_are_the_converted_ones(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(body: kopf.Body, spec: kopf.Spec, **_: Any) -> Any:
        return {**body, 'spec': {'ports': [spec['port']], 'deep': spec}}

    obj = make_object(spec={'port': 1}, status={'x': 'y'})
    response = await ask(make_review(obj))
    assert response['convertedObjects'] == [
        {**obj, 'apiVersion': 'kopf.dev/v2', 'spec': {'ports': [1], 'deep': {'port': 1}}}
    ]


async def test_fields_that_conversions_cannot_change_are_added_to_returned_objects(
    registry: kopf.OperatorRegistry, ask: Ask
) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    def convert(**_: Any) -> Any:
        return {'spec': {'new': 'yes'}, 'metadata': {'annotations': {'c': 'd'}}}

    response = await ask(make_review(make_object(metadata={'labels': {'a': 'b'}, 'finalizers': ['f']})))
    assert response['convertedObjects'] == [
        {
            'apiVersion': 'kopf.dev/v2',
            'kind': 'KopfExample',
            'spec': {'new': 'yes'},
            'metadata': {
                'name': 'name1',
                'namespace': 'ns1',
                'uid': 'uid-name1',
                'finalizers': ['f'],
                'labels': {'a': 'b'},
                'annotations': {'c': 'd'},
            },
        }
    ]


async def test_objects_can_be_converted_by_patches(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    def convert(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
        patch.spec['old'] = None
        patch.meta.labels['a'] = None
        patch.meta.annotations['kopf.dev/was'] = spec['old']
        patch.fns.append(lambda body: body['spec']['items'].append(spec['old']))

    (found,) = (await ask(make_review(make_object(spec={'old': 'x', 'items': [1]}, metadata={'labels': {'a': 'b'}}))))[
        'convertedObjects'
    ]
    assert found['spec'] == {'items': [1, 'x']}
    assert found['metadata']['annotations'] == {'kopf.dev/was': 'x'}
    assert not found['metadata']['labels']


async def test_patches_are_applied_to_returned_objects(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    def convert(patch: kopf.Patch, **_: Any) -> Any:
        patch.spec['patched'] = 'yes'
        return {'spec': {'returned': 'yes'}}

    response = await ask(make_review(make_object()))
    assert response['convertedObjects'][0]['spec'] == {'returned': 'yes', 'patched': 'yes'}


async def test_objects_are_returned_in_their_order(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', from_version='v1', registry=registry)
    async def convert(patch: kopf.Patch, name: str, **_: Any) -> None:
        patch.spec['name'] = name

    objects = [make_object('v2' if number % 3 == 0 else 'v1', f'name{number}') for number in range(100)]
    converted = (await ask(make_review(*objects)))['convertedObjects']
    assert [obj['metadata'] for obj in converted] == [obj['metadata'] for obj in objects]
    assert {obj['apiVersion'] for obj in converted} == {'kopf.dev/v2'}
    assert converted[0] == objects[0]
    assert converted[1]['spec'] == {'name': 'name1'}
    assert (await ask(make_review()))['convertedObjects'] == []


# Which handlers are asked.


async def test_the_handlers_that_name_the_versions_precede_others(declare: Any, ask: Ask) -> None:
    declare('any')
    declare('from', from_version='v1')
    declare('to', to_version=['v4', 'v5'])
    declare('both', from_version={'v1', 'v2'}, to_version='v3')
    assert get_ways(await ask(make_review(make_object('v9'), to='v8'))) == [['any']]
    assert get_ways(await ask(make_review(make_object('v1'), make_object('v2'), to='v8'))) == [['from'], ['any']]
    assert get_ways(await ask(make_review(make_object('v2'), to='v5'))) == [['to']]
    assert get_ways(await ask(make_review(make_object('v1'), make_object('v2'), to='v3'))) == [['both'], ['both']]


async def test_handlers_are_chained_where_none_converts_directly(declare: Any, ask: Ask) -> None:
    for start, end in [('v1', 'v2'), ('v2', 'v3'), ('v3', 'v4'), ('v4', 'v3'), ('v3', 'v2'), ('v2', 'v1')]:
        declare(f'{start}-{end}', from_version=start, to_version=end)
    declare('v1-v3', from_version='v1', to_version='v3')
    assert get_ways(await ask(make_review(make_object('v1'), to='v4'))) == [['v1-v3', 'v3-v4']]
    assert get_ways(await ask(make_review(make_object('v4'), make_object('v2'), to='v1'))) == [
        ['v4-v3', 'v3-v2', 'v2-v1'],
        ['v2-v1'],
    ]
    (found,) = (await ask(make_review(make_object('v1'), to='v4')))['convertedObjects']
    assert found['apiVersion'] == 'kopf.dev/v4'


async def test_handlers_in_chains_know_their_versions(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    seen = []

    @kopf.on.convert('kopfexamples', from_version='v1', to_version='v2', registry=registry)
    @kopf.on.convert('kopfexamples', from_version='v2', to_version='v3', registry=registry)
    async def convert(body: kopf.Body, from_version: str, to_version: str, **_: Any) -> None:
        seen.append((body['apiVersion'], from_version, to_version))

    await ask(make_review(make_object('v1'), to='v3'))
    assert seen == [('kopf.dev/v1', 'v1', 'v2'), ('kopf.dev/v2', 'v2', 'v3')]


async def test_versions_without_a_chain_of_handlers_are_an_error(declare: Any, ask: Ask) -> None:
    declare('v1-v2', from_version='v1', to_version='v2')
    text = get_failure(await ask(make_review(make_object('v2'), to='v1')))
    assert text.startswith('ns1/name1: There is no handler that converts from v2 to v1 ')
    assert "from_version='v2', to_version='v1'" in text


async def test_equally_precise_handlers_are_an_error(declare: Any, ask: Ask) -> None:
    declare('one', from_version='v1', to_version='v2')
    declare('two', from_version=['v1', 'v3'], to_version='v2')
    text = get_failure(await ask(make_review(make_object('v1'))))
    assert "'one', 'two'" in text
    assert get_ways(await ask(make_review(make_object('v3')))) == [['two']]


async def test_handlers_convert_the_objects_of_their_resources_only(declare: Any, ask: Ask) -> None:
    declare('examples')
    declare('others', 'others')
    declare('everything', kopf.EVERYTHING, from_version='v7')
    assert get_ways(await ask(make_review(make_object()), webhook='convert/kopfexamples.kopf.dev')) == [['examples']]
    other = {**make_object(), 'kind': 'Other'}
    assert get_ways(await ask(make_review(other), webhook='convert/others.kopf.dev')) == [['others']]
    assert get_ways(await ask(make_review(other))) == [['others']]
    assert get_ways(await ask(make_review({**other, 'apiVersion': 'kopf.dev/v7'}))) == [['everything']]


# What goes wrong.


@pytest.mark.parametrize(
    'error, text',
    [
        (kopf.PermanentError("bad port"), 'bad port'),
        (kopf.TemporaryError("not now"), 'not now'),
        (ValueError("bad value"), 'bad value'),
        (KeyError('port'), "KeyError: 'port'"),
        (ValueError(), 'ValueError()'),
        (SystemExit(1), 'SystemExit: 1'),
        (TimeoutError("of its own"), 'TimeoutError: of its own'),
    ],
)
async def test_errors_of_handlers_fail_the_whole_review(
    registry: kopf.OperatorRegistry, ask: Ask, error: BaseException, text: str
) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(name: str, **_: Any) -> None:
        if name == 'bad':
            raise error

    response = await ask(make_review(make_object(name='good'), make_object(name='bad'), make_object(name='later')))
    assert get_failure(response) == f'ns1/bad: {text}'


@pytest.mark.parametrize(
    'result, text',
    [
        ('rubbish', "must return the converted object"),
        ([], "must return the converted object"),
        (1, "it has returned 1"),
        ({'metadata': 1}, "metadata of 1"),
        ({'metadata': {'name': 'other'}}, "changed metadata.name"),
        ({'metadata': {'finalizers': ['x']}}, "changed metadata.finalizers"),
        ({'spec': object()}, "cannot be stored"),
    ],
)
async def test_results_that_are_no_objects_are_errors(
    registry: kopf.OperatorRegistry, ask: Ask, result: Any, text: str
) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(**_: Any) -> Any:
        return result

    assert text in get_failure(await ask(make_review(make_object())))


async def test_patches_that_cannot_be_applied_are_errors(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(patch: kopf.Patch, **_: Any) -> Any:
        patch.fns.append(lambda body: body['absent'].append(1))

    assert get_failure(await ask(make_review(make_object()))) == "ns1/name1: KeyError: 'absent'"


async def test_slow_handlers_fail_in_time(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(name: str, **_: Any) -> None:
        if name == 'slow':
            await asyncio.Event().wait()

    time_limit_var.set(0.05)
    text = get_failure(await ask(make_review(make_object(), make_object(name='slow'))))
    assert text == 'Only 1 of 2 objects are converted to kopf.dev/v2 within 0.05 seconds.'


async def test_long_lists_do_not_hold_up_others(registry: kopf.OperatorRegistry, ask: Ask) -> None:
    turns = 0

    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(**_: Any) -> None:
        pass

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await ask(make_review(*[make_object() for _ in range(500)]))
    task.cancel()
    assert turns > 10


@pytest.mark.parametrize(
    'obj',
    [
        {**make_object(), 'kind': 'Other'},
        {**make_object(), 'apiVersion': 'other.dev/v1'},
        {**make_object(), 'apiVersion': 'v1'},
    ],
)
async def test_objects_of_other_kinds_and_groups_are_refused(declare: Any, ask: Ask, obj: Any) -> None:
    declare('any')
    assert "ns1/name1: it is" in get_failure(await ask(make_review(obj), webhook='convert/kopfexamples.kopf.dev'))


async def test_reviews_for_unknown_conversions_are_not_found(declare: Any, ask: Ask) -> None:
    declare('any')
    for webhook in ('convert/unknown.kopf.dev', 'convert/', 'kopfexamples.kopf.dev', 'any'):
        with pytest.raises(ReviewError) as error:
            await ask(make_review(make_object()), webhook=webhook)
        assert error.value.status == 404
    for obj in ({**make_object(), 'kind': 'Other'},):
        with pytest.raises(ReviewError) as error:
            await ask(make_review(obj))
        assert error.value.status == 404
    with pytest.raises(ReviewError) as error:
        await ask(make_review(desiredAPIVersion='other.dev/v1'), webhook='convert/kopfexamples.kopf.dev')
    assert error.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(['metadata', 'kind', 'apiVersion', 'spec', 'name', 'labels', 'x']), inner, max_size=4
        )
    ),
    max_leaves=8,
)
PATHS = [
    (),
    ('kind',),
    ('apiVersion',),
    ('request',),
    ('request', 'uid'),
    ('request', 'desiredAPIVersion'),
    ('request', 'objects'),
    ('request', 'objects', 0),
    ('request', 'objects', 0, 'apiVersion'),
    ('request', 'objects', 0, 'kind'),
    ('request', 'objects', 0, 'metadata'),
    ('request', 'objects', 0, 'spec'),
    ('request', 'objects', 0, 'metadata', 'name'),
    ('request', 'objects', 0, 'metadata', 'namespace'),
    ('request', 'objects', 0, 'metadata', 'uid'),
    ('request', 'objects', 0, 'metadata', 'labels'),
    ('request', 'objects', 0, 'metadata', 'annotations'),
    ('request', 'objects', 0, 'status'),
]


@hypothesis.given(path=st.sampled_from(PATHS), value=JSON | st.just(...), hinted=st.booleans())
def test_malformed_reviews_are_refused_or_answered(path: tuple[Any, ...], value: Any, hinted: bool) -> None:
    """No handler is run for what is no review; everything else gets a proper answer."""
    registry, calls = kopf.OperatorRegistry(), []

    @kopf.on.convert('kopfexamples', registry=registry)
    async def convert(**kwargs: Any) -> None:
        calls.append(kwargs)

    converter = Converter(
        OperatorContext(settings=kopf.OperatorSettings(), memo=kopf.Memo()), memos=lambda resource, metadata: None
    )
    converter.serve({handler: [RESOURCE] for handler in registry.conversions})
    review: Any = copy.deepcopy(make_review(make_object()))
    if path:
        target = review
        for key in path[:-1]:
            target = target[key]
        if value is ...:
            target.pop(path[-1], None) if isinstance(target, dict) else target.clear()
        else:
            target[path[-1]] = value
    else:
        review = None if value is ... else value
    try:
        answer: Any = asyncio.run(converter(review, webhook='convert/kopfexamples.kopf.dev' if hinted else None))
    except ReviewError as error:
        assert 400 <= error.status < 500
        assert str(error)
        assert not calls
    else:
        json.dumps(answer)
        assert answer['response']['result']['status'] in ('Success', 'Failed')


# How they are declared.


@pytest.mark.parametrize(
    'options, error',
    [
        ({'from_version': 'v1', 'to_version': 'v1'}, ValueError),
        ({'from_version': ''}, ValueError),
        ({'to_version': 'kopf.dev/v1'}, ValueError),
        ({'to_version': []}, ValueError),
        ({'from_version': [1]}, ValueError),
        ({'version': 'v1'}, TypeError),
        ({'labels': {'a': 'b'}}, TypeError),
        ({'operation': 'CREATE'}, TypeError),
    ],
)
def test_wrong_options_are_refused_by_the_decorator(
    registry: kopf.OperatorRegistry, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"@kopf\.on\.convert"):
        kopf.on.convert('kopfexamples', registry=registry, **options)(lambda **_: None)
    assert not len(registry.conversions)


def test_resources_are_named_without_versions(registry: kopf.OperatorRegistry) -> None:
    with pytest.raises(TypeError, match="without a version"):
        kopf.on.convert('kopf.dev', 'v1', 'kopfexamples', registry=registry)(lambda **_: None)


async def test_errors_are_freed_without_the_garbage_collector(
    registry: kopf.OperatorRegistry, ask: Ask, failing: Any
) -> None:
    kopf.on.convert('kopfexamples', registry=registry)(failing.fn)
    assert "boo" in get_failure(await ask(make_review(make_object())))
    assert failing.errors and not failing.remaining


# Classes.


class Spec(msgspec.Struct):
    by: list[str] = []


class Status(msgspec.Struct):
    seen: int | None = None


class OldExample(msgspec.Struct):
    spec: Spec
    status: Status | None = None


class KopfExample(msgspec.Struct):
    spec: Spec
    status: Status | None = None


@pytest.fixture
def upgrade(registry: kopf.OperatorRegistry) -> Callable[..., Any]:
    """Return the decorator of a handler for two classes."""
    kopf.kind('kopf.dev/v1', 'KopfExample', conditions=True, registry=registry)(OldExample)
    kopf.kind('kopf.dev/v2', conditions=True, registry=registry)(KopfExample)
    return kopf.on.convert(OldExample, KopfExample, id='upgrade', registry=registry)


async def test_objects_of_classes_keep_what_their_classes_do_not_know(ask: Ask, upgrade: Callable[..., Any]) -> None:
    @upgrade
    def handler(obj: OldExample, **_: Any) -> KopfExample:
        return KopfExample(Spec([*obj.spec.by, 'upgrade']), obj.status)

    status = {'seen': 1, 'conditions': [{'type': 'Ready'}]}
    response = await ask(make_review(make_object(spec={'by': ['x']}, status=status)))
    [converted] = response['convertedObjects']
    assert converted['spec'] == {'by': ['x', 'upgrade']}
    assert converted['status'] == status


@pytest.mark.parametrize(
    'result, text',
    [
        (None, "has returned nothing, and has changed nothing by patch; it must return an object of KopfExample."),
        (OldExample(Spec()), "must return an object of KopfExample; it has returned OldExample("),
        ('x', "must return an object of KopfExample; it has returned 'x'"),
    ],
)
async def test_a_handler_of_classes_must_not_return_anything_else(
    ask: Ask, upgrade: Callable[..., Any], result: object, text: str
) -> None:
    upgrade(lambda **_: result)
    assert text in get_failure(await ask(make_review(make_object())))


async def test_a_handler_of_classes_can_use_the_patch(ask: Ask, upgrade: Callable[..., Any]) -> None:
    @upgrade
    def handler(patch: kopf.Patch, **_: Any) -> None:
        patch.spec['by'] = ['patch']

    assert get_ways(await ask(make_review(make_object()))) == [['patch']]
