"""
The essences of objects: the parts whose changes are handled, e.g. without the status and the resource version.

The storages in the settings build the essences, and store the last handled one in the object; users can replace these
storages. For Secrets, only digests of the values are stored. When they are loaded, the digests of unchanged values are
replaced with the values from the object.
"""

import copy
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs import digests, storage_formats
from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.helpers.explanations import INTERRUPTIONS
from kopf._cogs.structs.bodies import Body, BodyEssence
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import digest_essence
from kopf._core.intents import missed_edits
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

_SECRET_FIELDS = ('data', 'stringData')


class Essences:
    """
    Builds, loads and stores the essences of all objects of one resource.

    The results for the latest state of an object are cached, since a state is usually processed in several steps.
    """

    __slots__ = (
        '_concealing',
        '_copying',
        '_diffbase',
        '_essence',
        '_extra_fields',
        '_fetched',
        '_is_last',
        '_progress',
        '_raw',
        '_remembering',
        '_revealing',
    )

    def __init__(self, table: HandlerTable, persistence: PersistenceSettings) -> None:
        self._progress = persistence.progress_storage
        self._diffbase = persistence.diffbase_storage
        self._copying = storage_formats.is_overridden(self._progress, 'clear')  # it may modify its argument
        self._extra_fields = table.extra_fields
        self._revealing = table.resource.group == '' and table.resource.plural == 'secrets'
        self._concealing = self._revealing and not persistence.store_secrets
        self._remembering = not storage_formats.is_overridden(self._diffbase, 'fetch', 'matches')
        self._raw: Mapping[str, Any] | None = None
        self._essence = BodyEssence()
        self._is_last: bool | None = None
        self._fetched: tuple[BodyEssence | None] | None = None

    def of(self, body: Body) -> BodyEssence:
        """Return the essence of the object."""
        raw = body._data()
        # Compare the identity: the framework never modifies a body, but replaces it with its newer state.
        if raw is not self._raw:
            # The user's `clear` may modify the essence, whose values belong to the body.
            source = Body(copy.deepcopy(dict(raw))) if self._copying else body
            try:
                essence = self._diffbase.build_shared(source, self._extra_fields)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                raise StorageError(self._diffbase, 'build', error) from error
            try:
                self._essence = self._progress.clear(essence=essence)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                raise StorageError(self._progress, 'clear', error) from error
            self._raw, self._is_last, self._fetched = raw, None, None
        return self._essence

    @property
    def is_external(self) -> bool:
        """Return whether the last handled essences can be stored elsewhere than on the objects."""
        return not self._remembering

    def forget(self) -> None:
        """Release the cached state."""
        self._raw, self._essence, self._is_last, self._fetched = None, BodyEssence(), None, None

    def fetch_last(
        self,
        body: Body,
        essence: BodyEssence,
        handled_digest: str | None = None,
        *,
        again: bool = False,
    ) -> BodyEssence | None:
        """
        Return the last handled essence of the object, if any.

        Args:
            body: the object.
            essence: the current essence of the object.
            handled_digest: the digest of a handled essence that could not be stored, if any.
            again: whether to cache the essence until it is fetched again for the same state. It is not cached for
                longer, because handlers get it, and could change it in place.
        """
        # Check this before the storage, which has lost that state.
        if handled_digest is not None and handled_digest == digest_essence(essence):
            return essence
        known = self._remembering and body._data() is self._raw
        if known and self._fetched is not None:
            (last,) = self._fetched
        else:
            try:
                last = self._diffbase.fetch(body=body)
            except INTERRUPTIONS:
                raise
            except BaseException as error:
                raise StorageError(self._diffbase, 'fetch', error) from error
            if last is not None and (self._revealing or isinstance(last, digests.DigestedEssence)):
                last = digests.reveal(last, essence, body)
        self._fetched = (last,) if known and again else None
        return last

    def is_last(self, body: Body, essence: BodyEssence) -> bool:
        """Check quickly whether the essence is the last handled one; the result ``False`` is not certain."""
        is_known = self._remembering and essence is self._essence and body._data() is self._raw
        if is_known and self._is_last is not None:
            return self._is_last
        try:
            is_last = self._diffbase.matches(body=body, essence=essence)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._diffbase, 'match', error) from error
        if is_known:
            self._is_last = is_last
        return is_last

    def store_last(self, body: Body, essence: BodyEssence, patch: Patch) -> None:
        """Add the essence to the patch as the last handled one."""
        concealed = self._conceal(essence, body)
        try:
            self._diffbase.store(body=body, patch=patch, essence=concealed)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            raise StorageError(self._diffbase, 'store', error) from error

    def pack(self, essence: BodyEssence, body: Body) -> str | None:
        """Return the essence as text for the record of a handler; ``None`` if the object has no room for it."""
        return missed_edits.pack(self._conceal(essence, body), body)

    def unpack(self, text: str | None, essence: BodyEssence, body: Body) -> BodyEssence:
        """Return the essence stored in a record, with its digests replaced by the current values; empty if absent."""
        unpacked = missed_edits.unpack(text)
        if unpacked is None:
            return BodyEssence()
        return digests.reveal(unpacked, essence, body) if self._revealing else unpacked

    def predict(self, body: Body, patch: Patch) -> BodyEssence:
        """Return the essence that the object will have after the patch, unless other clients change it meanwhile."""
        try:
            return self.of(Body(patch.applied_to(body)))
        except Exception:  # patch functions of users can fail; they are called again when the patch is applied
            return self.of(body)

    def predict_change(self, essence: BodyEssence, patch: Patch) -> BodyEssence:
        """Return the essence after the patch, without its functions: they are for the whole object."""
        changes = Patch(dict(patch))
        return self.of(Body(changes.applied_to(Body({'metadata': {}, **essence}))))

    def _conceal(self, essence: BodyEssence, body: Body) -> BodyEssence:
        return digests.conceal(essence, _SECRET_FIELDS, body) if self._concealing else essence
