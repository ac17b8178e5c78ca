"""
Detection of edits that other clients have made during a creation while no operator was running.

If the remaining creation handlers are delayed for long, the records of the handlers contain the essence that the first
handler has seen. Otherwise, the records contain only digests, and the records of upstream kopf have no digests. Then
the operator uses the metadata that the API server maintains: ``generation`` counts the changes of the spec, and
``managedFields`` shows which client has changed the labels and annotations, and when.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from kopf._cogs.configs import digests, storage_formats
from kopf._cogs.helpers.versions import field_manager
from kopf._cogs.structs.bodies import Body, BodyEssence

RESERVE: Final = 32 * 1024
"""The part of the size limit of annotations that is left to other records and other clients (in bytes)."""


def pack(essence: BodyEssence, body: Body) -> str | None:
    """Return the essence as text for the record of a handler; ``None`` if the object has no room for it."""
    text = digests.pack(storage_formats.dump_json(essence))
    room = (
        storage_formats.MAX_ANNOTATIONS_SIZE
        - RESERVE
        - storage_formats.measure_annotations(storage_formats.get_annotations(body))
    )
    return text if 2 * len(text) <= room else None  # twice, as a storage can write one record under two keys


def unpack(text: str | None) -> BodyEssence | None:
    """Return the essence from the text; ``None`` if there is no text, or it is malformed."""
    try:
        essence = None if text is None else storage_formats.load_json(digests.unpack(text))
    except (ValueError, TypeError, json.JSONDecodeError):
        return None
    return cast(BodyEssence, essence) if isinstance(essence, dict) else None


def is_changed_since_created(body: Body, *, has_status: bool) -> bool:
    """Check whether other clients have changed the spec, or the labels and annotations after the operator's patch."""
    # Without the subresource, changes of the status increment the generation, too, e.g. results of handlers.
    generation = body.metadata.get('generation') if has_status or not body.get('status') else None
    # The API server begins with 1, and increments the generation with each change of the spec.
    return (isinstance(generation, int) and generation > 1) or _is_labelled_by_others(body)


def _is_labelled_by_others(body: Body) -> bool:
    entries = [
        entry
        for entry in body.metadata.get('managedFields') or ()
        if isinstance(entry, Mapping) and not entry.get('subresource')
    ]
    # Only changes after the last write of this operator count as edits; without any such write, no change counts.
    ours = max((_get_time(entry) for entry in entries if entry.get('manager') == field_manager), default='')
    return bool(ours) and any(  # an edit in the same second is not detected: the times are in whole seconds
        entry.get('manager') != field_manager and _get_time(entry) > ours and _has_essential_metadata(entry)
        for entry in entries
    )


def _get_time(entry: Mapping[str, Any]) -> str:
    return str(entry.get('time') or '')


def _has_essential_metadata(entry: Mapping[str, Any]) -> bool:
    fields = (entry.get('fieldsV1') or {}).get('f:metadata') or {}
    return bool(fields.get('f:labels')) or any(
        key.startswith('f:') and not storage_formats.is_foreign(key.removeprefix('f:'))
        for key in fields.get('f:annotations') or ()
    )
