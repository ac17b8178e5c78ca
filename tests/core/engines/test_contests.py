"""Contests: when a field is left to another manager, and for how long."""

from kopf._core.engines.contests import LONGEST_TRUCE, MAX_LOSSES_OF_WHOLE, PERIOD, TRUCE, UNKNOWN, WHOLE, Contest
from kopf._core.engines.field_ownership import Ownership

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


DESIRED = {'spec': {'replicas': 3, 'image': 'x'}, 'metadata': {'labels': {'kopf.dev/owner-uid': 'u', 'a': 'b'}}}
OWNER = ('f:metadata', 'f:labels', 'f:kopf.dev/owner-uid')
LABEL = ('f:metadata', 'f:labels', 'f:a')


def own(*paths, **others):
    return Ownership(frozenset(paths), {path: manager for manager, path in others.items()})


def test_fields_that_others_remove_are_found_when_they_are_restored_and_count_as_taken_ones():
    contest, whole = Contest(), own(REPLICAS, IMAGE)
    assert not contest.find_losses(DESIRED, own(IMAGE), 0)  # nothing shows it yet
    assert not contest.note_restored(own(IMAGE), whole, 'us', 0)
    assert contest.find_losses(DESIRED, own(IMAGE), 1) == {REPLICAS: UNKNOWN}
    assert not contest.note({REPLICAS: UNKNOWN}, 1)
    assert not contest.note_restored(own(IMAGE), whole, 'us', 1)  # it is counted already
    assert contest.note({REPLICAS: UNKNOWN}, 2).keys() == {REPLICAS}
    assert not contest.find_losses(DESIRED, own(IMAGE), 2)  # it is left out for now
    assert not contest.find_losses({}, own(IMAGE), 2 + TRUCE)


def test_fields_that_others_have_taken_are_not_removed_ones():
    contest = Contest()
    assert contest.find_losses(DESIRED, own(IMAGE, editor=REPLICAS), 0) == {REPLICAS: 'editor'}
    contest.note_restored(own(IMAGE, editor=REPLICAS), own(IMAGE, REPLICAS), 'us', 0)
    assert not contest.find_losses(DESIRED, own(IMAGE), 1)


def test_a_loss_counts_once_until_the_field_is_restored():
    contest, theirs = Contest(), own(IMAGE, editor=REPLICAS)
    assert contest.find_losses(DESIRED, theirs, 0) == {REPLICAS: 'editor'}
    contest.note({REPLICAS: 'editor'}, 0)
    assert not contest.find_losses(DESIRED, theirs, 1)  # the API server was unavailable
    assert contest.find_losses(DESIRED, own(IMAGE, other=REPLICAS), 1) == {REPLICAS: 'other'}
    contest.note_applied(2)
    assert contest.find_losses(DESIRED, theirs, 3) == {REPLICAS: 'editor'}


def test_a_field_that_is_left_to_others_is_lost_again_only_after_it_was_restored():
    contest, theirs = Contest(), own(IMAGE, editor=REPLICAS)
    for now in 0, 1, 2:
        contest.note({REPLICAS: 'editor'}, now)
        contest.note_applied(now)
    end = contest.find_end(3)
    assert end == 2 + TRUCE and contest.find_end(end) is None
    assert not contest.find_losses(DESIRED, theirs, end)
    contest.note_applied(end)
    assert contest.find_losses(DESIRED, theirs, end) == {REPLICAS: 'editor'}


def test_what_makes_an_object_a_child_is_never_left_to_others():
    contest = Contest()
    assert contest.find_losses(DESIRED, own(editor=OWNER), 0) == {WHOLE: 'editor'}
    assert contest.find_losses(DESIRED, own(editor=LABEL), 0) == {LABEL: 'editor'}


def test_a_whole_child_is_left_alone_if_it_is_deleted_ten_times_in_a_minute():
    contest = Contest()
    for _ in range(MAX_LOSSES_OF_WHOLE - 1):
        assert not contest.note({WHOLE: UNKNOWN}, 0)
    assert contest.note({WHOLE: UNKNOWN}, 0).keys() == {WHOLE}


def test_a_child_that_others_apply_under_the_same_name_is_left_alone_after_a_while():
    contest, same = Contest(), own(IMAGE)
    for _ in range(MAX_LOSSES_OF_WHOLE - 1):
        assert not contest.note_restored(same, same, 'us', 0)
    assert contest.note_restored(same, same, 'us', 0)[WHOLE].manager == 'us'
