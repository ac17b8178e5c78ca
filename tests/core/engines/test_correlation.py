"""Correlation of Events: counts, combined messages, the limit of requests, and the bounded memory."""

import collections

import pytest

from kopf._core.engines import correlation
from kopf._core.engines.correlation import Correlator


class Recorder:
    """Posts whatever the correlator lets through, at once."""

    def __init__(self):
        self.now = 0.0
        self.correlator = Correlator(lambda: self.now)
        self.posted = collections.Counter()
        self.requests = 0

    def post(self, message='message', *, source='obj', reason='Reason'):
        message = self.correlator.combine((source, reason), message)
        is_combined = message.startswith(correlation.COMBINED_PREFIX)
        series = self.correlator.observe(source, (source, reason, None if is_combined else message), message)
        if series is None:
            return None
        series.take()
        self.requests += 1
        self.posted[source, message] = series.count
        return series.count


@pytest.fixture
def recorder():
    return Recorder()


def test_equal_events_are_counted(recorder):
    assert [recorder.post() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert recorder.post(reason='Another') == recorder.post('another') == recorder.post(source='other') == 1


def test_an_object_has_a_burst_and_then_one_request_in_five_minutes(recorder):
    counts = [recorder.post() for _ in range(100)]
    assert counts == [*range(1, 26), *[None] * 75]
    assert recorder.correlator.dropped == 75
    recorder.now += 299
    assert recorder.post() is None
    recorder.now += 2
    assert recorder.post() == 102  # the dropped ones are counted, too
    assert recorder.post() is None
    assert recorder.post(source='other') == 1
    recorder.now += 26 * 300
    assert len([1 for _ in range(50) if recorder.post()]) == 25


def test_similar_events_are_combined_above_ten(recorder):
    for i in range(15):
        recorder.post(f'{i}')
    assert list(recorder.posted) == [
        *(('obj', f'{i}') for i in range(10)),
        *(('obj', f'(combined from similar events): {i}') for i in range(10, 15)),
    ]
    assert recorder.posted['obj', '(combined from similar events): 14'] == 5  # all are one
    assert recorder.post('x', reason='Another') == 1 and ('obj', 'x') in recorder.posted
    recorder.now += 601
    recorder.post('y')
    assert ('obj', 'y') in recorder.posted


def test_events_that_come_while_an_equal_one_waits_need_no_request(recorder):
    waiting = recorder.correlator.observe('obj', 'key', 1)
    waiting.wait()
    for i in range(1000):
        assert recorder.correlator.observe('obj', 'key', i) is waiting
    assert (waiting.count, waiting.take()) == (1001, 999)
    assert recorder.correlator.dropped == 0


def test_the_memory_is_bounded(recorder, monkeypatch):
    monkeypatch.setattr(correlation, 'MAX_ENTRIES', 10)
    for i in range(100):
        recorder.post(source=f'obj{i}')
    caches = [value for value in vars(recorder.correlator).values() if isinstance(value, correlation._Cache)]
    assert [len(cache._values) for cache in caches] == [10, 10, 10]
    assert recorder.post(source='obj99') == 2  # the newest are kept
    assert recorder.post(source='obj0') == 1
