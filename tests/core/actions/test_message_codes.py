"""Codes of messages: log lines end with them, so that readers find the messages in the documentation."""

import io
import json
import logging

import pytest

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._core.actions.loggers import LogFormat, configure
from kopf._core.actions.message_codes import CODES, PACKAGE, name_code

BEGINNING = "A permission of the operator is missing"
CODE = CODES[BEGINNING]


def make_record(text, *args, level=logging.WARNING, path=f'{PACKAGE}module.py', **fields):
    record = logging.LogRecord('kopf.module', level, path, 1, text, args, None)
    record.__dict__.update(fields)
    return record


@pytest.fixture
def write(restored_logging):
    """Return a function that formats a record as the command line does."""
    root = logging.getLogger()
    before = root.handlers[:]

    def format(record, log_format=LogFormat.PLAIN, **options):
        configure(log_format=log_format, **options)
        [handler] = [handler for handler in root.handlers if handler not in before]
        handler.stream = io.StringIO()
        handler.handle(record)
        return handler.stream.getvalue().rstrip('\n')

    return format


def test_a_message_that_asks_for_an_action_ends_with_its_code(write):
    record = make_record(f"{BEGINNING}. Add this rule to %s", 'the role')
    assert write(record) == f"{BEGINNING}. Add this rule to the role [{CODE}]"
    assert record.getMessage() == f"{BEGINNING}. Add this rule to the role"


def test_the_code_of_a_shortened_message_is_whole(write):
    line = write(make_record(f"{BEGINNING}. %s", 'x' * 5000))
    assert line.endswith(f'x [{CODE}]')
    assert len(line) < 1000


def test_the_code_is_before_the_traceback(write):
    record = make_record(f"{BEGINNING}.")
    record.exc_info = (ValueError, ValueError('wrong'), None)
    assert write(record) == f"{BEGINNING}. [{CODE}]\nValueError: wrong"


def test_lines_of_json_have_the_code_as_a_field(write):
    line = json.loads(write(make_record(f"{BEGINNING}."), LogFormat.JSON))
    assert (line['message'], line['code']) == (f"{BEGINNING}.", CODE)
    assert 'code' not in json.loads(write(make_record("Something else."), LogFormat.JSON))


@pytest.mark.parametrize(
    'record',
    [
        make_record("Something else."),
        make_record(f"{BEGINNING}.", level=logging.INFO),
        make_record(f"{BEGINNING}.", path='/home/user/handlers.py'),
        make_record("A message of the user.", path='/home/user/handlers.py', message_code='theirs'),
    ],
    ids=['another message', 'a level below warnings', 'the text of a user', 'a field of a user'],
)
def test_other_messages_have_no_code(write, record):
    assert write(record) == record.getMessage()


def test_an_error_that_ends_a_command_has_the_code_of_its_type(write):
    class MissingThingError(ExplainedError):
        """An error of a test."""

    code = name_code(MissingThingError)
    assert code == 'missing-thing-error'
    assert write(make_record("It is missing.", message_code=code)) == "It is missing. [missing-thing-error]"
