"""States that are kept as texts, and are seen through live views all the same."""

import threading

import pytest

from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.stashes import MAX_PARSED, Stash, Stashes


@pytest.fixture()
def stashes():
    return Stashes()


@pytest.mark.parametrize('number', [1, 10**30], ids=['usual', 'huge'])
def test_bodies_show_what_is_stashed(stashes, number):
    stash = Stash(stashes, {'metadata': {'labels': {'a': 'é'}}, 'spec': {'number': number}})
    body = Body.living_in(stash)
    assert (body.spec['number'], body.metadata.labels['a'], dict(body.status)) == (number, 'é', {})


def test_bodies_show_newer_states(stashes):
    stash = Stash(stashes, {'spec': {'x': 1}})
    body = Body.living_in(stash)
    spec = body.spec
    assert spec['x'] == 1
    stash[0] = {'spec': {'x': 2}}
    assert spec['x'] == 2


def test_stashed_states_belong_to_nobody_else(stashes):
    raw = {'spec': {'items': []}}
    stash = Stash(stashes, raw)
    raw['spec']['items'].append(1)
    stash.copy()['spec']['items'].append(2)
    assert stash[0] == stash.copy() == {'spec': {'items': []}}


def test_what_is_changed_in_place_stays(stashes):
    stash = Stash(stashes, {'spec': {'items': []}})
    text = stash.text
    stash[0]['spec']['items'].append(1)
    look_at_many_others(stashes)
    assert stash[0] == stash.copy() == {'spec': {'items': [1]}}
    assert stash.text != text
    stash.text = text
    assert stash[0] == {'spec': {'items': []}}


def test_what_is_no_json_stays_too(stashes):
    stash, thing = Stash(stashes, {'spec': {'items': []}}), object()
    stash[0]['spec']['items'].append({thing})
    look_at_many_others(stashes)
    assert stash.text is None
    assert stash[0] == {'spec': {'items': [{thing}]}}
    assert list(stash.copy()) == ['spec']


def test_only_so_many_states_stay_parsed(stashes):
    all_of_them = [Stash(stashes, {'spec': {'x': i}}) for i in range(MAX_PARSED + 1)]
    first, second, *others = [stash[0] for stash in all_of_them]
    assert all_of_them[0][0] is not first  # parsed anew, in place of the second one
    assert all(stash[0] is state for stash, state in zip(all_of_them[2:], others, strict=True))
    assert all_of_them[1][0] is not second


def test_many_threads_look_at_many_states(stashes):
    all_of_them = [Stash(stashes, {'spec': {'x': i}}) for i in range(3 * MAX_PARSED)]
    wrong = []

    def look():
        wrong.extend(i for i, stash in enumerate(all_of_them) if stash[0] != {'spec': {'x': i}})

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def look_at_many_others(stashes):
    for i in range(MAX_PARSED + 1):
        Stash(stashes, {'spec': {'x': i}})[0]
