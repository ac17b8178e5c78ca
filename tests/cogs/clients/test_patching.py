import asyncio
import copy
import functools
import json
import logging
import threading

import jsonpatch
import pytest
from aiohttp import web
from jsonpatches import apply_ops

from kopf._cogs.clients import errors, patching
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource

PLAIN = Resource('kopf.dev', 'v1', 'kopfexamples', namespaced=True)
SPLIT = Resource('kopf.dev', 'v1', 'kopfexamples', namespaced=True, subresources=frozenset({'status'}))
PATH = '/apis/kopf.dev/v1/namespaces/ns/kopfexamples/name'
MERGE = 'application/merge-patch+json'
JSON = 'application/json-patch+json'


def merge(old, new):
    if not isinstance(new, dict):
        return new
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def status_error(status, message, *fields):
    causes = [{'field': field, 'message': message} for field in fields]
    return web.json_response(
        {'kind': 'Status', 'code': status, 'message': message, 'details': {'causes': causes} if causes else {}},
        status=status,
    )


class Object:
    """One object as the API keeps it, with the rules of the API that matter for patching."""

    def __init__(self, server, *, split=False, pruned=(), **body):
        self.split, self.pruned, self.gone, self.interventions = split, pruned, False, []
        self.readable = True
        self.raw = {'metadata': {'name': 'name', 'namespace': 'ns', 'uid': 'uid1', 'resourceVersion': '1'}, **body}
        server.add('PATCH', PATH, self.patch)
        server.add('GET', PATH, self.get)
        self.patch_status = self.patch
        if split:
            server.add('PATCH', f'{PATH}/status', lambda request: self.patch_status(request))

    async def get(self, request):
        if not self.readable:
            return status_error(403, 'forbidden')
        return web.json_response(self.raw) if not self.gone else status_error(404, 'not found')

    async def patch(self, request):
        if self.interventions:
            self.interventions.pop(0)()
        if self.gone:
            return status_error(404, 'not found')
        of_status, data = request.path.endswith('/status'), json.loads(await request.read())
        try:
            new = merge(self.raw, data) if isinstance(data, dict) else apply_ops(self.raw, data)
        except jsonpatch.JsonPatchException:
            return status_error(422, 'the server rejected our request')
        if new['metadata']['resourceVersion'] != self.raw['metadata']['resourceVersion']:
            return status_error(409, 'the object has been modified')
        if of_status:
            new = {**self.raw, 'status': new.get('status')}
        elif self.split:
            new = {**new, 'status': self.raw.get('status')}
        if new['metadata']['uid'] != self.raw['metadata']['uid']:
            return status_error(422, 'field is immutable', 'metadata.uid')
        for field in ('spec', 'status'):
            if (new.get(field) or {}).get('invalid'):
                return status_error(422, 'invalid value', f'{field}.invalid')
        old, self.raw = self.raw, copy.deepcopy({key: value for key, value in new.items() if value is not None})
        for field in self.pruned:
            self.raw.get('spec', {}).pop(field, None)
        if self.raw != old:
            self.touch()
        return web.json_response(self.raw)

    def touch(self):
        self.raw['metadata']['resourceVersion'] = str(int(self.raw['metadata']['resourceVersion']) + 1)

    def hold(self, finalizer):
        self.raw['metadata'].setdefault('finalizers', []).append(finalizer)
        self.touch()

    def replace(self):
        self.raw = {'metadata': {'name': 'name', 'namespace': 'ns', 'uid': 'uid2', 'resourceVersion': '100'}}

    def vanish(self):
        self.gone = True


def append(item, body):
    items = body.setdefault('spec', {}).setdefault('items', [])
    if item not in items:
        items.append(item)


def set_status(body):
    body.setdefault('status', {})['fn'] = True


@pytest.fixture
def apply(client):
    async def apply(patch, *, resource=PLAIN, body=None, uid='uid1', **options):
        return await patching.patch_obj(
            client,
            resource=resource,
            namespace='ns',
            name='name',
            uid=uid,
            patch=patch,
            body=copy.deepcopy(body),
            logger=logging.getLogger('kopf.objects'),
            **options,
        )

    return apply


def sent(server):
    return [
        (seen.path.removeprefix(PATH), seen.headers.get('Content-Type'), json.loads(seen.body or b'null'))
        for seen in server.seen
        if seen.method == 'PATCH'
    ]


async def test_an_empty_patch_is_not_sent(apply, server):
    result = await apply(Patch())
    assert result == patching.PatchResult(None)
    assert not server.seen


