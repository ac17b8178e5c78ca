"""When a successor has taken over from a dead operator, by the requests of both."""

import json

import pytest

from kopf._kits.checking.takeovers import MAX_TERM, SLACK, find_takeover
from kopf._kits.testing.serving.faults import SeenRequest


def write(at, resource, body, *, method="PUT", name="own", status=200, **query):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return SeenRequest(method, "/", query, "", "", at, resource=resource, name=name, body=data, status=status)


def hold(at, holder, duration=15, **options):
    return write(at, "leases", {"spec": {"holderIdentity": holder, "leaseDurationSeconds": duration}}, **options)


def join(at, identity, lifetime=60):
    record = {"priority": 0, "lifetime": lifetime} if lifetime else None
    return write(at, "kopfpeerings", {"status": {identity: record}}, method="PATCH")


def find(*requests, changed_at=0.0, ended=()):
    return find_takeover(requests, changed_at=changed_at, ended=ended)


def test_nothing_is_taken_over_without_an_election_and_a_peering():
    assert find(write(9, "configmaps", {"spec": {}}), changed_at=8) == 0


def test_a_leader_that_renews_its_lease_has_taken_over_when_it_was_elected():
    assert find(hold(3, "a", method="POST"), hold(5, "a"), hold(7, "a"), changed_at=6) == 3


def test_a_lease_without_a_renewal_is_taken_over_when_it_has_expired():
    assert find(hold(3, "a"), hold(5, "a"), changed_at=6) == 6 + 15 + SLACK
    assert find(hold(3, "a"), hold(5, "a"), hold(20, "b"), changed_at=6) == 20


def test_a_released_lease_is_taken_over_soon():
    assert find(hold(3, "a"), hold(5, "", duration=1), changed_at=6) == 6 + 1 + SLACK
    assert find(hold(3, "a"), hold(5, "", duration=1), hold(6, "b"), changed_at=6) == 6


def test_locks_that_are_never_released_are_not_waited_for_without_end():
    assert find(hold(3, "lock", duration=3600), changed_at=6) == 6 + MAX_TERM + SLACK


def test_a_deleted_lease_is_not_waited_for():
    assert find(hold(3, "a"), write(4, "leases", b"", method="DELETE"), changed_at=6) == 4


@pytest.mark.parametrize(
    "request_",
    [
        hold(7, "b", status=409),
        hold(7, "b", status=0),
        hold(7, "b", dryRun="All"),
        write(7, "leases", b"k8s\x00"),
        write(7, "leases", [{"op": "test"}]),
        write(7, "leases", {"spec": {}}, method="GET"),
    ],
    ids=["refused", "unanswered", "dry", "binary", "list", "read"],
)
def test_requests_that_write_no_lease_take_nothing_over(request_):
    assert find(hold(3, "a"), request_, changed_at=6) == 6 + 15 + SLACK


def test_the_record_of_an_ended_peer_is_waited_for_until_it_is_removed_or_expires():
    assert find(join(3, "a"), join(4, "b"), changed_at=9) == 4
    assert find(join(3, "a"), join(4, "b"), changed_at=9, ended={"a"}) == 3 + 60 + SLACK
    assert find(join(3, "a"), join(4, "b"), join(8, "a", lifetime=None), changed_at=9, ended={"a"}) == 8
