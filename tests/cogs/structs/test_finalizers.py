import copy

import pytest

from kopf._cogs.structs.finalizers import append_finalizer, remove_finalizer
from kopf._cogs.structs.patches import Patch


@pytest.mark.parametrize(
    'finalizers, expected',
    [
        (None, [{'op': 'add', 'path': '/metadata/finalizers', 'value': ['ours']}]),
        ([], [{'op': 'add', 'path': '/metadata/finalizers/0', 'value': 'ours'}]),
        (['x'], [{'op': 'add', 'path': '/metadata/finalizers/1', 'value': 'ours'}]),
        (['ours', 'x'], []),
    ],
)
def test_our_finalizer_is_appended_once(finalizers, expected):
    body = {'metadata': {'name': 'x'}, 'spec': {}}
    if finalizers is not None:
        body['metadata']['finalizers'] = finalizers
    original = copy.deepcopy(body)
    assert Patch(fns=[append_finalizer('ours')]).as_json_patch(body) == expected
    assert body == original


@pytest.mark.parametrize(
    'finalizers, expected',
    [
        (None, []),
        (['x'], []),
        (['ours'], [{'op': 'remove', 'path': '/metadata/finalizers'}]),
        (['x', 'ours'], [{'op': 'remove', 'path': '/metadata/finalizers/1'}]),
        (['ours', 'x'], [{'op': 'remove', 'path': '/metadata/finalizers/0'}]),
    ],
)
def test_only_our_finalizer_is_removed(finalizers, expected):
    body = {'metadata': {'name': 'x'}, 'spec': {}}
    if finalizers is not None:
        body['metadata']['finalizers'] = finalizers
    original = copy.deepcopy(body)
    assert Patch(fns=[remove_finalizer('ours')]).as_json_patch(body) == expected
    assert body == original


def test_what_is_being_deleted_gets_no_finalizer():
    body = {'metadata': {'name': 'x', 'deletionTimestamp': '2020-01-01T00:00:00Z'}}
    assert Patch(fns=[append_finalizer('ours')]).as_json_patch(body) == []


def test_functions_of_users_beside_ours_modify_a_copy():
    body = {'metadata': {'name': 'x'}, 'spec': {'items': []}}
    patch = Patch(fns=[append_finalizer('ours'), lambda raw: raw['spec']['items'].append(1)])
    assert [item['path'] for item in patch.as_json_patch(body)] == ['/metadata/finalizers', '/spec/items/0']
    assert body == {'metadata': {'name': 'x'}, 'spec': {'items': []}}


def test_functions_are_told_in_logs():
    assert 'ours' in repr(append_finalizer('ours'))