async def test_values_are_merged_for_the_uid(apply, server, caplog):
    obj = Object(server, spec={'x': 1, 'y': 2})
    result = await apply(Patch({'spec': {'x': None, 'z': 3}, 'metadata': {'labels': {'a': 'b'}}, 'status': {'s': 1}}))
    assert sent(server) == [
        (
            '',
            MERGE,
            {'spec': {'x': None, 'z': 3}, 'metadata': {'uid': 'uid1', 'labels': {'a': 'b'}}, 'status': {'s': 1}},
        )
    ]
    assert result.body == obj.raw
    assert result.body['spec'] == {'y': 2, 'z': 3}
    assert not result.gone
    assert not result.remaining_fns
    assert 'inconsistencies' not in caplog.text


async def test_without_a_uid_values_are_patched_as_they_are(apply, server):
    Object(server)
    await apply(Patch({'spec': {'x': 1}}), uid=None)
    assert sent(server) == [('', MERGE, {'spec': {'x': 1}})]


async def test_patch_is_not_modified(apply, server):
    Object(server, split=True)
    patch = Patch({'spec': {'x': 1}, 'status': {'y': 1}, 'metadata': {}}, fns=[set_status])
    await apply(patch, resource=SPLIT)
    assert patch == {'spec': {'x': 1}, 'status': {'y': 1}, 'metadata': {}}
    assert patch.fns == [set_status]


async def test_status_goes_by_its_own_request(apply, server):
    obj = Object(server, split=True)
    result = await apply(Patch({'spec': {'x': 1}, 'status': {'y': 2}}), resource=SPLIT)
    assert sent(server) == [
        ('', MERGE, {'spec': {'x': 1}, 'metadata': {'uid': 'uid1'}}),
        ('/status', MERGE, {'status': {'y': 2}, 'metadata': {'uid': 'uid1', 'resourceVersion': '2'}}),
    ]
    assert result.body == obj.raw
    assert (result.body['spec'], result.body['status']) == ({'x': 1}, {'y': 2})


RECORD = {'metadata': {'annotations': {'record': 'success'}}}


def release(body):
    body['metadata'] = {**body['metadata'], 'finalizers': []}


def shape(server):
    """Where the requests go, of which kind they are, and whether the record is in them."""
    return [(path, kind, 'success' in json.dumps(payload)) for path, kind, payload in sent(server)]


WISHES = {
    'nothing': (Patch(), [('', MERGE, True)]),
    'object': (Patch({'spec': {'x': 1}}), [('', MERGE, True)]),
    'status': (Patch({'status': {'y': 2}}), [('/status', MERGE, False), ('', MERGE, True)]),
    'both': (Patch({'spec': {'x': 1}, 'status': {'y': 2}}), [('/status', MERGE, False), ('', MERGE, True)]),
    'function': (Patch(fns=[functools.partial(append, 'a')]), [('', JSON, True)]),
    'function of status': (Patch(fns=[set_status]), [('/status', JSON, False), ('', MERGE, True)]),
    'status and its function': (
        Patch({'status': {'y': 2}}, fns=[set_status]),
        [('/status', JSON, False), ('', MERGE, True)],
    ),
    'functions of both': (
        Patch(fns=[functools.partial(append, 'a'), set_status]),
        [('', JSON, False), ('/status', JSON, False), ('', MERGE, True)],
    ),
    'values of both, function': (
        Patch({'spec': {'x': 1}, 'status': {'y': 2}}, fns=[functools.partial(append, 'a')]),
        [('', MERGE, False), ('/status', MERGE, False), ('', JSON, True)],
    ),
    'all': (
        Patch({'spec': {'x': 1}, 'status': {'y': 2}}, fns=[functools.partial(append, 'a'), set_status]),
        [('', MERGE, False), ('/status', MERGE, False), ('', JSON, False), ('/status', JSON, False), ('', MERGE, True)],
    ),
}


@pytest.mark.parametrize('name', WISHES)
async def test_the_bookkeeping_is_stored_with_the_last_of_the_patch(apply, server, name):
    obj = Object(server, split=True, spec={})
    patch, shapes = WISHES[name]
    result = await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=Patch(RECORD))
    assert shape(server) == shapes
    assert result == patching.PatchResult(obj.raw)
    wanted = patch.applied_to({'spec': {}})
    assert (obj.raw['spec'], obj.raw.get('status')) == (wanted['spec'], wanted.get('status'))
    assert obj.raw['metadata']['annotations'] == {'record': 'success'}


@pytest.mark.parametrize('name', list(WISHES)[1:])
async def test_the_bookkeeping_is_not_stored_without_all_of_the_patch(apply, server, name):
    obj = Object(server, split=True, spec={})
    patch, _ = WISHES[name]
    invalid = {'invalid': True}
    patch = Patch(
        dict.fromkeys(patch, invalid),
        fns=[lambda body: body['status' if 'status' in name else 'spec'].update(invalid)] if patch.fns else [],
    )
    patch.fns[:0] = [lambda body: body.setdefault('status', {})] if patch.fns else []
    with pytest.raises(errors.APIUnprocessableError):
        await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=Patch(RECORD))
    assert 'annotations' not in obj.raw['metadata']


