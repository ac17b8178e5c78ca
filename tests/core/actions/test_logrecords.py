"""Fast log records: they equal those of the standard library."""

import asyncio
import logging
import multiprocessing
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopf._core.actions import logrecords
from kopf._core.actions.logrecords import AddingFactory, make_record

LOGGER = logging.getLogger('kopf.objects')
TIMES = {'created', 'msecs', 'relativeCreated'}

messages = st.one_of(
    st.tuples(st.text(), st.just(())),
    st.tuples(st.just("%s and %r"), st.tuples(st.text(), st.integers())),
    st.tuples(st.just("%(a)s"), st.tuples(st.dictionaries(st.just('a'), st.text(), min_size=1))),
    st.tuples(st.just("%s"), st.tuples(st.just({}))),
)


def make_both(msg="hello %s", args=('world',), level=logging.INFO, extra=None):
    frame = sys._getframe(0)
    line = frame.f_lineno
    extra = extra or {'k8s_skip': True}
    return (
        make_record(LOGGER, level, (frame.f_code, line), msg, args, extra),
        LOGGER.makeRecord(
            LOGGER.name, level, frame.f_code.co_filename, line, msg, args, None, frame.f_code.co_name, extra
        ),
    )


def get_attrs(record):
    return {name: value for name, value in record.__dict__.items() if name not in TIMES}


@given(messages, st.sampled_from([logging.INFO, logging.ERROR, 25]))
def test_records_equal_those_of_the_standard_library(message, level):
    for _ in range(2):
        ours, genuine = make_both(*message, level=level)
        assert type(ours) is type(genuine)
        assert get_attrs(ours) == get_attrs(genuine)
        assert ours.getMessage() == genuine.getMessage()


def test_each_record_has_its_own_time():
    first, genuine = make_both()
    ours, deadline = first, time.monotonic() + 10
    while ours.created <= first.created and time.monotonic() < deadline:  # until the clock goes on
        ours, genuine = make_both()
    assert first.created < ours.created <= genuine.created
    assert ours.relativeCreated == pytest.approx(genuine.relativeCreated, abs=1000)
    assert ours.relativeCreated - first.relativeCreated == pytest.approx((ours.created - first.created) * 1000, abs=1)
    assert 0 <= ours.msecs < 1000


def test_levels_have_their_current_names():
    make_both(level=27)
    logging.addLevelName(27, 'NOTICE')
    ours, genuine = make_both(level=27)
    assert ours.levelname == genuine.levelname == 'NOTICE'


def test_records_have_the_thread_that_logs():
    make_both()
    records = []
    thread = threading.Thread(target=lambda: records.extend(make_both()), name='another')
    thread.start()
    thread.join()
    ours, genuine = records
    assert ours.threadName == 'another'
    assert get_attrs(ours) == get_attrs(genuine)


async def test_records_have_the_task_that_logs():
    make_both()
    ours, genuine = await asyncio.create_task(asyncio.to_thread(make_both))
    assert get_attrs(ours) == get_attrs(genuine)
    ours, genuine = make_both()
    assert get_attrs(ours) == get_attrs(genuine)


def test_records_have_the_process_that_logs():
    if 'fork' not in multiprocessing.get_all_start_methods():
        pytest.skip("there are no forks in this system")
    make_both()
    context = multiprocessing.get_context('fork')
    results = context.SimpleQueue()
    process = context.Process(target=lambda: results.put([get_attrs(record) for record in make_both()]), name='child')
    process.start()
    ours, genuine = results.get()
    process.join()
    assert ours == genuine
    assert ours['processName'] == 'child'


def test_a_replaced_factory_makes_all_records():
    make_both()

    class Custom(logging.LogRecord):
        pass

    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Custom)
    try:
        ours, genuine = make_both()
    finally:
        logging.setLogRecordFactory(factory)
    assert type(ours) is Custom
    assert get_attrs(ours) == get_attrs(genuine)


@pytest.mark.parametrize('flag', ['logThreads', 'logProcesses', 'logMultiprocessing'])
def test_attributes_that_are_switched_off_are_absent(flag, monkeypatch):
    make_both()
    monkeypatch.setattr(logging, flag, False)
    ours, genuine = make_both()
    assert get_attrs(ours) == get_attrs(genuine)


def test_the_number_of_cached_places_is_limited(monkeypatch):
    monkeypatch.setattr(logrecords, '_templates', {})
    monkeypatch.setattr(logrecords, 'MAX_TEMPLATES', 3)
    for line in range(10):
        make_record(LOGGER, logging.INFO, (test_the_number_of_cached_places_is_limited.__code__, line), "", (), {})
        assert len(logrecords._templates) <= 3


@pytest.fixture
def install():
    installed = []

    def install(find):
        factory = AddingFactory(find)
        factory.install()
        installed.append(factory)
        return factory

    yield install
    for factory in reversed(installed):
        factory.uninstall()
    assert logging.getLogRecordFactory() is logging.LogRecord


@pytest.mark.parametrize('added', [{'trace_id': 'abc'}, {}, None])
def test_attributes_can_be_added_without_ending_the_fast_way(install, monkeypatch, added):
    install(lambda: added)
    ours, genuine = make_both()
    assert get_attrs(ours) == get_attrs(genuine) and getattr(ours, 'trace_id', None) == (added or {}).get('trace_id')
    monkeypatch.setattr(logging.Logger, 'makeRecord', None)
    frame = sys._getframe(0)
    assert make_record(LOGGER, logging.INFO, (frame.f_code, frame.f_lineno), "hello", (), {}).msg == "hello"


def test_attributes_are_added_to_the_records_of_the_users_factory(install, monkeypatch):
    class OwnRecord(logging.LogRecord):
        pass

    logging.setLogRecordFactory(OwnRecord)
    try:
        factory = install(lambda: {'trace_id': 'abc'})
        ours, _ = make_both()
        assert type(ours) is OwnRecord and ours.trace_id == 'abc'
        factory.uninstall()
        assert logging.getLogRecordFactory() is OwnRecord
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


def test_a_factory_that_was_replaced_is_left_alone(install):
    factory = install(lambda: None)
    other = install(lambda: None)
    factory.uninstall()
    assert logging.getLogRecordFactory() is other
    other.uninstall()
    factory.uninstall()
