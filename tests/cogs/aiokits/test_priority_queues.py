"""Fair queues with two priorities: the order of values, and that none waits forever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._cogs.aiokits.priority_queues import SHARE, FairPriorityQueue


def fill(*, urgent=(), common=()):
    queue = FairPriorityQueue()
    for key in common:
        queue.push(key, key, urgent=False)
    for key in urgent:
        queue.push(key, key, urgent=True)
    return queue


def drain(queue):
    return [queue.pop()[0] for _ in range(len(queue))]


def test_urgent_ones_go_first_and_all_in_order():
    assert drain(fill(common='abc', urgent='xyz')) == list('xyzabc')


def test_common_values_get_their_share():
    order = drain(fill(common=range(-3, 0), urgent=range(100)))
    assert [order.index(key) for key in range(-3, 0)] == [SHARE - 1, 2 * SHARE - 1, 3 * SHARE - 1]


def test_a_single_lane_gets_all_turns():
    assert drain(fill(common=range(100))) == list(range(100))
    assert drain(fill(urgent=range(100))) == list(range(100))


def test_hurried_values_are_the_last_of_the_urgent():
    queue = fill(common='abc', urgent='xy')
    for key in 'bx?':
        queue.prioritize(key)
    assert drain(queue) == list('xybac')


def test_values_that_are_put_back_are_the_first_of_their_lane():
    queue = FairPriorityQueue()
    for key in 'abc':
        queue.push(key, key, urgent=key != 'c')
    key, value = queue.pop()
    queue.put_back(key, value, urgent=True)
    queue.put_back('d', 'd', urgent=False)
    assert list(drain(queue)) == ['a', 'b', 'd', 'c']


def test_discarded_items_are_not_taken():
    queue = fill(common='abc', urgent='xyz')
    assert [queue.discard(key) for key in 'by?'] == [True, True, False]
    assert drain(queue) == list('xzac')


def test_only_urgent_items_are_taken_if_so_asked():
    queue = fill(common='abc', urgent=range(SHARE + 1))
    assert [queue.pop(urgent_only=True)[0] for _ in range(SHARE + 1)] == list(range(SHARE + 1))
    assert not queue.is_urgent
    with pytest.raises(KeyError):
        queue.pop(urgent_only=True)
    assert drain(queue) == list('abc')


def test_nothing_is_taken_from_an_empty_queue():
    with pytest.raises(KeyError):
        FairPriorityQueue().pop()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(['push', 'put_back']), st.integers(0, 20), st.booleans()),
            st.tuples(st.sampled_from(['prioritize', 'discard']), st.integers(0, 20)),
            st.just(('pop',)),
        )
    )
)
def test_nothing_is_lost_or_doubled(steps):
    queue, present = FairPriorityQueue(), set()
    for step in steps:
        match step:
            case 'push', key, urgent if key not in present:
                queue.push(key, key, urgent=urgent)
                present.add(key)
            case 'put_back', key, urgent if key not in present:
                queue.put_back(key, key, urgent=urgent)
                present.add(key)
            case 'prioritize', key:
                queue.prioritize(key)
            case 'discard', key:
                queue.discard(key)
                present.discard(key)
            case ('pop',) if present:
                present.remove(queue.pop()[0])
        assert len(queue) == len(present)
    assert set(drain(queue)) == present