@pytest.mark.parametrize('name', ['function', 'functions of both', 'function of status', 'all'])
async def test_the_bookkeeping_is_not_stored_while_functions_conflict(apply, server, name):
    obj = Object(server, split=True, spec={})
    obj.interventions = [obj.touch] * 20
    patch, _ = WISHES[name]
    result = await apply(Patch(fns=patch.fns), resource=SPLIT, body=obj.raw, bookkeeping=Patch(RECORD))
    assert result.remaining_fns
    assert 'annotations' not in obj.raw['metadata']


@pytest.mark.parametrize('readable', [True, False])
@pytest.mark.parametrize('name', ['function', 'function of status'])
async def test_functions_are_sent_again_at_once_with_the_conclusion(apply, server, name, readable):
    obj = Object(server, split=True, spec={})
    obj.readable = readable
    body = copy.deepcopy(obj.raw)
    obj.touch()
    result = await apply(WISHES[name][0], resource=SPLIT, body=body, bookkeeping=Patch(RECORD))
    assert result == patching.PatchResult(obj.raw)
    assert 'annotations' in obj.raw['metadata']


async def test_conclusions_in_the_status_go_last(apply, server):
    obj = Object(server, split=True, spec={})
    patch = Patch({'spec': {'x': 1}, 'status': {'y': 2}})
    await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=Patch({'status': {'record': 'success'}}))
    assert shape(server) == [('', MERGE, False), ('/status', MERGE, True)]
    await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=Patch({**RECORD, 'status': {'record': None}}))
    assert shape(server)[2:] == [('/status', MERGE, False), ('', MERGE, True), ('/status', MERGE, False)]
    assert obj.raw['status'] == {'y': 2}


@pytest.mark.parametrize(
    'patch, paths',
    [
        (Patch(), ['/status', '']),
        (Patch({'status': {'y': 2}}), ['/status', '']),
        (Patch({'spec': {'x': 1}, 'status': {'y': 2}}), ['', '/status', '']),
    ],
)
@pytest.mark.parametrize('fns', [[], [release]])
async def test_records_are_purged_after_the_handled_state_is_stored_in_the_status(apply, server, patch, paths, fns):
    obj = Object(server, split=True, spec={})
    obj.raw['metadata'].update(annotations={'record': 'success'}, finalizers=['own'])
    purge = {'metadata': {'annotations': {'record': None}}}
    handled = {'status': {'handled': {'x': 1}}}
    bookkeeping = Patch({**purge, **handled}, fns=fns)
    records = []
    obj.interventions = [lambda: records.append({**obj.raw['metadata'].get('annotations', {})})] * 5
    result = await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=bookkeeping, first=handled)
    assert result == patching.PatchResult(obj.raw)
    assert [path for path, _, _ in sent(server)] == paths
    assert records == [{'record': 'success'}] * len(paths)
    assert obj.raw['metadata'].get('annotations', {}) == {}
    assert obj.raw['status'] == {**patch.get('status', {}), 'handled': {'x': 1}}


OF_OBJECT = {'metadata': {'annotations': {'first': 'x'}}}
OF_STATUS = {'status': {'first': 'x'}}
REST_OF_OBJECT = {'metadata': {'annotations': {'rest': 'x'}}}
REST_OF_STATUS = {'status': {'rest': 'x'}}


@pytest.mark.parametrize(
    'first, rest, paths',
    [
        ([OF_OBJECT], [REST_OF_OBJECT], ['']),
        ([OF_STATUS], [REST_OF_STATUS], ['/status']),
        ([OF_OBJECT], [REST_OF_STATUS], ['', '/status']),
        ([OF_STATUS], [REST_OF_OBJECT], ['/status', '']),
        ([OF_OBJECT, OF_STATUS], [REST_OF_OBJECT], ['/status', '']),
        ([OF_OBJECT, OF_STATUS], [REST_OF_STATUS], ['', '/status']),
        ([OF_OBJECT], [REST_OF_OBJECT, REST_OF_STATUS], ['', '/status']),
        ([OF_STATUS], [REST_OF_OBJECT, REST_OF_STATUS], ['/status', '']),
        ([OF_OBJECT, OF_STATUS], [REST_OF_OBJECT, REST_OF_STATUS], ['/status', '', '/status']),
    ],
)
async def test_the_first_values_of_the_bookkeeping_are_never_stored_after_the_others(apply, server, first, rest, paths):
    obj = Object(server, split=True, spec={})
    first, whole = (functools.reduce(merge, parts) for parts in (first, [*first, *rest]))
    states = []
    obj.interventions = [lambda: states.append(copy.deepcopy(obj.raw))] * 5
    await apply(Patch(), resource=SPLIT, body=obj.raw, bookkeeping=Patch(whole), first=first)
    assert [path for path, _, _ in sent(server)] == paths
    assert merge(obj.raw, whole) == obj.raw
    for state in states:
        assert merge(state, first) == state or not json.dumps(state).count('rest')


