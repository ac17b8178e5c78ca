import datetime
import json
import logging
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._cogs.configs.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    ProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch

FN = HandlerId('fn')
LONG = HandlerId('x' * 60)
LONG_V2 = 'kopf.zalando.org/' + 'x' * 60
LONG_V1 = 'kopf.zalando.org/' + 'x' * 39 + '-cZCdkw'

RECORD: Any = {
    'started': '2020-12-31T23:59:59.123456+00:00',
    'stopped': None,
    'delayed': None,
    'purpose': 'create',
    'retries': 0,
    'success': False,
    'failure': None,
    'message': 'é"\n\x7f',
    'subrefs': ['fn/a', 'fn/b'],
}
TEXT = (
    '{"started":"2020-12-31T23:59:59.123456+00:00","purpose":"create","retries":0,"success":false,'
    '"message":"\\u00e9\\"\\n\\u007f","subrefs":["fn/a","fn/b"]}'
)
VERBOSE_TEXT = (
    '{"started":"2020-12-31T23:59:59.123456+00:00","stopped":null,"delayed":null,"purpose":"create","retries":0,'
    '"success":false,"failure":null,"message":"\\u00e9\\"\\n\\u007f","subrefs":["fn/a","fn/b"]}'
)


def annotated(**annotations: Any) -> Body:
    return Body({'kind': 'Pod', 'metadata': {'namespace': 'ns', 'name': 'n', 'annotations': annotations}})


def patched_by(fn, *, body: Body | None = None, **kwargs: Any) -> dict[str, Any]:
    patch = Patch()
    fn(body=body or Body({}), patch=patch, **kwargs)
    return dict(patch)


# Annotations


def test_records_are_stored_in_annotations():
    patch = patched_by(AnnotationsProgressStorage().store, key=HandlerId('fn/sub'), record=RECORD)
    assert patch == {'metadata': {'annotations': {'kopf.zalando.org/fn.sub': TEXT}}}


def test_messages_with_undecodable_file_names():
    patch = patched_by(AnnotationsProgressStorage().store, key=FN, record={'message': 'no file: \udcff'})
    assert patch == {'metadata': {'annotations': {'kopf.zalando.org/fn': '{"message":"no file: \\udcff"}'}}}
    assert AnnotationsProgressStorage().fetch(key=FN, body=Body(patch)) == {'message': 'no file: \udcff'}


def test_verbose_records_in_annotations():
    patch = patched_by(AnnotationsProgressStorage(verbose=True).store, key=FN, record=RECORD)
    assert patch == {'metadata': {'annotations': {'kopf.zalando.org/fn': VERBOSE_TEXT}}}


def test_records_under_both_keys():
    storage = AnnotationsProgressStorage()
    patch = patched_by(storage.store, key=LONG, record={'retries': 1})
    assert patch == {'metadata': {'annotations': {LONG_V2: '{"retries":1}', LONG_V1: '{"retries":1}'}}}

    assert storage.fetch(key=LONG, body=annotated(**{LONG_V1: '{"retries":1}'})) == {'retries': 1}
    both = annotated(**{LONG_V1: '{"retries":1}', LONG_V2: '{"retries":2}'})
    assert storage.fetch(key=LONG, body=both) == {'retries': 2}
    assert patched_by(storage.purge, key=LONG, body=annotated(**{LONG_V1: '{}', LONG_V2: '{}'})) == {
        'metadata': {'annotations': {LONG_V1: None, LONG_V2: None}}
    }
    assert patched_by(storage.purge, key=LONG, body=annotated(**{LONG_V1: '{}'})) == {
        'metadata': {'annotations': {LONG_V1: None}}
    }


def test_records_under_the_newer_keys_only():
    storage = AnnotationsProgressStorage(v1=False)
    patch = patched_by(storage.store, key=LONG, record={'retries': 1})
    assert patch == {'metadata': {'annotations': {LONG_V2: '{"retries":1}'}}}
    assert storage.fetch(key=LONG, body=annotated(**{LONG_V1: '{"retries":1}'})) is None


