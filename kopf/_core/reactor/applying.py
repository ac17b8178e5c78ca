"""
Applying patches to objects, and accepting the state from the response.

Changes that could not be applied are kept in the record of the object, and are applied to its next state. The state
from the response is the newest known one; its echo in the stream is recognized by its resource version.
"""

import asyncio
import contextlib
import copy
import functools
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from kopf._cogs.clients import patching
from kopf._cogs.clients.api import AnyLogger, ApiClient
from kopf._cogs.clients.errors import (
    APIFencedError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APIUnservedError,
)
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body, RawBody
from kopf._cogs.structs.patches import Patch, combine_values
from kopf._core.intents.decisions import Decider, Decision
from kopf._core.intents.storage_errors import StorageError
from kopf._core.reactor.echoes import Expectation
from kopf._core.reactor.object_records import ObjectRecord, make_logger
from kopf._core.reactor.workers import WorkerPool

CONFLICT_DELAYS = (0, 0.1, 0.2, 0.5, 1, 2)
"""The delays (in seconds) between the attempts to apply transforming functions to an object that keeps changing."""


class Application(NamedTuple):
    """The result of applying a patch."""

    done: bool
    """Whether the patch was applied completely, or the object does not exist any more."""
    delay: float | None = None
    """The delay (in seconds) until the next attempt, if no event comes earlier."""


