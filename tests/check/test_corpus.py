"""The operators of the corpus: what they are to show, and that they work if nothing disturbs them."""

import pytest

from kopf.testing import Operator, Sandbox, WaitTimeout
from tests.check import corpus

SUBJECTS = {subject.name: subject for subject in corpus.find_subjects()}
RESTLESS = {"hot_loop"}


def test_the_corpus_is_large_enough():
    groups = [subject.group for subject in SUBJECTS.values()]
    assert groups.count("planted") >= 24
    assert groups.count("correct") + groups.count("example") >= 10


def test_each_operator_says_what_it_is():
    helpers = {"kube", "cloud"}
    assert {path.stem for path in corpus.FOLDER.glob("*.py")} - helpers <= SUBJECTS.keys()
    for subject in SUBJECTS.values():
        assert subject.title.endswith("."), subject.name


def test_no_operator_knows_of_the_check():
    for path in corpus.FOLDER.glob("*.py"):
        assert "kopf.testing" not in path.read_text() and "virtual" not in path.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SUBJECTS)
def test_undisturbed_operators_come_to_rest(name):
    subject = SUBJECTS[name]
    sandbox = Sandbox(virtual_time=True, crds=subject.crds, pods=subject.pods)
    with sandbox, Operator(sandbox, subject.app) as operator:
        for load in subject.loads:
            sandbox.apply(load)
        if name in RESTLESS:
            with pytest.raises(WaitTimeout, match="do not come to rest"):
                sandbox.rest(quiet=1, timeout=2)
        else:
            sandbox.rest(quiet=50, timeout=1000)
        assert "VirtualTimeError" not in operator.output
