"""How the calls of handlers have ended, as far as it is known, and which of them were at the same time."""

import time
import types

import pytest

from kopf._cogs.structs.instruments import ObjectKey
from kopf._cogs.structs.references import Resource
from kopf._kits.checking.call_records import Call, CallRecord

KEY = ("uid", "serve")
CALL = Call("webs", "w1", "serve", "retried", "not yet")
OBJECT = ObjectKey(Resource("example.com", "v1", "webs"), "default", "w1", "uid")


def make_call(id="serve", concurrent=False):
    return types.SimpleNamespace(id=id, concurrent=concurrent, key=OBJECT, outcome="succeeded", message=None)


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of the recorders; return a list with the time."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_the_last_end_of_a_handler_counts():
    record = CallRecord()
    record.end(KEY, CALL)
    assert record.list_unsuccessful(frozenset({"uid"}), "retried") == [CALL]
    assert record.list_unsuccessful(frozenset({"other"}), "retried") == []
    record.end(KEY, CALL._replace(outcome="succeeded"))
    assert record.list_unsuccessful(frozenset({"uid"}), "retried") == []


def test_handlers_that_run_again_have_not_failed():
    record = CallRecord()
    record.end(KEY, CALL)
    record.add().handler_begins(make_call())
    assert record.list_unsuccessful(frozenset({"uid"}), "retried") == []


def test_sub_handlers_that_their_parent_does_not_declare_any_more_are_not_retried():
    record = CallRecord()
    child, other = CALL._replace(id="serve/a"), CALL._replace(id="serves")
    record.end(("uid", "serve/a"), child)
    record.end(("uid", "serves"), other)
    record.end(KEY, CALL._replace(outcome="waiting"))
    assert record.list_unsuccessful(frozenset({"uid"}), "retried") == [child, other]
    record.end(KEY, CALL._replace(outcome="succeeded"))
    assert record.list_unsuccessful(frozenset({"uid"}), "retried") == [other]


def test_a_handler_that_runs_twice_at_the_same_time_is_an_overlap():
    record = CallRecord()
    recorder = record.add()
    recorder.handler_begins(make_call())
    recorder.handler_begins(make_call("other"))
    assert record.overlaps == []
    recorder.handler_begins(make_call())
    assert record.overlaps == ["serve of webs w1"]


@pytest.mark.parametrize("seconds, overlaps", [(0, []), (1, ["other of webs w1"])])
def test_handlers_of_two_operators_at_the_same_time_are_an_overlap_unless_one_does_nothing(clock, seconds, overlaps):
    record = CallRecord()
    call = make_call("other")
    record.add().handler_begins(make_call())
    recorder = record.add()
    recorder.handler_begins(call)
    clock[0] += seconds
    recorder.handler_ends(call)
    assert record.overlaps == overlaps


def test_what_a_killed_operator_was_doing_is_no_overlap():
    record = CallRecord()
    killed = record.add()
    killed.handler_begins(make_call())
    killed.forget()
    record.add().handler_begins(make_call())
    assert record.overlaps == []


def test_two_operators_take_turns_before_the_rest_only(clock):
    def handle(recorder):
        call = make_call()
        recorder.handler_begins(call)
        clock[0] += 1
        recorder.handler_ends(call)

    record = CallRecord()
    one, other = record.add(), record.add()
    handle(one)
    record.watch_rest()
    handle(other)
    record.end_rest()
    assert record.overlaps == []
    handle(one)
    record.end_rest()
    assert record.overlaps == ["serve of webs w1"]
