"""The testbed in virtual time: what courses at the same time do not share."""

import contextlib

from kopf._kits.checking.courses import Course
from kopf._kits.checking.forks import ForkPool
from kopf._kits.checking.plans import Plan
from kopf._kits.checking.subjects import Loading, Subject


def test_courses_at_the_same_time_have_credentials_of_their_own(tmp_path):
    subject = Subject(arguments=[], options={}, scenario=Loading([]), observers={}, folder=tmp_path)

    def open_testbed(seed):
        with contextlib.closing(Course(subject, Plan(seed=seed)).testbed) as testbed:
            testbed.open()
            return str(testbed.sandbox.kubeconfig)

    tasks = [(seed, lambda seed=seed: open_testbed(seed)) for seed in (1, 2, 3)]
    paths = dict(ForkPool(3, 60).run(iter(tasks), float("inf")))
    assert len(set(paths.values())) == 3
