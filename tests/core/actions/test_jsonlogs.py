"""JSON logs: the keys and values of the lines on the standard error."""

import json
import logging

import pytest

from kopf._core.actions.loggers import LogFormat, configure

pytestmark = pytest.mark.usefixtures('restored_logging')

REF = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}


def test_lines_have_the_message_the_extra_fields_and_the_object(logger, lines):
    configure(log_format=LogFormat.JSON, log_prefix=None)
    logger.info("hello %s", 'world', extra={'key': {'nested': 1}})
    logging.getLogger('mine').warning("of mine")
    first, second = map(json.loads, lines())
    assert first.pop('timestamp').endswith('+00:00')
    assert second.pop('timestamp').endswith('+00:00')
    assert first == {'message': "hello world", 'key': {'nested': 1}, 'object': REF, 'severity': 'info'}
    assert second == {'message': "of mine", 'severity': 'warn'}


def test_the_order_of_keys_is_stable(logger, lines):
    configure(log_format=LogFormat.JSON)
    try:
        raise ValueError("boo")
    except ValueError:
        logger.exception("hello", extra={'key': 'value'})
    assert list(json.loads(lines()[0])) == ['message', 'exc_info', 'key', 'timestamp', 'object', 'severity']


def test_the_key_of_the_reference_and_the_prefix_are_options(logger, lines):
    configure(log_format=LogFormat.JSON, log_prefix=True, log_refkey='k8s')
    logger.info("hello")
    fields = json.loads(lines()[0])
    assert fields['message'] == "[ns1/name1] hello"
    assert fields['k8s'] == REF
    assert 'object' not in fields


@pytest.mark.parametrize(
    'level, severity',
    [
        (1, 'debug'),
        (10, 'debug'),
        (11, 'info'),
        (20, 'info'),
        (21, 'warn'),
        (30, 'warn'),
        (31, 'error'),
        (40, 'error'),
        (41, 'fatal'),
        (50, 'fatal'),
        (60, 'fatal'),
    ],
)
def test_severities_are_those_of_log_collectors(lines, level, severity):
    configure(log_format=LogFormat.JSON)
    logging.getLogger().setLevel(1)
    logging.getLogger('mine').log(level, "hello")
    assert json.loads(lines()[0])['severity'] == severity


def test_exceptions_and_stacks_have_keys_of_their_own(logger, lines):
    configure(log_format=LogFormat.JSON)
    try:
        raise ValueError("boo")
    except ValueError:
        logger.exception("hello")
    logger.info("bye", stack_info=True)
    first, second = map(json.loads, lines())
    assert first['exc_info'].startswith("Traceback (most recent call last):\n")
    assert first['exc_info'].endswith("\nValueError: boo")
    assert second['stack_info'].startswith("Stack (most recent call last):\n")


@pytest.mark.parametrize(
    'value, expected',
    [
        ("é\u2028\U0001f600", "é\u2028\U0001f600"),
        (2**100, 2**100),
        (
            {
                1,
            },
            '{1}',
        ),
        ({1: 2}, {'1': 2}),
        (ValueError('boo'), 'ValueError: boo'),
        (b'abc', 'YWJj'),
        ("\udcff", "\udcff"),
    ],
)
def test_values_that_are_not_json_are_written_nevertheless(logger, lines, value, expected):
    configure(log_format=LogFormat.JSON)
    logger.info("hello", extra={'key': value})
    (line,) = lines()
    assert line.isascii()
    assert json.loads(line)['key'] == expected


def test_a_dict_as_a_message_is_merged_into_the_line(logger, lines):
    configure(log_format=LogFormat.JSON)
    logger.info({'message': "hello", 'key': 'value'})
    fields = json.loads(lines()[0])
    assert fields['message'] == "hello"
    assert fields['key'] == 'value'
