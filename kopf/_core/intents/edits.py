"""
Edits: changes of an object by other clients, not by the operator's own patches.

A patch explains the changes of the fields that it writes, and of the fields above and below them: the API server can
adjust the values, e.g. normalise a quantity. All other changes are edits.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from kopf._cogs.helpers.versions import field_manager
from kopf._cogs.structs.bodies import BodyEssence
from kopf._cogs.structs.dicts import FieldPath, resolve
from kopf._cogs.structs.diffs import Diff, DiffOperation, diff
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import State, digest_essence

Writes = Mapping[tuple[Any, ...], Any]
"""The times of the last writes by clients, as the API server has recorded them."""

NO_FIELDS: Final[Mapping[HandlerId, FieldPath]] = {}


def is_edited(
    old: BodyEssence,
    new: BodyEssence,
    patch: Mapping[str, Any],
    written: Collection[FieldPath] = (),
) -> bool:
    """
    Check whether there are differences that the patch does not explain.

    Args:
        old: the essence as it is expected after the patch.
        new: the essence after the patch.
        patch: the patch.
        written: the fields that the functions of the patch write; see `find_written`.
    """
    return not is_explained(diff(old, new), patch, written)


def find_writes(raw: Mapping[str, Any]) -> Writes | None:
    """
    Return when other clients have last written to the object, apart from its status; ``None`` if it is unknown.

    The entries in ``metadata.managedFields`` tell. They do not change with what webhooks and policies of the API server
    add to the requests of others. They do not tell of fields that were only removed, of two writes of a client within a
    second, nor of other operators with kopf, as these have the same name.
    """
    entries = raw['metadata'].get('managedFields')
    if not isinstance(entries, list) or not entries:
        return None
    return {
        tuple(entry.get(key) for key in ('manager', 'operation', 'subresource', 'apiVersion')): entry.get('time')
        for entry in entries
        if isinstance(entry, Mapping) and entry.get('manager') != field_manager and entry.get('subresource') != 'status'
    }


def is_written_since(before: Writes | None, after: Writes | None) -> bool:
    """Check whether other clients have written to the object between two states; if it is unknown, they have."""
    return before is None or after is None or any(before.get(key, '') != moment for key, moment in after.items())


def is_edited_by_others(
    changes: Diff, patch: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> bool:
    """
    Check whether other clients have made some of the changes that come with the response to a patch.

    Otherwise, webhooks and policies have made them. These rarely remove fields, so each removal counts as an edit.

    Args:
        changes: the changes of the essence.
        patch: the patch.
        before: the object before the patch.
        after: the object after the patch.
    """
    removed = [item for item in changes if item.operation is DiffOperation.REMOVE]
    return any(not is_touched(item.field, patch) for item in removed) or is_written_since(
        find_writes(before), find_writes(after)
    )


def find_written(old: BodyEssence, new: BodyEssence, patch: Patch) -> Collection[FieldPath]:
    """
    Return the fields that the functions of a patch write, if there are any.

    Why not compare their values? They can differ at each call of the functions, such as the current time, and the API
    server can adjust them, as it can adjust the values of the patch.

    Args:
        old: the essence before the patch.
        new: the essence as it is expected after the patch.
        patch: the patch.
    """
    return list(find_leaves(diff(old, new))) if patch.fns else ()


def is_explained(changes: Diff, patch: Mapping[str, Any], written: Collection[FieldPath] = ()) -> bool:
    """Check whether the patch, or its functions, write to all the changed fields; see `is_edited`."""
    return all(
        is_touched(field, patch) or any(is_on_path(field, other) for other in written) for field in find_leaves(changes)
    )


def find_leaves(changes: Diff) -> Iterator[FieldPath]:
    """
    Yield the changed fields; for dicts that are added or removed as a whole, yield the fields in them.

    Each field is compared with the patch separately. For example, if the operator and another client add the first
    annotations of an object at the same time, the difference is the whole dict of annotations.
    """
    for item in changes:
        yield from _iter_leaves(item.field, item.old, item.new)


def _iter_leaves(field: FieldPath, *values: Any) -> Iterator[FieldPath]:
    keys = dict.fromkeys(key for value in values if isinstance(value, Mapping) for key in value)
    if not keys:
        yield field
    for key in keys:
        inner = (value[key] for value in values if isinstance(value, Mapping) and key in value)
        yield from _iter_leaves((*field, key), *inner)


def is_touched(field: tuple[str, ...], patch: Mapping[str, Any]) -> bool:
    """Check whether the patch writes to the field, or to a field above or below it."""
    value: Any = patch
    for key in field:
        if not isinstance(value, Mapping):
            # The patch replaces or removes a parent as a whole, so it can have changed all fields below.
            return True
        if key not in value:
            return False
        value = value[key]
    return True


def is_on_path(field: FieldPath, other: FieldPath) -> bool:
    """Check whether one of the fields is in the other one, or is the same."""
    return all(key == other_key for key, other_key in zip(field, other, strict=False))


def digest_field(essence: BodyEssence, field: FieldPath) -> str:
    """Return a short digest of one field of the essence."""
    return digest_essence({'.'.join(field): resolve(essence, field, None)})


def find_outdated(
    state: State, essence: BodyEssence, fields: Mapping[HandlerId, FieldPath] = NO_FIELDS
) -> list[HandlerId]:
    """
    Return the handlers whose records contain the digest of another essence than this one.

    Args:
        state: the progress, with the digests.
        essence: the essence to compare with.
        fields: the fields of handlers for one field; their digests can be those of this field.
    """
    seen = {key: record.digest for key, record in state.items() if record.digest is not None}
    # It is computed only if there are digests to compare with, because the whole essence must be serialised.
    whole = digest_essence(essence) if seen else None
    return [
        key
        for key, digest in seen.items()
        if digest != whole and (key not in fields or digest != digest_field(essence, fields[key]))
    ]
