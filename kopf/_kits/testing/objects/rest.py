"""
The verbs that change or read single objects: create, replace, patch, delete, and their rules.

Each verb ends with one commit to the storage, without an ``await`` between the last read of the old object and the
commit. If webhooks are called in between, the object is read again, as on a real server.
"""

import copy
import dataclasses
import uuid
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson

from kopf._kits.testing.access import permissions, roles
from kopf._kits.testing.access.users import User
from kopf._kits.testing.access.write_options import Options, report
from kopf._kits.testing.kinds import metadata
from kopf._kits.testing.kinds.kinds import Body, Catalog, Kind
from kopf._kits.testing.kinds.storage import ChangeType, Record, Storage
from kopf._kits.testing.merging import managers, server_side_apply, strategic
from kopf._kits.testing.objects import builtins, deletion, immutables, objects, patch_results, service_addresses
from kopf._kits.testing.schemas import rules, strictness
from kopf._kits.testing.wire import json_patches, names, statuses, timestamps

ATTEMPTS = 6
NAME_ATTEMPTS = 8
"""The number of generated names for an object after which the server gives up."""
MERGE_PATCH = 'application/merge-patch+json'
JSON_PATCH = 'application/json-patch+json'
STRATEGIC_PATCH = 'application/strategic-merge-patch+json'
APPLY_PATCH = 'application/apply-patch+yaml'

CREATED_ON_UPDATE = frozenset(
    {
        'endpoints',
        'events',
        'leases',
        'limitranges',
        'services',
        'roles',
        'rolebindings',
        'clusterroles',
        'clusterrolebindings',
        'runtimeclasses',
    }
)
"""The kinds whose objects are created by a PUT if they do not exist."""

RETURNED_ON_DELETION = frozenset(
    {
        'csidrivers',
        'csinodes',
        'namespaces',
        'persistentvolumeclaims',
        'persistentvolumes',
        'pods',
        'podtemplates',
        'resourcequotas',
        'serviceaccounts',
        'services',
        'storageclasses',
        'volumeattachments',
        'volumeattributesclasses',
    }
)
"""The kinds whose deletion is answered with the object itself."""


REWRITTEN = frozenset({'persistentvolumeclaims'})
"""The kinds whose first update creates a new resource version, even if it changes nothing."""

ORPHANED = frozenset({'jobs', 'replicationcontrollers'})
"""The kinds whose dependents become orphans by default."""
PRESERVED = (
    'child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove '
    'them or set propagationPolicy=Orphan to suppress this warning'
)

CHECKED_TWICE = frozenset(
    {
        'configmaps',
        'secrets',
        'serviceaccounts',
        'pods',
        'persistentvolumeclaims',
        'persistentvolumes',
        'nodes',
        'endpoints',
        'jobs',
        'roles',
        'clusterroles',
        'rolebindings',
        'clusterrolebindings',
        'ingresses',
        'ingressclasses',
        'storageclasses',
    }
)
"""The kinds whose metadata are validated twice at an update, so their errors are reported twice."""


class Admission(Protocol):
    """Mutates or refuses objects before they are stored; see `kopf._kits.testing.objects.admission_webhooks`."""

    def concerns(self, kind: Kind, operation: str, subresource: str) -> bool:
        """Check whether any webhook must be called."""

    async def mutate(self, review: 'Review') -> Body | None:
        """Return the object as the mutating webhooks have changed it."""

    async def validate(self, review: 'Review') -> None:
        """Refuse the object if a validating webhook does."""


@dataclasses.dataclass(slots=True)
class Review:
    """The content of an admission review."""

    kind: Kind
    operation: str
    subresource: str
    namespace: str
    name: str
    body: Body | None
    old: Body | None
    options: Options


class Guard(Protocol):
    """Checks whether users may grant permissions; see `kopf._kits.testing.access.roles`."""

    def check(self, kind: Kind, namespace: str, body: Body, old: Body | None, user: User) -> None:
        """Refuse the object if the user may not write it."""

    def check_creation(self, kind: Kind, namespace: str, name: str, user: User) -> None:
        """Refuse the object if the user may change, but not create it."""


Change = Callable[[Body], Body]
Revise = Callable[[Body], Awaitable[Body]]