@pytest.mark.parametrize(
    'patch, kinds',
    [(Patch(), [JSON]), (Patch({'spec': {'x': 1}}), [JSON]), (Patch({'status': {'y': 2}}), [MERGE, JSON])],
)
async def test_functions_of_the_bookkeeping_go_with_its_values(apply, server, patch, kinds):
    obj = Object(server, split=True, spec={})
    await apply(patch, resource=SPLIT, body=obj.raw, bookkeeping=Patch(RECORD, fns=[release]))
    assert [kind for _, kind, _ in sent(server)] == kinds
    assert obj.raw['metadata']['finalizers'] == []


def delete(obj, *others):
    obj.raw['status'] = {'record': 'success'}
    obj.raw['metadata'].update(deletionTimestamp='2030-01-01T00:00:00Z', finalizers=['own', *others])
    return Patch({'status': {'record': None}}, fns=[functools.partial(set_finalizers, others)])


def set_finalizers(finalizers, body):
    body['metadata'] = {**body['metadata'], 'finalizers': [*finalizers]}


async def test_records_in_the_status_of_deleted_objects_are_purged_after_the_finalizer_is_removed(apply, server):
    obj = Object(server, split=True)
    bookkeeping = delete(obj, 'other')
    result = await apply(Patch({'status': {'y': 2}}), resource=SPLIT, body=obj.raw, bookkeeping=bookkeeping)
    assert [path for path, _, _ in sent(server)] == ['/status', '', '/status']
    assert result == patching.PatchResult(obj.raw)
    assert (obj.raw['metadata']['finalizers'], obj.raw['status']) == (['other'], {'y': 2})


async def test_records_in_the_status_of_deleted_objects_stay_while_the_finalizer_does(apply, server):
    obj = Object(server, split=True)
    bookkeeping = delete(obj)
    body, obj.interventions = copy.deepcopy(obj.raw), [functools.partial(obj.hold, str(n)) for n in range(20)]
    result = await apply(Patch(), resource=SPLIT, body=body, bookkeeping=bookkeeping)
    assert result.remaining_fns
    assert obj.raw['status'] == {'record': 'success'}


@pytest.mark.parametrize('fenced', [False, True])
async def test_finalizers_are_stored_although_others_keep_changing_the_object(client, apply, server, fenced):
    if fenced:
        client.fence(lambda: None)
    obj = Object(server)
    obj.raw['metadata']['finalizers'] = ['other']
    body, obj.interventions = copy.deepcopy(obj.raw), [obj.touch] * 20
    result = await apply(
        Patch(), body=body, bookkeeping=Patch(fns=[functools.partial(set_finalizers, ['other', 'own'])])
    )
    assert result.remaining_fns is fenced
    assert obj.raw['metadata']['finalizers'] == (['other'] if fenced else ['other', 'own'])


async def test_finalizers_of_others_are_never_lost(apply, server):
    obj = Object(server)
    obj.raw['metadata']['finalizers'] = ['other']
    body, obj.interventions = copy.deepcopy(obj.raw), [functools.partial(obj.hold, 'another')]
    patch = Patch(fns=[functools.partial(set_finalizers, ['other', 'own'])])
    assert (await apply(Patch(), body=body, bookkeeping=patch)).remaining_fns
    assert obj.raw['metadata']['finalizers'] == ['other', 'another']


async def test_records_in_the_status_are_gone_with_the_object_and_its_last_finalizer(apply, server):
    obj = Object(server, split=True)
    bookkeeping = delete(obj)
    await apply(Patch(), resource=SPLIT, body=obj.raw, bookkeeping=bookkeeping)
    assert [path for path, _, _ in sent(server)] == ['']


@pytest.mark.parametrize('known', [True, False])
async def test_a_patch_of_the_status_alone_goes_to_the_subresource(apply, server, known):
    obj = Object(server, split=True)
    await apply(Patch({'status': {'y': 2}}), resource=SPLIT, body=obj.raw if known else None)
    assert [path for path, _, _ in sent(server)] == ['/status']
    assert len(server.seen) == (1 if known else 2)
    assert obj.raw['status'] == {'y': 2}


async def test_status_of_a_changed_object(apply, server):
    obj = Object(server, split=True)
    body = copy.deepcopy(obj.raw)
    obj.touch()
    obj.interventions = [obj.touch, obj.touch, lambda: None]
    result = await apply(Patch({'status': {'y': 2}}), resource=SPLIT, body=body)
    assert obj.raw['status'] == {'y': 2}
    assert result.body == obj.raw


