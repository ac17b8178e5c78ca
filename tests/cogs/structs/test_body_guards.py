"""The detection of handlers that change an object in place."""

import pytest

from kopf._cogs.structs.body_guards import BodyGuard


def change_list(raw):
    raw['spec']['items'].append(3)


def change_order(raw):
    raw['spec']['items'].reverse()


def put_what_is_equal_only_in_python(raw):
    raw['spec']['items'][0] = True


def put_what_is_no_json(raw):
    raw['spec']['items'][0] = object()


@pytest.mark.parametrize('number', [1, 10**30], ids=['usual', 'huge'])
@pytest.mark.parametrize('change', [change_list, change_order, put_what_is_equal_only_in_python, put_what_is_no_json])
def test_changes_are_noticed_and_can_be_undone(change, number):
    raw = {'metadata': {}, 'spec': {'items': [1, 2], 'number': number}}
    guard = BodyGuard(raw)
    assert not guard.is_changed
    change(raw)
    assert guard.is_changed
    assert guard.original == {'metadata': {}, 'spec': {'items': [1, 2], 'number': number}}
    assert guard.explain().startswith("The object was changed in place: spec.items. ")


def test_an_original_is_a_copy_for_each_reader():
    raw = {'metadata': {}, 'spec': {'items': [], 'number': 10**30}}
    guard = BodyGuard(raw)
    guard.original['spec']['items'].append(1)
    assert guard.original['spec']['items'] == raw['spec']['items'] == []
