"""Oracles: what is wrong with a course, compared with an undisturbed one."""

import dataclasses

import pytest

from kopf._kits.checking.call_records import Call
from kopf._kits.checking.end_states import Normalizer, State, StoredObject
from kopf._kits.checking.oracles import Expectation, Violation, judge, judge_undisturbed
from kopf._kits.checking.outcomes import Facts, Outcome


def make_state(**sizes):
    return State(
        [StoredObject("webs", "ns", name, {"metadata": {}, "spec": {"size": size}}) for name, size in sizes.items()], {}
    )


REFERENCE = Outcome(end=make_state(x=1))
LIKENESS = Normalizer([[REFERENCE.end] * 2])
FAILED = Call("webs", "x", "create_fn", "failed", "no way")


def list_oracles(found):
    return [violation.oracle for violation in found]


@pytest.mark.parametrize(
    "changes, oracles",
    [
        ({}, []),
        ({"end": make_state(x=2)}, ["end"]),
        ({"end": make_state()}, ["end"]),
        ({"final": make_state(x=1)}, ["leftovers"]),
        ({"quiet_writes": ["PATCH /x: 200"]}, ["unrest"]),
        ({"overlaps": ["create_fn of webs x"]}, ["overlap"]),
        ({"failed": [FAILED]}, ["failed"]),
        ({"retried": [FAILED]}, ["retried"]),
        ({"failure": "The operator has exited."}, ["failure"]),
        ({"scenario_error": "KeyError: 'status'"}, ["scenario"]),
        ({"problem": "It uses sockets."}, []),
        ({"restarted": make_state(x=1)}, []),
        ({"restarted": make_state(x=2)}, ["restart"]),
        ({"restarted": make_state(x=1), "restart_writes": ["webs ns/x"]}, ["restart"]),
    ],
    ids=str,
)
def test_each_oracle_sees_its_own_violations(changes, oracles):
    outcome = dataclasses.replace(REFERENCE, **changes)
    assert list_oracles(judge(outcome, Expectation(REFERENCE, LIKENESS))) == oracles


def test_what_happens_without_disturbances_is_no_violation():
    reference = dataclasses.replace(
        REFERENCE, failed=[FAILED], quiet_writes=["PATCH /x: 200"] * 10, final=REFERENCE.end
    )
    assert judge(reference, Expectation(reference, LIKENESS)) == []
    assert judge(dataclasses.replace(reference, failed=[]), Expectation(reference, LIKENESS)) == []


@pytest.mark.parametrize(
    "changes, oracles",
    [
        ({}, []),
        ({"final": make_state(x=1)}, ["leftovers"]),
        ({"overlaps": ["create_fn of webs x"]}, ["overlap"]),
        ({"restarted": make_state(x=2)}, ["restart"]),
        ({"quiet_writes": ["PATCH /x: 200"]}, ["unrest"]),
        ({"quiet_writes": ["PATCH /x: 200"] * 60, "facts": Facts(is_periodic=True)}, []),
        ({"early": ["pods x"]}, ["ready"]),
        (
            {
                "quiet_writes": ["PUT /x: 200"] * 9,
                "needless_writes": ["PUT /x: 200"] * 9,
                "facts": Facts(is_periodic=True),
            },
            ["needless"],
        ),
    ],
    ids=str,
)
def test_undisturbed_courses_are_judged_by_themselves(changes, oracles):
    assert list_oracles(judge_undisturbed(dataclasses.replace(REFERENCE, **changes), LIKENESS)) == oracles


@pytest.mark.parametrize(
    "changes, oracles",
    [
        ({"quiet_writes": ["PATCH /x: 422"] * 120}, []),
        ({"quiet_writes": ["PATCH /x: 422"] * 60, "needless_writes": ["PATCH /x"]}, []),
        ({"quiet_writes": ["PATCH /x: 422"] * 601}, ["unrest"]),
        ({"final": make_state(x=1)}, ["leftovers"]),
    ],
    ids=str,
)
def test_what_cannot_be_applied_may_be_tried_again_but_not_in_a_loop(changes, oracles):
    outcome = dataclasses.replace(REFERENCE, **changes)
    assert list_oracles(judge_undisturbed(outcome, LIKENESS, is_refused=True)) == oracles


def test_details_are_limited_and_counted():
    outcome = dataclasses.replace(REFERENCE, quiet_writes=["PATCH /x: 200"] * 3 + [f"PUT /{n}: 200" for n in range(20)])
    [violation] = judge(outcome, Expectation(REFERENCE, LIKENESS))
    assert violation.details[0] == "! PATCH /x: 200 (3 times)"
    assert violation.details[-1] == "... and 9 more" and len(violation.details) == 13


def test_the_essence_of_a_violation_has_no_values():
    one, other = (Violation("end", "text", (f"~ webs ns/x spec.size: 1 is expected, {n} is there",)) for n in (2, 3))
    assert one.essence == other.essence == ("end", "~ webs ns/x spec.size")
