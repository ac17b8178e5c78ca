"""Owned objects in memory: by owners and names, with the echoes of own writes told from changes by others."""

import time
import tracemalloc

import pytest

from kopf._cogs.structs.packed_objects import ParsedCache
from kopf._core.engines.owned_objects import OwnedObjects

OWNER = frozenset({'owner'})


def child(version, *, uid='uid', name='child', value='x', time='t'):
    fields = {'f:data': {'f:own': {}}}
    entry = {'manager': 'kopf-x', 'operation': 'Apply', 'time': time, 'fieldsV1': fields}
    metadata = {'name': name, 'namespace': 'ns', 'uid': uid, 'resourceVersion': str(version), 'managedFields': [entry]}
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata, 'data': {'own': '1', 'others': value}}


@pytest.fixture
def objects():
    return OwnedObjects('kopf-x', ParsedCache())


def test_objects_are_found_by_owner_and_by_name(objects):
    assert objects.note(child(1), OWNER, None) == {'owner'}
    [found] = objects.of('owner')
    assert found is objects.find('ns', 'child') and 'uid' in objects
    assert found.copy()['data'] == {'own': '1', 'others': 'x'}
    assert objects.of('other') == [] and objects.find(None, 'child') is None


def test_objects_of_no_owner_are_not_kept(objects):
    assert objects.note(child(1), frozenset(), None) == set()
    assert len(objects) == 0
    objects.note(child(1), OWNER, None)
    assert objects.note(child(2), frozenset(), None) == {'owner'}
    assert len(objects) == 0 and objects.find('ns', 'child') is None and objects.of('owner') == []


def test_former_and_present_owners_are_triggered(objects):
    objects.note(child(1), OWNER, None)
    assert objects.note(child(2), frozenset({'other'}), None) == {'owner', 'other'}
    assert objects.of('owner') == [] and len(objects.of('other')) == 1


def test_deleted_objects_trigger_their_owners(objects):
    objects.note(child(1), OWNER, None)
    assert objects.forget('uid') == {'owner'} and objects.of('owner') == []
    assert objects.forget('uid') == set()


def test_a_successor_of_the_same_name_stays_when_its_predecessor_is_forgotten(objects):
    objects.note(child(1, uid='former'), OWNER, None)
    objects.note(child(2, uid='present'), OWNER, None)
    objects.forget('former')
    assert objects.find('ns', 'child').uid == 'present' and len(objects.of('owner')) == 1


def write(objects, *during, response):
    objects.begin_write(('ns', 'child'))
    seen = [objects.note(raw, OWNER, None) for raw in during]
    assert not any(seen)
    return objects.end_write(('ns', 'child'), response, OWNER)


def test_the_echo_of_an_own_write_triggers_nothing_before_or_after_the_response(objects):
    assert not write(objects, response=child(1))
    assert not objects.note(child(1), OWNER, None)
    assert not write(objects, child(2), response=child(2))
    assert objects.find('ns', 'child').version == '2'


@pytest.mark.parametrize('known', [True, False])
def test_an_object_that_is_deleted_during_a_write_does_not_come_back_with_the_response(objects, known):
    if known:
        objects.note(child(1), OWNER, None)
    objects.begin_write(('ns', 'child'))
    objects.note(child(2), OWNER, None)
    objects.forget('uid')
    assert objects.end_write(('ns', 'child'), child(2), OWNER) == {'owner'}
    assert objects.find('ns', 'child') is None and objects.of('owner') == []


@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('echoed', [True, False])
def test_an_object_that_loses_its_owners_during_a_write_does_not_get_them_back_from_the_response(
    objects, known, echoed
):
    if known:
        objects.note(child(1), OWNER, None)
    objects.begin_write(('ns', 'child'))
    if echoed:
        objects.note(child(2), OWNER, None)
    objects.note(child(3), frozenset(), None)
    assert objects.end_write(('ns', 'child'), child(2), OWNER) == {'owner'}
    assert objects.find('ns', 'child') is None and objects.of('owner') == []
    assert not write(objects, response=child(4))
    assert objects.find('ns', 'child').version == '4'


