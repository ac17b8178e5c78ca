"""How the calls of handlers have ended, as far as it is known."""

from kopf._kits.checking.call_records import Call, CallRecord

KEY = ("uid", "serve")
CALL = Call("webs", "w1", "serve", "retried", "not yet")


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
    record.begin(KEY)
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