@pytest.mark.parametrize('status', [{'x': {'y': 1}, 'z': 1}, {}])
async def test_status_of_an_object_that_others_keep_changing(apply, server, status):
    obj = Object(server, split=True, status=status)
    body, obj.interventions = copy.deepcopy(obj.raw), [obj.touch] * 20
    await apply(Patch({'status': {'x': {'y': 2}, 'z': None, 'items': ['a']}}), resource=SPLIT, body=body)
    assert obj.raw['status'] == {'x': {'y': 2}, 'items': ['a']}
    assert len(server.seen) == 2


async def test_status_of_an_object_whose_status_others_keep_changing(apply, server):
    obj = Object(server, split=True, status={})
    body = copy.deepcopy(obj.raw)

    def change():
        obj.raw['status'] = {'x': {'other': obj.raw['metadata']['resourceVersion']}}
        obj.touch()

    obj.interventions = [change, change]
    await apply(Patch({'status': {'x': {'y': 2}}}), resource=SPLIT, body=body)
    assert obj.raw['status'] == {'x': {'other': '2', 'y': 2}}


async def test_status_is_not_given_to_another_object_of_that_name(apply, server):
    obj = Object(server, split=True, status={'x': 1})
    body, obj.interventions = copy.deepcopy(obj.raw), [obj.touch, obj.replace]
    result = await apply(Patch({'status': {'x': 2}}), resource=SPLIT, body=body)
    assert result.gone and 'status' not in obj.raw


@pytest.mark.parametrize(
    'value, stored',
    [
        pytest.param({1, 2}, None, id='set'),
        pytest.param({'a': {'b': b'x', 'c': 1}}, {'a': {'c': 1}}, id='nested'),
        pytest.param([1, {2}], None, id='list'),
        pytest.param(float('nan'), None, id='nan'),
        pytest.param(threading.Lock(), None, id='lock'),
        pytest.param((1, 2), [1, 2], id='tuple'),
    ],
)
@pytest.mark.parametrize('field', ['spec', 'status'])
@pytest.mark.parametrize('known', [True, False])
async def test_functions_cannot_store_what_json_cannot_express(apply, server, caplog, value, stored, field, known):
    def put(body):
        body.setdefault(field, {}).update(value=value, good=1)

    obj = Object(server, split=True, spec={}, status={})
    patch, bookkeeping = Patch({'spec': {'x': 1}}, fns=[put]), Patch({'metadata': {'annotations': {'record': '1'}}})
    result = await apply(patch, resource=SPLIT, body=obj.raw if known else None, bookkeeping=bookkeeping)
    assert not result.remaining_fns
    expected = {'good': 1} | ({} if stored is None else {'value': stored}) | ({'x': 1} if field == 'spec' else {})
    assert obj.raw[field] == expected and obj.raw['metadata']['annotations'] == {'record': '1'}
    assert (f'{field}.value' in caplog.text) is (value != (1, 2))


async def test_lists_to_which_functions_cannot_append_stay(apply, server, caplog):
    obj = Object(server, spec={'items': ['a'], 'x': 1})
    patch = Patch(fns=[lambda body: body['spec'].update(items=['a', {1}, 'b'], y={1: {2: 3}})])
    result = await apply(patch, body=obj.raw)
    assert not result.remaining_fns
    assert obj.raw['spec'] == {'items': ['a'], 'x': 1, 'y': {'1': {'2': 3}}}
    assert 'spec.items cannot be stored' in caplog.text


async def test_functions_cannot_let_an_object_contain_itself(apply, server, caplog):
    obj = Object(server, spec={'x': 1})
    patch = Patch(fns=[lambda body: body['spec'].update(self=body['spec'], y=1)])
    result = await apply(patch, body=obj.raw)
    assert not result.remaining_fns
    assert obj.raw['spec'] == {'x': 1, 'y': 1}


async def test_all_requests_in_order(apply, server):
    obj = Object(server, split=True, spec={})
    patch = Patch({'spec': {'x': 1}, 'status': {'y': 2}}, fns=[functools.partial(append, 'a'), set_status])
    result = await apply(patch, resource=SPLIT, body=obj.raw)
    assert [(path, kind) for path, kind, _ in sent(server)] == [
        ('', MERGE),
        ('/status', MERGE),
        ('', JSON),
        ('/status', JSON),
    ]
    assert sent(server)[2][2][0] == {'op': 'test', 'path': '/metadata/resourceVersion', 'value': '3'}
    assert sent(server)[3][2][0] == {'op': 'test', 'path': '/metadata/resourceVersion', 'value': '4'}
    assert obj.raw['spec'] == {'x': 1, 'items': ['a']}
    assert obj.raw['status'] == {'y': 2, 'fn': True}
    assert result == patching.PatchResult(obj.raw)


