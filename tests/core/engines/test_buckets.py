"""The buckets of objects: the hash of the API server, and the text of annotations."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.engines.buckets import digest, find_bucket, format_ranges, parse_ranges
from kopf._kits.testing.storing import sharding


@pytest.mark.parametrize(
    'text, value',
    [
        ('', 0xCBF29CE484222325),
        ('a', 0xAF63DC4C8601EC8C),
        ('foobar', 0x85944171F73967E8),  # the vectors of the authors of FNV
    ],
)
def test_the_hash_is_fnv_1a_with_64_bits(text, value):
    assert digest(text) == value


@given(st.uuids())
def test_a_bucket_is_a_range_of_hashes_that_the_server_can_select(uid):
    bucket = find_bucket(str(uid), 256)
    assert bucket << 56 <= int(sharding.digest(str(uid)), 16) < (bucket + 1) << 56


def test_uids_are_spread_evenly_over_the_buckets():
    uids = [str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number))) for number in range(16000)]
    buckets = [find_bucket(uid, 16) for uid in uids]
    assert all(800 < buckets.count(bucket) < 1200 for bucket in range(16))


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1)))))
def test_buckets_survive_being_written_and_read(case):
    buckets, some = case
    assert parse_ranges(format_ranges(some), buckets) == some


def test_buckets_are_written_as_ranges():
    assert format_ranges({3, 0, 1, 2, 7, 9, 10}) == '0-3,7,9-10'


@pytest.mark.parametrize('text', [None, 5, 'x', '1-', '-1', '3-1', '0-256', '256', '0,,1', '0 - 1'])
def test_malformed_ranges_are_refused(text):
    with pytest.raises(ValueError):
        parse_ranges(text, 256)
