"""
JSON logs: one line of JSON for each record, for log collectors.

The lines are made by python-json-logger, so they look like those of other programs. This module adds the severity, in
the words of log collectors, and the reference to the object. Lines have spaces after colons and commas, as `json`
writes them by default: people search for ``"severity": "error"``.
"""

import json
import logging
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, BaseJsonFormatter, LogData
from pythonjsonlogger.json import JsonEncoder

from kopf._core.actions.loggers import DEFAULT_REFKEY, prefix_message
from kopf._core.actions.message_codes import find_code

_OWN_ATTRS = ('settings', 'k8s_skip', 'k8s_ref', 'message_code')
"""The attributes that the loggers of objects add to records. Unlike the user's extra fields, they are not logged."""

_encode = json.JSONEncoder(default=JsonEncoder().default, skipkeys=True).encode  # once, as encoders are slow to make


class JsonFormatter(BaseJsonFormatter):
    """
    A formatter for machines: one JSON object on each line.

    It has the ``message``, the traceback and the stack if any, the extra fields of the record, the ``timestamp``
    (ISO 8601, UTC), the reference to the object, the ``code`` of some messages, and the ``severity``.

    Args:
        refkey: the key for the reference to the object.
        prefix: whether to prefix the messages about objects with the name of the object.
    """

    def __init__(self, *, refkey: str = DEFAULT_REFKEY, prefix: bool = False) -> None:
        super().__init__(timestamp=True, reserved_attrs=[*RESERVED_ATTRS, *_OWN_ATTRS])
        self._refkey = refkey
        self._prefix = prefix

    def add_fields(
        self,
        log_data: dict[str, Any],
        record: logging.LogRecord,
        message_dict: dict[str, Any],
    ) -> None:
        """Add the reference to the object, the code, the prefix, and the severity."""
        super().add_fields(log_data, record, message_dict)
        if self._prefix:
            log_data['message'] = prefix_message(log_data['message'], record)
        if (ref := getattr(record, 'k8s_ref', None)) is not None:
            log_data[self._refkey] = ref
        if (code := find_code(record)) is not None:
            log_data.setdefault('code', code)
        log_data.setdefault('severity', _get_severity(record.levelno))

    def jsonify_log_record(self, log_data: LogData) -> str:
        """Return the line in ASCII, for streams of any encoding, and for readers that split lines at U+2028."""
        return _encode(log_data)


def _get_severity(level: int) -> str:
    if level <= logging.DEBUG:
        return 'debug'
    if level <= logging.INFO:
        return 'info'
    if level <= logging.WARNING:
        return 'warn'
    if level <= logging.ERROR:
        return 'error'
    return 'fatal'
