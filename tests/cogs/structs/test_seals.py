"""Whether somebody has changed an object in place."""

import pytest

from kopf._cogs.structs.seals import Seal


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
    seal = Seal(raw)
    assert not seal.is_broken
    change(raw)
    assert seal.is_broken
    assert seal.original == {'metadata': {}, 'spec': {'items': [1, 2], 'number': number}}
    assert seal.explain().startswith("The object was changed in place: spec.items. ")


def test_originals_belong_to_nobody_else():
    raw = {'metadata': {}, 'spec': {'items': [], 'number': 10**30}}
    seal = Seal(raw)
    seal.original['spec']['items'].append(1)
    assert seal.original['spec']['items'] == raw['spec']['items'] == []
