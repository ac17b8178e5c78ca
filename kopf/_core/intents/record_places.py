"""
The places in which the state of handlers is stored: annotations, checked for clashes at the start, and fields.

The keys of annotations are made of the ids of handlers, and several characters of ids are the same character in keys:
``/`` becomes ``.``. Why not make other keys? Objects in clusters have the present ones, also from upstream kopf.
"""

from collections.abc import Collection, Iterator, Sequence

from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.configs.diffbase import DiffBaseStorage, StatusDiffBaseStorage
from kopf._cogs.configs.progress import ProgressStorage, StatusProgressStorage
from kopf._cogs.configs.storage_formats import is_overridden
from kopf._cogs.structs.dicts import FieldPath
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.mistakes import DeclarationError, locate
from kopf._core.intents.registries import OperatorRegistry


def check_places(registry: OperatorRegistry, persistence: PersistenceSettings) -> None:
    """
    Check that the progress of no handler is stored in the annotation of the last-handled configuration.

    Raises:
        DeclarationError: if it is: each would overwrite the other, and the handler would be called again and again.
    """
    reserved = _list_reserved(persistence)
    problems = [
        f"{handler} ({locate(handler.fn)}) would store its progress in the annotation {key!r} of its objects, in which "
        f"settings.persistence.diffbase_storage stores the last-handled configuration. Rename the function, or give it "
        f"another id=."
        for handler in registry.changing
        for key in _list_places(handler, persistence)
        if key in reserved
    ]
    if problems:
        raise DeclarationError(' '.join(dict.fromkeys(problems)))


def find_shared_places(registry: OperatorRegistry, persistence: PersistenceSettings) -> Iterator[str]:
    """Yield a message for each handler whose progress is in the same annotation as that of another one."""
    known: dict[tuple[object, str], ChangingHandler] = {}
    told = set()
    for handler in registry.changing:
        for key in _list_places(handler, persistence):
            other = known.setdefault((handler.selector, key), handler)
            if other.id != handler.id and (pair := (other.id, handler.id)) not in told:
                told.add(pair)
                yield (
                    f"{other} ({locate(other.fn)}) and {handler} ({locate(handler.fn)}) store their progress in the "
                    f"same annotation, {key!r}, so each of them can be called too often, or not at all. Give one of "
                    f"them an id= that differs in more than '/' and '.'."
                )


def list_fields(storage: object) -> Sequence[FieldPath]:
    """Return the fields in which the storage stores; none if it also stores in another place, such as annotations."""
    if not isinstance(storage, DiffBaseStorage | ProgressStorage) or is_overridden(storage, 'store'):
        return ()
    if isinstance(storage, StatusDiffBaseStorage | StatusProgressStorage):
        return (storage.field,)
    nested = [list_fields(each) for each in getattr(storage, 'storages', ())]
    return [field for fields in nested for field in fields] if all(nested) else ()


# A storage of the user's can store elsewhere, and need not inherit from ours.


def _list_places(handler: ChangingHandler, persistence: PersistenceSettings) -> Collection[str]:
    storage: object = persistence.progress_storage
    if not isinstance(storage, ProgressStorage) or is_overridden(storage, 'store'):
        return ()
    return storage.list_annotations(handler.id)


def _list_reserved(persistence: PersistenceSettings) -> Collection[str]:
    storage: object = persistence.diffbase_storage
    if not isinstance(storage, DiffBaseStorage) or is_overridden(storage, 'store'):
        return ()
    return storage.list_annotations()
