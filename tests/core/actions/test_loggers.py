"""Loggers of objects and the text formats of logs, as seen on the standard error."""

import logging
import logging.handlers

import pytest

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._core.actions.loggers import LocalObjectLogger, LogFormat, ObjectLogger, configure
from kopf._core.engines import activities

pytestmark = pytest.mark.usefixtures('restored_logging')

REF = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'name': 'name1', 'namespace': 'ns1', 'uid': 'uid1'}


@pytest.fixture()
def cluster_logger(raw):
    cluster_scoped = {**raw, 'metadata': {'name': 'name1', 'uid': 'uid1'}}
    return ObjectLogger(body=Body(cluster_scoped), settings=OperatorSettings())


def test_plain_lines_are_prefixed_with_the_object(logger, lines):
    configure(log_format=LogFormat.PLAIN, log_prefix=None)
    logger.info("hello %s", 'world')
    logging.getLogger('mine').info("of mine")
    assert lines() == ["[ns1/name1] hello world", "of mine"]


def test_plain_lines_can_have_no_prefix(logger, lines):
    configure(log_format=LogFormat.PLAIN, log_prefix=False)
    logger.info("hello %s", 'world')
    assert lines() == ["hello world"]


def test_the_prefix_of_cluster_scoped_objects_is_the_name_alone(cluster_logger, lines):
    configure(log_format=LogFormat.PLAIN, log_prefix=True)
    cluster_logger.info("hello")
    assert lines() == ["[name1] hello"]


def test_full_lines_have_the_time_the_logger_and_the_level(logger, lines):
    configure(log_format=LogFormat.FULL, log_prefix=True)
    record = logging.makeLogRecord({'created': 1577934245.678, 'msecs': 678.0, 'levelno': 20, 'levelname': 'INFO'})
    formatter = logging.getLogger().handlers[-1].formatter
    expected_time = logging.Formatter().formatTime(record)
    assert formatter.formatTime(record) == expected_time
    assert formatter.formatTime(record) == expected_time, "from the cache"

    logger.warning("hello")
    logging.getLogger('some.long.name.of.a.logger').info("bye")
    first, second = lines()
    assert first[0] == '[' and first[24:] == "] kopf.objects         [WARNING ] [ns1/name1] hello"
    assert second[24:] == "] some.long.name.of.a.logger [INFO    ] bye"


@pytest.mark.parametrize('log_format', [LogFormat.PLAIN, LogFormat.FULL])
def test_long_messages_of_the_framework_are_cut_in_the_middle(lines, log_format):
    configure(log_format=log_format, log_prefix=True)
    text = "logger.error('begin ' + 'x' * 2000 + ' end')"
    exec(compile(text, activities.__file__, 'exec'), {'logger': logging.getLogger('kopf.x')})
    (line,) = lines()
    assert len(line) < 600
    assert 'begin xxx' in line and line.endswith('xxx end') and 'xxx...(1510 characters)...xxx' in line


@pytest.mark.parametrize('level', ['debug', 'critical'])
def test_long_messages_for_debugging_and_critical_ones_are_not_cut(lines, level):
    configure(log_format=LogFormat.PLAIN, debug=True)
    text = f"logger.{level}('x' * 2000)"
    exec(compile(text, activities.__file__, 'exec'), {'logger': logging.getLogger('kopf.x')})
    assert lines() == ['x' * 2000]


@pytest.mark.parametrize('log_format', [LogFormat.PLAIN, LogFormat.JSON])
def test_messages_of_users_are_not_cut(logger, lines, log_format):
    configure(log_format=log_format, log_prefix=False)
    logger.error('x' * 2000)
    assert 'x' * 2000 in lines()[0]


@pytest.mark.parametrize('log_format', [LogFormat.PLAIN, LogFormat.FULL, LogFormat.JSON])
def test_messages_that_do_not_fit_their_arguments_are_explained_in_one_line(logger, lines, log_format):
    logging.getLogger().handlers.clear()  # those of pytest raise the errors instead
    configure(log_format=log_format)
    logger.info("value", 5)  # noqa: PLE1205
    [line] = lines()
    assert line.startswith("A message cannot be logged (") and "test_loggers.py:" in line
    assert line.endswith(
        "): 'value' with (5,): TypeError: not all arguments converted during string formatting. Each argument needs a "
        "%s in the message; or use an f-string without arguments."
    )


def test_names_of_loggers_are_not_cut(lines):
    configure(log_format=LogFormat.FULL)
    logging.getLogger('kopf.activities.authentication').warning("hello")
    assert '] kopf.activities.authentication [WARNING ] hello' in lines()[0]


def test_the_format_can_be_a_format_string(logger, lines):
    configure(log_format='%(levelname)s! %(message)s')
    logger.info('hello')
    assert lines() == ['INFO! hello']


def test_formats_can_have_ids_of_traces_although_only_some_lines_are_in_traces(lines):
    configure(log_format='%(trace_id)s/%(span_id)s %(message)s')
    logging.getLogger('x').warning("inside", extra={'trace_id': 'abc', 'span_id': 'def'})
    logging.getLogger('x').warning("outside")
    logging.getLogger('x').warning("failing", exc_info=ValueError("boo"))
    assert lines() == ["abc/def inside", "-/- outside", "-/- failing", "ValueError: boo"]


