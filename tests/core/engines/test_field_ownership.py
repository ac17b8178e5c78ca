"""Field ownership: whose a field is, by the managed fields; and what others have changed."""

import pytest

from kopf._core.engines.field_ownership import (
    Ownership,
    digest,
    digest_entry,
    is_changed_by_others,
    remove_field,
    render,
)

CONTAINERS = {'f:containers': {'k:{"name":"main"}': {'.': {}, 'f:name': {}, 'f:image': {}}}}
PORT = 'k:{"port":80,"protocol":"TCP"}'


def entry(manager='kopf-operator', operation='Apply', time='t', *, fields=None, **more):
    return {'manager': manager, 'operation': operation, 'time': time, 'fieldsV1': fields or {}, **more}


def body(*entries, metadata=None, **fields):
    return {'metadata': {'name': 'x', 'managedFields': [*entries], **(metadata or {})}, **fields}


def test_digests_do_not_depend_on_the_order_of_keys_but_on_types():
    assert digest({'a': 1, 'b': 2}) == digest({'b': 2, 'a': 1})
    values = [0, '', None, False, '0', '1000m', 1, [], {}, [1, 2], [2, 1]]
    assert len({digest({'a': value}) for value in values}) == len(values)


def test_only_the_own_applied_entry_counts():
    own = entry(fields={'f:spec': {'f:a': {}}})
    others = [
        entry('kubectl', fields={'f:spec': {'f:b': {}}}),
        entry(operation='Update', fields={'f:status': {}}),
        entry(subresource='status', fields={'f:status': {}}),
    ]
    assert digest_entry(body(own), 'kopf-operator') == digest_entry(body(*others, own), 'kopf-operator') is not None
    assert digest_entry(body(*others), 'kopf-operator') is None
    assert digest_entry(body(), 'kopf-operator') is None


@pytest.mark.parametrize('change', [{'fields': {'f:spec': {}}}, {'time': 'later'}], ids=['fields', 'time'])
def test_the_digest_shows_lost_fields_and_writers_of_the_same_name(change):
    before = entry(fields={'f:spec': {'f:a': {}}})
    after = {**before, **entry(**{'fields': before['fieldsV1'], **change})}
    assert digest_entry(body(before), 'kopf-operator') != digest_entry(body(after), 'kopf-operator')


@pytest.mark.parametrize('empty, key, first, second', [({}, 'f:x', {'x': 1}, {'x': 2}), ([], 'v:1', [1], [1])])
def test_what_others_add_to_an_empty_structure_is_theirs(empty, key, first, second):
    own, other = entry(fields={'f:data': {}}), entry('other', 'Update', fields={'f:data': {key: {}}})
    digests = {
        digest_entry(body(own, data=empty), 'kopf-operator'),
        digest_entry(body(own, other, data=first), 'kopf-operator'),
        digest_entry(body(other, own, data=second), 'kopf-operator'),
    }
    assert len(digests) == 1
    assert digest_entry(body(own, data=first), 'kopf-operator') not in digests


@pytest.mark.parametrize(
    'spec, is_same',
    [
        ({'containers': [{'name': 'main', 'image': 'y'}]}, False),
        ({'containers': [{'name': 'main'}]}, False),
        ({}, False),
        (
            {
                'containers': [{'name': 'other', 'image': 'y'}, {'name': 'main', 'image': 'x', 'command': ['a']}],
                'set': ['a'],
            },
            True,
        ),
        ({'containers': [{'name': 'main', 'image': 'x'}], 'replicas': 3, 'set': ['c']}, True),
        ({'containers': [{'name': 'main', 'image': 'x'}], 'set': ['a', 'b']}, False),
    ],
)
def test_the_digest_shows_values_of_own_fields_that_were_changed_in_the_same_second(spec, is_same):
    fields = {'f:containers': {'.': {}, **CONTAINERS['f:containers']}, 'f:set': {'v:"b"': {}}}
    own = entry(fields={'f:spec': fields})
    before = body(own, spec={'containers': [{'name': 'main', 'image': 'x'}], 'set': ['a']})
    assert (digest_entry(before, own['manager']) == digest_entry(body(own, spec=spec), own['manager'])) == is_same


def test_lost_fields_are_found_with_the_managers_that_have_them():
    desired = {
        'spec': {
            'replicas': 3,
            'containers': [{'name': 'main', 'image': 'x'}],
            'ports': [{'port': 80}],
            'set': ['a', 'b'],
            'kept': 1,
        }
    }
    raw = body(
        entry(fields={'f:spec': {'f:kept': {}}}),
        entry('autoscaler', 'Update', fields={'f:spec': {'f:replicas': {}, 'f:kept': {}, 'f:unwanted': {}}}),
        entry('editor', 'Update', fields={'f:spec': {**CONTAINERS, 'f:ports': {PORT: {'f:port': {}}}}}),
        entry('editor', 'Update', fields={'f:spec': {'f:set': {'v:"b"': {}, 'v:"c"': {}}}}),
    )
    lost = {render(path): name for path, name in Ownership.read(raw, 'kopf-operator').find_lost(desired).items()}
    assert lost == {
        'spec.replicas': 'autoscaler',
        'spec.containers[name=main].name': 'editor',
        'spec.containers[name=main].image': 'editor',
        'spec.ports[port=80,protocol=TCP].port': 'editor',
        'spec.set["b"]': 'editor',
    }


