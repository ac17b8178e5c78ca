"""
Field ownership: the managers of an object's fields, as the API server records them.

The entries are in ``metadata.managedFields``. An entry has the fields as a tree, ``fieldsV1``: the key ``f:name`` is
a field, ``k:{...}`` is the item of a list with these values in its key fields, ``v:...`` is the value in a set, and
``.`` is the structure itself. A client that changes a field of another manager becomes the owner of the field. So the
digest of an entry, with the values of its fields, is sufficient to detect that another client has changed a field. Why
not compare the values with the applied ones? The API server changes them: it adds defaults, and normalizes numbers and
lists.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Final, NamedTuple

import orjson

Path = tuple[str, ...]
"""The keys of ``fieldsV1`` from the root to a field."""

_VOLATILE: Final = frozenset({'managedFields', 'resourceVersion', 'generation'})
"""The metadata that the server changes with each write."""

_DIGEST_SIZE: Final = 12


def digest(value: Any) -> bytes:
    """Return a short digest of a JSON value, independent of the order of keys."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=_DIGEST_SIZE).digest()


def find_entry(raw: Mapping[str, Any], manager: str) -> Mapping[str, Any] | None:
    """Return the entry for the manager's server-side applies; ``None`` if it owns no field."""
    for entry in raw['metadata'].get('managedFields') or ():
        if entry.get('manager') == manager and entry.get('operation') == 'Apply' and not entry.get('subresource'):
            found: Mapping[str, Any] = entry
            return found
    return None


def digest_entry(raw: Mapping[str, Any], manager: str) -> bytes | None:
    """
    Return the digest of the entry of the manager, and of the values of its fields; ``None`` if it owns no field.

    If another client uses the same manager name and changes a value, only the time of the entry changes. Within the
    same second, not even the time changes. An example is the delayed request of a former leader.
    """
    entry = find_entry(raw, manager)
    if entry is None:
        return None
    others = [each.get('fieldsV1') or {} for each in raw['metadata']['managedFields'] if each is not entry]
    return digest([entry, _pick(raw, entry.get('fieldsV1') or {}, others)])


class Ownership(NamedTuple):
    """The fields of an object that belong to one manager, and those that belong to others."""

    own: frozenset[Path]
    others: Mapping[Path, str]
    """The fields of other managers, with their names."""

    @classmethod
    def read(cls, raw: Mapping[str, Any], manager: str) -> 'Ownership':
        """Return the ownership in this state of the object, as the manager sees it."""
        entry = find_entry(raw, manager)
        own = frozenset() if entry is None else frozenset(_iter_leaves(entry.get('fieldsV1') or {}))
        others = {
            path: str(each.get('manager'))
            for each in raw['metadata'].get('managedFields') or ()
            if each is not entry
            for path in _iter_leaves(each.get('fieldsV1') or {})
        }
        return cls(own, others)

    def find_lost(self, desired: Mapping[str, Any]) -> dict[Path, str]:
        """Return the desired fields that belong only to other managers, with the names of these managers."""
        return {path: name for path, name in self.others.items() if path not in self.own and has_field(desired, path)}

    def is_missing(self, path: Path) -> bool:
        """Check whether the field belongs to no manager: it was never set, or was removed."""
        return path not in self.own and path not in self.others


def has_field(obj: Mapping[str, Any], path: Path) -> bool:
    """Check whether the object has the field."""
    return _find(obj, path) is not None


def remove_field(obj: MutableMapping[str, Any], path: Path) -> None:
    """
    Remove the field from the object, if it is there; change the object in place.

    Structures that become empty are removed, too. If the field is a key of a list item, the whole item is removed.
    """
    kind, _, keys = path[-2].partition(':') if len(path) > 1 else ('', '', '')
    if kind == 'k' and path[-1].removeprefix('f:') in json.loads(keys):
        path = path[:-1]
    found = _find(obj, path)
    if found is not None:
        parent, key = found
        del parent[key]
        if not parent and len(path) > 1:
            remove_field(obj, path[:-1])


def render(path: Path) -> str:
    """Return the path as users write it: ``spec.containers[name=main].image``."""
    text = ''
    for key in path:
        kind, _, value = key.partition(':')
        if kind == 'f':
            text += f'.{value}' if text else value
        elif kind == 'k':
            pairs = json.loads(value).items()
            text += f"[{','.join(f'{name}={each}' for name, each in pairs)}]"
        else:
            text += f'[{value}]'
    return text