@pytest.mark.parametrize(
    'prefix, annotations, marked',
    [
        ('my.op', {}, True),
        ('kopf', {}, True),
        ('kopfx.dev', {}, True),
        ('my.kopf.dev', {}, True),
        ('my.op', {'my.op/kopf-managed': 'yes'}, False),
        ('my.op', {'my.op/kopf-managed': 'whatever'}, False),
        ('kopf.zalando.org', {}, False),
        ('kopf.dev', {}, False),
    ],
)
def test_prefixes_are_marked_at_the_first_write(prefix, annotations, marked):
    storage = AnnotationsProgressStorage(prefix=prefix)
    body = annotated(**annotations)
    marker = {f'{prefix}/kopf-managed': 'yes'} if marked else {}
    assert patched_by(storage.store, body=body, key=FN, record={})['metadata'] == {
        'annotations': {f'{prefix}/fn': '{}', **marker}
    }
    assert patched_by(storage.touch, body=body, value='now')['metadata'] == {
        'annotations': {f'{prefix}/touch-dummy': 'now', **marker}
    }
    assert patched_by(storage.purge, body=body, key=FN) == {}


def test_own_annotations_are_cleared():
    storage = AnnotationsProgressStorage(prefix='my.op')
    essence: Any = {'metadata': {'annotations': {'my.op/fn': '{}', 'my.op/x': 'y', 'my.opera/z': '1'}}, 'spec': {}}
    before = json.dumps(essence)
    assert storage.clear(essence=essence) == {'metadata': {'annotations': {'my.opera/z': '1'}}, 'spec': {}}
    assert json.dumps(essence) == before
    assert storage.clear(essence={'metadata': {'annotations': {'my.op/fn': '{}'}}, 'spec': {}}) == {'spec': {}}
    assert storage.clear(essence={'metadata': {'annotations': {}, 'labels': {}}, 'status': {}}) == {}
    assert storage.clear(essence={}) == {}


@pytest.mark.parametrize(
    'text',
    [
        '',
        '{',
        'null x',
        '[]',
        '1',
        '"x"',
        '{"retries":"1"}',
        '{"retries":true}',
        '{"success":"yes"}',
        '{"started":1}',
        '{"subrefs":"fn"}',
        '{"subrefs":[1]}',
        '{"message":{}}',
        '{"digest":"xyz"}',
        5,
        {'retries': 1},
    ],
)
def test_broken_records_are_absent_with_a_warning(text, caplog):
    key = HandlerId(f'broken-{text}')
    storage = AnnotationsProgressStorage()
    [full_key] = storage.make_keys(key)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert storage.fetch(key=key, body=annotated(**{full_key: text})) is None
    [message] = caplog.messages
    assert 'Pod ns/n' in message
    assert full_key in message
    assert 'Remove or fix it' in message


def test_broken_records_do_not_hide_the_older_ones(caplog):
    body = annotated(**{LONG_V2: '{', LONG_V1: '{"retries":1}'})
    assert AnnotationsProgressStorage().fetch(key=LONG, body=body) == {'retries': 1}


@pytest.mark.parametrize('text', ['null', None])
def test_nulls_are_silently_absent(text, caplog):
    assert AnnotationsProgressStorage().fetch(key=FN, body=annotated(**{'kopf.zalando.org/fn': text})) is None
    assert not caplog.messages


def test_unknown_fields_are_kept():
    assert AnnotationsProgressStorage().fetch(key=FN, body=annotated(**{'kopf.zalando.org/fn': '{"z":1}'})) == {'z': 1}


# Status


def test_records_in_the_status():
    storage = StatusProgressStorage()
    patch = patched_by(storage.store, key=HandlerId('fn/sub.x'), record=RECORD)
    assert patch == {'status': {'kopf': {'progress': {'fn/sub.x': RECORD}}}}
    assert storage.fetch(key=HandlerId('fn/sub.x'), body=Body(patch)) == RECORD