def test_times_are_formatted_as_by_the_standard_library():
    configure(log_format=LogFormat.FULL)
    formatter = logging.getLogger().handlers[-1].formatter
    for created in [1577934245.1, 1577934245.9, 1577934246.0, 1577934245.5]:
        record = logging.makeLogRecord({'created': created, 'msecs': (created % 1) * 1000})
        assert formatter.formatTime(record) == logging.Formatter().formatTime(record)


@pytest.mark.parametrize(
    'options, expected',
    [
        (
            {},
            [
                'warning kopf',
                'info kopf',
                'warning mine',
                'info mine',
                'warning asyncio',
                'warning aiohttp.x',
                'info aiohttp.x',
            ],
        ),
        ({'quiet': True}, ['warning kopf', 'warning mine', 'warning asyncio', 'warning aiohttp.x']),
        (
            {'verbose': True},
            [
                'warning kopf',
                'info kopf',
                'debug kopf',
                'warning mine',
                'info mine',
                'debug mine',
                'warning asyncio',
                'warning aiohttp.x',
                'info aiohttp.x',
            ],
        ),
        (
            {'debug': True},
            [
                f'{level} {name}'
                for name in ['kopf', 'mine', 'asyncio', 'aiohttp.x']
                for level in ['warning', 'info', 'debug']
            ],
        ),
    ],
)
def test_the_verbosity_decides_on_the_levels_of_loggers(lines, options, expected):
    configure(debug=True)  # the previous configuration must not matter.
    configure(**options, log_format=LogFormat.PLAIN)
    for name in ['kopf', 'mine', 'asyncio', 'aiohttp.x']:
        for level in ['warning', 'info', 'debug']:
            getattr(logging.getLogger(name), level)(f'{level} {name}')
    assert lines() == expected


def test_repeated_configuring_does_not_repeat_lines(lines):
    configure(log_format=LogFormat.JSON)
    configure(log_format=LogFormat.PLAIN)
    logging.getLogger('mine').info("hello")
    assert lines() == ["hello"]


def test_handlers_of_others_remain():
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    configure()
    configure()
    assert other in logging.getLogger().handlers


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match='xml'):
        configure(log_format='xml')


def test_records_refer_to_objects_and_callers(logger, caplog):
    logger.logger.setLevel(logging.INFO)
    try:
        logger.info("hello", extra={'key': 'value'})
        logger.debug("not logged")
    finally:
        logger.logger.setLevel(logging.NOTSET)
    (record,) = caplog.records
    assert record.name == 'kopf.objects'
    assert record.k8s_ref == REF
    assert record.k8s_skip is False
    assert record.key == 'value'
    assert record.pathname == __file__


BOO = ValueError("boo")


@pytest.mark.parametrize(
    'write',
    [
        lambda logger: logger.warning("hello %s", 'world'),
        lambda logger: logger.log(logging.ERROR, "hello %(key)s", {'key': 'world'}),
        lambda logger: logger.warning("hello", extra={'key': 'value'}),
        lambda logger: logger.log(logging.ERROR, "hello", stack_info=False),
        lambda logger: logger.exception("hello", exc_info=BOO),
        lambda logger: (lambda: logger.warning("hello", stacklevel=2))(),
    ],
)
def test_records_equal_those_of_usual_loggers(logger, caplog, write):
    for each in (logging.getLogger('usual'), logger):
        write(each)
    usual, ours = (vars(record) for record in caplog.records)
    varying = {'name', 'created', 'msecs', 'relativeCreated', 'asctime'}
    assert {key: ours[key] for key in usual if key not in varying} == {
        key: usual[key] for key in usual if key not in varying
    }
    assert set(ours) - set(usual) == {'settings', 'k8s_ref', 'k8s_skip'}


def test_references_always_have_the_same_keys(raw, cluster_logger, caplog):
    cluster_logger.warning("hello")
    ref = {'apiVersion': raw['apiVersion'], 'kind': raw['kind'], 'name': 'name1', 'uid': 'uid1', 'namespace': None}
    assert caplog.records[0].k8s_ref == cluster_logger.extra['k8s_ref'] == ref


def test_local_loggers_are_marked_to_be_skipped(raw, caplog):
    logger = LocalObjectLogger(body=Body(raw), settings=OperatorSettings())
    logger.warning("hello")
    assert caplog.records[0].k8s_skip is True
    assert caplog.records[0].k8s_ref == REF


def test_marks_do_not_leak_between_calls(logger):
    assert logger.process("msg", {'extra': {'key': 'value'}})[1]['extra']['key'] == 'value'
    assert 'key' not in logger.process("msg", {})[1]['extra']


def test_a_broken_stream_does_not_break_the_code(logger, capsys, monkeypatch):
    class Broken:
        def write(self, text):
            raise OSError("No space left on device.")

    configure()
    logging.getLogger().handlers[-1].setStream(Broken())
    monkeypatch.setattr(logging, 'raiseExceptions', False)
    logger.info("hello")