async def test_a_patch_of_functions_alone_is_sent_as_a_json_patch(apply, server):
    obj = Object(server, spec={'items': ['a']})
    result = await apply(Patch(fns=[functools.partial(append, 'b')]), body=obj.raw)
    assert sent(server) == [
        (
            '',
            JSON,
            [
                {'op': 'test', 'path': '/metadata/resourceVersion', 'value': '1'},
                {'op': 'add', 'path': '/spec/items/1', 'value': 'b'},
            ],
        )
    ]
    assert result == patching.PatchResult(obj.raw)


async def test_functions_over_an_unknown_body(apply, server):
    obj = Object(server, spec={'items': ['a']})
    await apply(Patch(fns=[functools.partial(append, 'b')]))
    assert obj.raw['spec'] == {'items': ['a', 'b']}


async def test_functions_that_change_nothing_need_no_request(apply, server):
    obj = Object(server, spec={'items': ['a']})
    result = await apply(Patch(fns=[functools.partial(append, 'a')]), body=obj.raw)
    assert result == patching.PatchResult(None)
    assert not server.seen


async def test_values_and_functions_in_one_request(apply, server):
    obj = Object(server, spec={'items': ['a']})
    patch = Patch({'spec': {'x': 1}}, fns=[functools.partial(append, 'b')])
    result = await apply(patch, body=obj.raw)
    assert [kind for _, kind, _ in sent(server)] == [JSON]
    assert obj.raw['spec'] == {'items': ['a', 'b'], 'x': 1}
    assert result == patching.PatchResult(obj.raw)


async def test_values_and_functions_in_one_request_if_the_object_has_changed(apply, server):
    obj = Object(server, spec={'items': ['a']})
    body = copy.deepcopy(obj.raw)
    obj.raw['spec']['items'].insert(0, 'z')
    obj.touch()
    result = await apply(Patch({'spec': {'x': 1}}, fns=[functools.partial(append, 'b')]), body=body)
    assert [kind for _, kind, _ in sent(server)] == [JSON, MERGE, JSON]
    assert obj.raw['spec'] == {'items': ['z', 'a', 'b'], 'x': 1}
    assert result == patching.PatchResult(obj.raw)


async def test_functions_over_an_object_that_has_changed(apply, server, caplog):
    caplog.set_level(0)
    obj = Object(server, spec={'items': ['a']})
    body = copy.deepcopy(obj.raw)
    obj.touch()
    result = await apply(Patch(fns=[functools.partial(append, 'b')]), body=body)
    assert result == patching.PatchResult(None, remaining_fns=True)
    assert obj.raw['spec'] == {'items': ['a']}
    assert 'Could not apply the patch in full' in caplog.text


async def test_values_are_applied_even_if_functions_are_not(apply, server):
    obj = Object(server, spec={})
    obj.interventions = [obj.touch, lambda: None, obj.touch]
    result = await apply(Patch({'spec': {'x': 1}}, fns=[functools.partial(append, 'b')]), body=obj.raw)
    assert obj.raw['spec'] == {'x': 1}
    assert result.remaining_fns
    assert result.body['spec'] == {'x': 1}


async def test_an_object_that_functions_make_invalid_is_an_error(apply, server):
    obj = Object(server, spec={})
    with pytest.raises(errors.APIUnprocessableError, match='invalid value'):
        await apply(Patch(fns=[lambda body: body['spec'].update(invalid=True)]), body=obj.raw)


async def test_an_object_that_values_make_invalid_is_an_error(apply, server):
    Object(server)
    with pytest.raises(errors.APIUnprocessableError, match='invalid value'):
        await apply(Patch({'spec': {'invalid': True}}))


async def test_a_failing_function_prevents_the_patch(apply, server):
    obj = Object(server, spec={})
    with pytest.raises(ZeroDivisionError):
        await apply(Patch(fns=[lambda body: 1 / 0]), body=obj.raw)
    assert not server.seen


PATCHES = [
    Patch({'spec': {'x': 1}}),
    Patch({'status': {'x': 1}}),
    Patch({'spec': {'x': 1}, 'status': {'x': 1}}),
    Patch(fns=[functools.partial(append, 'x')]),
    Patch({'spec': {'x': 1}}, fns=[functools.partial(append, 'x')]),
    Patch({'status': {'x': 1}}, fns=[set_status]),
]


@pytest.mark.parametrize('split', [True, False])
@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('patch', PATCHES)
async def test_objects_that_are_gone_are_not_patched(apply, server, caplog, patch, known, split):
    caplog.set_level(0)
    obj = Object(server, split=split)
    obj.gone = True
    result = await apply(patch, body=obj.raw if known else None, resource=SPLIT if split else PLAIN)
    assert result == patching.PatchResult(None, gone=True)
    assert 'Patching was skipped: the object does not exist anymore' in caplog.text


