"""
Patching of objects with the changes of handlers and of the framework, in as few requests as possible.

A `Patch` contains values to merge and functions that change the object. The values are sent as merge patches, which are
valid for any version of the object. The changes by the functions are sent as JSON patches, which are valid only for one
version. A patch is for the object with one uid: if the object was deleted and created again meanwhile, the new object
is not patched.

An HTTP 404 of the status endpoint does not mean that the object is missing: its kind can have lost the status
subresource, or one of several API servers does not know of it yet. Then the status is sent with the object itself.
"""

import asyncio
import dataclasses
import math
import re
import types
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, dicts, diffs, patches, references

_MERGE: Final = 'application/merge-patch+json'
_JSON: Final = 'application/json-patch+json'

_CONFLICT_BACKOFFS = (0.0, 0.1, 0.2, 0.5, 1.0)
"""The pauses between attempts (in seconds) if other clients change the object faster than a patch arrives."""

_DISAGREEMENT_BACKOFFS = (0.0, 0.1, 0.2, 0.5, 1.0)
"""The pauses between attempts (in seconds) if API servers disagree on whether the kind has the status subresource."""


class PatchResult(NamedTuple):
    """
    The result of patching.

    Args:
        body: the object after the last change; `None` if there was no change, or if the object does not exist.
        remaining_fns: whether the functions or the bookkeeping were not applied, because another client has changed the
            object meanwhile. The caller must apply them to the newer state of the object.
        gone: whether the object does not exist any more, or another one has its name.
        unserved: whether the API does not serve the resource: it was removed, or has other versions now.
    """

    body: bodies.RawBody | None
    remaining_fns: bool = False
    gone: bool = False
    unserved: bool = False


async def patch_obj(
    client: api.ApiClient,
    *,
    resource: references.Resource,
    namespace: references.Namespace,
    name: str | None,
    uid: str | None,
    patch: patches.Patch,
    body: bodies.RawBody | None,
    logger: api.AnyLogger,
    bookkeeping: patches.Patch | None = None,
    first: Mapping[str, Any] = types.MappingProxyType({}),
    guard: Callable[[], None] | None = None,
) -> PatchResult:
    """
    Apply a patch to an object.

    If the resource has the status subresource, changes of the status are sent in separate requests. The functions and
    the values share a request if both change only the same endpoint (the object, or its status). The bookkeeping of the
    framework is sent in the last request of the patch if both are for the same endpoint; otherwise, in a request after
    it. So the bookkeeping is never stored without the patch. If the bookkeeping itself needs several requests, the
    values of `first` are in the first ones.

    Args:
        client: the client to patch with.
        resource: the kind of the object.
        namespace: the namespace of the object, if it is in a namespace.
        name: the name of the object.
        uid: the uid of the object; if `None`, an object with any uid is patched.
        patch: the values to merge and the functions to apply.
        body: the last known state of the object, if it is known.
        logger: the logger of the object.
        bookkeeping: the changes to be stored only if the patch is stored, e.g. the success of a handler.
        first: the values of the bookkeeping that must not be stored after the others.
        guard: called right before each attempt of each request; it raises `errors.APIFencedError` to prevent it.

    Raises:
        errors.APIError: if a request fails; earlier requests of the patch are stored then.
    """
    url = resource.get_url(namespace=namespace, name=name)
    patching = _Patching(client, url, uid, body, logger, 'status' in resource.subresources, first, guard)
    bookkeeping = bookkeeping if bookkeeping is not None else patches.Patch()
    try:
        done = await patching.apply(patch, bookkeeping)
    except (errors.APINotFoundError, _ReplacedError) as error:
        if isinstance(error, errors.APINotFoundError) and error.code is None:
            # The API server returns a Status object if only the object is missing, and plain text if the resource is.
            logger.debug("Patching is postponed: the resource is not served (any more).")
            return PatchResult(None, unserved=True)
        logger.debug("Patching was skipped: the object does not exist anymore.")
        return PatchResult(None, gone=True)
    if not done:
        logger.debug(
            f"Could not apply the patch in full: the object has changed. "
            f"The functions will be applied to its newer state: {[*patch.fns, *bookkeeping.fns]!r}"
        )
    return PatchResult(patching.result, remaining_fns=not done)


