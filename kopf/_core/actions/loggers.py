"""Loggers that know their object, and formats that show it: plain, full, and JSON.

Handlers log for two readers: for people, who want to see which object a line is about, and for the cluster, where
lines become Events of that object. So every record of an object carries a reference to it, and nothing else: neither
the body, which may change or be large, nor formatted texts. What is done with it is up to handlers and formatters.

Lines are written often. So a format is one pass over the record, and the parts that repeat, as the time within a
second, are kept. The lines of JSON are in `jsonlogs`.
"""

import contextlib
import enum
import logging
import os
import pathlib
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

from kopf._cogs.helpers.explanations import name_error
from kopf._cogs.structs import bodies
from kopf._core.actions.logrecords import make_record

if TYPE_CHECKING:
    from kopf._cogs.configs import configuration

# The logger of all messages about objects, whoever writes them: users filter and silence it by this name.
objects_logger = logging.getLogger('kopf.objects')

DEFAULT_REFKEY = 'object'

MAX_MESSAGE = 500
"""How long the framework's own messages are in the lines for people; in JSON, they are whole."""

_MAX_TAIL = 150
_MIN_CUT = 50
_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep

_NO_CALLERS = frozenset({logging.Logger.log.__code__.co_filename, (lambda: None).__code__.co_filename})
"""The files of the functions that are never those who log."""


_ONLY_EXTRA = frozenset({'extra'})


