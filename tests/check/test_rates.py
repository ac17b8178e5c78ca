"""What checks find in some operators of the corpus, with a small budget; `python -m tests.check` is for all."""

import pytest

from tests.check import corpus, rates

SUBJECTS = {subject.name: subject for subject in corpus.find_subjects()}

QUICK = [
    "leaked_finalizer",
    pytest.param("memo_only", marks=pytest.mark.long),
    pytest.param("ready_too_early", marks=pytest.mark.long),
    pytest.param("levels", marks=pytest.mark.long),
]
"""The operators for each test run: mistakes that one of the first plans finds; `.ci/run` checks all."""


@pytest.mark.parametrize("name", QUICK)
def test_checks_find_planted_mistakes_and_nothing_else(name):
    subject = SUBJECTS[name]
    result = rates.measure(subject, budget=30 if subject.group == "planted" else 2, jobs=1)
    assert not result.is_wrong, f"{rates.format_row(result)}\n{result.text}"