@pytest.mark.parametrize(
    'kwargs, field, touch_field',
    [
        ({}, 'status.kopf.progress', 'status.kopf.dummy'),
        ({'name': 'my'}, 'status.my.progress', 'status.my.dummy'),
        ({'name': 'my.op'}, 'status.my.op.progress', 'status.my.op.dummy'),
        ({'field': 'spec.x.{name}'}, 'spec.x.kopf', 'status.kopf.dummy'),
        ({'field': ['a', 'b'], 'touch_field': ('c', 'd')}, 'a.b', 'c.d'),
        ({'field': ('a', '{name}')}, 'a.{name}', 'status.kopf.dummy'),
        ({'field': 'status.x', 'touch_field': 'status.{name}.y', 'name': 'z'}, 'status.x', 'status.z.y'),
    ],
)
def test_fields_of_the_status(kwargs, field, touch_field):
    storage = StatusProgressStorage(**kwargs)
    assert storage.field == tuple(field.split('.'))
    assert storage.touch_field == tuple(touch_field.split('.'))
    body: Any = {}
    node = body
    for key in storage.field:
        node = node.setdefault(key, {})
    node['fn'] = {'retries': 1}
    assert storage.fetch(key=FN, body=Body(body)) == {'retries': 1}


def test_fields_of_the_status_can_be_changed_later():
    storage = StatusProgressStorage(name='my')
    storage.field = 'status.x.{name}'  # type: ignore[assignment]
    storage.touch_field = ['status', 'y']  # type: ignore[assignment]
    assert storage.field == ('status', 'x', 'my')
    assert storage.touch_field == ('status', 'y')


@pytest.mark.parametrize(
    'status',
    [
        None,
        {},
        'str',
        [],
        {'kopf': None},
        {'kopf': 'x'},
        {'kopf': {'progress': None}},
        {'kopf': {'progress': 'x'}},
        {'kopf': {'progress': {}}},
        {'kopf': {'progress': {'fn': None}}},
    ],
)
@pytest.mark.parametrize('storage', [StatusProgressStorage(), SmartProgressStorage()])
def test_absence_in_the_status(storage, status):
    body = Body({'status': status})
    assert storage.fetch(key=FN, body=body) is None
    assert patched_by(storage.purge, body=body, key=FN) == {}


def test_broken_records_in_the_status(caplog):
    body = Body({'kind': 'Pod', 'metadata': {'name': 'n'}, 'status': {'kopf': {'progress': {'fn': '{}'}}}})
    assert StatusProgressStorage().fetch(key=FN, body=body) is None
    assert "'status.kopf.progress'" in caplog.text
    assert 'Pod n' in caplog.text
    assert patched_by(StatusProgressStorage().purge, body=body, key=FN) == {
        'status': {'kopf': {'progress': {'fn': None}}}
    }


@pytest.mark.parametrize('deleting', [False, True])
@pytest.mark.parametrize(
    'status, purged, rest',
    [
        ({'kopf': {'progress': {'fn': {}, 'other': {}}}}, ['fn', 'other'], None),
        ({'kopf': {'progress': {'fn': {}, 'other': {}}}}, ['fn'], {'kopf': {'progress': {'other': {}}}}),
        ({'kopf': {'progress': {'fn': {}}, 'x': 1}}, ['fn'], {'kopf': {'x': 1}}),
        ({'kopf': {'progress': {'fn': {}}}, 'x': 1}, ['fn'], {'x': 1}),
    ],
)
def test_emptied_fields_are_removed_only_with_deleted_objects(
    deleting: bool, status: Any, purged: Any, rest: Any
) -> None:
    storage, patch = StatusProgressStorage(), Patch()
    body = Body({'metadata': {'deletionTimestamp': '2030-01-01T00:00:00Z'} if deleting else {}, 'status': status})
    for key in purged:
        storage.purge(key=HandlerId(key), body=body, patch=patch)
    result: Any = patch.applied_to({**body})
    if deleting:
        assert result.get('status') == ({} if rest is None else rest)
    else:
        assert result['status']['kopf']['progress'].keys() == status['kopf']['progress'].keys() - set(purged)


