"""
Records of logs, made for less: most of what is in a record depends only on the line of the code that logs.

The library computes the names of the file, of the module, of the process, etc. for each record anew, which costs more
than all the rest of a line of the log. Here, it does so for the first record of each line of the code; the next ones
begin as copies of that, with what differs. They are records like all others, with the same attributes. Whoever has
replaced the factory of records gets everything made by that factory.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from types import CodeType
from typing import Any

MAX_TEMPLATES = 1000
"""How many lines of the code are remembered; code that is generated could have any number of them."""

_Place = tuple[CodeType, int]

_templates: dict[tuple[str, int, _Place], dict[str, Any]] = {}

if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_templates.clear)


def make_record(
    logger: logging.Logger,
    level: int,
    place: _Place,
    msg: object,
    args: tuple[object, ...],
    extra: Mapping[str, object],
) -> logging.LogRecord:
    """
    Make a record of the logger, as of this place: the code, and the number of its line.

    The ``extra`` must not have names of the usual attributes of records.
    """
    code, line = place
    if (
        logging.getLogRecordFactory() is not logging.LogRecord
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
    first = args[0] if len(args) == 1 else None
    attrs['args'] = first if hasattr(first, 'keys') and isinstance(first, Mapping) and first else args
    attrs['created'] = now
    attrs['msecs'] = int((now - int(now)) * 1000) + 0.0
    attrs['relativeCreated'] += now * 1000
    attrs['thread'] = threading.get_ident()
    attrs['threadName'] = threading.current_thread().name
    if 'taskName' in attrs:
        attrs['taskName'] = _get_task_name()
    return record


def _make_template(name: str, level: int, place: _Place) -> dict[str, Any]:
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()
    code, line = place
    record = logging.LogRecord(name, level, code.co_filename, line, '', (), None, code.co_name)
    record.relativeCreated -= record.created * 1000  # what is to be added to any other time
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
