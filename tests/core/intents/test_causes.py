"""What handlers are told, by the kinds of causes."""

import datetime
import logging

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.references import Resource
from kopf._core.actions.handler_states import HandlerState
from kopf._core.intents.causes import (
    Activity,
    ActivityCause,
    ChangingCause,
    ConversionCause,
    DaemonCause,
    Identity,
    IndexingCause,
    Reason,
    SpawningCause,
    WatchingCause,
    WebhookCause,
)
from kopf._core.intents.handlers import ChangingHandler, ResourceHandler

RAW = {
    'apiVersion': 'kopf.dev/v1',
    'kind': 'KopfExample',
    'spec': {'a': {'b': 1}},
    'status': {'s': 1},
    'metadata': {'name': 'x', 'namespace': 'ns', 'uid': 'uid1', 'labels': {'l': '1'}, 'annotations': {'n': '2'}},
}
COMMON = {'logger', 'memo', 'param', 'retry', 'started', 'runtime'}
RESOURCE = COMMON | {
    'resource',
    'patch',
    'body',
    'spec',
    'meta',
    'status',
    'uid',
    'name',
    'namespace',
    'labels',
    'annotations',
}
STATE = HandlerState(started=datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=9), retries=3)


def make(cls, **kwargs):
    if cls is not ActivityCause:
        kwargs = {
            'resource': Resource('kopf.dev', 'v1', 'kopfexamples'),
            'body': Body(RAW),
            'patch': kopf.Patch(),
            **kwargs,
        }
    return cls(logger=logging.getLogger('test'), **{'memo': kopf.Memo(), **kwargs})


def handler(cls=ResourceHandler, **options):
    return cls(id='fn', fn=lambda **_: None, **options)


