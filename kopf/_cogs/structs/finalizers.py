"""
Finalizers of an object: the operator's finalizer delays the deletion until the deletion handlers have succeeded.

Why not simply a merge patch? It can replace the list only as a whole, and would lose the finalizers that other clients
add meanwhile. So the list is changed by functions of patches. The functions are `patches.Replacing`, which need
no copy of the object, as nearly each handled object gets and loses a finalizer.
"""

import functools

from kopf._cogs.structs import bodies, patches


def append_finalizer(finalizer: str) -> patches.Replacing:
    """Return a patch function that adds the finalizer to the object, unless it is being deleted already."""
    return patches.Replacing(functools.partial(_append, finalizer=finalizer))


def remove_finalizer(finalizer: str) -> patches.Replacing:
    """Return a patch function that removes the finalizer from the object."""
    return patches.Replacing(functools.partial(_remove, finalizer=finalizer))


def _append(raw: bodies.RawBody, /, *, finalizer: str) -> None:
    metadata = raw['metadata']
    finalizers = metadata.get('finalizers') or []
    # The API server refuses a whole patch that adds finalizers to an object that is being deleted.
    if finalizer not in finalizers and not metadata.get('deletionTimestamp'):
        raw['metadata'] = {**metadata, 'finalizers': [*finalizers, finalizer]}


def _remove(raw: bodies.RawBody, /, *, finalizer: str) -> None:
    metadata = raw['metadata'].copy()
    finalizers = [item for item in metadata.pop('finalizers', None) or () if item != finalizer]
    if finalizers:
        metadata['finalizers'] = finalizers
    raw['metadata'] = metadata
