"""
Filters: check which handlers match an object and its change.

`prematch` checks only the object: its labels, annotations, fields, and the callbacks. If no change-detecting handler
prematches an object, the operator ignores the object: it stores nothing on it, and logs nothing about it. `match` also
checks the reason and the change. Specified in the documentation's "Filters".

If a callback fails, `FilterError` is raised. Only the handler of this callback is skipped: `sift` separates such
handlers, `FailureReports` reports each of them once, and they are tried again when the object changes.
"""

import collections
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from kopf._cogs.helpers.explanations import INTERRUPTIONS, name_error
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.dicts import resolve
from kopf._cogs.structs.diffs import is_same
from kopf._core.intents.callbacks import MetaFilterToken
from kopf._core.intents.causes import ChangingCause, Reason, ResourceCause
from kopf._core.intents.handlers import ChangingHandler, ResourceHandler

_ABSENT = object()
_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
_MAX_REPORTS = 10_000

HandlerT = TypeVar('HandlerT', bound=ResourceHandler)
CauseT = TypeVar('CauseT', bound=ResourceCause)


class FilterError(Exception):
    """Raised when a callback of the user's filters has failed, so it is unknown whether its handler matches."""

    def __init__(self, fn: Callable[..., Any], error: BaseException) -> None:
        super().__init__(f"A filter ({locate_error(fn, error)}) failed: {name_error(error)}")
        self.fn = fn
        self.place = locate_error(fn, error)
        self.reason = name_error(error)

    def explain(self, handler: ResourceHandler) -> str:
        """Return a clause on the failure: the option, the handler, the line of the code, and the error."""
        title = f"{handler.kind.lower()} {handler.id!r}"
        return f"{_name_option(handler, self.fn)} of {title} ({self.place}) failed: {self.reason}"


Failures = dict[ResourceHandler, FilterError]
"""The handlers whose filters have failed, with the errors."""


class FailureReports:
    """Reports failing filters: once for each state of an object, however often this state is processed."""

    __slots__ = ('_known',)

    def __init__(self) -> None:
        self._known: collections.OrderedDict[tuple[object, ...], tuple[str, int]] = collections.OrderedDict()

    def report(self, failures: Mapping[ResourceHandler, FilterError], cause: ResourceCause) -> None:
        """Log the failures for the object of the cause, unless they were logged for the same state of the object."""
        for handler, error in failures.items():
            meta = cause.body.metadata
            key = (handler, meta.get('uid') or (meta.get('namespace'), meta.get('name')))
            value = (error.reason, _hash_content(cause.body))
            if self._known.get(key) != value:
                self._known[key] = value
                cause.logger.error(
                    "%s. The handler is skipped, and is tried again with the next change.",
                    error.explain(handler),
                    extra={'message_code': 'function-failed'},
                )
            # Move it to the end: when the memory is full, the reports of objects that keep failing are dropped last.
            self._known.move_to_end(key)
            if len(self._known) > _MAX_REPORTS:
                self._known.popitem(last=False)


def sift(
    handlers: Iterable[HandlerT],
    cause: CauseT,
    check: Callable[[HandlerT, CauseT], bool],
    failures: Failures,
) -> list[HandlerT]:
    """Return the handlers that pass the check; add the handlers whose filters fail to the failures."""
    passed = []
    for handler in handlers:
        try:
            if check(handler, cause):
                passed.append(handler)
        except FilterError as error:
            failures[handler] = error
    return passed


