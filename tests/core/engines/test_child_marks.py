"""Which kinds of children are remembered on their owner, and how."""

import pytest

from kopf._cogs.structs.references import Resource
from kopf._core.engines.child_marks import (
    ChildKind,
    OwnerMarks,
    find_dropped,
    has_finalizer,
    is_marked,
    make_patch,
    make_release,
    merge_kinds,
    read_kinds,
)

CONFIG_MAPS = ChildKind('', 'v1', 'configmaps', False)
ROLES = ChildKind('rbac.authorization.k8s.io', 'v1', 'clusterroles', True)
KEY = 'children.kopf.zalando.org/operator'


def owner(text=None, **metadata):
    return {'metadata': {'annotations': {} if text is None else {KEY: text}, **metadata}}


def test_kinds_are_written_and_read():
    patch = make_patch([ROLES, CONFIG_MAPS], 'operator', holding=False)
    text = patch['metadata']['annotations'][KEY]
    assert text == '*/rbac.authorization.k8s.io/v1/clusterroles,v1/configmaps'
    assert read_kinds(owner(text), 'operator') == {ROLES, CONFIG_MAPS}
    assert read_kinds(owner(text), 'another') == set()
    assert make_patch([], 'operator', holding=False)['metadata']['annotations'] == {KEY: None}


@pytest.mark.parametrize('text', [None, '', ',', 'x', 'a/b/c/d', '/v1/', '*/', 'v1//x'])
def test_other_texts_are_ignored(text):
    assert read_kinds(owner(text), 'operator') == set()


def test_the_finalizer_is_added_and_removed():
    raw = owner(finalizers=['another'])
    for fn in make_patch([ROLES], 'operator', holding=True).fns:
        fn(raw)
    assert raw['metadata']['finalizers'] == ['another', 'kopf.dev/children-operator']
    assert has_finalizer(raw, 'operator') and not has_finalizer(raw, 'another')
    for fn in make_release('operator').fns:
        fn(raw)
    assert raw['metadata']['finalizers'] == ['another'] and not has_finalizer(raw, 'operator')


def test_kinds_are_dropped_if_they_are_served_in_no_version():
    served = [Resource('', 'v2', 'configmaps')]
    assert find_dropped([CONFIG_MAPS, ROLES], served) == [ROLES]
    assert find_dropped([CONFIG_MAPS, ROLES], []) == [CONFIG_MAPS, ROLES]


def test_a_remote_kind_covers_the_local_one():
    local, remote = ROLES._replace(is_remote=False), ROLES
    assert merge_kinds([local], [remote, CONFIG_MAPS]) == {remote, CONFIG_MAPS}
    held = owner(f'{remote},{CONFIG_MAPS}', finalizers=['kopf.dev/children-operator'])
    assert is_marked(held, {local, CONFIG_MAPS}, 'operator') and is_marked(held, {remote}, 'operator')
    assert not is_marked(owner(f'{local}', finalizers=['kopf.dev/children-operator']), {remote}, 'operator')


def test_an_owner_without_its_finalizer_is_not_marked_for_remote_kinds():
    assert is_marked(owner(f'{CONFIG_MAPS}'), {CONFIG_MAPS}, 'operator')
    assert not is_marked(owner(f'{ROLES}'), {ROLES}, 'operator')


def test_the_marks_of_all_handlers_are_remembered_until_they_are_dropped():
    marks = OwnerMarks('operator')
    assert marks.recall(owner(f'{CONFIG_MAPS}')) == {CONFIG_MAPS}
    marks.begin_writing(frozenset({CONFIG_MAPS, ROLES}))
    assert marks.recall(owner()) == {CONFIG_MAPS, ROLES}
    marks.begin_writing(frozenset({ROLES}))
    assert marks.recall(owner()) == {ROLES}
    # The patch that drops a kind can fail: then, the annotation still has it.
    assert marks.recall(owner(f'{CONFIG_MAPS}')) == {CONFIG_MAPS, ROLES}


def test_each_loss_of_marks_is_noted_once():
    marks, marked = OwnerMarks('operator'), owner(f'{CONFIG_MAPS}')
    assert not marks.note_state(owner())
    marks.begin_writing(frozenset({CONFIG_MAPS}))
    assert not marks.note_state(owner())
    marks.end_writing()
    assert [marks.note_state(raw) for raw in [marked, owner(), owner(), marked, owner()]] == [0, 1, 0, 0, 1]
