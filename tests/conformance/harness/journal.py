"""Appends what the operator sees to a file; the runner compares it."""

import collections.abc
import datetime
import json
import os
import time
from typing import Any

NS = os.environ.get('SCENARIO_NAMESPACE', '')
GROUP = os.environ.get('SCENARIO_GROUP', '')


def plain(value: Any) -> Any:
    """Reduce any value to JSON types."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, collections.abc.Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=repr)
    if isinstance(value, collections.abc.Iterable):
        return [plain(v) for v in value]
    if isinstance(value, datetime.datetime):
        return 'DATETIME'
    if isinstance(value, datetime.timedelta):
        return 'TIMEDELTA'
    return '<' + type(value).__name__ + '>'


def note(event: str, **facts: Any) -> None:
    """Append one line: what happened and the facts about it."""
    line = json.dumps({'event': event, 'time': time.time(), 'facts': plain(facts)}) + chr(10)
    fd = os.open(os.environ['JOURNAL'], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def call(event: str, kwargs: Any, *names: str, **facts: Any) -> None:
    """Note a handler's call: the object's name, the kwargs listed, and extra facts."""
    note(event, name=kwargs.get('name'), **{n: kwargs.get(n) for n in names}, **facts)