def discard_unstorable(patch: patches.Patch, logger: api.AnyLogger) -> None:
    """Remove and log what cannot be applied, as values that JSON cannot express: it would fail again and again."""
    functions: list[Any] = patch.fns
    for wrong in [each for each in functions if not callable(each)]:
        functions.remove(wrong)
        logger.error(
            "patch.fns has %r, which is left out: it must have functions that change the body, such as "
            "lambda body: body['spec']['items'].append('x').",
            wrong,
        )
    if not len(patch):
        return
    for key in patch:
        if (dotted := _DOTTED.fullmatch(str(key))) is not None:
            logger.warning(
                "The patch has %r, which is a field of this name at the top of the object. Did you mean patch.%s[%r]?",
                key,
                *dotted.groups(),
            )
    if not _may_be_unstorable(patch):
        return
    for path, value in list(_find_unstorable((), patch)):
        dicts.remove(patch, path)
        _log_unstorable(path, value, logger)


def _restore(new: Mapping[str, Any], old: object, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a copy of the new body in which the field has its old value, if it had one."""
    # Why not a deep copy? The field can have what cannot be copied, such as locks.
    key, *rest = path
    known = old.get(key, _ABSENT) if isinstance(old, Mapping) else _ABSENT
    if rest:
        return {**new, key: _restore(new[key], known, tuple(rest))}
    return {name: value for name, value in new.items() if name != key} | ({} if known is _ABSENT else {key: known})


_ABSENT = object()


def _log_unstorable(path: tuple[str, ...], value: Any, logger: api.AnyLogger) -> None:
    name = repr(value) if isinstance(value, float) else type(value).__name__.lstrip('_')
    logger.error(
        "%s cannot be stored, and is left out: JSON cannot express this %s. %sReturn from handlers, and "
        "put into patches, only dicts with strings as keys, lists, strings, numbers, booleans, None.",
        '.'.join(path),
        name,
        next((text for cls, text in _REMEDIES if isinstance(value, cls)), ''),
    )


def _may_be_unstorable(values: Mapping[str, Any]) -> bool:
    """Check quickly whether there can be values that JSON cannot express."""
    try:
        # Infinite numbers and NaN are encoded as null, too. In a merge patch, null removes the field.
        return b'null' in api.encode(values)
    except (TypeError, ValueError):
        return True


_DOTTED = re.compile(r'(spec|status|metadata)\.(.+)')
"""What looks like a path in the place of a field of the object."""


class _Loop:
    """A marker of a value that contains itself."""


_REMEDIES: tuple[tuple[Any, str], ...] = (
    (set | frozenset, "Use sorted(...). "),
    (bytes | bytearray, "Use .decode(), or base64. "),
    (types.CoroutineType, "Write await before the call that has returned it. "),
    (_Loop, "It contains itself. If it is the patch: do not return it, it is applied anyway. "),
)


def _find_unstorable(
    path: tuple[str, ...],
    value: Any,
    around: tuple[int, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if id(value) in around:  # e.g. a handler has returned its patch, which gets the results
        yield path, _Loop()
        return
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        for key, child in value.items():
            yield from _find_unstorable((*path, key), child, (*around, id(value)))
        return
    try:
        api.encode(value)
    except (TypeError, ValueError):
        yield path, value
    else:
        if (number := next(_iter_nonfinite(value), None)) is not None:
            yield path, number


def _iter_nonfinite(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield value
    elif isinstance(value, Collection) and not isinstance(value, str):
        for child in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_nonfinite(child)


class _ReplacedError(Exception):
    """Raised if another object has the same name."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Patching:
    """The patching of one object by one patch."""

    client: api.ApiClient
    url: str
    uid: str | None
    body: bodies.RawBody | None
    logger: api.AnyLogger
    has_status: bool
    first: Mapping[str, Any]
    guard: Callable[[], None] | None = None
    result: bodies.RawBody | None = None

    async def apply(self, patch: patches.Patch, bookkeeping: patches.Patch) -> bool:
        """Apply the patch, and then the bookkeeping; return false if the object has changed meanwhile."""
        if not patch.fns:
            return await self._apply_values(patch, bookkeeping)
        if self.body is not None and (len(patch) or bookkeeping):
            done = await self._apply_at_once(patch, bookkeeping)
            if done is not None:
                return done
        else:
            # The order is documented: values before functions, and in each of them, the object before its status.
            await self._merge(patch)
        if self.body is None:
            await self._reload()
        functions = patches.Patch(fns=patch.fns)
        ops = self._make_ops(patches.combine(functions, bookkeeping))
        # Of several requests, the first ones can succeed and a later one can fail. So the bookkeeping is sent after all
        # of them: the success of a handler must not be stored before the handler's changes. If one request is enough,
        # it contains both the changes and the bookkeeping.
        if not any(map(self._is_for_status, ops)):
            return await self._send_ops(self.url, "resource", ops)
        ops = self._make_ops(functions)
        return (
            await self._send_ops(self.url, "resource", [op for op in ops if not self._is_for_status(op)])
            and await self._send_ops_of_status([op for op in ops if self._is_for_status(op)])
            and await self._apply_values(patches.Patch(), bookkeeping)
        )

    async def _apply_at_once(self, patch: patches.Patch, bookkeeping: patches.Patch) -> bool | None:
        """
        Apply the values and the functions in one request, if both are for the same endpoint.

        Otherwise, or if the object has changed meanwhile, apply only the values; without values, reload the object.

        Returns:
            `None` if the functions are still to be applied; otherwise, whether the bookkeeping was stored, too.
        """
        ops, tried = self._make_ops(patches.combine(patch, bookkeeping)), True
        if not any(map(self._is_for_status, ops)):
            if await self._send_ops(self.url, "resource", ops):
                return True
        elif bookkeeping and all(map(self._is_for_status, ops := self._make_ops(patch))):
            if await self._send_ops_of_status(ops):
                return await self._apply_values(patches.Patch(), bookkeeping)
        else:
            tried = False
        # The API server refuses if the object has changed. If there are values, their merge returns the newer state.
        if tried and not len(patch):
            await self._reload()
        await self._merge(patch)
        return None

    def _make_ops(self, patch: patches.Patch) -> patches.JSONPatch:
        """Express the patch as operations on the known state; leave out what its functions cannot store."""
        if self.body is None or all(type(fn) is patches.Replacing for fn in patch.fns):
            return patch.as_json_patch(self.body)
        old, new = cast(Mapping[str, Any], self.body), cast(Mapping[str, Any], patch.applied_to(self.body))
        for path, value in list(_find_unstorable((), new)) if _may_be_unstorable(new) else ():
            _log_unstorable(path, value, self.logger)
            new = _restore(new, old, path)
        return patches.express_changes(old, api.simplify(new))

    async def _apply_values(self, patch: patches.Patch, bookkeeping: patches.Patch) -> bool:
        """Apply the values, and then the bookkeeping; return false if the object has changed before the bookkeeping."""
        changes, status = self._split(patch)
        last_changes, last_status = self._split(bookkeeping)
        if bookkeeping.fns and last_status and _is_being_deleted(self.body):
            # The finalizer is removed first, and the records of handlers in the status are purged after that. If the
            # records were purged first, an operator that is killed in between would handle the deletion again.
            first = patches.Patch(dict(last_changes), fns=bookkeeping.fns)
            if not await self._apply_values(patch, first):
                return False
            if self._is_alive():
                await self._merge_status(last_status)
            return True
        early, late = self._divide(last_changes, last_status)
        if early:
            await self._merge_object(changes)
            await self._merge_status(patches.combine_values(status, early))
            changes, status, last_status = {}, {}, late
        # Here, the bookkeeping changes the object itself, so the status of the patch must be stored before.
        if status and (len(last_changes) or bookkeeping.fns):
            await self._merge_status(status)
            status = {}
        if not bookkeeping.fns or last_status:
            await self._merge_object(patches.combine_values(changes, last_changes))
            await self._merge_status(patches.combine_values(status, last_status))
            changes = last_changes = {}
        if not bookkeeping.fns:
            return True
        if self.body is None:
            await self._reload()
        whole = patches.Patch(patches.combine_values(changes, last_changes), fns=bookkeeping.fns)
        if await self._send_finalizers(whole.as_json_patch(self.body)):
            return True
        if not len(whole):
            return False
        if len(changes):
            await self._merge_object(changes)
        else:
            await self._reload()
        rest = patches.Patch(dict(last_changes), fns=bookkeeping.fns)
        return await self._send_finalizers(rest.as_json_patch(self.body))

    async def _send_finalizers(self, ops: patches.JSONPatch) -> bool:
        """
        Send a change of the finalizers, with values of the framework; return false if the object has changed meanwhile.

        Others can write to the object faster than the API responds: then, no version would ever be the newest one. So
        the second attempt depends only on what the decision depends on.
        """
        if await self._send_ops(self.url, "resource", ops):
            return True
        is_confined = all(op['path'].startswith(('/metadata/finalizers', '/metadata/annotations/')) for op in ops)
        known = (self.body or {}).get('metadata', {})
        adding = any(op['op'] == 'add' and op['path'].startswith('/metadata/finalizers') for op in ops)
        # A finalizer is not removed blindly from an object that is not being deleted: it can be needed again, e.g. if
        # another client has restored a label meanwhile.
        is_decided = adding or known.get('deletionTimestamp') is not None
        if not is_confined or not is_decided or self.uid is None or self.client.is_fenced:
            return False
        # The uid shows that it is the same object; a test for null, that there is no such field.
        tests = {'uid': self.uid} | {field: known.get(field) for field in ('finalizers', 'deletionTimestamp')}
        return await self._send_ops(self.url, "resource", ops, tests)

    def _is_alive(self) -> bool:
        """Check whether the object still exists: the API server deletes it when its last finalizer is removed."""
        return not _is_being_deleted(self.body) or bool((self.body or {}).get('metadata', {}).get('finalizers'))

    def _split(self, patch: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Split the values into those of the object and those of its status, if that is a subresource."""
        if not self.has_status or 'status' not in patch:
            return patch, {}
        # An empty status changes nothing, but would cost a request.
        status = {'status': patch['status']} if patch['status'] != {} else {}
        return {key: value for key, value in patch.items() if key != 'status'}, status

    def _divide(
        self, changes: Mapping[str, Any], status: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """
        Split the values of the bookkeeping in the status into those to be stored before its other values, and the rest.

        Usually, the bookkeeping in the object is stored before that in the status, so the former values are none.
        """
        first_changes, first_status = self._split(self.first)
        if not status or not first_status or not patches.subtract_values(changes, first_changes):
            return {}, status
        # One request with all values of the status is enough, unless its rest must wait for values of the object.
        return (first_status, patches.subtract_values(status, first_status)) if len(first_changes) else (status, {})

    async def _merge(self, patch: patches.Patch) -> None:
        changes, status = self._split(patch)
        await self._merge_object(changes)
        await self._merge_status(status)

    async def _merge_object(self, changes: Mapping[str, Any]) -> None:
        if len(changes):  # not `if changes`: a patch that has only functions is true, too
            self.logger.debug("Merge-patching the resource with: %r", dict(changes))
            # With several replicas, a request that is delayed in the network must not overwrite newer data of the next
            # leader. So the request contains the known resource version. If the API server refuses it, the client
            # checks whether this replica may still write before it sends the request again.
            is_versioned = self.client.is_fenced
            await self._repeat(
                lambda: self._send_versioned(self.url, changes) if is_versioned else self._send_merge(self.url, changes)
            )
            self._warn_about_losses(changes)

    async def _merge_status(self, changes: Mapping[str, Any]) -> None:
        if changes:
            self.logger.debug("Merge-patching the status with: %r", dict(changes))
            await self._repeat(lambda: self._send_merge_of_status(changes))
            self._warn_about_losses(changes)

    def _is_for_status(self, op: patches.JSONPatchItem) -> bool:
        return self.has_status and (op['path'] == '/status' or op['path'].startswith('/status/'))

    async def _send_merge(self, url: str, changes: Mapping[str, Any], version: str | None = None) -> None:
        metadata = changes.get('metadata') or {}
        # Why not the version? It would make the request fail with each edit by another client. The uid differs only if
        # the object is another one.
        guard = {'uid': self.uid} if self.uid is not None else {}
        if version is not None:
            guard['resourceVersion'] = version
        payload = {**changes, 'metadata': {**metadata, **guard}} if guard else changes
        try:
            self._accept(await self.client.patch(url, payload, _MERGE, logger=self.logger, guard=self.guard))
        except (errors.APIUnprocessableError, errors.APIConflictError) as e:
            if _is_about_uid(e):
                raise _ReplacedError from e
            raise

    def _warn_about_losses(self, changes: Mapping[str, Any]) -> None:
        """Warn if the returned state does not have the desired values."""
        if inconsistencies := self._find_losses(changes):
            text = _explain_pruning(inconsistencies, self.body)
            extra = {'message_code': 'fields-dropped'} if text else None
            self.logger.warning(
                "Merge-patching finished with inconsistencies: %r%s", inconsistencies, text, extra=extra
            )

    def _find_losses(self, changes: Mapping[str, Any]) -> diffs.Diff:
        """Return the differences of the returned state from the desired values."""
        # Most values are stored unchanged; the others are simplified to JSON types before the comparison.
        if _is_merged(changes, self.body):
            return diffs.Diff()
        return diffs.Diff(_compare((), api.simplify(changes), self.body))

    async def _send_merge_of_status(self, changes: Mapping[str, Any]) -> None:
        # The status endpoint ignores the uid in a patch, but not the resource version. So the version is sent instead:
        # if another object has the same name by now, the API server refuses the patch.
        is_versioned = self.uid is not None or self.client.is_fenced

        async def send(url: str) -> bool:
            await (self._send_versioned(url, changes) if is_versioned else self._send_merge(url, changes))
            return True

        await self._send_to_status(send, changes)

    async def _send_ops_of_status(self, ops: patches.JSONPatch) -> bool:
        # Why not the version of the body at the time of each attempt? The operations are made for this one.
        tests = {'resourceVersion': _get_version(self.body)}
        return await self._send_to_status(lambda url: self._send_ops(url, "status", ops, tests))

    async def _send_to_status(
        self,
        send: Callable[[str], Awaitable[bool]],
        changes: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> bool:
        """
        Send a change of the status to the status endpoint; if there is none, with the object itself.

        Args:
            send: sends the change to a URL; returns false if the object has changed meanwhile.
            changes: the changed values, if the change consists of values.

        Returns:
            False if the object has changed meanwhile.

        Raises:
            errors.APINotFoundError: if the object does not exist, or the resource is not served.
            _ReplacedError: if another object has the same name.
        """
        for backoff in (*_DISAGREEMENT_BACKOFFS, None):
            try:
                return await send(f'{self.url}/status')
            except errors.APINotFoundError:
                # The API server responds with the same error if the object is missing, and if only the subresource is.
                await self._reload()
            # Why not wait until the discovery shows the newest definition of the kind? It can come late (or never, if
            # the scanning is disabled), and API servers can disagree, as each one notices a new definition by itself.
            self.logger.debug("The status has no endpoint of its own, so it is sent with the object.")
            version = _get_version(self.body)
            if not await send(self.url):
                return False
            # An API server that has the status endpoint ignores the status here, and keeps the version.
            if _get_version(self.body) != version or (changes and not self._find_losses(changes)):
                return True
            if backoff is not None:
                await asyncio.sleep(backoff)
        # Why not try for ever? The status would hold up the rest: the progress of the handlers, and the finalizer.
        self.logger.warning(
            "The status is lost: the API has no status endpoint for this object, and ignores the status in the object "
            "itself. Check in its CRD that the version has subresources: {status: {}}, and a schema of the status.",
        )
        return True

    async def _send_versioned(self, url: str, changes: Mapping[str, Any]) -> None:
        if self.body is None:
            await self._reload()
        try:
            await self._send_merge(url, changes, _get_version(self.body))
        except errors.APIConflictError:
            # Others, such as the timers of the same object, can write faster than the API responds: then, no version
            # would ever be the newest one. A merge depends only on the uid, and JSON patches can test that.
            if self.client.is_fenced or self.uid is None or not await self._send_values(url, changes):
                self.body = None
                raise

    async def _send_values(self, url: str, changes: Mapping[str, Any]) -> bool:
        """Send a merge of values as a JSON patch for any version of the object; return false if it does not apply."""
        ops = patches.express_merge(changes, self.body or {})
        return await self._send_ops(url, "values", ops, {'uid': self.uid})

    async def _send_ops(
        self,
        url: str,
        what: str,
        ops: patches.JSONPatch,
        tests: Mapping[str, Any] | None = None,
    ) -> bool:
        """
        Send a JSON patch; return false if the object has changed meanwhile.

        Args:
            url: the URL of the object, or of its status.
            what: what is patched, for logs.
            ops: the operations.
            tests: the fields of the metadata on which the operations depend; by default, it is the known version.
        """
        if not ops:
            return True
        tests = tests if tests is not None else {'resourceVersion': _get_version(self.body)}
        ops = [*(patches.JSONPatchItem(op='test', path=f'/metadata/{key}', value=tests[key]) for key in tests), *ops]
        self.logger.debug("JSON-patching the %s with: %r", what, ops)
        try:
            self._accept(await self.client.patch(url, ops, _JSON, logger=self.logger, guard=self.guard))
        # HTTP 409 means that another client has changed the object during the request. HTTP 422 means that the version
        # differs, or that the object is invalid; only errors about invalid objects have causes.
        except errors.APIConflictError:
            return False
        except errors.APIUnprocessableError as e:
            # Admission webhooks and policies can deny without causes.
            if e.details.get('causes') or ' denied ' in (e.message or ''):
                raise  # the API server would refuse each retry
            return False
        return True

    async def _repeat(self, send: Callable[[], Awaitable[None]]) -> None:
        # The API server itself repeats a merge patch a few times before it gives up, so such conflicts are rare.
        for backoff in _CONFLICT_BACKOFFS:
            try:
                await send()
                return
            except errors.APIConflictError:
                await asyncio.sleep(backoff)
        await send()

    async def _reload(self) -> None:
        try:
            self.body = await self.client.get_json(self.url, logger=self.logger)
        except errors.APIForbiddenError:  # an empty patch returns the object, and needs no permission to get it
            await self._send_merge(self.url, {})
        if self.uid is not None and _get_uid(self.body) != self.uid:
            raise _ReplacedError

    def _accept(self, body: Any) -> None:
        if not isinstance(body, dict) or not isinstance(body.get('metadata'), dict):
            # For example, the response of a proxy: it must not become the known state of the object.
            raise errors.APIServerError(f"The answer to the patch is no object: {body!r:.200}")
        self.body = self.result = cast(bodies.RawBody, body)


def _is_about_uid(error: errors.APIError) -> bool:
    # The validation refuses a change of the immutable uid (422); the storage refuses it as a precondition (409).
    causes = error.details.get('causes') or ()
    return any(cause.get('field') == 'metadata.uid' for cause in causes) or (
        error.status == 409 and 'UID in precondition' in (error.message or '')
    )


def _explain_pruning(inconsistencies: diffs.Diff, body: bodies.RawBody | None) -> str:
    """Return an explanation if the API server has dropped fields of a custom resource; otherwise, an empty text."""
    dropped = [
        '.'.join(path)
        for op, path, _, _ in inconsistencies
        if op is diffs.DiffOperation.REMOVE and path[0] != 'metadata'
    ]
    group = str((body or {}).get('apiVersion')).partition('/')[0]
    if not dropped or '.' not in group or group.endswith('.k8s.io'):
        return ''
    kind = (body or {}).get('kind')
    return (
        f". The schema of {kind} does not know {', '.join(dropped)}, so the API drops what is put there. "
        f"Add the fields to the schema in the CRD, or x-kubernetes-preserve-unknown-fields: true "
        f"to {dropped[0].partition('.')[0]!r} there."
    )


def _is_being_deleted(body: bodies.RawBody | None) -> bool:
    return (body or {}).get('metadata', {}).get('deletionTimestamp') is not None


def _get_version(body: bodies.RawBody | None) -> str | None:
    return (body or {}).get('metadata', {}).get('resourceVersion')


def _get_uid(body: bodies.RawBody | None) -> str | None:
    return (body or {}).get('metadata', {}).get('uid')


def _is_merged(wanted: Any, actual: Any) -> bool:
    """Check quickly whether the returned state has the desired values; if false, `_compare` must check them again."""
    if isinstance(wanted, dict) and type(actual) is dict:
        return all(_is_merged(value, actual.get(key)) for key, value in wanted.items())
    return bool(wanted == actual)


def _compare(path: tuple[str, ...], wanted: Any, actual: Any) -> Iterator[diffs.DiffItem]:
    """Yield the differences of the returned state from the values of the merge patch; other fields are ignored."""
    # A version in a patch is a precondition: the patched object has the next version.
    if path == ('metadata', 'resourceVersion'):
        return
    if isinstance(wanted, Mapping):
        source = actual if isinstance(actual, Mapping) else {}
        for key, value in wanted.items():
            yield from _compare((*path, str(key)), value, source.get(key))
    elif wanted is None and actual is not None:
        yield diffs.DiffItem(diffs.DiffOperation.ADD, path, None, actual)
    elif wanted is not None and actual is None:
        yield diffs.DiffItem(diffs.DiffOperation.REMOVE, path, wanted, None)
    elif wanted != actual:
        yield diffs.DiffItem(diffs.DiffOperation.CHANGE, path, wanted, actual)