class LogFormat(enum.Enum):
    """What the lines of the log look like; the text formats are the format strings of ``logging``."""

    PLAIN = '%(message)s'
    FULL = '[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s'
    JSON = '-json-'


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger of one object: what is logged is marked with a reference to the object.

    By this mark, the lines are prefixed with the object's name and are posted as the object's Events
    (see ``settings.posting``).

    Args:
        body: the object; it may be replaced later, but it must remain the same object.
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
        """The mark of this object."""
        # Made on the first line only: most loggers never come to write one.
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
        """Add the mark to the extra fields of the record, below those that the caller gives."""
        mark = self._mark or self.extra
        given = kwargs.get('extra')
        kwargs['extra'] = {**mark, **given} if given else mark
        return msg, kwargs

    def debug(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message if somebody wants it: there are many of these, and usually nobody does."""
        if self.logger.isEnabledFor(logging.DEBUG):
            if kwargs:
                kwargs['stacklevel'] = kwargs.get('stacklevel', 1) + 1
            self.log(logging.DEBUG, msg, *args, **kwargs)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message with the mark; the arguments are as everywhere in ``logging``."""
        logger = self.logger
        if not logger.isEnabledFor(level):
            return
        if type(level) is not int or (kwargs and kwargs.keys() != _ONLY_EXTRA):
            super().log(level, msg, *args, **{**kwargs, 'stacklevel': kwargs.get('stacklevel', 1) + 1})
            return
        # A line is written for nearly every event. What the loggers would do for it, does more than there is to do.
        msg, given = self.process(msg, kwargs)
        caller = sys._getframe(1)
        while caller.f_code.co_filename in _NO_CALLERS and caller.f_back is not None:
            caller = caller.f_back
        place = caller.f_code, caller.f_lineno
        logger.handle(make_record(logger, level, place, msg, args, given['extra']))


class LocalObjectLogger(ObjectLogger):
    """A logger of one object whose lines stay in the log and never become Events.

    It is used for what happens too often to be reported to the cluster, as in event-watching handlers.
    """

    _local = True


class TextFormatter(logging.Formatter):
    """A formatter of lines for people, optionally with the name of the object before the message.

    Args:
        fmt: the format string of ``logging`` in the ``%`` style.
        prefix: whether to prefix the messages about objects.
    """

    def __init__(self, fmt: str | None = None, *, prefix: bool = False) -> None:
        super().__init__(fmt)
        self._prefix = prefix
        self._template = fmt or '%(message)s'
        self._uses_time = self.usesTime()
        self._second: tuple[int, str] = (-1, '')

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
        if self._prefix:
            record.message = prefix_message(record.message, record)
        try:
            return self._template % record.__dict__
        except KeyError:
            return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt is not None:
            return super().formatTime(record, datefmt)
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(self.default_time_format, self.converter(second))
            # Assigned at once: other threads see either the old pair or the new one.
            self._second = (second, text)
        return f'{text},{int(record.msecs):03d}'


def shorten_message(message: str, record: logging.LogRecord) -> str:
    """
    Cut the message in the middle if it is the framework's own: what has happened comes first, and the reason last.

    Messages of users are never cut, and neither are those for debugging, which show whole objects, and the last words
    of an operator, which can have a traceback of the user's file.
    """
    if not logging.DEBUG < record.levelno < logging.CRITICAL or not record.pathname.startswith(_PACKAGE):
        return message
    cut = len(message) - MAX_MESSAGE
    if cut <= _MIN_CUT:  # the note of it would be as long
        return message
    return f'{message[: MAX_MESSAGE - _MAX_TAIL]}...({cut} characters)...{message[-_MAX_TAIL:]}'


def prefix_message(message: str, record: logging.LogRecord) -> str:
    """Put the name of the object, if the record is about one, before the message."""
    ref: Mapping[str, Any] | None = getattr(record, 'k8s_ref', None)
    if ref is None:
        return message
    namespace, name = ref.get('namespace'), ref.get('name')
    return f'[{namespace}/{name}] {message}' if namespace else f'[{name}] {message}'


class _KopfStreamHandler(logging.StreamHandler[TextIO]):
    """Its class tells our handler from those of the user when the logging is configured again."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream, formatter = self.stream, self.formatter
            stream.write(f'{self.format(record) if formatter is None else formatter.format(record)}\n')
            # The standard error flushes every line by itself.
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
            # In the place of what was meant, without the frames of logging and of the framework.
            with contextlib.suppress(Exception):
                self.stream.write(f'{error}\n')


def explain_bad_message(record: logging.LogRecord) -> str | None:
    """Return what is wrong with a message whose arguments do not fit its format; ``None`` if nothing is."""
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
    """Configure the logging of the whole process, as the options of the command line do.

    Can be called again: the last call counts. Handlers that others have added to the root logger remain.

    Args:
        debug: log everything, including the internals of asyncio and aiohttp.
        verbose: log everything that the framework and the handlers do.
        quiet: log only warnings and errors.
        log_format: the format of the lines: one of those that are there, or of one's own, as in Python's `logging`.
        log_prefix: whether to prefix the messages about objects with their names.
            With ``None``, the text formats are prefixed, and JSON is not.
        log_refkey: the key for the reference to the object in JSON; ``object`` by default.
    """
    handler = _KopfStreamHandler()
    handler.setFormatter(_make_formatter(log_format, log_prefix, log_refkey))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _KopfStreamHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)

    level = logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO
    root.setLevel(level)
    # Of the libraries below, only what goes wrong in asyncio, and the access logs of the servers.
    logging.getLogger('asyncio').setLevel(logging.NOTSET if debug else logging.WARNING)
    logging.getLogger('aiohttp').setLevel(logging.NOTSET if debug else max(level, logging.INFO))


def _make_formatter(log_format: LogFormat | str, prefix: bool | None, refkey: str | None) -> logging.Formatter:
    match log_format:
        case LogFormat.JSON:
            from kopf._core.actions import jsonlogs  # a library that most operators do not need

            return jsonlogs.JsonFormatter(refkey=refkey or DEFAULT_REFKEY, prefix=bool(prefix))
        case LogFormat.PLAIN | LogFormat.FULL:
            # The value of the format is as users know it, but what is cut off of a name is missed.
            return TextFormatter(log_format.value.replace('-20.20s', '-20s'), prefix=prefix is None or prefix)
        case str():
            return TextFormatter(log_format, prefix=prefix is None or prefix)
        case _:
            raise ValueError(f"Unsupported log format: {log_format!r}")
