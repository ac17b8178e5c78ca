"""Queues with two lanes: the order, and that nobody is stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits.lanes import SHARE, Lanes


def fill(*, urgent=(), common=()):
    lanes = Lanes()
    for key in common:
        lanes.push(key, key, urgent=False)
    for key in urgent:
        lanes.push(key, key, urgent=True)
    return lanes


def drain(lanes):
    return [lanes.pop()[0] for _ in range(len(lanes))]


def test_urgent_ones_go_first_and_all_in_order():
    assert drain(fill(common='abc', urgent='xyz')) == list('xyzabc')


def test_the_others_get_their_share():
    order = drain(fill(common=range(-3, 0), urgent=range(100)))
    assert [order.index(key) for key in range(-3, 0)] == [SHARE - 1, 2 * SHARE - 1, 3 * SHARE - 1]


def test_nobody_waits_for_who_is_not_there():
    assert drain(fill(common=range(100))) == list(range(100))
    assert drain(fill(urgent=range(100))) == list(range(100))


def test_those_who_hurry_are_the_last_of_the_urgent():
    lanes = fill(common='abc', urgent='xy')
    for key in 'bx?':
        lanes.hurry(key)
    assert drain(lanes) == list('xybac')


def test_discarded():
    lanes = fill(common='abc', urgent='xyz')
    assert [lanes.discard(key) for key in 'by?'] == [True, True, False]
    assert drain(lanes) == list('xzac')


def test_only_the_urgent():
    lanes = fill(common='abc', urgent=range(SHARE + 1))
    assert [lanes.pop(urgent_only=True)[0] for _ in range(SHARE + 1)] == list(range(SHARE + 1))
    assert not lanes.is_urgent
    with pytest.raises(KeyError):
        lanes.pop(urgent_only=True)
    assert drain(lanes) == list('abc')


def test_nothing_to_take():
    with pytest.raises(KeyError):
        Lanes().pop()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just('push'), st.integers(0, 20), st.booleans()),
            st.tuples(st.sampled_from(['hurry', 'discard']), st.integers(0, 20)),
            st.just(('pop',)),
        )
    )
)
def test_nothing_is_lost_or_doubled(steps):
    lanes, present = Lanes(), set()
    for step in steps:
        match step:
            case 'push', key, urgent if key not in present:
                lanes.push(key, key, urgent=urgent)
                present.add(key)
            case 'hurry', key:
                lanes.hurry(key)
            case 'discard', key:
                lanes.discard(key)
                present.discard(key)
            case ('pop',) if present:
                present.remove(lanes.pop()[0])
        assert len(lanes) == len(present)
    assert set(drain(lanes)) == present
