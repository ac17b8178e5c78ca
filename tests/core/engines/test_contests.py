"""Contests: when a field is left to another manager, and for how long."""

from kopf._core.engines.contests import LONGEST_TRUCE, PERIOD, TRUCE, Contest

REPLICAS = ('f:spec', 'f:replicas')
IMAGE = ('f:spec', 'f:image')


def test_a_field_is_left_to_the_manager_that_takes_it_three_times_in_a_minute():
    contest = Contest()
    for now in 0, 10:
        assert not contest.note({REPLICAS: 'autoscaler'}, now)
    begun = contest.note({REPLICAS: 'autoscaler'}, 20)
    assert begun[REPLICAS].manager == 'autoscaler' and begun.keys() == {REPLICAS}
    assert contest.find_truces(20 + TRUCE - 1).keys() == {REPLICAS}
    assert not contest.find_truces(20 + TRUCE)


def test_losses_that_are_far_apart_do_not_count_together():
    contest = Contest()
    for number in range(10):
        assert not contest.note({REPLICAS: 'autoscaler'}, number * PERIOD / 2)


def test_losses_of_other_fields_or_to_other_managers_do_not_count_together():
    contest = Contest()
    for now in 0, 1:
        assert not contest.note({REPLICAS: 'autoscaler', IMAGE: 'editor'}, now)
    assert not contest.note({REPLICAS: 'editor', IMAGE: 'autoscaler'}, 2)
    assert contest.note({IMAGE: 'editor'}, 3).keys() == {IMAGE}


def test_each_further_loss_doubles_the_time():
    contest, now, durations = Contest(), 0.0, []
    for _ in range(3):
        contest.note({REPLICAS: 'autoscaler'}, now)
    for _ in range(8):
        truce = contest.find_truces(now)[REPLICAS]
        durations.append(truce.duration)
        now = truce.until + 1
        assert not contest.find_truces(now)
        contest.note({REPLICAS: 'autoscaler'}, now)
    assert durations == [min(TRUCE * 2**number, LONGEST_TRUCE) for number in range(8)]


def test_a_field_that_was_kept_for_long_is_contested_anew():
    contest = Contest()
    for _ in range(3):
        contest.note({REPLICAS: 'autoscaler'}, 0)
    assert not contest.note({REPLICAS: 'autoscaler'}, TRUCE + PERIOD + 1)