@pytest.mark.parametrize('patch', PATCHES)
async def test_a_resource_that_is_not_served_is_reported_without_an_error(apply, server, patch):
    """There is no telling whether the object exists: maybe, in another version of the resource."""
    server.add('PATCH', PATH, (404, b'404 page not found'))
    server.add('PATCH', f'{PATH}/status', (404, b'404 page not found'))
    server.add('GET', PATH, (404, b'404 page not found'))
    result = await apply(patch)
    assert result == patching.PatchResult(None, unserved=True)


@pytest.mark.parametrize('split', [True, False])
@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('patch', PATCHES)
async def test_successors_are_left_alone(apply, server, patch, known, split):
    obj = Object(server, split=split)
    body = copy.deepcopy(obj.raw)
    obj.replace()
    before = copy.deepcopy(obj.raw)
    result = await apply(patch, body=body if known else None, resource=SPLIT if split else PLAIN)
    assert obj.raw == before
    assert result.body is None
    assert result.gone or result.remaining_fns


@pytest.mark.parametrize('patch', PATCHES)
@pytest.mark.parametrize('number', [1, 2, 3])
async def test_successors_in_the_middle_are_left_alone(apply, server, patch, number):
    obj = Object(server, split=True)
    body = copy.deepcopy(obj.raw)
    obj.interventions = [*[lambda: None] * (number - 1), obj.replace]
    await apply(patch, body=body, resource=SPLIT)
    if obj.raw['metadata']['uid'] == 'uid2':
        assert set(obj.raw) == {'metadata'}


async def test_gone_in_the_middle(apply, server):
    obj = Object(server, split=True)
    obj.interventions = [lambda: None, obj.vanish]
    result = await apply(Patch({'spec': {'x': 1}, 'status': {'y': 1}}), resource=SPLIT)
    assert result == patching.PatchResult(None, gone=True)


STATUS_PATCHES = [patch for patch in PATCHES if 'status' in patch] + [Patch(fns=[set_status])]
BOOKKEEPING = Patch({'metadata': {'annotations': {'progress': 'done'}}})


def assert_all_stored(obj, patch, result, caplog):
    """Check that the status and the bookkeeping are stored, and nothing is complained of."""
    assert result == patching.PatchResult(obj.raw)
    assert obj.raw['status'] == patch.applied_to({})['status']
    assert obj.raw['metadata']['annotations'] == {'progress': 'done'}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('patch', STATUS_PATCHES)
async def test_the_status_is_sent_with_the_object_if_its_endpoint_is_missing(apply, server, caplog, patch, known):
    obj = Object(server, split=False)
    server.add('PATCH', f'{PATH}/status', 404)
    body = obj.raw if known else None
    result = await apply(patch, body=body, resource=SPLIT, bookkeeping=BOOKKEEPING)
    assert_all_stored(obj, patch, result, caplog)


@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('patch', STATUS_PATCHES)
async def test_the_status_is_sent_until_the_api_servers_agree_on_its_endpoint(
    apply, server, sleeps, caplog, patch, known
):
    obj = Object(server, split=True)
    lagging = [status_error(404, 'not found') for _ in range(3)]

    async def patch_status(request):
        return lagging.pop() if lagging else await obj.patch(request)

    obj.patch_status = patch_status
    body = obj.raw if known else None
    result = await apply(patch, body=body, resource=SPLIT, bookkeeping=BOOKKEEPING)
    assert_all_stored(obj, patch, result, caplog)


@pytest.mark.parametrize('patch', STATUS_PATCHES)
async def test_a_status_that_has_no_place_holds_up_nothing_else(apply, server, sleeps, caplog, patch):
    obj = Object(server, split=True)
    obj.patch_status = lambda request: asyncio.sleep(0, status_error(404, 'not found'))
    result = await apply(patch, body=obj.raw, resource=SPLIT, bookkeeping=BOOKKEEPING)
    assert result == patching.PatchResult(obj.raw)
    assert obj.raw['metadata']['annotations'] == {'progress': 'done'}
    assert "The status is lost: the API has no status endpoint for this object" in caplog.text
    assert sum(sleeps) < 5
    assert len(server.seen) < 50


async def test_functions_are_not_sent_with_an_object_that_has_changed_meanwhile(apply, server):
    obj = Object(server, split=False)
    body = copy.deepcopy(obj.raw)

    async def change(request):
        obj.raw['status'] = {'fn': 'of another client'}
        obj.touch()
        return status_error(404, 'not found')

    server.add('PATCH', f'{PATH}/status', change, 404)
    result = await apply(Patch(fns=[set_status]), body=body, resource=SPLIT)
    assert result.remaining_fns
    assert obj.raw['status'] == {'fn': 'of another client'}


