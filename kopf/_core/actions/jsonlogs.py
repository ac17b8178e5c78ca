"""JSON logs: a line of JSON a record, for those who collect and search logs.

What is in a line, and how it is collected from a record, is a matter of python-json-logger, so that lines look like
those of other programs. What is added here is what clusters need: the severity as log collectors know it, and the
reference to the object. Lines are spaced as those of all Python programs: people search for ``"severity": "error"``.
"""

import json
import logging
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS, BaseJsonFormatter, LogData
from pythonjsonlogger.json import JsonEncoder

from kopf._core.actions.loggers import DEFAULT_REFKEY, prefix_message

# What the loggers of objects add to records: not the user's extra fields.
_OWN_ATTRS = ('settings', 'k8s_skip', 'k8s_ref')

_encode = json.JSONEncoder(default=JsonEncoder().default, skipkeys=True).encode  # made once: it is costly


class JsonFormatter(BaseJsonFormatter):
    """A formatter of lines for machines: a JSON object a line.

    It has the ``message``, the traceback and the stack if any, the extra fields of the record, the ``timestamp``
    (ISO 8601, UTC), the reference to the object, and the ``severity``.

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
        """Add what clusters need."""
        super().add_fields(log_data, record, message_dict)
        if self._prefix:
            log_data['message'] = prefix_message(log_data['message'], record)
        if (ref := getattr(record, 'k8s_ref', None)) is not None:
            log_data[self._refkey] = ref
        log_data.setdefault('severity', _get_severity(record.levelno))

    def jsonify_log_record(self, log_data: LogData) -> str:
        """Encode the line in ASCII: it survives any encoding of the stream, and no line is split at a U+2028."""
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
