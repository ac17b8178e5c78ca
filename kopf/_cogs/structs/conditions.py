"""
Conditions: the entries of ``status.conditions`` of an object, one for each type, such as ``Ready``.

In the API, they are a list, which several controllers share. A merge patch would replace the whole list, with the
entries of other controllers. So handlers get a mapping by type, and `ConditionEdits` collects its changes. This is one
of the functions in ``patch.fns``: it changes the newest list. The result is sent as a JSON patch, which the API server
accepts only if the object is still in that state.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, cast

from kopf._cogs.helpers.clocks import read_wall_clock
from kopf._cogs.structs.bodies import Body, RawBody
from kopf._cogs.structs.diffs import is_same
from kopf._cogs.structs.patches import Patch

MAX_MESSAGE: Final = 32768
"""The longest message that the API accepts (in characters)."""

_MAX_REASON: Final = 1024
_MAX_TYPE: Final = 316
_REASON: Final = re.compile(r'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')
_TYPE: Final = re.compile(
    r'([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'
)
_STATUSES: Final = {True: 'True', False: 'False', None: 'Unknown'}

Entry = Mapping[str, Any]
"""A condition in the format of the API."""


class Condition:
    """
    One condition of an object; it never changes.

    Args:
        status: whether the condition is true; ``None`` if that is unknown.
        reason: the reason in one word in CamelCase, for programs.
        message: the details, for people.
    """

    __slots__ = ('last_transition_time', 'message', 'observed_generation', 'reason', 'status')

    status: bool | None
    """Whether the condition is true; ``None`` if that is unknown."""
    reason: str
    """The reason in one word in CamelCase."""
    message: str
    """The details."""
    last_transition_time: datetime.datetime | None
    """When the status has changed; ``None`` if it is not known."""
    observed_generation: int | None
    """The generation of the object that the condition is about; ``None`` if it is not known."""

    def __init__(self, status: bool | None, reason: str, message: str = '') -> None:
        if status is not None and not isinstance(cast(object, status), bool):
            raise TypeError(f"kopf.Condition: the status must be True, False, or None (unknown), not {status!r}.")
        for name, value in ('reason', reason), ('message', message):
            if not isinstance(cast(object, value), str):
                raise TypeError(f"kopf.Condition: the {name} must be a string, not {value!r}.")
        if len(reason) > _MAX_REASON or not _REASON.fullmatch(reason):
            raise ValueError(
                f"kopf.Condition: the reason must be one word in CamelCase, such as 'QuotaExceeded', not {reason!r}."
            )
        if len(message) > MAX_MESSAGE:
            raise ValueError(
                f"kopf.Condition: the message has {len(message)} characters, but the API accepts only {MAX_MESSAGE}."
            )
        self.status, self.reason, self.message = status, reason, message
        self.last_transition_time = self.observed_generation = None

    def __repr__(self) -> str:
        return f'kopf.Condition({self.status!r}, {self.reason!r}, {self.message!r})'

    def __eq__(self, other: object) -> bool:
        """Compare the status, the reason, and the message, but neither the time nor the generation."""
        if not isinstance(other, Condition):
            return NotImplemented
        return (self.status, self.reason, self.message) == (other.status, other.reason, other.message)

    def __hash__(self) -> int:
        return hash((self.status, self.reason, self.message))


Changes = Mapping[str, Condition | None]
"""The new conditions by their types; ``None`` for those to be removed."""


def parse_entry(entry: Entry) -> Condition:
    """Return the condition of this entry, without checks: other clients can have omitted required fields."""
    condition = Condition.__new__(Condition)
    condition.status = {'True': True, 'False': False}.get(str(entry.get('status')))
    condition.reason = str(entry.get('reason') or '')
    condition.message = str(entry.get('message') or '')
    condition.last_transition_time = _parse_time(entry.get('lastTransitionTime'))
    generation = entry.get('observedGeneration')
    condition.observed_generation = generation if isinstance(generation, int) else None
    return condition


def _parse_time(text: object) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def format_time(moment: datetime.datetime) -> str:
    """Return the time in the format of the API: in UTC, in whole seconds."""
    return moment.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


def list_entries(status: object) -> Sequence[Any]:
    """
    Return the entries in the status of an object; none if there are no conditions.

    Raises:
        TypeError: if ``status.conditions`` is not a list.
    """
    entries = status.get('conditions') if isinstance(status, Mapping) else None
    if entries is not None and not isinstance(entries, list | tuple):
        raise TypeError(f"status.conditions of the object must be a list, but it is {entries!r:.200}.")
    return entries or ()


def merge(
    entries: Sequence[Any],
    changes: Changes,
    *,
    now: str,
    generation: int | None = None,
    newest: int | None = None,
) -> list[Any]:
    """
    Return the entries with these changes.

    All other entries stay as they are, and the order stays. A new entry goes to the end. The time of the transition is
    kept unless the status changes. If an entry has additional fields, they are kept, too.

    Args:
        entries: the newest entries of the object.
        changes: the new conditions by their types; ``None`` for those to be removed.
        now: the current time, as the API writes it.
        generation: the generation of the object that the changes are about, if it is known.
        newest: the generation that the object has now. An entry about a later generation than that of the changes
            stays as it is. But an entry with a higher number than the object's generation is replaced: it comes from
            a backup from which the object was restored, with the old status, but with new generations.
    """
    result: list[Any] = []
    seen: set[str] = set()
    for entry in entries:
        type_ = str(entry.get('type')) if isinstance(entry, Mapping) else ''
        if type_ not in changes:
            result.append(entry)
        elif type_ not in seen:  # a type can occur twice if the schema does not forbid it
            seen.add(type_)
            change = changes[type_]
            if _is_newer(entry, generation, newest):
                result.append(entry)
            elif change is not None:
                result.append(_merge_entry(entry, type_, change, now, generation))
    added = [type_ for type_, change in changes.items() if change is not None and type_ not in seen]
    return result + [_merge_entry({}, type_, cast(Condition, changes[type_]), now, generation) for type_ in added]


def _is_newer(entry: Entry, generation: int | None, newest: int | None) -> bool:
    observed = entry.get('observedGeneration')
    return (
        generation is not None and newest is not None and isinstance(observed, int) and generation < observed <= newest
    )


def _merge_entry(entry: Entry, type_: str, change: Condition, now: str, generation: int | None) -> Entry:
    status, since = _STATUSES[change.status], entry.get('lastTransitionTime')
    changed_at = since if entry.get('status') == status and since else now
    merged = {
        **entry,
        'type': type_,
        'status': status,
        'reason': change.reason,
        'message': change.message,
        'lastTransitionTime': changed_at,
    }
    if generation is not None:
        merged['observedGeneration'] = generation
    return merged


class ConditionEdits:
    """
    The changes of the conditions that the handlers of one run request: a function of the patch.

    Args:
        patch: the patch that has these changes among its functions.
        seen: the object as the handlers have seen it.
        counted: whether only changes of the desired state increment the generation. Without the status subresource,
            changes of the conditions increment it, too, so it does not identify the desired state.
    """

    __slots__ = ('_counted', '_is_summarized', '_now', '_patch', '_seen', 'changes', 'observed')

    def __init__(self, patch: Patch, seen: Mapping[str, Any], *, counted: bool) -> None:
        self.changes: dict[str, Condition | None] = {}
        self.observed: int | None = None
        """The generation that the conditions are about, as of the last call; ``None`` if it is not known."""
        self._patch, self._seen, self._counted, self._is_summarized = patch, seen, counted, False
        self._now = format_time(read_wall_clock())

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.changes!r})'

    def change(self, type_: str, condition: Condition | None, seen: Mapping[str, Any] | None = None) -> None:
        """Set the condition of this type, or remove it; ``seen`` is the state that the handler sees now."""
        self.changes[type_] = condition
        if seen is not None:  # daemons see the newer states of their object while they run
            self._seen = seen
        # Why not when the patch is sent? It can be sent several times, but the transition happens now.
        self._now = format_time(read_wall_clock())

    def withdraw(self, types: Iterable[str]) -> None:
        """Drop the changes of these types, as newer ones have come."""
        for type_ in types:
            self.changes.pop(type_, None)

    def summarize(self) -> None:
        """Also set ``status.observedGeneration`` whenever the conditions change: kstatus looks only at this field."""
        self._is_summarized = True

    @property
    def generation(self) -> int | None:
        """The generation of the state that the handlers have seen; ``None`` if other changes increment it, too."""
        return _get_generation(self._seen) if self._counted else None

    def follow(self, raw: Mapping[str, Any]) -> None:
        """Called with a state in which only the handlers' own changes differ from the state that they have seen."""
        self._seen, self._patch = raw, Patch()

    def __call__(self, raw: RawBody, /) -> None:
        """Apply the changes to the newest state of the object."""
        old = raw.get('status')
        try:
            entries = list_entries(old)
        except TypeError:
            return  # the handlers got this error when they set the conditions; the rest of the patch is applied
        new = self.merge_into(entries, raw)
        # The generation of the status is set only together with conditions. Otherwise, if the schema did not have this
        # field, each run would write it again in vain.
        if new != list(entries):
            status = {**(old if isinstance(old, Mapping) else {}), 'conditions': new}
            if self._is_summarized and self.observed is not None:
                if not _is_newer(status, self.observed, _get_generation(raw)):
                    status['observedGeneration'] = self.observed
            cast(dict[str, Any], raw)['status'] = status

    def merge_into(self, entries: Sequence[Any], raw: Mapping[str, Any]) -> list[Any]:
        """Return the entries with the changes, for an object in this state."""
        newest = _get_generation(raw) if self._counted else None
        self.observed = self._find_observed(raw, newest)
        return merge(entries, self.changes, now=self._now, generation=self.observed, newest=newest)

    def _find_observed(self, raw: Mapping[str, Any], newest: int | None) -> int | None:
        if newest is None:
            return None
        seen = _get_generation(self._seen)
        # Own changes of the handlers can increase the generation, but trigger no other run. So the conditions get the
        # new generation: with the older one, clients would wait for another run in vain.
        if seen is None or seen >= newest:
            return seen
        return newest if is_same(_pick_desired(raw), _pick_desired(self._predict())) else seen

    def _predict(self) -> Mapping[str, Any]:
        """Return the object that the handlers have seen, with the values of their patch."""
        return Patch(dict(self._patch)).applied_to(self._seen)