async def test_precondition_of_uid_in_the_storage(apply, server):
    server.add(
        'PATCH', PATH, (409, {'message': 'Precondition failed: UID in precondition: uid1, UID in object meta: u'})
    )
    result = await apply(Patch({'spec': {'x': 1}}))
    assert result.gone


async def test_conflicts_are_repeated(apply, server, sleeps):
    server.add('PATCH', PATH, 409, 409, {'metadata': {'uid': 'uid1'}, 'spec': {'x': 1}})
    result = await apply(Patch({'spec': {'x': 1}}))
    assert result.body['spec'] == {'x': 1}
    assert len(server.seen) == 3


async def test_conflicts_are_repeated_not_for_ever(apply, server, sleeps):
    server.add('PATCH', PATH, 409)
    with pytest.raises(errors.APIConflictError):
        await apply(Patch({'spec': {'x': 1}}))
    assert len(server.seen) <= 10
    assert sum(sleeps) < 5


async def test_inconsistencies_are_reported(apply, server, caplog):
    Object(server, pruned=['unknown'], spec={'x': 1})
    spec = {'unknown': 'a', 'x': None, 'y': {'z': 1, 'w': None}}
    await apply(Patch({'spec': spec, 'metadata': {'labels': {'a': 'b'}}}))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "Merge-patching finished with inconsistencies: (('remove', ('spec', 'unknown'), 'a', None),)"
    ]


async def test_all_inconsistencies_are_reported(apply, server, caplog):
    server.add('PATCH', PATH, {'metadata': {'uid': 'uid1'}, 'spec': {'kept': 1, 'changed': 2}})
    await apply(Patch({'spec': {'kept': None, 'changed': 3, 'nested': {'lost': 4}, 'absent': None}}))
    [message] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert message == (
        "Merge-patching finished with inconsistencies: ("
        "('add', ('spec', 'kept'), None, 1), ('change', ('spec', 'changed'), 3, 2), "
        "('remove', ('spec', 'nested', 'lost'), 4, None))"
    )


async def test_with_a_fence_values_carry_the_version_they_were_decided_on(client, apply, server):
    client.fence(lambda: None)
    obj = Object(server, split=True, spec={'x': 1})
    await apply(Patch({'spec': {'x': 2}, 'status': {'y': 1}}), resource=SPLIT, body=obj.raw)
    assert [data['metadata'] for _, _, data in sent(server)] == [
        {'uid': 'uid1', 'resourceVersion': '1'},
        {'uid': 'uid1', 'resourceVersion': '2'},
    ]
    assert obj.raw['spec'] == {'x': 2} and obj.raw['status'] == {'y': 1}


@pytest.mark.parametrize('readable', [True, False])
async def test_with_a_fence_a_changed_object_is_read_before_the_patch_is_sent_again(client, apply, server, readable):
    client.fence(lambda: None)
    obj = Object(server, spec={'x': 1})
    obj.readable = readable
    body = copy.deepcopy(obj.raw)
    obj.touch()
    result = await apply(Patch({'spec': {'y': 2}}), body=body)
    assert obj.raw['spec'] == {'x': 1, 'y': 2} and result.body == obj.raw
    versions = [int(data['metadata']['resourceVersion']) for _, _, data in sent(server) if 'spec' in data]
    assert versions[0] == 1 and len(versions) == 2 and versions[1] == int(obj.raw['metadata']['resourceVersion']) - 1


async def test_a_patch_is_not_sent_again_when_the_fence_has_closed_meanwhile(client, apply, server):
    obj = Object(server, spec={'x': 1})
    body = copy.deepcopy(obj.raw)
    obj.touch()  # by the next leader
    permitted = [None]

    def check():
        if not permitted:
            raise errors.APIFencedError("no longer the leader")
        permitted.pop()

    client.fence(check)
    with pytest.raises(errors.APIFencedError):
        await apply(Patch({'spec': {'x': 2}}), body=body)
    assert obj.raw['spec'] == {'x': 1} and len(sent(server)) == 1


def test_coroutines_in_patches_are_reported(caplog):
    work = asyncio.sleep(0)
    patch = Patch({'status': {'work': work, 'done': True}})
    patching.discard_unstorable(patch, logging.getLogger())
    work.close()
    assert patch == {'status': {'done': True}}
    assert "JSON cannot express this coroutine. Write await before the call that has returned it." in caplog.text


DENIALS = ['admission webhook "x" denied the', "ValidatingAdmissionPolicy 'x' with binding 'y' denied"]


@pytest.mark.parametrize('who', DENIALS)
async def test_denials_of_functions_are_refusals(apply, server, who):
    class Denied(Object):
        async def patch(self, request):
            return status_error(422, f'{who} request: no')

    obj = Denied(server, spec={})
    with pytest.raises(errors.APIUnprocessableError):
        await apply(Patch(fns=[functools.partial(append, 'a')]), body=obj.raw)