@pytest.mark.parametrize(
    'cause, names',
    [
        (
            make(ActivityCause, activity=Activity.STARTUP, settings=kopf.OperatorSettings()),
            COMMON | {'settings', 'activity'},
        ),
        (make(WatchingCause, event={'type': None, 'object': RAW}), RESOURCE | {'event', 'type'}),
        (make(IndexingCause), RESOURCE),
        (make(SpawningCause), RESOURCE),
        (make(DaemonCause, stopped=object(), identity=Identity('uid1', 'x', 'ns')), RESOURCE | {'stopped'}),
        (make(ChangingCause, reason=Reason.CREATE), RESOURCE | {'reason', 'old', 'new', 'diff'}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, set) else '',
)
def test_handlers_get_the_arguments_of_their_cause(cause, names):
    assert set(cause.kwargs_for(handler(), STATE)) == names
    assert names - set(cause.kwargs_for(handler())) == {'retry', 'started', 'runtime'}  # filters have no attempts


CAUSES = [
    make(ActivityCause, activity=Activity.STARTUP, settings=kopf.OperatorSettings()),
    make(WatchingCause, event={'type': None, 'object': RAW}),
    make(IndexingCause, indices={'idx': object(), 'spec': object()}),
    make(DaemonCause, stopped=object(), identity=Identity('uid2', 'y', None)),
    make(
        ChangingCause,
        reason=Reason.UPDATE,
        old={'a': {'b': 1}},
        new={'a': {'b': 2}},
        diff=diff({'a': {'b': 1}}, {'a': {'b': 2}}),
    ),
    make(
        WebhookCause,
        dryrun=True,
        reason=None,
        webhook=None,
        headers={},
        sslpeer={},
        userinfo={'u': 1},
        warnings=[],
        operation='CONNECT',
        subresource='exec',
        name='other',
        namespace='elsewhere',
    ),
    make(
        WebhookCause,
        dryrun=True,
        reason=None,
        webhook=None,
        headers={},
        sslpeer={},
        userinfo={},
        warnings=[],
        operation='CONNECT',
        subresource='exec',
        name='other',
        namespace='elsewhere',
        body=Body({}),
    ),
    make(ConversionCause, from_version='v1', to_version='v2', headers={}, sslpeer={}),
]


@pytest.mark.parametrize('field', [None, ('a',)], ids=['whole', 'field'])
@pytest.mark.parametrize('cause', CAUSES, ids=lambda cause: type(cause).__name__)
@pytest.mark.parametrize('state', [STATE, None], ids=['handler', 'filter'])
def test_named_arguments_are_the_same_as_those_of_all(cause, field, state):
    fn = handler(field=field, param='p')
    everything = cause.all_kwargs(fn, state)
    for name, value in everything.items():
        picked = cause.pick_kwargs((name, 'nosuch'), fn, state)
        assert picked.keys() == {name}
        assert name == 'runtime' or picked[name] is value or picked[name] == value
    assert cause.pick_kwargs(tuple(everything), fn, state).keys() == everything.keys()
    assert cause.pick_kwargs(('retry',), fn, state) == ({} if state is None else {'retry': 3})


def test_only_the_arguments_that_a_function_names_are_made():
    class Unreadable:
        metadata = property(lambda _: pytest.fail("It is not asked for."))
        spec = status = metadata

    cause = make(ChangingCause, body=Unreadable(), reason=Reason.UPDATE)

    def named(reason, patch, nosuch=None): ...

    fn = ChangingHandler(id='fn', fn=named, when=lambda diff: True, value=lambda value, param: True, field=('a',))
    assert cause.kwargs_for(fn, STATE) == {'reason': Reason.UPDATE, 'patch': cause.patch}
    assert cause.kwargs_of_callback(fn.when, fn) == {'diff': ()}
    assert cause.kwargs_of_callback(fn.value, fn, positional=1) == {'param': None}


def test_the_arguments_of_timers_are_made_without_parsing_their_packed_object():
    class Unparsed:
        def __getitem__(self, index):
            pytest.fail("The object is parsed.")

    body = Body.living_in(Unparsed())
    cause = make(DaemonCause, body=body, stopped=object(), identity=Identity('uid1', 'x', 'ns'))
    kwargs = cause.kwargs_for(handler(), STATE)
    assert (kwargs['name'], kwargs['namespace'], kwargs['uid']) == ('x', 'ns', 'uid1')


def test_handlers_get_the_parts_of_the_object():
    cause = make(SpawningCause)
    kwargs = cause.kwargs_for(handler())
    assert (kwargs['name'], kwargs['namespace'], kwargs['uid']) == ('x', 'ns', 'uid1')
    assert kwargs['spec'] == {'a': {'b': 1}} and kwargs['status'] == {'s': 1}
    assert kwargs['labels'] == {'l': '1'} and kwargs['annotations'] == {'n': '2'}
    assert kwargs['body'] is cause.body and kwargs['patch'] is cause.patch and kwargs['meta'] == RAW['metadata']


def test_handlers_get_the_state_of_the_attempt():
    kwargs = make(SpawningCause).kwargs_for(handler(param={'p': 1}), STATE)
    assert kwargs['param'] == {'p': 1} and kwargs['retry'] == 3 and kwargs['started'] is STATE.started
    assert kwargs['runtime'] >= datetime.timedelta(seconds=9)


def test_indices_win_over_arguments_of_the_same_name():
    index = object()
    kwargs = make(SpawningCause, indices={'idx': index, 'spec': index}).kwargs_for(handler())
    assert kwargs['idx'] is index and kwargs['spec'] is index  # the user has named it so


def test_handlers_do_not_share_their_kwargs():
    cause = make(ChangingCause, reason=Reason.UPDATE)
    one, two = cause.kwargs_for(handler(param=1)), cause.kwargs_for(handler(param=2))
    one['x'] = 'y'
    assert one['param'] == 1 and two['param'] == 2 and 'x' not in two


def test_handlers_of_fields_get_the_change_of_their_field():
    old, new = {'spec': {'a': {'b': 1}, 'c': 1}}, {'spec': {'a': {'b': 2}}}
    cause = make(ChangingCause, reason=Reason.UPDATE, old=old, new=new, diff=diff(old, new))
    whole = cause.kwargs_for(handler(ChangingHandler), STATE)
    assert (whole['old'], whole['new'], whole['reason']) == (old, new, 'update')
    assert set(whole['diff']) == {('change', ('spec', 'a', 'b'), 1, 2), ('remove', ('spec', 'c'), 1, None)}
    part = cause.kwargs_for(handler(ChangingHandler, field=('spec', 'a')), STATE)
    assert (part['old'], part['new'], part['diff']) == ({'b': 1}, {'b': 2}, (('change', ('b',), 1, 2),))
    exact = cause.kwargs_for(handler(ChangingHandler, field=('spec', 'a', 'b')), STATE)
    assert (exact['old'], exact['new'], exact['diff']) == (1, 2, (('change', (), 1, 2),))
    absent = cause.kwargs_for(handler(ChangingHandler, field=('spec', 'z', 'z')), STATE)
    assert (absent['old'], absent['new'], absent['diff']) == (None, None, ())


def test_filters_of_handlers_for_a_field_see_the_whole_change():
    old, new = {'spec': {'a': 1, 'c': 1}}, {'spec': {'a': 2}}
    cause = make(ChangingCause, reason=Reason.UPDATE, old=old, new=new, diff=diff(old, new))
    kwargs = cause.kwargs_for(handler(ChangingHandler, field=('spec', 'a')))
    assert (kwargs['old'], kwargs['new'], kwargs['diff']) == (old, new, diff(old, new))


@pytest.mark.parametrize('metadata, deleted', [({}, False), ({'deletionTimestamp': '2030-01-01T00:00:00Z'}, True)])
def test_causes_tell_whether_the_object_is_being_deleted(metadata, deleted):
    cause = make(ChangingCause, reason=Reason.RESUME, body=Body({'metadata': {'name': 'x', **metadata}}))
    assert cause.deleted is deleted


def test_reasons_are_strings():
    assert Reason.CREATE == 'create' and str(Reason.CREATE) == 'create' and f'{Reason.CREATE}' == 'create'
