"""
Fast creation of log records: most attributes of a record depend only on the line of code that logs it.

`logging` computes the names of the file, the module, the process, etc. for each record, which takes longer than all the
rest of a log line. Here, it computes them for the first record of each line of code; the next records begin as copies
of the first one. They have the same attributes as all records. If the user's code has replaced the factory of records,
that factory makes all records. `AddingFactory` only adds attributes, so it does not end the fast way.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

MAX_TEMPLATES = 1000
"""The limit of cached lines of code: generated code could have any number of them."""

_Place = tuple[CodeType, int]

_templates: dict[tuple[str, int, _Place], dict[str, Any]] = {}

if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_templates.clear)


class AddingFactory:
    """
    A factory of records that adds attributes to the records of the former factory.

    Args:
        find: returns the attributes to add to a record that is made now; ``None`` or nothing if there are none.
    """

    def __init__(self, find: Callable[[], Mapping[str, object] | None]) -> None:
        self.find = find
        self._former = logging.getLogRecordFactory()
        self.is_fast = self._former is logging.LogRecord
        """Whether nothing else makes the records."""

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        """Return a record with the attributes."""
        record = self._former(*args, **kwargs)
        record.__dict__.update(self.find() or {})
        return record

    def install(self) -> None:
        """Make all records by this factory from now on."""
        logging.setLogRecordFactory(self)

    def uninstall(self) -> None:
        """Make the records by the former factory, unless another one has been set since."""
        if logging.getLogRecordFactory() is self:
            logging.setLogRecordFactory(self._former)


def make_record(
    logger: logging.Logger,
    level: int,
    place: _Place,
    msg: object,
    args: tuple[object, ...],
    extra: Mapping[str, object],
) -> logging.LogRecord:
    """
    Return a record of the logger.

    Args:
        logger: the logger.
        level: the level of the message.
        place: the code that logs the message, and the number of its line.
        msg: the message, to be formatted with the arguments.
        args: the arguments.
        extra: additional attributes; their names must differ from those of the usual attributes of records.
    """
    code, line = place
    factory = logging.getLogRecordFactory()
    adding = factory if type(factory) is AddingFactory and factory.is_fast else None
    # If users have configured the records in any way, let `logging` itself make them.
    if (
        (factory is not logging.LogRecord and adding is None)
        or type(logger) is not logging.Logger
        or not (logging.logThreads and logging.logProcesses and logging.logMultiprocessing)
    ):
        return logger.makeRecord(logger.name, level, code.co_filename, line, msg, args, None, code.co_name, extra)
    template = _templates.get((logger.name, level, place))
    if template is None:
        template = _make_template(logger.name, level, place)
    record = logging.LogRecord.__new__(logging.LogRecord)
    attrs = record.__dict__
    attrs.update(template)
    attrs.update(extra)
    now = time.time()
    attrs['levelname'] = logging.getLevelName(level)
    attrs['msg'] = msg
    # As in `logging`: a single mapping is for messages with names, such as ``%(name)s``.
    first = args[0] if len(args) == 1 else None
    attrs['args'] = first if hasattr(first, 'keys') and isinstance(first, Mapping) and first else args
    attrs['created'] = now
    attrs['msecs'] = int((now - int(now)) * 1000) + 0.0
    attrs['relativeCreated'] += now * 1000
    attrs['thread'] = threading.get_ident()
    attrs['threadName'] = threading.current_thread().name
    if 'taskName' in attrs:
        attrs['taskName'] = _get_task_name()
    if adding is not None and (added := adding.find()):
        attrs.update(added)
    return record


def _make_template(name: str, level: int, place: _Place) -> dict[str, Any]:
    if len(_templates) >= MAX_TEMPLATES:
        # Why not only the least recently used ones? It would cost more to track the use than it saves: the limit is
        # hardly ever reached.
        _templates.clear()
    code, line = place
    record = logging.LogRecord(name, level, code.co_filename, line, '', (), None, code.co_name)
    record.relativeCreated -= record.created * 1000  # the offset, to which `make_record` adds the time
    _templates[name, level, place] = record.__dict__
    return record.__dict__


def _get_task_name() -> str | None:
    if not getattr(logging, 'logAsyncioTasks', True):
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        return None
    return None if task is None else task.get_name()