def is_changed_by_others(before: Mapping[str, Any], after: Mapping[str, Any], manager: str) -> bool:
    """Check whether anything has changed besides the fields that the manager has applied now."""
    entry = find_entry(after, manager)
    fields: Mapping[str, Any] = {} if entry is None else entry.get('fieldsV1') or {}
    metadata = (
        {key: value for key, value in raw['metadata'].items() if key not in _VOLATILE} for raw in (before, after)
    )
    return _differs({**before, 'metadata': next(metadata)}, {**after, 'metadata': next(metadata)}, fields)


def _differs(before: Any, after: Any, fields: Mapping[str, Any] | None) -> bool:
    if fields is None:
        return bool(before != after)
    if not fields:  # the manager owns the whole value
        return False
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() | after.keys():
            own = fields.get(f'f:{key}')
            # Values that have appeared together with the manager's fields are no changes by others: e.g. the API server
            # adds defaults to a new structure.
            if (own is None or key in before) and _differs(before.get(key), after.get(key), own):
                return True
        return False
    if isinstance(before, list) and isinstance(after, list):
        return _differs_in_items(before, after, fields)
    return bool(before != after) and before is not None


def _differs_in_items(before: list[Any], after: list[Any], fields: Mapping[str, Any]) -> bool:
    rests = []
    for items in (before, after):
        rests.append([item for item in items if not any(_is_item(item, key) for key in fields)])
    if rests[0] != rests[1]:
        return True
    for key, own in fields.items():
        pairs = [[item for item in items if _is_item(item, key)] for items in (before, after)]
        if pairs[0] and pairs[1] and _differs(pairs[0][0], pairs[1][0], own):
            return True
    return False


def _pick(value: Any, fields: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Any:
    """Return the values of the fields, in the order of the fields, except for values that others own."""
    if not fields:
        # An empty map or list that was applied looks as if it was owned as a whole, but others can own items in it.
        return None if value in ({}, []) or any(others) else value
    if not isinstance(value, dict | list):
        return value
    return [
        _pick(
            value.get(key[2:]) if isinstance(value, dict) else _find_item(value, key),
            inner,
            [each[key] for each in others if key in each],
        )
        for key, inner in fields.items()
        if key != '.'
    ]


def _find_item(items: list[Any], key: str) -> Any:
    # This is called for each event of a child, so the key is parsed only once for all items, and quickly.
    wanted = orjson.loads(key[2:])
    return next((item for item in items if _is_wanted(item, wanted, key)), None)


def _iter_leaves(fields: Mapping[str, Any], prefix: Path = ()) -> Iterator[Path]:
    for key, inner in fields.items():
        if key == '.':
            continue
        if inner:
            yield from _iter_leaves(inner, (*prefix, key))
        else:
            yield (*prefix, key)


def _find(obj: Any, path: Path) -> tuple[Any, Any] | None:
    """Return the structure that has the field, and the key or the index of the field in it."""
    found: tuple[Any, Any] | None = None
    for key in path:
        kind, _, value = key.partition(':')
        if kind == 'f' and isinstance(obj, MutableMapping) and obj.get(value) is not None:
            found, obj = (obj, value), obj[value]
        elif kind in ('k', 'v') and isinstance(obj, MutableSequence):
            number = next((number for number, item in enumerate(obj) if _is_item(item, key)), None)
            if number is None:
                return None
            found, obj = (obj, number), obj[number]
        else:
            return None
    return found


def _is_item(item: Any, key: str) -> bool:
    """Check whether the key of ``fieldsV1`` identifies this item of a list."""
    return key[:2] in ('k:', 'v:') and _is_wanted(item, orjson.loads(key[2:]), key)


def _is_wanted(item: Any, wanted: Any, key: str) -> bool:
    if key.startswith('v:'):
        return bool(item == wanted)
    # The desired item can lack key fields that have defaults, such as the protocol of a port.
    return (
        isinstance(item, Mapping)
        and any(name in item for name in wanted)
        and all(item.get(name, each) == each for name, each in wanted.items())
    )