def test_records_that_are_about_to_be_stored_keep_the_field():
    storage, patch = StatusProgressStorage(), Patch()
    body = Body(
        {'metadata': {'deletionTimestamp': '2030-01-01T00:00:00Z'}, 'status': {'kopf': {'progress': {'old': {}}}}}
    )
    storage.store(key=FN, record=RECORD, body=body, patch=patch)
    storage.purge(key=HandlerId('old'), body=body, patch=patch)
    assert patch.applied_to({**body})['status'] == {
        'kopf': {'progress': {'fn': {key: value for key, value in RECORD.items() if value is not None}}}
    }


def test_own_field_is_cleared():
    storage = StatusProgressStorage()
    essence: Any = {'status': {'kopf': {'progress': {'fn': {}}, 'dummy': 'x'}}}
    assert storage.clear(essence=essence) == {'status': {'kopf': {'dummy': 'x'}}}
    assert essence == {'status': {'kopf': {'progress': {'fn': {}}, 'dummy': 'x'}}}
    assert storage.clear(essence={'status': {'kopf': {'progress': {}}}, 'spec': {}}) == {'spec': {}}


EXTRAS: Any = {'digest': 'd1', 'waits': 2}
KEPT: Any = {key: value for key, value in RECORD.items() if value is not None}


def stored(record: Any, *, body: Body | None = None) -> Body:
    patch = Patch()
    StatusProgressStorage().store(key=FN, record=record, body=body or Body({}), patch=patch)
    return Body(patch.applied_to({} if body is None else {**body}))


def test_fields_unknown_to_upstream_are_stored_beside_the_record() -> None:
    storage, patch = StatusProgressStorage(), Patch()
    body = stored({**RECORD, **EXTRAS})
    # Upstream kopf merges its own records into the stored ones, and so would never get rid of other fields in them.
    assert body['status']['kopf']['progress']['fn'] == KEPT
    assert storage.fetch(key=FN, body=body) == {**KEPT, **EXTRAS}
    storage.purge(key=FN, body=body, patch=patch)
    assert patch.applied_to({**body}) == {'status': {'kopf': {'progress': {}}}}


@pytest.mark.parametrize('changed', [{'retries': 1}, {'started': '2030'}, {'stopped': '2030-01-01T00:00:00+00:00'}])
def test_fields_beside_a_former_record_are_ignored(changed: Any) -> None:
    by_upstream = Patch({'status': {'kopf': {'progress': {'fn': {'started': RECORD['started'], **changed}}}}})
    body = Body(by_upstream.applied_to({**stored({**RECORD, **EXTRAS})}))
    record: Any = StatusProgressStorage().fetch(key=FN, body=body)
    assert not EXTRAS.keys() & (record or {}).keys()


def test_absent_fields_replace_those_beside_the_former_record() -> None:
    storage = StatusProgressStorage()
    body = stored({**RECORD, 'waits': 3}, body=stored({**RECORD, **EXTRAS}))
    assert storage.fetch(key=FN, body=body) == {**KEPT, 'waits': 3}
    body = stored(RECORD, body=body)
    assert body['status']['kopf']['progress'].keys() == {'fn'}


def test_fields_that_were_stored_inside_the_record_are_read_and_removed() -> None:
    body = Body({'status': {'kopf': {'progress': {'fn': {**KEPT, **EXTRAS}}}}})
    assert StatusProgressStorage().fetch(key=FN, body=body) == {**KEPT, **EXTRAS}
    progress = stored({**RECORD, 'digest': 'd2'}, body=body)['status']['kopf']['progress']
    assert progress['fn'] == KEPT
    assert progress['fn:extras']['digest'] == 'd2'


# All storages of the framework