class Objects:
    """The verbs on single objects; results are JSON texts in the requested version of the kind."""

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        admission: Admission,
        guard: Guard | None = None,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._admission = admission
        self._guard = guard
        self._untouched: weakref.WeakSet[Record] = weakref.WeakSet()
        """The records of `REWRITTEN` kinds that were never updated."""

    def get(self, kind: Kind, namespace: str, name: str) -> Record:
        """Return the record of the object; raise a 404 if it does not exist."""
        if (record := kind.store.get(namespace, name)) is None:
            if problems := names.path_problems(name):
                raise statuses.bad_request(f'Name parameter invalid: {statuses.text(name)}: {";".join(problems)}')
            raise statuses.not_found(kind.group, kind.plural, name)
        return record

    async def read(self, kind: Kind, namespace: str, name: str) -> Record:
        """Return the object, converted to this version; raise a 404 if it is absent, a 500 if the conversion fails."""
        record = self.get(kind, namespace, name)
        await kind.ready(record, fresh=True)
        return record

    async def create(
        self,
        kind: Kind,
        namespace: str,
        body: Body,
        options: Options,
        owners: Any = None,
    ) -> bytes:
        """
        Store a new decoded object, and return it as it was stored.

        Args:
            kind: The kind of the URL.
            namespace: The namespace of the URL.
            body: The decoded object.
            options: The options of the request.
            owners: Its managed fields; by default, the manager of the options owns all fields.
        """
        if objects.is_name_generated(body):
            for _ in range(NAME_ATTEMPTS - 1):
                try:
                    return await self._create(kind, namespace, copy.deepcopy(body), options, owners)
                except statuses.Refusal as refusal:
                    if refusal.reason != 'AlreadyExists':
                        raise
        return await self._create(kind, namespace, body, options, owners)

    async def _create(self, kind: Kind, namespace: str, body: Body, options: Options, owners: Any) -> bytes:
        self._check_place(kind, namespace, body)
        if kind.namespaced:
            body['metadata']['namespace'] = namespace
            self._check_namespace(kind, namespace, body['metadata'].get('name', ''))
        self._tidy(body, kind, options, nulls=owners is not None)
        if owners:
            body['metadata']['managedFields'] = owners
        elif owners is None:
            managers.created(body, server_side_apply.writer_of(kind, self._catalog, options.manager, ''))
        version = objects.prepare_new(body, kind, str(uuid.uuid4()))
        name = body['metadata'].get('name', '')
        if self._guard is not None:
            self._guard.check(kind, namespace, body, None, options.user)
        if self._admission.concerns(kind, 'CREATE', ''):
            review = Review(kind, 'CREATE', '', namespace, name, body, None, options)
            body = await self._admit(review, nulls=owners is not None)
        else:
            self._validate(body, kind, options)
        table = kind.store
        stored = await kind.stored(body)
        if version and not options.dry_run:
            raise statuses.internal('resourceVersion should not be set on objects to be created')
        if (present := table.get(namespace, name)) is not None:
            raise statuses.exists(
                kind.group, kind.plural, name, deleting=present.deleting, generated='generateName' in body['metadata']
            )
        if table.closed:
            raise statuses.UnknownPath
        if options.dry_run:
            return orjson.dumps(await kind.conversion.convert_back(stored) if kind.conversion is not None else body)
        return await self._commit(kind, 'ADDED', stored)

    async def replace(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Body,
        options: Options,
        subresource: str = '',
    ) -> tuple[bytes, bool]:
        """Store a new version of an object; also return whether it was created."""
        self._check_place(kind, namespace, body, name)
        meta = body['metadata']
        if kind.plural in CREATED_ON_UPDATE and kind.store.get(namespace, name) is None and not subresource:
            if meta.get('uid'):
                raise _other_uid(kind, namespace, name, (meta['uid'], ''), options)
            meta.pop('resourceVersion', None)
            if self._guard is not None:
                self._guard.check_creation(kind, namespace, name, options.user)
            return await self.create(kind, namespace, body, options), True
        record = self.get(kind, namespace, name)
        if (meta.get('uid') or record.uid) != record.uid:
            raise _other_uid(kind, namespace, name, (meta['uid'], record.uid), options)
        if _version(meta.get('resourceVersion')) == 0 and kind.custom:
            raise patch_results.unversioned(kind, name)
        return await self._update(
            kind, namespace, name, lambda old: orjson.loads(orjson.dumps(body)), options, subresource
        ), False

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Any,
        content_type: str,
        options: Options,
        subresource: str = '',
        text: bytes = b'',
    ) -> bytes:
        """Apply a decoded patch of one of the types `MERGE_PATCH`, `JSON_PATCH`, `STRATEGIC_PATCH`."""
        lenient = options.field_validation == 'Ignore'
        if content_type == STRATEGIC_PATCH:
            if not isinstance(patch, dict | None):
                raise statuses.bad_request(
                    f'json: cannot unmarshal {json_patches.json_type(patch)} '
                    f'into Go value of type map[string]interface {{}}'
                )
        elif content_type == MERGE_PATCH:
            if not isinstance(patch, dict | list if lenient else dict | list | str | int | float):
                raise json_patches.unread(None)
            if isinstance(patch, list) and lenient:
                raise patch_results.unreadable(patch, objects.no_kind(patch))
            if not isinstance(patch, dict):
                raise statuses.bad_request(
                    f'error decoding patch: json: cannot unmarshal {json_patches.json_type(patch)} '
                    'into Go value of type map[string]interface {}'
                )
        else:
            patch = json_patches.check_operations(patch, lenient=lenient)
        if kind.custom:
            options.mistakes += (
                strictness.in_operations(patch, text) if content_type == JSON_PATCH else strictness.duplicates(text)
            )

        def change(old: Body) -> Body:
            if content_type == STRATEGIC_PATCH:
                patch_results.check_words(patch or {}, kind)
                new: Any = {
                    **strategic.merge(old, patch or {}, kind.shape),
                    'apiVersion': old['apiVersion'],
                    'kind': old['kind'],
                }
            elif content_type == MERGE_PATCH:
                new = json_patches.merge(old, patch)
            else:
                try:
                    new = json_patches.apply(old, patch)
                except json_patches.PatchError:
                    raise statuses.rejected() from None
            whole = content_type != STRATEGIC_PATCH
            source = patch_results.Patched(new if whole else patch, not whole, text, options)
            return patch_results.check(new, kind, namespace, name, source)

        return await self._update(kind, namespace, name, change, options, subresource)

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        config: Body,
        options: Options,
        subresource: str = '',
    ) -> tuple[bytes, bool]:
        """Apply a decoded configuration; also return whether the object was created."""
        if subresource:
            self.get(kind, namespace, name)
        present = kind.store.get(namespace, name) is not None
        server_side_apply.check(config, kind, namespace, name, present=present)
        writer = server_side_apply.writer_of(kind, self._catalog, options.manager, subresource)
        if not present:
            if self._guard is not None:
                self._guard.check_creation(kind, namespace, name, options.user)
            new = server_side_apply.apply(None, config, writer, options.force)
            new['metadata'].pop('resourceVersion', None)
            owners = new['metadata'].get('managedFields', [])
            body = objects.decode(orjson.loads(orjson.dumps(new)), kind, b'')
            return await self.create(kind, namespace, body, options, owners), True

        def change(old: Body) -> Body:
            applied = server_side_apply.apply(old, config, writer, options.force)
            body: Body = orjson.loads(orjson.dumps(applied))
            if not kind.custom:
                return objects.structure(body, kind, b'')
            metadata.check_types(body['metadata'], kind)
            return body

        return await self._update(kind, namespace, name, change, options, subresource, applied=True), False

    async def rewrite(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Change,
        options: Options,
        subresource: str,
    ) -> bytes:
        """Store the result of a function that changes the object and its managed fields."""
        return await self._update(kind, namespace, name, change, options, subresource, applied=True)

    async def delete(self, kind: Kind, namespace: str, name: str, options: Options) -> dict[str, Any] | bytes:
        """Delete an object, or mark it for deletion; return the object or a ``Status`` of success."""
        record = await self.read(kind, namespace, name)
        _check_preconditions(kind, record, options)
        if self._admission.concerns(kind, 'DELETE', ''):
            review = Review(kind, 'DELETE', '', namespace, name, None, kind.body(record), options)
            await self._admission.mutate(review)
            await self._admission.validate(review)
            record = await self.read(kind, namespace, name)
        if kind.plural == 'namespaces' and name in ('default', 'kube-system', 'kube-public'):
            raise statuses.forbidden(kind.group, kind.plural, name, 'this namespace may not be deleted')
        if not options.propagation and kind.plural == 'jobs':
            options.warnings.append(PRESERVED)
        removed = self.remove(kind, record, options.propagation, dry_run=options.dry_run)
        if not isinstance(removed, Record):
            return removed
        await kind.ready(removed)
        return kind.raw(removed)

    def remove(
        self,
        kind: Kind,
        record: Record,
        propagation: str = '',
        *,
        dry_run: bool = False,
    ) -> dict[str, Any] | bytes | Record:
        """Delete or mark an object without admission; return the remaining object, or a ``Status`` of success."""
        body = record.body()
        success = statuses.success(kind.group, kind.plural, record.name, record.uid)
        if not propagation and kind.plural in ORPHANED and not record.deleting:
            propagation = 'Orphan'
        if deletion.mark(body, kind, propagation):
            if objects.same(body, record.body()):
                return record
            if dry_run:
                return orjson.dumps({'apiVersion': kind.api_version, 'kind': kind.name, **body})
            return self._storage.commit(kind.store, 'MODIFIED', body).record
        body = record.body()  # The event of the deletion contains the last state of the object.
        if kind.plural == 'pods' and not record.deleting:
            meta = body['metadata']
            meta['deletionTimestamp'], meta['deletionGracePeriodSeconds'] = timestamps.now(), 0
            meta['generation'] = meta.get('generation', 0) + 1
            if not dry_run:
                self._storage.commit(kind.store, 'MODIFIED', body)
        if dry_run and kind.plural in RETURNED_ON_DELETION:
            return orjson.dumps({'apiVersion': kind.api_version, 'kind': kind.name, **body})
        if dry_run:
            return success
        change = self._storage.commit(kind.store, 'DELETED', body)
        return change.record if kind.plural in RETURNED_ON_DELETION else success

    async def delete_all(self, kind: Kind, chosen: Sequence[Record], options: Options) -> list[bytes]:
        """Delete these objects; return their states before the deletion."""
        await kind.ready(*chosen)
        gone = [kind.raw(record) if kind.custom else b'{' + record.rest for record in chosen]
        for record in chosen:
            try:
                await self.delete(kind, record.namespace, record.name, options)
            except statuses.Refusal as refusal:
                if refusal.code != 404:
                    raise
        return gone

    async def _update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Change,
        options: Options,
        subresource: str,
        *,
        applied: bool = False,
    ) -> bytes:
        writer = server_side_apply.writer_of(kind, self._catalog, options.manager, subresource)
        for _ in range(ATTEMPTS):
            record = self.get(kind, namespace, name)
            await kind.ready(record)
            old, body = kind.body(record), change(kind.body(record))
            asked = body['metadata'].get('resourceVersion')
            if _version(asked) not in (0, record.version):
                raise statuses.conflict(kind.group, kind.plural, name)
            owners = body['metadata'].get('managedFields')
            self._tidy(body, kind, options, nulls=applied)
            objects.prepare_changed(body, old, kind, subresource)
            if not applied:
                managers.updated(body, old, writer, owners)
            else:
                objects.own(body, owners)
            builtins.allocate(body, kind, old)
            body['metadata']['resourceVersion'] = old['metadata']['resourceVersion']
            if self._guard is not None:
                self._guard.check(kind, namespace, body, old, options.user)
            if self._admission.concerns(kind, 'UPDATE', subresource):
                review = Review(kind, 'UPDATE', subresource, namespace, name, body, old, options)
                body = await self._admit(review, nulls=applied)
            else:
                self._validate(body, kind, options, old, subresource)
            if (answer := await self._store(kind, record, body, old, options)) is not None:
                return answer
        raise statuses.conflict(kind.group, kind.plural, name)

    async def _store(self, kind: Kind, record: Record, body: Body, old: Body, options: Options) -> bytes | None:
        """Write the object, if it has changed; return None if another client has changed it in the meantime."""
        held = not record.deleting or body['metadata'].get('finalizers')
        migrated = kind.conversion is None or record.stored == kind.storage_api_version
        if held and migrated and record not in self._untouched and objects.unchanged(body, old):
            return kind.raw(record) if kind.store.get(record.namespace, record.name) is record else None
        if options.dry_run:
            if kind.conversion is not None:
                body = await kind.conversion.convert_back(await kind.stored(body))
            return orjson.dumps(body)
        meta = body['metadata']
        gone = (
            'deletionTimestamp' in meta
            and not meta.get('finalizers')
            and not (kind.plural == 'namespaces' and (body.get('spec') or {}).get('finalizers'))
        )
        stored = await kind.stored(body) if not gone else {}
        if kind.store.get(record.namespace, record.name) is not record:
            return None
        if gone:
            self._storage.commit(kind.store, 'DELETED', record.body())
            return orjson.dumps(body)
        return await self._commit(kind, 'MODIFIED', stored)

    async def _commit(self, kind: Kind, type: ChangeType, stored: Body) -> bytes:
        record = self._storage.commit(kind.store, type, stored).record
        if type == 'ADDED' and kind.plural in REWRITTEN:
            self._untouched.add(record)
        await kind.ready(record)
        return kind.raw(record)

    async def _admit(self, review: Review, *, nulls: bool = False) -> Body:
        body = await self._admission.mutate(review)
        assert body is not None
        owners = body['metadata'].get('managedFields')
        objects.tidy(body, review.kind, nulls=nulls)
        if owners:  # The fields that webhooks have changed do not get an owner.
            body['metadata']['managedFields'] = owners
        self._validate(body, review.kind, review.options, review.old, review.subresource)
        review.body = body
        await self._admission.validate(review)
        return body

    def _tidy(self, body: Body, kind: Kind, options: Options, *, nulls: bool = False) -> None:
        unknown = objects.tidy(body, kind, nulls=nulls)
        mistakes = [*options.mistakes, *(f'unknown field "{path}"' for path in sorted(unknown))]
        report(
            mistakes,
            options,
            lambda why: (
                patch_results.unhandled(kind, why)
                if options.patched is None
                else patch_results.unreadable(options.patched, why)
            ),
        )

    def _validate(
        self,
        body: Body,
        kind: Kind,
        options: Options,
        old: Body | None = None,
        subresource: str = '',
    ) -> None:
        causes = list(objects.problems(body, kind, subresource, old))
        if old is not None:
            causes += objects.change_problems(body, old)
            if kind.plural in CHECKED_TWICE and not kind.custom:
                causes += metadata.problems(body['metadata'], custom=False)
            causes += () if kind.custom else immutables.problems(body, old, kind.plural)
            causes += roles.change_problems(body, old, kind) if kind.group == permissions.GROUP else ()
        if kind.plural == 'services' and not kind.custom and not subresource:
            options.warnings += service_addresses.warnings(body)
        if kind.schema is not None:
            causes += rules.problems(body, kind.schema, old, causes, options.warnings)
        if causes:
            group = '' if kind.plural == 'events' else kind.group
            raise statuses.invalid(group, kind.name, body['metadata'].get('name', ''), causes)

    def _check_place(self, kind: Kind, namespace: str, body: Body, name: str = '') -> None:
        meta = body['metadata']
        if name:
            patch_results.check_name(meta.get('name') or '', name)
        if kind.namespaced and (meta.get('namespace') or namespace) != namespace:
            raise statuses.wrong_namespace()

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        record = self._storage.table('', 'namespaces').get('', namespace)
        if record is None:
            raise statuses.not_found('', 'namespaces', namespace)
        if record.deleting:
            raise statuses.forbidden(
                kind.group,
                kind.plural,
                name,
                f'unable to create new content in namespace {namespace} because it is being terminated',
                [
                    statuses.Cause(
                        'metadata.namespace', 'NamespaceTerminating', f'namespace {namespace} is being terminated'
                    )
                ],
            )


