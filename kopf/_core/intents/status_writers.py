"""
Warnings about statuses that handlers take from each other.

``patch.status = Model(...)`` removes all fields of the model that have no value, also those of other handlers.
So each kind that is declared as a class remembers which of its handlers have set which fields. Handlers whose resources
are named by texts are not observed, so that they do not pay for it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.structs.patches import ModelFields
from kopf._core.actions.execution import running

if TYPE_CHECKING:
    from kopf._core.actions.execution import Handler

_UNPOSTED = {'k8s_skip': True}
_ABSENT: Mapping[str, Any] = {}


class StatusWriters:
    """The handlers that have set fields of the statuses of one kind, as far as this process knows."""

    def __init__(self) -> None:
        self._writers: dict[str, dict[str, bool]] = {}
        """For each field, the ids of the handlers that have set it, and whether alone or only as a part of a model."""
        self._functions: dict[str, Any] = {}
        """The code of the handlers: several handlers of one function have different ids, but know of each other."""
        self._removals: set[tuple[str, str]] = set()
        """The pairs of handlers where the first one has removed a field of the second one."""
        self._reported: set[tuple[str, str]] = set()
        """The handlers and fields that are reported already."""

    def note(
        self, handler: 'Handler', cause: Any, before: Mapping[str, Any], after: Mapping[str, Any], *, assigned: bool
    ) -> None:
        """
        Called when a handler has changed the status in its patch. It warns of fields that it takes from others.

        Args:
            handler: the handler.
            cause: the cause of the handler.
            before: the changes of the status before the handler was called: those of the handlers before it.
            after: the changes of the status now.
            assigned: whether the handler has assigned them as a whole.
        """
        whole = assigned and isinstance(after, ModelFields)
        self._functions[handler.id] = getattr(handler.fn, '__code__', None)
        for field, value in after.items():
            if value is not None and (whole or before.get(field) is not value):
                writers = self._writers.setdefault(field, {})
                writers[handler.id] = writers.get(handler.id, False) or not whole
        if whole:
            current = cause.body.get('status')
            state = {**(current if isinstance(current, Mapping) else _ABSENT), **before}
            self._find_removals(handler, cause, state, after)

    def _find_removals(
        self, handler: 'Handler', cause: Any, state: Mapping[str, Any], model: Mapping[str, Any]
    ) -> None:
        for field, value in model.items():
            writers = self._writers.get(field)
            if value is not None or state.get(field) is None or writers is None or handler.id in writers:
                continue
            others = [id for id in writers if not self._is_same(id, handler.id)]
            self._removals.update((handler.id, id) for id in others)
            # If the other handler has assigned a whole model, too, this one can be the next phase of the object, which
            # removes the field on purpose. So they must have removed fields from each other.
            taken = [id for id in others if writers[id] or (id, handler.id) in self._removals]
            if taken and (handler.id, field) not in self._reported:
                self._reported.add((handler.id, field))
                own = next((key for key, each in model.items() if each is not None), field)
                cause.logger.warning(
                    "%s removes status.%s, which %r has set: an assigned model replaces all fields of its class. "
                    "Assign single fields instead: patch.status[%r] = ...",
                    handler,
                    field,
                    taken[-1],
                    own,
                    extra=_UNPOSTED,
                )

    def _is_same(self, one: str, other: str) -> bool:
        code = self._functions.get(one)
        return one == other or (code is not None and code is self._functions.get(other))


class watching_status(running):
    """The context of handlers of a kind that is declared as a class: it compares the status in the patch at the end."""

    __slots__ = ('_before', '_status', '_writers')

    def __init__(self, handler: Any, cause: Any) -> None:
        super().__init__(handler, cause)
        self._writers: StatusWriters = handler.model.status_writers

    def __enter__(self) -> None:
        super().__enter__()
        self._status = self._cause.patch.get('status')
        self._before = dict(self._status) if isinstance(self._status, Mapping) else _ABSENT

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        after = self._cause.patch.get('status')
        if isinstance(after, Mapping):
            assigned = after is not self._status
            self._writers.note(self._handler, self._cause, self._before, after, assigned=assigned)