def make_storages() -> list[ProgressStorage]:
    return [
        AnnotationsProgressStorage(),
        AnnotationsProgressStorage(prefix='my.op', verbose=True),
        AnnotationsProgressStorage(prefix='my.op', v1=False),
        StatusProgressStorage(),
        StatusProgressStorage(field='spec.x', touch_field='spec.y'),
        SmartProgressStorage(),
        SmartProgressStorage(prefix='my.op', name='my'),
        MultiProgressStorage([AnnotationsProgressStorage(prefix='my.op'), StatusProgressStorage()]),
    ]


@pytest.fixture(params=make_storages(), ids=lambda storage: type(storage).__name__)
def storage(request):
    return request.param


@pytest.mark.parametrize('key', [FN, LONG, HandlerId('fn/sub.<x>')])
def test_what_is_stored_is_fetched_then_purged(storage, key):
    patch = patched_by(storage.store, key=key, record=RECORD)
    body = Body(patch)
    record = storage.fetch(key=key, body=body)
    assert {name: value for name, value in record.items() if value is not None} == {
        name: value for name, value in RECORD.items() if value is not None
    }
    assert storage.fetch(key=HandlerId('other'), body=body) is None

    purged = Body(merge(patch, patched_by(storage.purge, key=key, body=body)))
    assert storage.fetch(key=key, body=purged) is None


