"""The results of handlers in the status of their object."""

import logging

import pytest

import kopf
from kopf._core.actions.execution import Outcome
from kopf._core.intents.results import deliver_results, is_delivered


def deliver(*results, patch=None):
    patch = kopf.Patch() if patch is None else patch
    for result in results:
        deliver_results({'fn': Outcome(final=True, result=result)}, patch, logging.getLogger())
    return patch


def test_mappings_are_merged_into_the_former_result():
    assert deliver({'a': 1, 'b': 1}, {'b': 2}) == {'status': {'fn': {'a': 1, 'b': 2}}}


@pytest.mark.parametrize('result', ['text', 0, False, [], ['item']])
def test_other_results_replace_the_former_one(result):
    assert deliver({'a': 1}, result) == {'status': {'fn': result}}


def test_mappings_replace_what_is_not_a_mapping():
    assert deliver('text', {'a': 1}) == {'status': {'fn': {'a': 1}}}


def test_nothing_is_delivered_without_a_result():
    assert deliver(None) == {}


@pytest.mark.parametrize(
    'result, known, delivered',
    [
        ({'a': 1}, {'a': 1, 'b': 2}, True),
        ({'a': 2}, {'a': 1, 'b': 2}, False),
        ({'a': 1}, None, False),
        ('text', 'text', True),
        ('text', 'other', False),
    ],
)
def test_results_are_delivered_once_the_status_contains_them(result, known, delivered):
    assert is_delivered(result, known) is delivered