def test_an_object_that_is_back_at_the_end_of_a_write_is_kept(objects):
    objects.begin_write(('ns', 'child'))
    objects.note(child(1), OWNER, None)
    objects.forget('uid')
    objects.note(child(2), OWNER, None)
    objects.end_write(('ns', 'child'), child(3), OWNER)
    assert objects.find('ns', 'child').version == '3'


def test_an_object_that_was_deleted_before_a_write_is_stored(objects):
    assert not write(objects, response=child(1))
    objects.forget('uid')
    assert not write(objects, response=child(2))
    assert objects.find('ns', 'child').version == '2'


def test_changes_during_a_write_trigger_when_it_ends(objects):
    assert write(objects, child(1), response=child(2)) == {'owner'}
    assert write(objects, child(3), child(4), response=child(3)) == {'owner'}
    assert write(objects, child(5), response=None) == {'owner'}
    assert objects.find('ns', 'child').version == '5'
    assert objects.note(child(6), OWNER, None) == {'owner'}


def test_changes_before_a_write_that_only_the_response_shows_trigger(objects):
    objects.note(child(1), OWNER, None)
    assert not write(objects, response=child(2))
    assert write(objects, response=child(4, value='edited')) == {'owner'}


def test_a_write_triggers_the_owners_from_which_it_takes_the_object(objects):
    # E.g. a late write for a deleted owner, whose namesake has adopted the object meanwhile.
    objects.note(child(1), frozenset({'namesake', 'both'}), None)
    objects.begin_write(('ns', 'child'))
    assert objects.end_write(('ns', 'child'), child(2), frozenset({'owner', 'both'})) == {'namesake'}
    assert len(objects.of('owner')) == len(objects.of('both')) == 1 and not objects.of('namesake')


def test_older_states_are_dropped_but_trigger_unless_they_are_own(objects):
    objects.note(child(1), OWNER, None)
    write(objects, response=child(3))
    write(objects, response=child(4))
    assert objects.note(child(2, value='old'), OWNER, None) == {'owner'}
    assert objects.note(child(3), OWNER, None) == set()
    assert objects.note(child(4), OWNER, None) == set()
    assert objects.find('ns', 'child').version == '4'
    assert objects.note(child(2, value='listed before'), OWNER, 0) == {'owner'}
    assert objects.find('ns', 'child').version == '4'
    objects.note(child(2, value='restored from a backup'), OWNER, time.monotonic() + 1)
    assert objects.find('ns', 'child').version == '2'


def test_the_managed_fields_are_kept_only_after_another_client_has_changed_the_own_entry(objects):
    write(objects, response=child(1))
    assert objects.find('ns', 'child').managers is None
    objects.note(child(2, value='theirs'), OWNER, None)
    assert objects.find('ns', 'child').managers is None
    objects.note(child(3, time='later'), OWNER, None)
    kept = objects.find('ns', 'child').managers.copy()
    assert kept['metadata']['managedFields'] == child(3, time='later')['metadata']['managedFields']
    write(objects, response=child(4))
    assert objects.find('ns', 'child').managers is None


def test_a_child_takes_at_most_3_kb(objects):
    container = {'name': 'main', 'image': 'example.com/image:1', 'env': [{'name': 'A', 'value': 'B'}] * 8}
    condition = {'type': 'Available', 'status': 'True', 'message': 'm' * 60}
    spec = {'replicas': 3, 'selector': {'matchLabels': {'app': 'x'}}, 'template': {'spec': {'containers': [container]}}}
    tracemalloc.start()
    for number in range(1000):
        uid = f'00000000-0000-0000-0000-{number:012}'
        raw = {
            **child(number + 1, uid=uid, name=f'deployment-{number}'),
            'spec': spec,
            'status': {'x': [condition] * 2},
        }
        objects.note(raw, frozenset({f'11111111-0000-0000-0000-{number:012}'}), None)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(taken / 1000)
    assert taken / 1000 < 3000