def merge(body: Any, patch: Any) -> Any:
    merged = dict(body)
    for key, value in patch.items():
        if isinstance(value, dict):
            merged[key] = merge(merged.get(key) or {}, value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def test_purging_cancels_the_storing(storage):
    patch = Patch({'metadata': {'labels': {'a': 'b'}}})
    storage.store(key=FN, record=RECORD, body=annotated(**{'my.op/kopf-managed': 'yes'}), patch=patch)
    storage.purge(key=FN, body=annotated(**{'my.op/kopf-managed': 'yes'}), patch=patch)
    assert patch == {'metadata': {'labels': {'a': 'b'}}}


def test_storing_overrides_the_purging(storage):
    body = Body(patched_by(storage.store, key=FN, record={'retries': 1}))
    patch = Patch()
    storage.purge(key=FN, body=body, patch=patch)
    storage.store(key=FN, record={'retries': 2}, body=body, patch=patch)
    assert storage.fetch(key=FN, body=Body(merge(body, patch))) == {'retries': 2}


def test_objects_are_touched_only_with_new_values(storage):
    assert patched_by(storage.touch, value=None) == {}
    patch = patched_by(storage.touch, value='now')
    assert patch
    assert patched_by(storage.touch, value='now', body=Body(patch)) == {}
    untouched = merge(patch, patched_by(storage.touch, value=None, body=Body(patch)))
    assert patched_by(storage.touch, value=None, body=Body(untouched)) == {}
    assert 'now' not in json.dumps(untouched)


def test_traces_are_inessential(storage):
    essence: Any = patched_by(storage.store, key=FN, record=RECORD)
    essence['spec'] = essence.get('spec', {})
    assert storage.clear(essence=essence) in ({'spec': {}}, {})
    assert storage.clear(essence={'spec': {'f': 1}}) == {'spec': {'f': 1}}


def test_flushing_is_optional(storage):
    storage.flush()


texts = st.none() | st.text(max_size=10)
times = st.none() | st.datetimes(timezones=st.none() | st.just(datetime.UTC)).map(datetime.datetime.isoformat)
records = st.fixed_dictionaries(
    {},
    optional={
        'started': times,
        'stopped': times,
        'delayed': times,
        'purpose': texts,
        'message': texts,
        'retries': st.none() | st.integers(0, 1000),
        'success': st.none() | st.booleans(),
        'failure': st.none() | st.booleans(),
        'subrefs': st.none() | st.lists(st.text(max_size=5), max_size=3),
    },
)


@pytest.mark.parametrize('storage', make_storages(), ids=lambda storage: type(storage).__name__)
@hypothesis.given(key=st.text(min_size=1, max_size=100), record=records)
def test_what_is_stored_is_fetched(storage, key, record):
    fetched = storage.fetch(key=key, body=Body(patched_by(storage.store, key=key, record=record)))
    assert {name: value for name, value in fetched.items() if value is not None} == {
        name: value for name, value in record.items() if value is not None
    }


@hypothesis.given(record=records)
def test_texts_are_ascii_without_spaces_around_values(record):
    patch = patched_by(AnnotationsProgressStorage(verbose=True).store, key=FN, record=record)
    text = patch['metadata']['annotations']['kopf.zalando.org/fn']
    assert text.isascii()
    assert text == json.dumps(record, separators=(',', ':'))


# Several storages as one


def test_annotations_have_precedence_over_the_status():
    raw: Any = {'status': {'kopf': {'progress': {'fn': {'retries': 2}}}}}
    storage = SmartProgressStorage()
    assert storage.fetch(key=FN, body=Body(raw)) == {'retries': 2}
    raw['metadata'] = {'annotations': {'kopf.zalando.org/fn': '{"retries":1}'}}
    assert storage.fetch(key=FN, body=Body(raw)) == {'retries': 1}
    assert patched_by(storage.purge, key=FN, body=Body(raw)) == {
        'metadata': {'annotations': {'kopf.zalando.org/fn': None}},
        'status': {'kopf': {'progress': {'fn': None}}},
    }


def test_the_status_is_not_written_by_default():
    body = Body({'status': {'kopf': {'progress': {'fn': {}}, 'dummy': 'x'}}})
    storage = SmartProgressStorage(touch_key='touched')
    assert patched_by(storage.store, key=FN, record={'retries': 1}, body=body) == {
        'metadata': {'annotations': {'kopf.zalando.org/fn': '{"retries":1}'}}
    }
    assert patched_by(storage.touch, value='now', body=body) == {
        'metadata': {'annotations': {'kopf.zalando.org/touched': 'now'}}
    }
    assert patched_by(storage.touch, value=None, body=body) == {}


def test_all_storages_are_written_and_the_first_record_is_read():
    first, second = AnnotationsProgressStorage(prefix='my.op'), StatusProgressStorage(field='status.x')
    storage = MultiProgressStorage([first, second])
    patch = patched_by(storage.store, key=FN, record={'retries': 1})
    assert first.fetch(key=FN, body=Body(patch)) == {'retries': 1}
    assert second.fetch(key=FN, body=Body(patch)) == {'retries': 1}

    alone = Body(patched_by(second.store, key=FN, record={'retries': 2}))
    assert storage.fetch(key=FN, body=alone) == {'retries': 2}
    assert storage.fetch(key=FN, body=Body(merge(alone, patch))) == {'retries': 1}


def test_no_storages_at_all():
    storage = MultiProgressStorage([])
    assert storage.fetch(key=FN, body=Body({})) is None
    assert patched_by(storage.store, key=FN, record=RECORD) == {}


class InMemory(ProgressStorage):
    def __init__(self) -> None:
        self.records: dict[Any, Any] = {}
        self.flushes = 0

    def fetch(self, *, key, body):
        return self.records.get((body.metadata.uid, key))

    def store(self, *, key, record, body, patch):
        self.records[body.metadata.uid, key] = record

    def purge(self, *, key, body, patch):
        self.records.pop((body.metadata.uid, key), None)

    def flush(self):
        self.flushes += 1


def test_storages_of_developers_need_three_methods():
    storage = InMemory()
    body = Body({'metadata': {'uid': 'u'}})
    assert patched_by(storage.store, key=FN, record=RECORD, body=body) == {}
    assert storage.fetch(key=FN, body=body) == RECORD
    assert patched_by(storage.touch, value='now', body=body) == {}
    assert storage.clear(essence={'spec': {}}) == {'spec': {}}
    MultiProgressStorage([storage, AnnotationsProgressStorage()]).flush()
    assert storage.flushes == 1


def test_incomplete_storages_are_not_accepted():
    class Incomplete(ProgressStorage):
        pass

    with pytest.raises(TypeError, match='fetch.*purge.*store'):
        Incomplete()  # type: ignore[abstract]
