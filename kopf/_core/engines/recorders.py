"""
The recorder of the inspector: an instrument that writes the activities of the operator into the timelines of objects.

It exists only if an operator can be inspected. It keeps only the paths of patched fields, and no values of Secrets.
Texts are cut, so that an entry is small. A log handler writes the lines of the log, because they belong to the whole
process: it skips lines of other operators.
"""

import contextlib
import logging
import pathlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import orjson

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.instruments import (
    ApiRequest,
    HandlerCall,
    Instrument,
    ObjectEvent,
    ObjectKey,
    ObjectStep,
    QueueEntry,
    Span,
)
from kopf._core.actions.loggers import objects_logger
from kopf._core.engines.timelines import Entry, Timelines

MAX_TEXT = 300
"""The length of errors (in characters)."""

MAX_VALUE = 1000
"""The length of values in diffs (in characters)."""

MAX_MESSAGE = 2000
"""The length of messages in the log (in characters)."""

MAX_TRACEBACK = 4000
"""The length of tracebacks (in characters); the beginning is cut."""

MAX_PAYLOAD = 1_000_000
"""The maximal size of patches whose fields are listed (in bytes)."""

MAX_FIELDS = 50
"""The maximal number of listed fields of a patch, or of a diff."""

HIDDEN = '(hidden)'
"""The text in place of the values of Secrets."""

_METHODS = frozenset({'PATCH', 'PUT', 'POST', 'DELETE'})
_PACKAGE = str(pathlib.Path(__file__).parents[2])


class Recorder(Instrument):
    """Writes the timelines."""

    def __init__(self, timelines: Timelines) -> None:
        self._timelines = timelines
        self._running: dict[HandlerCall, Entry] = {}
        self._compared: set[str] = set()

    # Steps and handlers.

    def step_begins(self, step: ObjectStep) -> None:
        """Called for each step; its handlers share one diff."""
        self._compared.discard(_identify(step.key))

    def step_decides(self, step: ObjectStep) -> None:
        """Write the due handlers and the reason; most steps have no due handlers."""
        if step.handlers:
            uid = _identify(step.key)
            self._timelines.add(uid, 'cause', reason=step.reason, event=step.event, handlers=list(step.handlers))

    def step_ends(self, step: ObjectStep) -> None:
        """Forget the diff of the step."""
        self._compared.discard(_identify(step.key))

    def handler_begins(self, call: HandlerCall) -> None:
        """Write the attempt, and the diff that it gets."""
        if call.key is None:
            return
        uid = _identify(call.key)
        type_ = 'frequent' if call.frequent else 'handler'
        facts = {'handler': call.id, 'kind': call.kind, 'reason': call.reason, 'retry': call.retry}
        self._running[call] = self._timelines.add(uid, type_, **facts)
        diff = getattr(call.cause, 'diff', None)
        if diff and uid not in self._compared:
            self._compared.add(uid)
            fields = list(describe_diff(diff, is_secret=is_secret(call.key)))
            size = sum(len(each['field']) + len(each['old'] or '') + len(each['new'] or '') for each in fields)
            self._timelines.set_diff(uid, {'reason': call.reason, 'fields': fields, 'total': len(diff)}, size)

    def handler_ends(self, call: HandlerCall) -> None:
        """Write the outcome, and the time until which the handler waits."""
        entry = self._running.pop(call, None)
        if entry is None or call.key is None:
            return
        uid = _identify(call.key)
        message = None if call.message is None else cut(call.message, MAX_TEXT)
        self._timelines.change(
            uid, entry, outcome=call.outcome, seconds=call.duration, delay=call.delay, message=message
        )
        if call.outcome in ('failed', 'retried'):
            self._timelines.set_failure(uid, call.id, message or call.outcome)
        elif call.outcome != 'cancelled':
            self._timelines.set_failure(uid, call.id, None)

    # The queue: its facts are looked up on request.

    def object_queued(self, entry: QueueEntry) -> None:
        """Called when the object waits for a worker."""
        self._timelines.mark(_identify(entry.key))

    def object_taken(self, entry: QueueEntry) -> None:
        """Called when a worker begins."""
        self._timelines.mark(_identify(entry.key))

    def object_done(self, entry: QueueEntry) -> None:
        """Called when the worker ends."""
        self._timelines.mark(_identify(entry.key))

    def object_requeued(self, entry: QueueEntry) -> None:
        """Write a delay after an unexpected error; other delays belong to handlers."""
        if entry.reason == 'failed':
            self._timelines.add(_identify(entry.key), 'wait', delay=entry.delay)
        else:
            self._timelines.mark(_identify(entry.key))

    # Requests to the API server.

    def request_ends(self, request: ApiRequest) -> None:
        """Write a request that changes an object, into the timeline of this object or of the handled one."""
        if request.method not in _METHODS or request.path.endswith('/events') or '/events/' in request.path:
            return
        payload = _parse(request.payload)
        own = payload.get('metadata') if isinstance(payload, Mapping) else None
        uid = own.get('uid') if isinstance(own, Mapping) else None
        key = _find_key(request)
        if uid is None and key is not None:
            uid = _identify(key)
        if uid is not None:
            self._timelines.add(
                str(uid),
                'patch',
                method=request.method,
                target=_find_target(request.path, key),
                fields=list(find_fields(payload))[:MAX_FIELDS],
                status=request.status,
                seconds=request.duration,
            )

    def event_posted(self, event: ObjectEvent) -> None:
        """Write the Event."""
        if uid := event.ref.get('uid'):
            self._timelines.add(
                uid,
                'event',
                level=event.type,
                reason=event.reason,
                message=cut(event.message, MAX_MESSAGE),
                times=event.times,
            )