class Applier:
    """Applies patches to the objects of one resource."""

    def __init__(self, client: ApiClient, settings: OperatorSettings, decider: Decider, workers: WorkerPool) -> None:
        self._client = client
        self._settings = settings
        self._decider = decider
        self._workers = workers

    async def apply(
        self,
        record: ObjectRecord,
        decision: Decision | None,
        patch: Patch,
        bookkeeping: Patch,
    ) -> Application:
        """
        Send the patch with the bookkeeping, and keep the changes that could not be applied.

        Args:
            record: the record of the object.
            decision: the decision that the bookkeeping belongs to, if there is one.
            patch: the changes that handlers request.
            bookkeeping: the framework's own data (progress, handled state, finalizers), stored only with all the
                changes.
        """
        # Take the expectation before the request: events that arrive during the request can be newer than its response.
        asked_at = time.monotonic()
        logger = make_logger(record, self._decider.table.resource, self._settings)
        try:
            result = await self._send(
                record,
                # Why not `record.uid`? It is a made-up key if the object has no uid.
                cast(RawBody, record.body)['metadata'].get('uid'),
                patch,
                record.body,
                logger,
                bookkeeping,
                {} if decision is None else decision.first,
                guard=functools.partial(self._check_outdated, record) if self._workers.can_lapse else None,
            )
        except APIFencedError:
            self.keep_unsaved(record, decision, patch)
            if not record.unverified:
                raise
            logger.info("The results are kept until it is known whether another operator has handled the object.")
            return Application(False)
        except BaseException:  # also after a cancellation, as it is unknown whether the patch was stored
            self.keep_unsaved(record, decision, patch)
            raise
        if result.unserved:
            self.keep_unsaved(record, decision, patch)
            return Application(False, CONFLICT_DELAYS[-1])
        if result.gone:
            record.cancel_requeue()
            self._forget(record)
            return Application(True)
        stored = patch
        if result.remaining_fns:
            # The values are sent before the functions, so they are stored even if the functions are refused.
            stored = Patch(dict(patch)) if result.body is not None else Patch()
            self.keep_unsaved(record, decision, Patch(fns=patch.fns), stored)
        else:
            record.keep_patch(None)
        if result.body is not None:
            self._accept(record, result.body, patch, asked_at)
            if decision is not None and record.cycle is not None:
                self._decider.compare_with_response(decision, stored, Body(result.body))
            # The next step begins with the response. Why not wait for the echo? Each step of a cycle would be delayed
            # by the lag of the stream, and a patch without changes has no echo.
            if self._decider.table.managing and not result.remaining_fns:
                # Why not wait for the event of this patch? It will be dropped as an echo of this state.
                record.requeue()
        if record.requeued or not result.remaining_fns:
            return Application(not result.remaining_fns)
        # Usually, an event brings the state to which the functions can be applied. If it is late, or if the refusal
        # had another reason, the state is requested: otherwise, the same patch would be refused again and again.
        record.mark_outdated()
        return Application(False, CONFLICT_DELAYS[-1])

    def _check_outdated(self, record: ObjectRecord) -> None:
        """
        Refuse to send the results of a step if another operator could have handled the object since it has begun.

        Why not send them with the version of the object? Any change of it would refuse them, and the list of objects
        after the pause shows better whether they are still valid.
        """
        if self._workers.is_outdated(record):
            record.doubt()
            raise APIFencedError("The patch is not sent, as another operator could have handled the object meanwhile.")

    async def apply_of_daemon(
        self,
        record: ObjectRecord,
        patch: Patch,
        *,
        is_settled: Callable[[ObjectRecord, RawBody], bool],
        resume: Callable[[ObjectRecord], None],
    ) -> None:
        """
        Apply a patch of a daemon to the newest state of the object.

        Args:
            record: the record of the object.
            patch: the changes that the daemon requests.
            is_settled: checks whether the object in the resulting state requires no action.
            resume: requeues the object if it does require action.

        Raises:
            APIUnservedError: if the API does not serve the resource now, so that the patch is not applied.
        """
        # Why not `record.body`? It is dropped when the object is at rest, and can be older than the state that the
        # daemons have.
        raw: RawBody | None = record.daemons.packed.copy()
        for delay in CONFLICT_DELAYS:
            asked_at = time.monotonic()
            result = await self._send(record, record.daemons.identity.uid, patch, raw, record.daemons.logger)
            if not record.daemons.gone:
                _check_served(result)
            # If the object was deleted meanwhile, ignore the response: it would make the object seem to exist again.
            if result.body is not None and not record.daemons.gone:
                at_rest = record.body is None
                self._accept(record, result.body, patch, asked_at)
                record.daemons.note_patch()
                self._continue_chain(record, raw, result.body, patch)
                # The echo of the operator's own patch will be dropped. So, check here whether this patch is a change
                # for the handlers: otherwise, it would never reach them.
                if record.has_worker or not is_settled(record, cast(RawBody, record.body)):
                    resume(record)
                elif at_rest:
                    record.drop_body()
            if not result.remaining_fns:
                return
            # The values are stored by now. Without a known state, the next attempt requests the newest one.
            patch, raw = Patch(fns=patch.fns), None
            await asyncio.sleep(delay)
        record.daemons.logger.warning(
            "The object changes faster than it can be patched; these functions are lost: %r", patch.fns
        )

    async def apply_of_level(
        self,
        record: ObjectRecord,
        seen: RawBody,
        patch: Patch,
        body: RawBody | None,
        logger: AnyLogger,
    ) -> patching.PatchResult:
        """
        Apply the patch of a level-triggered handler once. After a failure, the handler runs again instead of the patch.

        Args:
            record: the record of the object.
            seen: the state that the handler has seen.
            patch: the changes that the handler requests.
            body: the state to apply functions to; if absent, the newest one is requested.
            logger: the logger of the object.

        Raises:
            APIUnservedError: if the API does not serve the resource now.
        """
        asked_at = time.monotonic()
        result = _check_served(await self._send(record, seen['metadata'].get('uid'), patch, body, logger))
        if result.gone:
            record.cancel_requeue()
            self._forget(record)
        elif result.body is not None:
            self._accept(record, result.body, patch, asked_at)
            self._continue_chain(record, body, result.body, patch)
            # The echo will be dropped, so the other handlers get this state from here.
            if self._decider.table.managing:
                record.requeue()
        return result

    async def send_once(
        self,
        record: ObjectRecord,
        uid: str | None,
        patch: Patch,
        body: RawBody | None,
        logger: AnyLogger,
    ) -> patching.PatchResult:
        """
        Send a patch once, without any change of the record: the event of this patch will be an ordinary event.

        Such patches change conditions, parts of the status, or finalizers, so other handlers seldom react to them.

        Raises:
            APIUnservedError: if the API does not serve the resource now.
        """
        return _check_served(await self._send(record, uid, patch, body, logger))

    async def reload(self, record: ObjectRecord, known: RawBody) -> None:
        """Request the newest state of the object from the API server, instead of waiting for an event."""
        asked_at = time.monotonic()
        raw = await self._request(record)
        record.clear_outdated()  # not earlier: if the request fails, it must be repeated
        # Ignore the response if it is about a new object of the same name: a patch for the former object must never
        # reach the new one, which has its own events.
        if raw is not None and raw['metadata'].get('uid') == known['metadata'].get('uid'):
            self._accept(record, raw, Patch(), asked_at)
        else:
            self._forget(record)

    async def _request(self, record: ObjectRecord) -> RawBody | None:
        """Return the newest state of the object from the API server; ``None`` if there is no such object."""
        resource = self._decider.table.resource
        log = make_logger(record, resource, self._settings)
        try:
            url = resource.get_url(namespace=record.namespace, name=record.name)
            return cast(RawBody, await self._client.get_json(url, logger=log))
        except APINotFoundError as error:
            # If the resource itself is missing, for a moment or for good, that says nothing about the object.
            if error.code is None:
                raise APIUnservedError("the resource is not served", status=404) from error
            return None
        except APIForbiddenError:
            # The permission for watches usually includes lists, but some roles do not permit to get single objects.
            url = resource.get_url(namespace=record.namespace)
            found = await self._client.get_json(url, {'fieldSelector': f'metadata.name={record.name}'}, logger=log)
        # The server, or an aggregated one, may not support the selector.
        if not isinstance(found, dict) or not isinstance(found.get('items'), list | None):
            raise APIServerError(f"The response is no list of objects: {str(found)[:200]}")
        items = [item for item in found.get('items') or () if item['metadata'].get('name') == record.name]
        if not items:
            return None
        # The items of lists usually lack these fields.
        kind = (found.get('kind') or '').removesuffix('List')
        return cast(RawBody, {'apiVersion': found.get('apiVersion'), 'kind': kind, **items[0]})

    async def _send(
        self,
        record: ObjectRecord,
        uid: str | None,
        patch: Patch,
        body: RawBody | None,
        logger: AnyLogger,
        bookkeeping: Patch | None = None,
        first: Mapping[str, Any] = types.MappingProxyType({}),
        guard: Callable[[], None] | None = None,
    ) -> patching.PatchResult:
        daemons = record.daemons
        with contextlib.nullcontext() if daemons is None else daemons.sending():
            return await patching.patch_obj(
                self._client,
                resource=self._decider.table.resource,
                namespace=record.namespace,
                name=record.name,
                uid=uid,
                patch=patch,
                body=body,
                logger=logger,
                bookkeeping=bookkeeping,
                first=first,
                guard=guard,
            )

    def keep_unsaved(
        self,
        record: ObjectRecord,
        decision: Decision | None,
        patch: Patch,
        stored: Patch | None = None,
    ) -> None:
        """
        Keep the changes that could not be stored, for the next attempt.

        Args:
            record: the record of the object.
            decision: the decision whose bookkeeping could not be stored, if there is one.
            patch: the changes that could not be applied.
            stored: the changes that were applied nevertheless.
        """
        record.keep_patch(patch)
        if record.cycle is not None:
            record.cycle.state.mark_unsaved()
            if decision is not None:
                self._decider.retract(decision, stored)

    def _forget(self, record: ObjectRecord) -> None:
        """Forget the state of an object that the API server reports as missing. Its DELETED event will come later."""
        record.forget_state()
        record.mark_outdated()  # late events must be verified, because they can be older than the deletion
        record.expect(Expectation.of_deletion(timeout=self._settings.persistence.consistency_timeout))

    def _accept(self, record: ObjectRecord, raw: RawBody, patch: Patch, asked_at: float) -> None:
        """Accept the state from the response to a patch, and expect its echo in the stream."""
        if record.daemons is not None:
            if not record.daemons.update(raw, patch, asked_at=asked_at):
                raw = record.daemons.packed.copy()  # a daemon's patch or the stream has brought a newer state
        if record.unverified:
            # Why not accept it? The list after the pause must be compared with the state from before the pause, to see
            # whether another operator has handled the object. And it must not count as the echo of this patch.
            return
        record.accept(raw)
        timeout = self._settings.persistence.consistency_timeout
        record.expect(Expectation.after_patch(raw, record.expected, timeout=timeout))

    def _continue_chain(self, record: ObjectRecord, before: RawBody | None, raw: RawBody, patch: Patch) -> None:
        """
        Let the pauses of handlers that trigger themselves go on.

        Where a webhook or a policy writes something new at each update, even this patch has changed the object, and it
        would look like an edit by another client.
        """
        chain = record.selftriggering
        if chain is None or before is None:
            return
        with contextlib.suppress(StorageError):
            if not chain.is_over(self._decider.essences.of(Body(before))):
                if self._decider.is_mutated(before, raw, patch):
                    chain.follow(self._decider.essences.of(Body(raw)))


def _check_served(result: patching.PatchResult) -> patching.PatchResult:
    """Return the result; raise an error if the patch is not applied, but should be as soon as it is possible."""
    if result.unserved:
        raise APIUnservedError("the resource is not served", status=404)
    return result


def complete(record: ObjectRecord, patch: Patch, log: AnyLogger) -> None:
    """Add the earlier changes of handlers that could not be applied yet; drop values that cannot be stored."""
    patching.discard_unstorable(patch, log)
    if record.pending_patch is not None:
        _merge(patch, record.pending_patch)


def _merge(patch: Patch, older: Patch) -> None:
    """Add older changes to the patch. Newer values override older values and the results of older functions."""
    # Copy it: the patch itself gets the older values, too, but the function below must set only the newer ones.
    newer = Patch(copy.deepcopy(dict(patch)))
    patch.update(copy.deepcopy(dict(combine_values(older, newer))))
    # The older functions come first. They are applied after all values, so the newer values are set once more after
    # them: otherwise, a function from a former step would undo the newer changes of a handler.
    patch.fns[:0] = [*older.fns, *([newer.apply_to] if older.fns and newer else [])]
