"""Which states of an object are older than the operator's last patch, or its echo."""

import time

import pytest

from kopf._core.reactor.echoes import Expectation, Verdict


def state(version):
    return {'metadata': {'name': 'obj', 'resourceVersion': version} if version else {'name': 'obj'}}


@pytest.mark.parametrize(
    'expected, version, verdict',
    [
        ('10', '10', Verdict.ECHO),
        ('10', '9', Verdict.OLDER),
        ('10', '11', Verdict.NEWER),
        ('v10', 'v10', Verdict.ECHO),
        ('v10', 'v11', Verdict.UNSURE),
        ('10', 'v11', Verdict.UNSURE),
        ('10', None, Verdict.UNSURE),
    ],
)
def test_only_numeric_versions_tell_older_events_from_newer_ones(expected, version, verdict):
    expectation = Expectation.after_patch(state(expected), None, timeout=60)
    assert expectation.compare({'type': 'MODIFIED', 'object': state(version)}) is verdict


def test_lower_versions_are_doubted_only_after_a_list_requested_after_the_patch():
    started_at = time.monotonic()
    expectation = Expectation.after_patch(state('10'), None, timeout=60)
    event = {'type': 'MODIFIED', 'object': state('9')}
    assert expectation.after_list(since=started_at - 1).compare(event) is Verdict.OLDER
    assert expectation.after_list(since=time.monotonic() + 1).compare(event) is Verdict.UNSURE
    assert expectation.after_list(since=time.monotonic() + 61) is None


def test_nothing_is_expected_without_a_version_or_a_timeout():
    assert Expectation.after_patch(state(None), None, timeout=60) is None
    assert Expectation.after_patch(state('10'), None, timeout=0) is None
    assert Expectation.of_deletion(timeout=0) is None


def test_an_event_that_is_held_back_outlives_another_patch():
    event = {'type': 'MODIFIED', 'object': state('v9')}
    expectation = Expectation.after_patch(state('v10'), None, timeout=60)
    expectation.hold_back(event)
    assert Expectation.after_patch(state('v11'), expectation, timeout=60).unsure is event


@pytest.mark.parametrize('times', [1, 2])
@pytest.mark.parametrize('version, verdict', [('9', Verdict.OLDER), ('10', Verdict.NEWER)])
def test_an_object_that_left_the_selectors_before_the_patch_can_come_back_with_its_echo(version, verdict, times):
    rest = expectation = Expectation.after_patch(state('10'), None, timeout=60)
    for number in range(times):
        rest = rest.after_deletion({'type': 'DELETED', 'object': state(str(5 + number))}, timeout=60)
    assert rest.compare({'type': 'ADDED', 'object': state(version)}) is verdict
    assert expectation.after_deletion({'type': 'DELETED', 'object': state('11')}, timeout=60) is None