_PLACES = {
    'services': 'services/specs',
    'endpoints': 'services/endpoints',
    'nodes': 'minions',
    'ingresses': 'ingress',
    'replicationcontrollers': 'controllers',
    'customresourcedefinitions': 'apiextensions.k8s.io/customresourcedefinitions',
}
"""The paths of resources in a real server's storage, if they differ from their names: messages contain them."""


def _other_uid(
    kind: Kind,
    namespace: str,
    name: str,
    uids: tuple[str, str],
    options: Options,
) -> statuses.Refusal:
    place = f'{kind.group}/{kind.plural}' if kind.custom else _PLACES.get(kind.plural, kind.plural)
    key = f'{"" if options.dry_run else "/registry"}/{place}/{f"{namespace}/" if namespace else ""}{name}'
    return statuses.conflict(
        kind.group,
        kind.plural,
        name,
        f'StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, '
        f'AdditionalErrorMsg: Precondition failed: UID in precondition: {uids[0]}, UID in object meta: {uids[1]}',
    )


def _check_preconditions(kind: Kind, record: Record, options: Options) -> None:
    group = '' if kind.plural == 'events' else kind.group
    if options.uid and options.uid != record.uid:
        raise statuses.conflict(
            group,
            kind.name,
            record.name,
            f'the UID in the precondition ({options.uid}) does not match the UID in record '
            f'({record.uid}). The object might have been deleted and then recreated',
        )
    if options.version and options.version != str(record.version):
        raise statuses.conflict(
            group,
            kind.name,
            record.name,
            f'the ResourceVersion in the precondition ({options.version}) does not match the '
            f'ResourceVersion in record ({record.version}). The object might have been modified',
        )


def _version(text: str | None) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        raise statuses.internal(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or 0)
