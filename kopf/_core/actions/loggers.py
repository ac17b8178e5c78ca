"""
Loggers of objects, and formatters that show the object: plain, full, and JSON.

A message about an object is shown with the object's name in the log, and becomes an Event of the object in the
cluster. For that, its record contains a reference to the object. It does not contain the body, which can change or be
large, nor formatted texts: these are made by log handlers and formatters.

Logging is on the hot path. So formatters make one pass over the record, and cache parts such as the time within a
second. The formatter of JSON is in `jsonlogs`.
"""

import contextlib
import enum
import logging
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

from kopf._cogs.helpers.explanations import name_error
from kopf._cogs.structs import bodies
from kopf._core.actions.logrecords import make_record
from kopf._core.actions.message_codes import PACKAGE, find_code

if TYPE_CHECKING:
    from kopf._cogs.configs import configuration

objects_logger = logging.getLogger('kopf.objects')
"""The logger of all messages about objects, of handlers and of the framework: users filter it by this name."""

DEFAULT_REFKEY = 'object'

MAX_MESSAGE = 500
"""The length above which text formatters cut messages of the framework (in characters). JSON has whole messages."""

NO_TRACE = {'trace_id': '-', 'span_id': '-'}
"""The ids in lines that are logged outside of traces, if the format shows them."""

_MAX_TAIL = 150
_MIN_CUT = 50

_NO_CALLERS = frozenset({logging.Logger.log.__code__.co_filename, (lambda: None).__code__.co_filename})
"""The files of functions that pass messages on: the caller of the logger is the first frame above them in the stack."""


_ONLY_EXTRA = frozenset({'extra'})


