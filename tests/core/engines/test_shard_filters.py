"""The objects of one member: the ranges that the API server selects, and the lines that are not even decoded."""

import json
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.assignments import Division
from kopf._core.engines.buckets import find_bucket
from kopf._core.engines.shard_filters import MAX_RANGES, MAX_REST, ReadingPace, ShardFilter, make_selection
from kopf._kits.testing.storing import sharding

UIDS = [str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number))) for number in range(200)]


def make_filter(*texts, key='uid', buckets=64):
    """Return the filter of a member with the buckets of these uids or namespaces."""
    active = frozenset(find_bucket(text, buckets) for text in texts)
    return ShardFilter(Division(buckets, key), lambda: active)


def line(**metadata):
    return json.dumps({'type': 'MODIFIED', 'object': {'metadata': metadata}}, separators=(',', ':')).encode()


def split(*texts, buckets=64):
    """Return the first text, and the others that are in other buckets."""
    return texts[0], [text for text in texts[1:] if find_bucket(text, buckets) != find_bucket(texts[0], buckets)]


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1), min_size=1))))
def test_the_server_selects_the_objects_of_the_buckets(case):
    buckets, some = case
    selection = make_selection(Division(buckets, 'uid'), some, most=300)
    ranges = sharding.parse(str(selection))
    for uid in UIDS:
        value = int(sharding.digest(uid), 16)
        is_selected = any(int(each.start, 16) <= value < int(each.end, 16) for each in ranges)
        assert is_selected is selection.covers(uid) is (find_bucket(uid, buckets) in some)


def test_adjacent_buckets_are_one_range():
    assert str(make_selection(Division(4, 'namespace'), {0, 1, 3})) == (
        "shardRange(object.metadata.namespace, '0x0000000000000000', '0x8000000000000000') || "
        "shardRange(object.metadata.namespace, '0xc000000000000000', '0x10000000000000000')"
    )


def test_no_buckets_are_requested_as_nearly_nothing():
    assert str(make_selection(Division(256, 'uid'), ())) == (
        "shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000001')"
    )


@given(st.frozensets(st.integers(0, 255), min_size=1), st.integers(1, 10))
def test_the_selector_is_bounded_and_never_selects_less(some, most):
    selection = make_selection(Division(256, 'uid'), some, most)
    assert 2 <= len(selection.bounds) <= 2 * most
    for uid in UIDS:
        assert selection.covers(uid) or find_bucket(uid, 256) not in some


def test_the_smallest_gaps_are_closed_first():
    every_second = frozenset(range(0, 100, 2))
    text = str(make_selection(Division(256, 'uid'), every_second | {200}))
    assert text.count('shardRange') == MAX_RANGES and "'0xc800000000000000', '0xc900000000000000'" in text


def test_the_time_for_a_selection_grows_with_the_ranges_and_not_with_their_square():
    def count_calls(number):
        calls = []
        sys.setprofile(lambda frame, event, arg: calls.append(1) if event == 'call' else None)
        try:
            make_selection(Division(2 * number, 'uid'), range(0, 2 * number, 2))
        finally:
            sys.setprofile(None)
        return len(calls)

    assert count_calls(4000) < 5 * count_calls(1000)


def test_the_selection_follows_the_buckets():
    held = [frozenset({0}), frozenset({0, 1})]
    shard = ShardFilter(Division(2, 'uid'), lambda: held[0])
    assert shard.selection.bounds == (0, 1 << 63)
    own = next(uid for uid in UIDS if find_bucket(uid, 2) == 1)
    assert shard.excludes(own, None) and shard.excludes_line(line(uid=own), namespaced=True)
    del held[0]
    assert shard.selection.bounds == (0, 1 << 64)
    assert not shard.excludes(own, None) and not shard.excludes_line(line(uid=own), namespaced=True)


@pytest.mark.parametrize('namespaced', [True, False])
def test_lines_of_foreign_uids_are_excluded_unless_they_mention_an_own_one(namespaced):
    own, [other, another, *_] = split(*UIDS)
    shard = make_filter(own)
    assert shard.excludes_line(line(uid=other, ownerReferences=[{'uid': another}]), namespaced=namespaced)
    assert not shard.excludes_line(line(uid=own), namespaced=namespaced)
    assert not shard.excludes_line(line(uid=other, ownerReferences=[{'uid': own}]), namespaced=namespaced)
    assert not shard.excludes_line(line(uid=own, ownerReferences=[{'uid': other}]), namespaced=namespaced)
    assert not shard.excludes_line(b'{"type":"BOOKMARK","object":{}}', namespaced=namespaced)


@pytest.mark.parametrize('key', ['uid', 'namespace'])
@pytest.mark.parametrize('type_', ['ERROR', 'BOOKMARK', 'UNKNOWN'])
def test_errors_and_bookmarks_are_never_excluded(type_, key):
    shard = make_filter(key=key)
    content = {'kind': 'Status', 'details': {'uid': UIDS[0], 'namespace': 'ns'}, 'metadata': {'uid': UIDS[1]}}
    text = json.dumps({'type': type_, 'object': content}, separators=(',', ':')).encode()
    assert not shard.excludes_line(text, namespaced=True)
    assert shard.excludes_line(text.replace(type_.encode(), b'ADDED'), namespaced=True)


def test_lines_of_foreign_namespaces_are_excluded_if_objects_have_one():
    own, [other, another, *_] = split(*(f'ns-{number}' for number in range(20)))
    shard = make_filter(own, key='namespace')
    assert shard.excludes_line(line(namespace=other, spec={'namespace': another}), namespaced=True)
    assert not shard.excludes_line(line(namespace=other, spec={'namespace': own}), namespaced=True)
    assert not shard.excludes_line(line(namespace=own), namespaced=True)
    assert not shard.excludes_line(line(name='x'), namespaced=True)
    # An object without a namespace mentions that of another object.
    assert not shard.excludes_line(line(claimRef={'namespace': other}), namespaced=False)
    assert shard.excludes('uid', other) and not shard.excludes('uid', own)


@pytest.mark.parametrize(
    'lines, foreign, elapsed, rest',
    [
        (1, 1, 1, 0),  # few lines: each one is read at once
        (1, 1, 0.002, MAX_REST),
        (1, 1, 0.0005, 0.024),  # until 48 lines have gathered
        (48, 48, 0.024, 0.024),  # at the same rate, it stays so
        (100, 100, 0.025, 0.012),
        (3, 1, 0.001, 0),  # most of the lines are own ones
        (4, 2, 0.001, 0.024),
        (1, 0, 0.001, 0),
    ],
)
def test_foreign_lines_are_gathered_if_there_are_many(lines, foreign, elapsed, rest):
    pace = ReadingPace()
    assert pace.find_rest(1, 1, 100) == 0
    assert pace.find_rest(lines, foreign, 100 + elapsed) == pytest.approx(rest)
