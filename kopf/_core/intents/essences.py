"""
The essences of objects: what changes are detected by, that is, the objects without what is nobody's wish.

They are built by the storages in the settings, which may be the user's own; so is the last handled essence, which is
stored in the object. Of secrets, only digests are stored, and what they stand for is taken from the object again.
"""

import copy
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs import digests, storage_formats
from kopf._cogs.configs.configuration import PersistenceSettings
from kopf._cogs.structs.bodies import Body, BodyEssence
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.handler_states import digest_essence
from kopf._core.intents import missed_edits
from kopf._core.intents.registries import HandlerTable
from kopf._core.intents.storage_errors import StorageError

_SECRET_FIELDS = ('data', 'stringData')


class Essences:
    """The essences of all the objects of one resource."""

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
        self._copying = storage_formats.is_overridden(self._progress, 'clear')  # as it may modify what it is given
        self._extra_fields = table.extra_fields
        self._revealing = table.resource.group == '' and table.resource.plural == 'secrets'
        self._concealing = self._revealing and not persistence.store_secrets
        self._remembering = not storage_formats.is_overridden(self._diffbase, 'fetch', 'matches')
        # What is known of the latest state: it is usually looked at several times in a row.
        self._raw: Mapping[str, Any] | None = None
        self._essence = BodyEssence()
        self._is_last: bool | None = None
        self._fetched: tuple[BodyEssence | None] | None = None

    def of(self, body: Body) -> BodyEssence:
        """Build the essence of the object."""
        raw = body._data()
        if raw is not self._raw:
            source = Body(copy.deepcopy(dict(raw))) if self._copying else body
            try:
                essence = self._diffbase.build_shared(source, self._extra_fields)
            except Exception as error:
                raise StorageError(self._diffbase, 'build', error) from error
            try:
                self._essence = self._progress.clear(essence=essence)
            except Exception as error:
                raise StorageError(self._progress, 'clear', error) from error
            self._raw, self._is_last, self._fetched = raw, None, None
        return self._essence

    def forget(self) -> None:
        """Keep no object in memory."""
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
        Give the last handled essence of the object; the present one is it if its digest is the ``handled_digest`` one.

        If it is to be fetched ``again``, it is remembered until then; but not longer, as then handlers get it.
        """
        if handled_digest is not None and handled_digest == digest_essence(essence):
            return essence
        known = self._remembering and body._data() is self._raw
        if known and self._fetched is not None:
            (last,) = self._fetched
        else:
            try:
                last = self._diffbase.fetch(body=body)
            except Exception as error:
                raise StorageError(self._diffbase, 'fetch', error) from error
            if last is not None and (self._revealing or isinstance(last, digests.DigestedEssence)):
                last = digests.reveal(last, essence, body)
        self._fetched = (last,) if known and again else None
        return last

    def is_last(self, body: Body, essence: BodyEssence) -> bool:
        """Tell at a glance that the essence is the last handled one; if not, it can still be."""
        is_known = self._remembering and essence is self._essence and body._data() is self._raw
        if is_known and self._is_last is not None:
            return self._is_last
        try:
            is_last = self._diffbase.matches(body=body, essence=essence)
        except Exception as error:
            raise StorageError(self._diffbase, 'match', error) from error
        if is_known:
            self._is_last = is_last
        return is_last

    def store_last(self, body: Body, essence: BodyEssence, patch: Patch) -> None:
        """Put the essence into the patch as the last handled one."""
        concealed = self._conceal(essence, body)
        try:
            self._diffbase.store(body=body, patch=patch, essence=concealed)
        except Exception as error:
            raise StorageError(self._diffbase, 'store', error) from error

    def pack(self, essence: BodyEssence, body: Body) -> str | None:
        """Give the essence as a text for the record of a handler; ``None`` if there is no room for it."""
        return missed_edits.pack(self._conceal(essence, body), body)

    def unpack(self, text: str | None, essence: BodyEssence, body: Body) -> BodyEssence:
        """Get back the essence from the record of an object with this present one; an empty one if it is not there."""
        unpacked = missed_edits.unpack(text)
        if unpacked is None:
            return BodyEssence()
        return digests.reveal(unpacked, essence, body) if self._revealing else unpacked

    def predict(self, body: Body, patch: Patch) -> BodyEssence:
        """Build the essence that the object has once it is patched, if nobody else changes it."""
        try:
            return self.of(Body(patch.applied_to(body)))
        except Exception:  # functions of users may fail, and are called again when it matters
            return self.of(body)

    def predict_change(self, essence: BodyEssence, patch: Patch) -> BodyEssence:
        """The same for an essence: with those changes of the patch that fit it."""
        changes = Patch({key: value for key, value in patch.items() if key != 'status'})
        return self.of(Body(changes.applied_to(Body({'metadata': {}, **essence}))))

    def _conceal(self, essence: BodyEssence, body: Body) -> BodyEssence:
        return digests.conceal(essence, _SECRET_FIELDS, body) if self._concealing else essence