class LogFormat(enum.Enum):
    """The format of the log lines; the text formats are format strings of ``logging``."""

    PLAIN = '%(message)s'
    FULL = '[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s'
    JSON = '-json-'


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger of one object: it adds a reference to the object to all its records.

    By this reference, the lines are prefixed with the object's name, and the messages are posted as Events of the
    object (see ``settings.posting``).

    Args:
        body: the object. Its content can change later, but it must remain the same object.
        settings: the settings of the operator that handles the object.
    """

    _local = False
    _mark: Mapping[str, object] | None

    def __init__(self, *, body: bodies.Body, settings: 'configuration.OperatorSettings') -> None:
        super().__init__(objects_logger)
        self._body = body
        self._settings = settings

    @property
    def extra(self) -> Mapping[str, object]:
        """The attributes to be added to records, with the reference to the object."""
        # It is created for the first message, because most loggers never write one.
        mark = self._mark
        if mark is None:
            mark = self._mark = {
                'settings': self._settings,
                'k8s_skip': self._local,
                'k8s_ref': bodies.build_full_reference(self._body),
            }
        return mark

    @extra.setter
    def extra(self, value: Mapping[str, object] | None) -> None:
        self._mark = value

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the reference to the extra fields of the record; those given by the caller have precedence."""
        mark = self._mark or self.extra
        given = kwargs.get('extra')
        # All records share it, because `logging` only reads it.
        kwargs['extra'] = {**mark, **given} if given else mark
        return msg, kwargs

    def debug(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message for debugging. Overridden to return fast if debugging is disabled, as it usually is."""
        if self.logger.isEnabledFor(logging.DEBUG):
            if kwargs:
                kwargs['stacklevel'] = kwargs.get('stacklevel', 1) + 1
            self.log(logging.DEBUG, msg, *args, **kwargs)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message with the reference to the object. The arguments are the same as those of ``logging``."""
        logger = self.logger
        if not logger.isEnabledFor(level):
            return
        if type(level) is not int or (kwargs and kwargs.keys() != _ONLY_EXTRA):
            super().log(level, msg, *args, **{**kwargs, 'stacklevel': kwargs.get('stacklevel', 1) + 1})
            return
        # This is faster than `super().log` for the usual arguments: nearly every event writes a line.
        msg, given = self.process(msg, kwargs)
        caller = sys._getframe(1)
        while caller.f_code.co_filename in _NO_CALLERS and caller.f_back is not None:
            caller = caller.f_back
        place = caller.f_code, caller.f_lineno
        logger.handle(make_record(logger, level, place, msg, args, given['extra']))


class LocalObjectLogger(ObjectLogger):
    """
    A logger of one object whose messages never become Events.

    It is for handlers that run too often for that, such as event-watching ones.
    """

    _local = True


class TextFormatter(logging.Formatter):
    """
    A formatter for people, optionally with the name of the object before the message.

    Args:
        fmt: the format string of ``logging`` in the ``%`` style.
        prefix: whether to prefix the messages about objects.
    """

    def __init__(self, fmt: str | None = None, *, prefix: bool = False) -> None:
        super().__init__(fmt, defaults=NO_TRACE)
        self._prefix = prefix
        self._template = fmt or '%(message)s'
        self._uses_time = self.usesTime()
        self._second: tuple[int, str] = (-1, '')

    def shows(self, *names: str) -> bool:
        """Check whether the format has any of these attributes of records."""
        return any(f'%({name})' in self._template for name in names)

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        record.message = record.getMessage()
        if self._uses_time:
            record.asctime = self.formatTime(record, self.datefmt)
        return self.formatMessage(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        if len(record.message) > MAX_MESSAGE:
            record.message = shorten_message(record.message, record)
        if record.levelno >= logging.WARNING and (code := find_code(record)) is not None:
            record.message = f'{record.message} [{code}]'
        if self._prefix:
            record.message = prefix_message(record.message, record)
        try:
            return self._template % record.__dict__
        except KeyError:  # a record without ids of traces, or a mistake in the format
            return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(self.default_time_format, self.converter(second))
            # One assignment of a pair, so that other threads see either the old pair or the new one.
            self._second = (second, text)
        return f'{text},{int(record.msecs):03d}'


def shorten_message(message: str, record: logging.LogRecord) -> str:
    """
    Return the message, cut in the middle if it is the framework's own.

    The middle matters least: such messages begin with the event and end with its reason. Messages of users are never
    cut. The same holds for debugging messages, which show whole objects, and for critical ones, which can contain
    a traceback.
    """
    if not logging.DEBUG < record.levelno < logging.CRITICAL or not record.pathname.startswith(PACKAGE):
        return message
    cut = len(message) - MAX_MESSAGE
    if cut <= _MIN_CUT:  # the number of cut characters would take as much space
        return message
    return f'{message[: MAX_MESSAGE - _MAX_TAIL]}...({cut} characters)...{message[-_MAX_TAIL:]}'


def prefix_message(message: str, record: logging.LogRecord) -> str:
    """Return the message with the name of the object before it, if the record is about an object."""
    ref: Mapping[str, Any] | None = getattr(record, 'k8s_ref', None)
    if ref is None:
        return message
    namespace, name = ref.get('namespace'), ref.get('name')
    return f'[{namespace}/{name}] {message}' if namespace else f'[{name}] {message}'


class _KopfStreamHandler(logging.StreamHandler[TextIO]):
    """The log handler of the framework. `configure` recognizes it by its class, and keeps the user's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream, formatter = self.stream, self.formatter
            stream.write(f'{self.format(record) if formatter is None else formatter.format(record)}\n')
            # The standard error needs no flush here, because it flushes every line itself.
            if not getattr(stream, 'line_buffering', False):
                stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = explain_bad_message(record)
        if error is None:
            super().handleError(record)
        elif logging.raiseExceptions:
            # One line in place of the message; the base class would print a traceback of `logging` and the framework.
            with contextlib.suppress(Exception):
                self.stream.write(f'{error}\n')


def explain_bad_message(record: logging.LogRecord) -> str | None:
    """Return an explanation if the arguments of a message do not fit its format; ``None`` if they do."""
    try:
        record.getMessage()
    except Exception as error:
        return (
            f'A message cannot be logged ({record.pathname}:{record.lineno}): {record.msg!r} with {record.args!r}: '
            f'{name_error(error)}. Each argument needs a %s in the message; or use an f-string without arguments.'
        )
    return None


def configure(
    debug: bool | None = None,
    verbose: bool | None = None,
    quiet: bool | None = None,
    log_format: LogFormat | str = LogFormat.FULL,
    log_prefix: bool | None = False,
    log_refkey: str | None = None,
) -> None:
    """
    Configure the logging of the whole process, as the options of the command line do.

    Can be called again: the last call counts. Log handlers of other code on the root logger remain.

    Args:
        debug: log everything, including the internals of asyncio and aiohttp.
        verbose: log everything that the framework and the handlers do.
        quiet: log only warnings and errors.
        log_format: the format of the lines: a `LogFormat`, or a format string of Python's `logging`.
        log_prefix: whether to prefix the messages about objects with their names.
            With ``None``, the text formats are prefixed, and JSON is not.
        log_refkey: the key for the reference to the object in JSON; ``object`` by default.
    """
    handler = _KopfStreamHandler()
    handler.setFormatter(_make_formatter(log_format, log_prefix, log_refkey))
    # Replace only handlers of an earlier call: other ones belong to the program that embeds the operator.
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _KopfStreamHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)

    level = logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO
    root.setLevel(level)
    # By default, asyncio logs only warnings, and aiohttp logs requests to the servers, but nothing for debugging.
    logging.getLogger('asyncio').setLevel(logging.NOTSET if debug else logging.WARNING)
    logging.getLogger('aiohttp').setLevel(logging.NOTSET if debug else max(level, logging.INFO))


def _make_formatter(log_format: LogFormat | str, prefix: bool | None, refkey: str | None) -> logging.Formatter:
    match log_format:
        case LogFormat.JSON:
            from kopf._core.actions import jsonlogs  # here, as most operators do not need its library

            return jsonlogs.JsonFormatter(refkey=refkey or DEFAULT_REFKEY, prefix=bool(prefix))
        case LogFormat.PLAIN | LogFormat.FULL:
            # Why not change the value itself? It is public. Its ``.20`` would cut the names of loggers in the lines.
            return TextFormatter(log_format.value.replace('-20.20s', '-20s'), prefix=prefix is None or prefix)
        case str():
            return TextFormatter(log_format, prefix=prefix is None or prefix)
        case _:
            raise ValueError(f"Unsupported log format: {log_format!r}")