def test_fields_are_removed_by_their_paths():
    desired = {'spec': {'replicas': 3, 'containers': [{'name': 'main', 'image': 'x'}], 'set': ['a', 'b']}}
    remove_field(desired, ('f:spec', 'f:replicas'))
    remove_field(desired, ('f:spec', 'f:containers', 'k:{"name":"main"}', 'f:image'))
    remove_field(desired, ('f:spec', 'f:containers', 'k:{"name":"other"}', 'f:image'))
    remove_field(desired, ('f:spec', 'f:set', 'v:"a"'))
    remove_field(desired, ('f:absent', 'f:field'))
    assert desired == {'spec': {'containers': [{'name': 'main'}], 'set': ['b']}}


def test_no_empty_structures_are_left_of_removed_fields_and_no_items_without_their_keys():
    ports = [{'containerPort': 80, 'name': 'x'}, {'containerPort': 81}]
    desired = {'spec': {'containers': [{'name': 'main', 'ports': ports}], 'strategy': {'type': 'x'}, 'kept': 1}}
    container = ('f:spec', 'f:containers', 'k:{"name":"main"}')
    remove_field(desired, ('f:spec', 'f:strategy', 'f:type'))
    for number in 80, 81:
        key = f'k:{{"containerPort":{number},"protocol":"TCP"}}'
        for field in 'f:containerPort', 'f:name':
            remove_field(desired, (*container, 'f:ports', key, field))
    assert desired == {'spec': {'containers': [{'name': 'main'}], 'kept': 1}}


def test_fields_without_managers_are_missing():
    raw = body(entry(fields={'f:a': {}}), entry('editor', 'Update', fields={'f:b': {}}))
    ownership = Ownership.read(raw, 'kopf-operator')
    assert [ownership.is_missing((f'f:{name}',)) for name in 'abc'] == [False, False, True]


OURS = entry(fields={'f:spec': {'.': {}, 'f:a': {}, 'f:map': {'f:b': {}}, **CONTAINERS}})


@pytest.mark.parametrize(
    ('before', 'after', 'changed'),
    [
        ({'spec': {'a': 1}}, {'spec': {'a': 2}}, False),
        ({'spec': {'a': 1}}, {'spec': {'a': 1, 'x': 1}}, True),
        ({'spec': {'a': 1, 'x': 1}}, {'spec': {'a': 2}}, True),
        ({'spec': {'map': {'b': 1, 'x': 1}}}, {'spec': {'map': {'b': 2, 'x': 1}}}, False),
        ({'spec': {'map': {'b': 1, 'x': 1}}}, {'spec': {'map': {'b': 2, 'x': 2}}}, True),
        ({'spec': {}}, {'spec': {'map': {'b': 2, 'defaulted': 2}}}, False),
        ({}, {'spec': {'a': 1, 'defaulted': 2}}, False),
        ({'spec': {'containers': []}}, {'spec': {'containers': [{'name': 'main', 'default': 1}]}}, False),
        (
            {'spec': {'containers': [{'name': 'main', 'image': 'x'}]}},
            {'spec': {'containers': [{'name': 'main', 'image': 'y'}]}},
            False,
        ),
        (
            {'spec': {'containers': [{'name': 'main', 'image': 'x'}]}},
            {'spec': {'containers': [{'name': 'main', 'image': 'y', 'tty': True}]}},
            True,
        ),
        (
            {'spec': {'containers': [{'name': 'main'}]}},
            {'spec': {'containers': [{'name': 'main'}, {'name': 'x'}]}},
            True,
        ),
        ({'status': {'x': 1}}, {'status': {'x': 2}}, True),
    ],
)
def test_changes_by_others_are_all_but_the_own_fields(before, after, changed):
    assert is_changed_by_others(body(**before), body(OURS, **after), 'kopf-operator') is bool(changed)


def test_what_the_server_writes_with_each_change_is_no_change_by_others():
    before = body(metadata={'resourceVersion': '1', 'generation': 1})
    after = body(OURS, metadata={'resourceVersion': '2', 'generation': 2})
    assert not is_changed_by_others(before, after, 'kopf-operator')
    assert is_changed_by_others(before, body(OURS, metadata={'labels': {'x': 'y'}}), 'kopf-operator')
