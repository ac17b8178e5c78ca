"""States that are kept as texts, and are seen through live views all the same."""

import threading

import pytest

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.packed_objects import MAX_PARSED, PackedObject, ParsedCache


@pytest.fixture()
def cache():
    return ParsedCache()


@pytest.mark.parametrize('number', [1, 10**30], ids=['usual', 'huge'])
def test_bodies_show_what_is_packed(cache, number):
    packed = PackedObject(cache, {'metadata': {'labels': {'a': 'é'}}, 'spec': {'number': number}})
    body = Body.living_in(packed)
    assert (body.spec['number'], body.metadata.labels['a'], dict(body.status)) == (number, 'é', {})


def test_bodies_show_newer_states(cache):
    packed = PackedObject(cache, {'spec': {'x': 1}})
    body = Body.living_in(packed)
    spec = body.spec
    assert spec['x'] == 1
    packed[0] = {'spec': {'x': 2}}
    assert spec['x'] == 2


def test_packed_states_share_no_values_with_others(cache):
    raw = {'spec': {'items': []}}
    packed = PackedObject(cache, raw)
    raw['spec']['items'].append(1)
    packed.copy()['spec']['items'].append(2)
    assert packed[0] == packed.copy() == {'spec': {'items': []}}


def test_what_is_changed_in_place_stays(cache):
    packed = PackedObject(cache, {'spec': {'items': []}})
    text = packed.text
    packed[0]['spec']['items'].append(1)
    look_at_many_others(cache)
    assert packed[0] == packed.copy() == {'spec': {'items': [1]}}
    assert packed.text != text
    packed.text = text
    assert packed[0] == {'spec': {'items': []}}


def test_what_is_no_json_stays_too(cache):
    packed, thing = PackedObject(cache, {'spec': {'items': []}}), object()
    packed[0]['spec']['items'].append({thing})
    look_at_many_others(cache)
    assert packed.text is None
    assert packed[0] == {'spec': {'items': [{thing}]}}
    assert list(packed.copy()) == ['spec']


def test_only_so_many_states_stay_parsed(cache):
    all_of_them = [PackedObject(cache, {'spec': {'x': i}}) for i in range(MAX_PARSED + 1)]
    first, second, *others = [packed[0] for packed in all_of_them]
    assert all_of_them[0][0] is not first  # parsed anew, in place of the second one
    assert all(packed[0] is state for packed, state in zip(all_of_them[2:], others, strict=True))
    assert all_of_them[1][0] is not second


def test_a_state_that_is_replaced_and_parsed_again_takes_one_place(cache):
    changing = PackedObject(cache, {'spec': {'x': 0}})
    others = [PackedObject(cache, {'spec': {'x': i}}) for i in range(MAX_PARSED - 1)]
    assert changing[0] == {'spec': {'x': 0}}
    parsed = [packed[0] for packed in others]
    for i in range(3):
        changing[0] = {'spec': {'x': i}}
        assert changing[0] == {'spec': {'x': i}}
    assert all(packed[0] is state for packed, state in zip(others, parsed, strict=True))
    latest = changing[0]
    for i in range(MAX_PARSED - 1):
        assert PackedObject(cache, {'spec': {'x': i}})[0] and changing[0] is latest


def test_many_threads_look_at_many_states(cache):
    all_of_them = [PackedObject(cache, {'spec': {'x': i}}) for i in range(3 * MAX_PARSED)]
    wrong = []

    def look():
        wrong.extend(i for i, packed in enumerate(all_of_them) if packed[0] != {'spec': {'x': i}})

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def look_at_many_others(cache):
    for i in range(MAX_PARSED + 1):
        PackedObject(cache, {'spec': {'x': i}})[0]
