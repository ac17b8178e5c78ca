import itertools

import pytest

from kopf._cogs.aiokits.delays import LEAST, Delays


def take(delays, count):
    endless = Delays(delays)
    return [endless.next() for _ in range(count)]


def test_the_last_one_is_repeated():
    assert take([1, 2, 3], 5) == [1, 2, 3, 3, 3]


def test_endless_delays_are_taken_one_by_one():
    assert take(itertools.count(1), 3) == [1, 2, 3]


@pytest.mark.parametrize('delays', [[], (), [0], [0, 0], itertools.repeat(0), [-1]])
def test_no_delays_are_no_hot_loop(delays):
    assert take(delays, 9) == [*LEAST, LEAST[-1], LEAST[-1]]


def test_a_zero_in_the_beginning():
    assert take([0, 3], 3) == [0, 3, 3]
