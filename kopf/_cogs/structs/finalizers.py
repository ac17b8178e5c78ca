"""
Finalizers of an object: by ours, it waits with its deletion until the handlers are done.

They are a list, which a merge patch can only replace as a whole, with what others have put there in the meantime. So
they are changed by functions of patches. As this is done for each object that has a finalizer, the functions are
`patches.Replacing`: they do not need a copy of the object.
"""

import functools

from kopf._cogs.structs import bodies, patches


def append_finalizer(finalizer: str) -> patches.Replacing:
    """Make the function that lets the object be held by the finalizer, unless it is being deleted already."""
    return patches.Replacing(functools.partial(_append, finalizer=finalizer))


def remove_finalizer(finalizer: str) -> patches.Replacing:
    """Make the function that lets the object not be held by the finalizer."""
    return patches.Replacing(functools.partial(_remove, finalizer=finalizer))


def _append(raw: bodies.RawBody, /, *, finalizer: str) -> None:
    metadata = raw['metadata']
    finalizers = metadata.get('finalizers') or []
    if finalizer not in finalizers and not metadata.get('deletionTimestamp'):
        raw['metadata'] = {**metadata, 'finalizers': [*finalizers, finalizer]}


def _remove(raw: bodies.RawBody, /, *, finalizer: str) -> None:
    metadata = raw['metadata'].copy()
    finalizers = [item for item in metadata.pop('finalizers', None) or () if item != finalizer]
    if finalizers:
        metadata['finalizers'] = finalizers
    raw['metadata'] = metadata
