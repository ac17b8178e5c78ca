"""
Which handlers match an object and what has happened to it.

`prematch` looks at the object alone: its labels, annotations, fields, and callbacks. An object that no change-detecting
handler prematches is none of the operator's business: nothing is stored on it, nothing is logged. `match` also looks at
the reason and at what has changed. Specified in the documentation's "Filtering".
"""
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kopf._cogs.structs.dicts import resolve
from kopf._core.intents.callbacks import MetaFilterToken
from kopf._core.intents.causes import ChangingCause, Reason, ResourceCause
from kopf._core.intents.handlers import ChangingHandler, ResourceHandler

_ABSENT = object()

HandlerT = TypeVar('HandlerT', bound=ResourceHandler)


def prematch(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Tell whether the object is of those that the handler is for, whatever happens to it."""
    if is_unconditional(handler):
        return True
    return (
        _match_mapping(handler.labels, cause.body.metadata.labels, handler, cause)
        and _match_mapping(handler.annotations, cause.body.metadata.annotations, handler, cause)
        and (handler.field is None or _match_field(handler, cause))
        and (handler.when is None or bool(handler.when(**cause.kwargs_of_callback(handler.when, handler))))
    )


def is_unconditional(handler: ResourceHandler) -> bool:
    """Tell whether the handler is for all the objects of its resource."""
    return handler.labels is None and handler.annotations is None and handler.field is None and handler.when is None


def match_change(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Tell whether the handler is for what has happened to the object, if it is for the object."""
    if handler.initial:
        return cause.initial and (handler.deleted or not cause.deleted)
    if handler.reason is not None and handler.reason != cause.reason:
        return False
    if cause.reason in (Reason.NOOP, Reason.FREE, Reason.GONE):
        return False
    return not handler.needs_change or (bool(cause.reduced_diff(handler)) and _match_transition(handler, cause))


def match(handler: ResourceHandler, cause: ResourceCause) -> bool:
    """Tell whether the handler is to be run."""
    if isinstance(handler, ChangingHandler) and isinstance(cause, ChangingCause) and not match_change(handler, cause):
        return False
    return prematch(handler, cause)


def deduplicate(handlers: Iterable[HandlerT]) -> Iterator[HandlerT]:
    """Skip the handlers that are the same function under the same id: it was declared for several reasons."""
    seen: set[tuple[int, str]] = set()
    for handler in handlers:
        key = (id(handler.fn), handler.id)
        if key not in seen:
            seen.add(key)
            yield handler


def _match_mapping(
        pattern: Mapping[str, Any] | None, content: Mapping[str, Any], handler: ResourceHandler, cause: ResourceCause,
) -> bool:
    if not pattern:
        return True
    return all(_match_value(value, content.get(key, _ABSENT), handler, cause) for key, value in pattern.items())


def _match_field(handler: ResourceHandler, cause: ResourceCause) -> bool:
    if isinstance(handler, ChangingHandler) and handler.needs_change and isinstance(cause, ChangingCause):
        # Without any value the object is matched as a whole: how the field is affected is a matter of the change.
        return handler.value is None or any(
            _match_value(handler.value, resolve(essence, handler.field, _ABSENT), handler, cause)
            for essence in (cause.old, cause.new))
    pattern = MetaFilterToken.PRESENT if handler.value is None else handler.value
    field = handler.field or ()
    if isinstance(cause, ChangingCause):
        field = cause.within + field
    return _match_value(pattern, resolve(cause.body, field, _ABSENT), handler, cause)


def _match_transition(handler: ChangingHandler, cause: ChangingCause) -> bool:
    """Tell whether the field was and has become what the handler asks for."""
    return all(
        pattern is None or _match_value(pattern, resolve(essence, handler.field, _ABSENT), handler, cause)
        for pattern, essence in ((handler.old, cause.old), (handler.new, cause.new)))


def _match_value(pattern: Any, content: Any, handler: ResourceHandler, cause: ResourceCause) -> bool:
    if pattern is MetaFilterToken.PRESENT:
        return content is not _ABSENT and content is not None
    if pattern is MetaFilterToken.ABSENT:
        return content is _ABSENT or content is None
    if callable(pattern):
        kwargs = cause.kwargs_of_callback(pattern, handler, positional=1)
        return bool(pattern(None if content is _ABSENT else content, **kwargs))
    return bool(content is not _ABSENT and content == pattern)