def prematch(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check whether the handler is for the object, regardless of the change."""
    if is_unconditional(handler):
        return True
    return (
        # The cheap checks come first; the user's function is only called for objects that pass all the other checks.
        _match_metadata(handler, cause)
        and (handler.field is None or _match_field(handler, cause))
        and (handler.when is None or _call(handler.when, cause.kwargs_of_callback(handler.when, handler)))
    )


def matches_besides_field(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check whether the handler has a field, and matches the object if this field is ignored."""
    return (
        handler.field is not None
        and _match_metadata(handler, cause)
        and (handler.when is None or _call(handler.when, cause.kwargs_of_callback(handler.when, handler)))
    )


def is_unconditional(handler: ResourceHandler) -> bool:
    """Check whether the handler is for all objects of its resource."""
    return (
        handler.labels is None
        and handler.annotations is None
        and handler.field is None
        and handler.when is None
        and handler.label_selector is None
    )


def lacks_field(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Check whether the object would match if it had the field of the handler, with any value."""
    return (
        handler.field is not None
        and handler.value is None
        and resolve(cause.new, handler.field, None) is None
        and _match_metadata(handler, cause)
    )


def match_change(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Check whether the handler is for the change, provided that it is for the object."""
    if handler.initial:
        return cause.initial and (handler.deleted or not cause.deleted)
    if handler.reason is not None and handler.reason != cause.reason:
        return False
    if cause.reason in (Reason.NOOP, Reason.FREE, Reason.GONE):
        return False
    return not handler.needs_change or (bool(cause.reduced_diff(handler)) and _match_transition(handler, cause))


def match(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check whether the handler is for the object and the change."""
    # Check the change first: it excludes most handlers, so that their callbacks need not be called.
    if isinstance(handler, ChangingHandler) and isinstance(cause, ChangingCause) and not match_change(handler, cause):
        return False
    return prematch(handler, cause)


def may_match(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Check whether the handler matches, or it is unknown because its filters fail."""
    try:
        return match(handler, cause)
    except FilterError:
        return True


def may_match_change(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Check whether the handler is for the change, or it is unknown because its filters fail."""
    try:
        return match_change(handler, cause)
    except FilterError:
        return True


def get_key(handler: ResourceHandler) -> tuple[int, str]:
    """Return the function's identity and the handler's id: repeated declarations of one function have the same key."""
    # The id alone is not enough: users give one id to several functions, each for its own filters.
    return id(handler.fn), handler.id


def deduplicate(handlers: Iterable[HandlerT]) -> Iterator[HandlerT]:
    """Yield the handlers without those that have the key of a former one; see `get_key`."""
    seen: set[tuple[int, str]] = set()
    for handler in handlers:
        key = get_key(handler)
        if key not in seen:
            seen.add(key)
            yield handler


def are_distinct(handlers: Sequence[ResourceHandler]) -> bool:
    """Check whether `deduplicate` would yield all the handlers, so that it need not be called."""
    return len({get_key(handler) for handler in handlers}) == len(handlers)


def _match_metadata(handler: ResourceHandler, cause: ResourceCause) -> bool:
    return (
        # Skip the check if the server has selected the objects. It could even be wrong: if an object was deleted in a
        # gap of the watch, its deletion is reported without its labels.
        (handler.label_selector is None or cause.selected or handler.label_selector.matches(cause.body.metadata.labels))
        and _match_mapping(handler.labels, cause.body.metadata.labels, handler, cause)
        and _match_mapping(handler.annotations, cause.body.metadata.annotations, handler, cause)
    )


def _match_mapping(
    pattern: Mapping[str, Any] | None,
    content: Mapping[str, Any],
    handler: ResourceHandler,
    cause: ResourceCause,
) -> bool:
    if not pattern:
        return True
    return all(_match_value(value, content.get(key, _ABSENT), handler, cause) for key, value in pattern.items())


def _match_field(handler: ResourceHandler, cause: ResourceCause) -> bool:
    if isinstance(handler, ChangingHandler) and handler.needs_change and isinstance(cause, ChangingCause):
        pattern = MetaFilterToken.PRESENT if handler.value is None else handler.value
        return any(
            _match_value(pattern, resolve(essence, handler.field, _ABSENT), handler, cause)
            # Check both states: the removal of a field is also a change of that field.
            for essence in (cause.old, cause.new)
        )
    pattern = MetaFilterToken.PRESENT if handler.value is None else handler.value
    field = handler.field or ()
    if isinstance(cause, ChangingCause):
        field = cause.within + field
    return _match_value(pattern, resolve(cause.body, field, _ABSENT), handler, cause)


def _match_transition(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Check whether the old and the new value of the field match the options ``old`` and ``new``."""
    return all(
        pattern is None or _match_value(pattern, resolve(essence, handler.field, _ABSENT), handler, cause)
        for pattern, essence in ((handler.old, cause.old), (handler.new, cause.new))
    )


def _match_value(pattern: Any, content: Any, handler: ResourceHandler, cause: ResourceCause) -> bool:
    if pattern is MetaFilterToken.PRESENT:
        return content is not _ABSENT and content is not None
    if pattern is MetaFilterToken.ABSENT:
        return content is _ABSENT or content is None
    if callable(pattern):
        kwargs = cause.kwargs_of_callback(pattern, handler, positional=1)
        return _call(pattern, kwargs, None if content is _ABSENT else content)
    # Compare inexactly: the API server writes a whole float as an integer.
    return content is not _ABSENT and is_same(content, pattern, exact=False)


def _call(fn: Callable[..., Any], kwargs: Mapping[str, Any], *args: Any) -> bool:
    try:
        return bool(fn(*args, **kwargs))
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        raise FilterError(fn, error) from error


def _name_option(handler: ResourceHandler, fn: Callable[..., Any]) -> str:
    for option in ('when', 'value', 'old', 'new', 'initial_delay'):
        if getattr(handler, option, None) is fn:
            return f'{option}='
    for option in ('labels', 'annotations'):
        for key, value in (getattr(handler, option) or {}).items():
            if value is fn:
                return f'{option}={{{key!r}: ...}}'
    return 'A filter'


def locate_error(fn: Callable[..., Any], error: BaseException) -> str:
    """Return the line of the user's code that has failed, or the place of the function if the call has failed."""
    trace, here = error.__traceback__, None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            here = trace.tb_frame.f_code.co_filename, trace.tb_lineno
            break
        trace = trace.tb_next
    if here is None:
        code = getattr(fn, '__code__', None)
        if code is None:
            return repr(fn)
        here = code.co_filename, code.co_firstlineno
    path, line = here
    return f'{os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path}:{line}'


def _hash_content(body: Body) -> int:
    """Return a hash of the fields that users change; without the status, whose updates would repeat the reports."""
    raw, meta = body._data(), body.metadata
    content = {key: value for key, value in raw.items() if key not in ('metadata', 'status')}
    # Exclude the annotations and versions: the framework's own patches change them.
    content['metadata'] = {'labels': meta.get('labels'), 'deleted': meta.get('deletionTimestamp')}
    try:
        return hash(orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))
    except TypeError:  # some numbers are too large for this library
        return hash(repr(content))