def _get_generation(raw: Mapping[str, Any]) -> int | None:
    generation = (raw.get('metadata') or {}).get('generation')
    return generation if isinstance(generation, int) else None


def _pick_desired(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the desired state: the fields whose changes increase the generation."""
    return {key: value for key, value in raw.items() if key not in ('metadata', 'status')}


def find_edits(patch: Patch) -> list[ConditionEdits]:
    """Return the changes of conditions in the patch."""
    return [fn for fn in patch.fns if isinstance(fn, ConditionEdits)]


class Conditions(MutableMapping[str, Condition]):
    """
    The conditions of an object by their types: as the handler has seen them, with the changes that it has made.

    Args:
        body: the object.
        patch: the patch of the handler, which gets the changes.
        counted: see `ConditionEdits`.
    """

    __slots__ = ('_body', '_counted', '_patch')

    def __init__(self, body: Body, patch: Patch, *, counted: bool) -> None:
        self._body, self._patch, self._counted = body, patch, counted

    def __repr__(self) -> str:
        return f'{type(self).__name__}({dict(self)!r})'

    def __getitem__(self, type_: str, /) -> Condition:
        for entry in self._list():
            if entry.get('type') == type_:
                return parse_entry(entry)
        raise KeyError(type_)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(str(entry['type']) for entry in self._list() if 'type' in entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, type_: str, condition: Condition, /) -> None:
        if not isinstance(cast(object, condition), Condition):
            raise TypeError(
                f"conditions[{type_!r}] must be a kopf.Condition, not {condition!r}: "
                f"write conditions[{type_!r}] = kopf.Condition(True, 'Reason', \"The message.\")"
            )
        if not isinstance(cast(object, type_), str) or len(type_) > _MAX_TYPE or not _TYPE.fullmatch(type_):
            raise ValueError(f"conditions[{type_!r}]: a type of conditions is one word in CamelCase, such as 'Ready'.")
        self._list()  # raises an error if status.conditions is not a list
        self._edit().change(type_, condition, self._body._data())

    def __delitem__(self, type_: str, /) -> None:
        if type_ not in self:
            raise KeyError(type_)
        self._edit().change(type_, None, self._body._data())

    def _list(self) -> list[Entry]:
        raw = self._body._data()
        entries = list(list_entries(raw.get('status')))
        # Other handlers of the same step can have made changes, too: all have one patch.
        for edits in find_edits(self._patch):
            entries = edits.merge_into(entries, raw)
        return [entry for entry in entries if isinstance(entry, Mapping)]

    def _edit(self) -> ConditionEdits:
        # Look it up in the patch each time, because handlers can clear their patch.
        known = find_edits(self._patch)
        if known:
            return known[-1]
        edits = ConditionEdits(self._patch, self._body._data(), counted=self._counted)
        self._patch.fns.append(edits)
        return edits