class LogRecorder(logging.Handler):
    """
    A log handler that writes the lines about objects of one operator into their timelines; a context manager.

    Args:
        timelines: the timelines to write.
        settings: the settings of the operator: all its lines refer to them.
    """

    def __init__(self, timelines: Timelines, settings: OperatorSettings) -> None:
        super().__init__(logging.INFO)
        self._timelines = timelines
        self._settings = settings

    def __enter__(self) -> Self:
        objects_logger.addHandler(self)
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        objects_logger.removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line."""
        if getattr(record, 'settings', None) is not self._settings:
            return
        uid = (getattr(record, 'k8s_ref', None) or {}).get('uid')
        if not uid:
            return
        with contextlib.suppress(Exception):  # bad arguments of messages are reported by the handler of the log stream
            self._timelines.add(
                uid,
                'log',
                level=record.levelname,
                message=cut(record.getMessage(), MAX_MESSAGE),
                framework=record.pathname.startswith(_PACKAGE),
                traceback=_format_traceback(record),
            )


def _identify(key: ObjectKey) -> str:
    return key.uid or f'{key.namespace or ""}/{key.name}'


def is_secret(key: ObjectKey) -> bool:
    """Check whether it is a Secret, whose values must not be shown."""
    return key.resource.group == '' and key.resource.plural == 'secrets'


def cut(text: str, limit: int) -> str:
    """Return the text, cut at its end."""
    return text if len(text) <= limit else f'{text[:limit]}…'


def describe_diff(
    diff: Iterable[tuple[str, tuple[str, ...], Any, Any]], *, is_secret: bool
) -> Iterator[dict[str, Any]]:
    """Return the changed fields with their old and new values as JSON texts; without the values of Secrets."""

    def describe(value: Any) -> str | None:
        return None if value is None else HIDDEN if is_secret else cut(_dump(value), MAX_VALUE)

    for number, (op, field, old, new) in enumerate(diff):
        if number == MAX_FIELDS:
            return
        yield {'op': str(op), 'field': join_path(field), 'old': describe(old), 'new': describe(new)}


def _dump(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def find_fields(payload: Any) -> Iterator[str]:
    """Return the paths of the fields that a patch sets: of a merge patch, or of a JSON patch."""
    if isinstance(payload, list):
        for op in payload:
            if isinstance(op, Mapping) and op.get('op') != 'test':
                parts = str(op.get('path', '')).split('/')[1:]
                yield join_path([part.replace('~1', '/').replace('~0', '~') for part in parts])
    elif isinstance(payload, Mapping):
        for path in _iter_leaves(payload, ()):
            # The two fields are not changed: they identify the object.
            if path and path not in {('metadata', 'uid'), ('metadata', 'resourceVersion')}:
                yield join_path(path)


def _iter_leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _iter_leaves(inner, (*path, name))
    else:
        yield path


def join_path(parts: Iterable[str]) -> str:
    """Return the path in the usual notation: ``metadata.annotations['kopf.dev/x']``."""
    text = ''
    for part in parts:
        text += f".{part}" if str(part).replace('-', '').replace('_', '').isalnum() else f'[{part!r}]'
    return text.removeprefix('.')


def _parse(payload: bytes | None) -> Any:
    if payload is None or len(payload) > MAX_PAYLOAD:
        return None
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(payload)
    return None


def _find_key(request: ApiRequest) -> ObjectKey | None:
    """Return the key of the object that the request is made for."""
    span: Span | None = request.parent
    while span is not None:
        key = getattr(span, 'key', None)
        if key is not None:
            return key  # type: ignore[no-any-return]
        span = span.parent
    return None


def _find_target(path: str, key: ObjectKey | None) -> str | None:
    """Return the changed object as ``plural/name``, if it differs from the handled object."""
    if key is not None and key.name is not None:
        own = key.resource.get_url(namespace=key.namespace, name=key.name)
        if path in (own, f'{own}/status'):
            return None
    parts = path.split('/')
    start = 3 if parts[1:2] == ['api'] else 4
    if parts[start : start + 1] == ['namespaces'] and len(parts) > start + 2:
        start += 2
    return '/'.join(parts[start:])


def _format_traceback(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    text = ''.join(traceback.format_exception(*record.exc_info)).rstrip()
    return text if len(text) <= MAX_TRACEBACK else f'…{text[-MAX_TRACEBACK:]}'
