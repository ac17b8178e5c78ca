"""
Children of objects: the argument ``children`` of level-triggered handlers.

A handler reads its children from memory, and applies the desired children. An object is sent to the API server only if
it differs from the object applied before, or if another client has changed one of its fields: see `field_ownership`.
The digests for this comparison are only in memory, so each child is sent once after a restart. When a run has
succeeded, the children that it has not applied are deleted: see `pruning`.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, cast

from kopf._cogs.clients.api import client_var, encode
from kopf._cogs.clients.errors import (
    APIConflictError,
    APIForbiddenError,
    APINotFoundError,
    APIUnprocessableError,
    APIUnservedError,
)
from kopf._cogs.clients.serverside import ApplyInvalidError, apply_object
from kopf._cogs.structs.bodies import Body, RawBody
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource, Selector
from kopf._core.actions.execution import NotReadyError, TemporaryError
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.adoption import Adopter, ChildError, ChildKey, adopt, check_object, find_key
from kopf._core.engines.child_marks import (
    ChildKind,
    OwnerMarks,
    find_dropped,
    is_covered,
    is_marked,
    make_patch,
    merge_kinds,
)
from kopf._core.engines.contests import UNKNOWN, WHOLE, Contest, Truce
from kopf._core.engines.field_ownership import Ownership, Path, digest, digest_entry, remove_field, render
from kopf._core.engines.owned_objects import OwnedObject, OwnedObjects
from kopf._core.engines.pruning import (
    PruneRules,
    Refusals,
    can_be_selected,
    delete_child,
    is_applied,
    is_unwanted,
    list_children,
)
from kopf._core.engines.readiness import check_readiness
from kopf._core.engines.relations import Relations
from kopf._core.intents.handlers import ReconcilingHandler

ReadyFn = Callable[[Body], object]
"""A function that returns whether the child is ready."""

REFUSAL_DELAY: Final = 60
"""The delay of the next run if the API server does not permit to apply a child (in seconds)."""

CONFLICT_DELAY: Final = 30
"""The delay of the next run if another handler or another object applies the same child (in seconds)."""


UNSERVED_DELAY: Final = 1
"""The delay of the next run if the API server does not serve the kind of a child any more (in seconds)."""


class ChildConflictError(TemporaryError):
    """Raised if another handler, or the handler for another object, applies the same child."""

    message_code = 'child-conflict'


class ChildRefusedError(TemporaryError):
    """Raised if a child can be applied only after a change of the cluster: of its kinds, of permissions, of scopes."""

    message_code = 'child-refused'


class Applied(NamedTuple):
    """The digests of one applied child, by which the next call detects whether it must be sent again."""

    desired: bytes
    """The digest of the desired object."""
    sent: bytes
    """The digest of the object that was sent: without the contested fields, if there are any."""
    entry: bytes | None
    """The digest of the entry in the managed fields, in the response."""


WITHHELD: Final = Applied(b'', b'', None)
"""A child that is not applied for a while, because another client has deleted or applied it again and again."""


class ChildrenMemory:
    """The children that one function has applied for one object, whichever of its declarations has run it."""

    __slots__ = ('_applied', '_contests', '_is_open', '_kept', '_sent', 'is_complete')

    def __init__(self) -> None:
        self._applied: dict[ChildKey, Applied] = {}
        self._kept: frozenset[ChildKey] = frozenset()
        self._sent: set[ChildKey] = set()  # the watch can bring them before the responses arrive
        self._contests: dict[ChildKey, Contest] | None = None
        self.is_complete = False
        """Whether a run has succeeded, so that the memory has all children that the handler wants."""
        self._is_open = True  # whether the handler can also want children that it has not applied yet

    def get(self, key: ChildKey) -> Applied | None:
        """Return the digests of the child if it was applied before."""
        return self._applied.get(key)

    def has(self, key: ChildKey, mark: bytes) -> bool:
        """Check whether the child was applied with this digest of the desired object."""
        applied = self._applied.get(key)
        return applied is not None and applied.desired == mark

    def __contains__(self, key: object) -> bool:
        return key in self._applied

    def may_want(self, key: ChildKey) -> bool:
        """Check whether the handler applies the child, or could do so in its next run."""
        return self._is_open or key in self._applied or key in self._sent

    def begin_sending(self, key: ChildKey) -> None:
        """Called before the child is sent for the first time, or again."""
        self._sent.add(key)

    def note(self, key: ChildKey, applied: Applied) -> None:
        """Remember the digests of the applied child."""
        self._applied[key] = applied

    def forget(self, key: ChildKey) -> None:
        """Called when another handler has taken the child over, as this one does not match the object any more."""
        self._applied.pop(key, None)
        self._sent.discard(key)
        self._kept -= {key}
        if self._contests is not None:
            self._contests.pop(key, None)

    def get_contest(self, key: ChildKey) -> Contest | None:
        """Return the contested fields of the child, if there are any."""
        return None if self._contests is None else self._contests.get(key)

    def begin_contest(self, key: ChildKey) -> Contest:
        """Return the contested fields of the child; create them at the first call."""
        if self._contests is None:
            self._contests = {}
        return self._contests.setdefault(key, Contest())

    def explain_contests(self, manager: str, now: float) -> str:
        """Return a text about the contested fields and their managers; empty if there are none."""
        return '; '.join(
            f"{render(path) or 'all'} of {key}: {name_rival(truce.manager, manager)} and {manager!r}"
            for key, contest in sorted((self._contests or {}).items(), key=str)
            for path, truce in sorted(contest.find_truces(now).items())
        )

    def find_contest_end(self, now: float) -> float | None:
        """Return when the first contested field is to be applied again; ``None`` if there are none."""
        ends = [contest.find_end(now) for contest in (self._contests or {}).values()]
        return min((end for end in ends if end is not None), default=None)

    def get_wanted(self) -> Collection[ChildKey] | None:
        """Return the children that the handler wants; ``None`` if that is unknown yet."""
        return self._applied.keys() | self._kept | self._sent if self.is_complete else None

    def note_success(self, wanted: Collection[ChildKey], kept: Collection[ChildKey]) -> None:
        """Called when a run has succeeded, with all the children that it has applied, and those that it has kept."""
        self.is_complete, self._is_open, self._kept = True, False, frozenset(kept)
        self._retain(wanted)

    def note_conflict(self, wanted: Collection[ChildKey]) -> None:
        """
        Called when a run has failed because of a rival, with all the children that it has applied or kept before.

        The rival, or another owner, may take over all other children. Otherwise, two owners that exchange their
        children would wait for each other for ever. The handler applies them in its next runs if no other owner does.
        """
        # Why not complete? It is unknown which of the children the next successful run will apply.
        self.is_complete = self._is_open = False
        self._retain(wanted)

    def _retain(self, wanted: Collection[ChildKey]) -> None:
        self._sent.clear()
        for key in [key for key in self._applied if key not in wanted]:
            del self._applied[key]
            if self._contests is not None:
                self._contests.pop(key, None)


class OwnedKinds:
    """The kinds of the children of one handler, with the owned objects in memory."""

    def __init__(self, handler: ReconcilingHandler, relations: Collection[Relations], operator: str) -> None:
        self.handler = handler
        self.operator = operator
        """The name of the operator."""
        self.manager = make_manager(operator)
        """The name of the field manager."""
        self.relations = relations
        self.selectors = frozenset(each.source.selector for each in relations)
        """The selectors of the kinds."""

    def can_have(self, resource: Resource) -> bool:
        """Check whether the resource is one of the kinds, or can be one of those that are not found yet."""
        kind = ChildKind.of(resource, is_remote=False)
        return any(
            each.source.selector.group in (None, kind.group)
            if each.resource is None
            else kind.is_of(each.resource) or each.source.selector.check(resource)
            for each in self.relations
        )

    def find(self, name: str) -> Relations | None:
        """
        Return the relations to this resource, which is named as in decorators; ``None`` if it is not in ``owns=``.

        Raises:
            ChildError: if it is not the name of a resource.
        """
        try:
            selector = Selector(*cast(Any, name.split('/')))
        except TypeError as error:
            raise ChildError(f"children[{name!r}]: {error}") from None
        for relations in self.relations:
            if relations.source.selector == selector:
                return relations
        for relations in self.relations:
            if relations.resource is not None and selector.check(relations.resource):
                return relations
        return None

    def find_for(self, desired: Mapping[str, Any]) -> tuple[Relations, Resource, OwnedObjects]:
        """
        Return the relations to the resource of the object.

        Raises:
            ChildError: if it is not in ``owns=``.
            ChildRefusedError: if it can be one of the resources in ``owns=`` that do not exist in the cluster yet, or
                if its resource is watched in another version.
        """
        version, kind = desired['apiVersion'], desired['kind']
        group, _, short = version.rpartition('/')
        title = f"{version} {kind} {desired['metadata']['name']!r}"
        for relations in self.relations:
            resource = relations.resource
            if resource is not None and (resource.group, resource.kind) == (group, kind):
                # Why is the error not permanent? If the code names no version, the CRD can get a newer preferred one at
                # any time, and can lose it again.
                if resource.version != short:
                    raise ChildRefusedError(
                        f"children.apply(): {title} is watched in the version {resource.version}: apply it in that "
                        f"version, or write owns=['{version}/{resource.plural}'].",
                        delay=CONFLICT_DELAY,
                    )
                assert relations.objects is not None
                return relations, resource, relations.objects
        missing = [repr(each.source.selector) for each in self.relations if each.resource is None]
        if missing:
            raise ChildRefusedError(
                f"children.apply(): {title} is of none of the kinds in owns= of {self.handler} that exist in the "
                f"cluster. If it is of a missing one, create the CRD: {', '.join(missing)}.",
                delay=CONFLICT_DELAY,
            )
        raise ChildError(
            f"children.apply(): the kind of {title} is not in owns= of {self.handler}: add owns=['{version}/...'] "
            f"with the plural name of the kind."
        )


def make_manager(operator: str) -> str:
    """Return the name of the field manager of the operator."""
    return f'kopf-{operator}'


def name_rival(name: str, manager: str) -> str:
    """Return the name of another field manager, for messages; the operator itself uses the name ``manager``."""
    if name == UNKNOWN:
        return "another client that removes it"
    return f"another client with the name {name!r}" if name == manager else repr(name)


class ChildrenHost(Protocol):
    """The operations of the engine of level-triggered handlers that a run needs for its children."""

    def trigger(self, owners: Collection[str], /) -> None:
        """Trigger the handler for the objects with these uids."""

    async def patch_owner(self, patch: Patch, /) -> None:
        """Apply the patch to the owner, without triggering the handler."""

    def is_handled(self) -> bool:
        """Check whether the operator still handles the owner: it is not being deleted, and not handed over."""

    async def see(self, raw: RawBody, /) -> None:
        """Pass the state of a child to the indices and other handlers, ahead of the watch; wait for index functions."""

    def serves(self, key: ChildKey, /) -> bool:
        """Check whether the operator watches the child, so that it notices changes."""

    def is_watched(self, resource: Resource, /) -> bool:
        """Check whether the operator watches the resource in any namespace."""

    def retry_when_watched(self) -> None:
        """Trigger the handler when the watch of one of the kinds begins, in any namespace."""

    def find_served(self) -> Collection[Resource]:
        """Return the kinds of children of all handlers of the object."""

    def find_relations(self) -> Collection[Relations]:
        """Return the relations of all handlers of the object to their children."""

    def find_former(self, resource: Resource, /) -> Collection[str]:
        """Return the ids of the handlers that prune the children of the object, but do not name this kind of them."""

    def find_unserved(self) -> Collection[Selector]:
        """Return the selectors of kinds of children that are not found in the cluster yet."""

    def find_namespaces(self) -> Collection[str]:
        """Return the served namespaces; none if the whole cluster is served, or if some are not known yet."""

    def contest(self, key: ChildKey, truces: Mapping[Path, Truce], manager: str, /) -> None:
        """Called when the operator stops applying contested fields for a while."""

    def forget_elsewhere(self, key: ChildKey, /) -> None:
        """Called when the run has applied the child: handlers that do not match the object cannot want it any more."""

    def find_rival(self, key: ChildKey, desired: bytes, known: OwnedObject | None, /) -> str | None:
        """Return the other handler or the other object that applies the same child; ``None`` if there is none."""

    def retry_when_unwanted(self, key: ChildKey, known: OwnedObject | None, /) -> None:
        """Trigger the handler when the other object that applies the child does not want it any more."""


class ChildrenRun:
    """The children of one object in one run of a handler: applies them, and deletes those that were not applied."""

    def __init__(
        self,
        kinds: OwnedKinds,
        memory: ChildrenMemory,
        adopter: Adopter,
        *,
        marks: OwnerMarks,
        host: ChildrenHost,
        logger: ObjectLogger,
    ) -> None:
        self.kinds = kinds
        self.memory = memory
        self.adopter = adopter
        self.logger = logger
        self.wanted: dict[ChildKey, bytes] = {}
        """The children that were applied in this run, with the digests of the desired objects."""
        self.kept: set[ChildKey] = set()
        """The children that must not be deleted, although they were not applied in this run."""
        self._host = host
        self._locks: dict[ChildKey, asyncio.Lock] = {}
        self._is_over = False
        self._has_rival = False  # whether a child was not applied, because another handler or object applies it
        self._marks = marks
        self._marking = asyncio.Lock()
        self._has_marked = False

    def end(self) -> None:
        """Called when the run has ended: after a timeout, its thread can still run, but must not apply anything."""
        self._is_over = True

    def yield_unapplied(self) -> None:
        """Called when the run has failed: if because of a rival, let others take over what it has not applied."""
        # Why not after all errors? The next run applies the children if the error was temporary.
        if self._has_rival:
            self.memory.note_conflict({*self.wanted, *self.kept})

    async def apply(self, obj: Any, *, ready: bool | ReadyFn, replace: bool) -> Body:
        """Apply the object if needed; return its newest state. See `AsyncChildren.apply`."""
        desired = check_object(obj)
        relations, resource, objects = self._find_for(desired)
        key = find_key(desired, resource, self.adopter.body)
        self._check_served(key)
        adopted = adopt(desired, key, self.adopter)
        mark = digest(adopted)
        # Each child has a lock: the second of two concurrent calls with the same object must find it applied already.
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._is_over:
                raise ChildError(f"children.apply(): the run of {self.kinds.handler} is over, so {key} is not applied.")
            known = objects.find(key.namespace, key.name)
            self._check_rivals(key, mark, known)
            self.wanted[key] = mark
            before = self._find_disturbance(key, known)
            self._count_losses(key, adopted, known, before)
            sent = self._leave_contested(key, adopted)
            sent_mark = mark if sent is adopted else digest(sent)
            if known is not None and self.memory.get(key) == (mark, sent_mark, known.entry):
                body = Body(cast(RawBody, known.copy()))
            else:
                await self._remember(key)
                if not self._host.is_handled():
                    raise NotReadyError(
                        "The object is being deleted or handed over, so nothing is applied for it any more"
                    )
                self.memory.begin_sending(key)
                raw = await self._send(key, sent, relations, replace=replace)
                if before is not None and self.memory.has(key, mark):
                    self._count_restored(key, before, raw)
                if (contest := self.memory.get_contest(key)) is not None:
                    contest.note_applied(time.monotonic())
                entry, known = digest_entry(raw, self.kinds.manager), objects.find(key.namespace, key.name)
                # Use the equal digest of the former run, if there is one, to save memory.
                entry = known.entry if known is not None and known.entry == entry else entry
                self.memory.note(key, Applied(mark, sent_mark, entry))
                self._host.forget_elsewhere(key)
                body = Body(raw)
        if ready is not False:
            check_ready(key, body, ready)
        return body

    def keep(self, child: Any) -> None:
        """Do not delete the child, although it is not applied in this run."""
        desired = check_object(child, 'children.keep')
        _, resource, _ = self._find_for(desired)
        self.kept.add(find_key(desired, resource, self.adopter.body))

    async def prune(self, others: Mapping[str, Collection[ChildKey] | None]) -> None:
        """
        Delete the children that the run has not applied; called when it has succeeded.

        Raises:
            DeletionRefusedError: if some could not be deleted; the others are deleted nevertheless.
        """
        owner = self.adopter.body.metadata.uid or ''
        wanted = {*self.wanted, *self.kept}
        handler = self.adopter.handler or self.kinds.handler.id
        rules = PruneRules(owner, self.kinds.operator, handler, wanted, others)
        refusals = Refusals()
        # The handler can have left a kind to another one, which has its objects in memory.
        foreign = {
            each.resource: each
            for each in self._host.find_relations()
            if each.resource is not None and not self.kinds.can_have(each.resource)
        }
        for relations in [*self.kinds.relations, *foreign.values()]:
            if relations.resource is None or relations.objects is None:
                continue
            rules = rules._replace(former=self._host.find_former(relations.resource))
            for child in relations.objects.of(owner):
                key = ChildKey(relations.resource, child.namespace, child.name)
                if child.entry is None:
                    continue  # see `is_applied`; the objects in memory have no managed fields
                if key not in wanted and is_unwanted(key, raw := child.copy(), rules):
                    # The event of the deletion triggers another run, because this run could still see the child.
                    with refusals.collecting(key):
                        if await delete_child(client_var.get(), key, raw, logger=self.logger):
                            self.logger.info("%s is deleted, as it is not applied any more.", key)
        await self._prune_dropped(rules._replace(former=()), refusals)
        refusals.check()

    async def _prune_dropped(self, rules: PruneRules, refusals: Refusals) -> None:
        """Delete the children of the kinds that the code does not name any more."""
        raw, operator = self.adopter.body, self.kinds.operator
        known = self._marks.recall(raw)
        dropped, kept = find_dropped(known, self._host.find_served()), set()
        unserved = self._host.find_unserved()
        for kind in dropped:
            # E.g. the API group was down when the operator started: the handler has not seen its children, either.
            if unserved and await can_be_selected(client_var.get(), kind, unserved):
                kept.add(kind)
                continue
            try:
                namespaces = self._host.find_namespaces()
                found = await list_children(client_var.get(), kind, raw, namespaces=namespaces, logger=self.logger)
            except (APIForbiddenError, APIUnservedError) as error:
                self.logger.warning("Former children are not pruned: %s", error.message)
                kept.add(kind)
                continue
            for key, child in found:
                if not is_applied(child, self.kinds.manager):
                    continue
                is_deleted = False
                if is_unwanted(key, child, rules):
                    with refusals.collecting(key):
                        is_deleted = await delete_child(client_var.get(), key, child)
                if is_deleted:
                    self.logger.info("%s is deleted, as it is not applied any more.", key)
                else:
                    kept.add(kind)
        gone = [kind for kind in dropped if kind not in kept]
        if gone:
            kinds = frozenset(kind for kind in known if kind not in gone)
            self._marks.begin_writing(kinds)
            await self._host.patch_owner(make_patch(kinds, operator, holding=False))
            self._marks.end_writing()

    def find_key(self, body: Body) -> ChildKey:
        """Return the key of an applied child."""
        _, resource, _ = self.kinds.find_for(body)
        return ChildKey(resource, body.metadata.namespace, str(body.metadata.name))

    def _find_disturbance(self, key: ChildKey, known: OwnedObject | None) -> Ownership | None:
        """Return the current ownership if other clients have changed fields of the child since it was sent."""
        applied = self.memory.get(key)
        if known is None or known.managers is None or applied in (None, WITHHELD) or applied.entry == known.entry:
            return None
        return Ownership.read(known.managers.copy(), self.kinds.manager)

    def _count_losses(
        self, key: ChildKey, adopted: dict[str, Any], known: OwnedObject | None, before: Ownership | None
    ) -> None:
        """Count the fields that other clients have taken or removed; begin truces if this happens too often."""
        contest, now = self.memory.get_contest(key), time.monotonic()
        if known is None and key in self.memory and self.memory.get(key) is not WITHHELD:
            lost = {WHOLE: UNKNOWN} if contest is None or contest.is_new(WHOLE, UNKNOWN) else {}
        elif before is not None:
            lost = (contest or Contest()).find_losses(adopted, before, now)
        else:
            return
        if lost:
            contest = self.memory.begin_contest(key)
            self._report_truces(key, contest.note(lost, now))

    def _count_restored(self, key: ChildKey, before: Ownership, raw: RawBody) -> None:
        """Count the fields that other clients had removed, which only the response reveals."""
        contest, after = self.memory.begin_contest(key), Ownership.read(raw, self.kinds.manager)
        self._report_truces(key, contest.note_restored(before, after, self.kinds.manager, time.monotonic()))

    def _report_truces(self, key: ChildKey, begun: Mapping[Path, Truce]) -> None:
        if begun:
            self._host.contest(key, begun, self.kinds.manager)

    def _leave_contested(self, key: ChildKey, adopted: dict[str, Any]) -> dict[str, Any]:
        """
        Return the object without the fields that are left to other managers.

        Raises:
            ChildConflictError: if a truce is about the whole child.
        """
        contest, now = self.memory.get_contest(key), time.monotonic()
        truces = {} if contest is None else contest.find_truces(now)
        if not truces:
            return adopted
        if WHOLE in truces:
            self.memory.note(key, WITHHELD)  # so that its next apply does not count its absence as another loss
            raise ChildConflictError(
                f"children.apply(): {key} is not applied for now, as it is contested by "
                f"{name_rival(truces[WHOLE].manager, self.kinds.manager)}: stop that one, or do not apply the child.",
                delay=max(1.0, truces[WHOLE].until - now),
            )
        reduced = copy.deepcopy(adopted)
        for path in truces:
            remove_field(reduced, path)
        return reduced

    async def _remember(self, key: ChildKey) -> None:
        """Mark the owner for the kind of the child, if it is not marked yet, or not any more."""
        is_remote = not self.adopter.is_near(key)
        if not is_remote and self.adopter.handler is None:
            return  # the operator never deletes this child, so its kind is not needed in the annotation
        kind = ChildKind.of(key.resource, is_remote=is_remote)
        # Two patches at the same time could reach the API server in any order, and the first one has fewer kinds.
        async with self._marking:
            known = self._marks.recall(self.adopter.body)
            if is_covered(kind, known) and self._is_marked(known):
                return
            # Why add all kinds of the handler, even if this run does not apply all of them? So one patch is sufficient.
            served = {ChildKind.of(each.resource, is_remote=False) for each in self.kinds.relations if each.resource}
            await self._mark(merge_kinds(known, {kind}, served))

    async def restore_marks(self) -> None:
        """Mark the owner again if another client has removed the marks, and no applied child has restored them yet."""
        known = self._marks.recall(self.adopter.body)
        if not self._is_marked(known):
            await self._mark(known)

    def _is_marked(self, kinds: frozenset[ChildKind]) -> bool:
        # The body is the state at the beginning of the run: it does not have the marks that the run has written.
        return self._has_marked or is_marked(self.adopter.body, kinds, self.kinds.operator)

    async def _mark(self, kinds: frozenset[ChildKind]) -> None:
        # They are remembered first, as a run of another handler can write the marks before the response arrives. If the
        # patch fails, the next run detects by the body that they are missing.
        self._marks.begin_writing(kinds)
        self._has_marked = False
        holding = any(each.is_remote for each in kinds)
        await self._host.patch_owner(make_patch(kinds, self.kinds.operator, holding=holding))
        self._marks.end_writing()
        self._has_marked = True

    def _find_for(self, desired: Mapping[str, Any]) -> tuple[Relations, Resource, OwnedObjects]:
        try:
            return self.kinds.find_for(desired)
        except ChildRefusedError:
            self._host.retry_when_watched()
            raise

    def _check_served(self, key: ChildKey) -> None:
        # Such a child would be created, but never restored when other clients change or delete it. Why is the error not
        # permanent? A namespace that was created just now can match the patterns of the operator soon.
        if not self._host.serves(key):
            self._host.retry_when_watched()
            if not self._host.is_watched(key.resource):
                raise ChildRefusedError(
                    f"children.apply(): {key} is of a kind that the API server does not serve now, so the operator "
                    f"does not watch it: its CRD was deleted, or is not established yet.",
                    delay=CONFLICT_DELAY,
                )
            raise ChildRefusedError(
                f"children.apply(): {key} is in a namespace that the operator does not serve, so changes of it would "
                f"not be noticed: serve it with --namespace={key.namespace}, too, or all with --all-namespaces.",
                delay=CONFLICT_DELAY,
            )

    def _check_rivals(self, key: ChildKey, mark: bytes, known: OwnedObject | None) -> None:
        if self.wanted.get(key, mark) != mark:
            raise ChildError(
                f"children.apply(): {key} is applied twice in one run of {self.kinds.handler} with different content: "
                f"apply it once, with all its fields."
            )
        rival = self._host.find_rival(key, mark, known)
        if rival is not None:
            self._has_rival = True
            self._host.retry_when_unwanted(key, known)
            raise ChildConflictError(
                f"children.apply(): {key} is applied by {rival}, too: let only one of them apply it, "
                f"or give them different names.",
                delay=CONFLICT_DELAY,
            )

    async def _send(self, key: ChildKey, adopted: Mapping[str, Any], relations: Relations, *, replace: bool) -> RawBody:
        place, objects = (key.namespace, key.name), relations.objects
        assert objects is not None  # see `find_for`
        raw: RawBody | None = None
        objects.begin_write(place)
        try:
            raw = await self._request(key, adopted)
        except ApplyInvalidError as error:
            if not error.immutable_fields:
                raise ChildError(f"{error}") from error
            if not replace:
                raise ChildError(f"{error} Or use replace=True to delete and recreate it.") from error
            raw = await self._replace(key, adopted)
        except APIForbiddenError as error:
            raise ChildRefusedError(
                explain_forbidden(key, self.adopter.resource, error), delay=REFUSAL_DELAY
            ) from error
        except APINotFoundError as error:
            if error.code is not None:
                raise  # e.g. its namespace is gone
            self._host.retry_when_watched()
            raise ChildRefusedError(
                f"children.apply(): {key} is not applied, as the API server does not serve {key.resource} now.",
                delay=UNSERVED_DELAY,
            ) from error
        finally:
            owners = {self._get_owner(), *(() if raw is None else relations.find_owners(raw))}
            self._host.trigger(objects.end_write(place, raw, frozenset(owners)))
        # The memory gets a copy, because the handler gets the response and could change it.
        await self._host.see(copy.deepcopy(raw))
        self.logger.debug("%s is applied.", key)
        return raw

    async def _replace(self, key: ChildKey, adopted: Mapping[str, Any]) -> RawBody:
        """Delete the child, and recreate it with other values of immutable fields."""
        client, url = client_var.get(), key.resource.get_url(namespace=key.namespace)
        try:
            # Validate the new child by a dry run first: the old one must not be deleted if the new one cannot be
            # created.
            await client.request(
                'POST', url, params={'dryRun': 'All'}, payload=encode(adopted), logger=self.logger, backoffs=()
            )
        except APIConflictError:
            pass  # The child still exists. The server checks this after the validation, so the new child is valid.
        except APIUnprocessableError as error:
            raise ChildError(f"{key} cannot be replaced, as the new one would be invalid: {error.message}") from error
        path = key.resource.get_url(namespace=key.namespace, name=key.name)
        try:
            known = await client.get_json(path, logger=self.logger)
            await delete_child(client, key, known, is_versioned=False, logger=self.logger)
            await client.get_json(path, logger=self.logger)
        except APINotFoundError:
            self.logger.info("%s is deleted, to be created anew with other values of immutable fields.", key)
        else:
            raise NotReadyError(f"{key} is being deleted, to be created anew")
        return await self._request(key, adopted)

    async def _request(self, key: ChildKey, adopted: Mapping[str, Any]) -> RawBody:
        return await apply_object(
            client_var.get(),
            resource=key.resource,
            namespace=key.namespace,
            name=key.name,
            body=adopted,
            field_manager=self.kinds.manager,
            force=True,
            logger=self.logger,
        )

    def _get_owner(self) -> str:
        return self.adopter.body.metadata.uid or ''


def check_ready(key: ChildKey, body: Body, ready: bool | ReadyFn) -> None:
    """
    Check that the child is ready.

    Raises:
        NotReadyError: if it is not. It ends the run.
    """
    if callable(ready):
        if not ready(body):
            raise NotReadyError(f"{key} is not ready yet")
    elif ready and not (readiness := check_readiness(body)):
        raise NotReadyError(f"{key} is not ready yet: {readiness.reason}")


def explain_forbidden(key: ChildKey, owner: Resource, error: APIForbiddenError) -> str:
    """Return a message with the RBAC rule that the operator needs, if that is why the child is refused."""
    resource, names = key.resource, key.resource.plural
    verbs = "'get', 'list', 'watch', 'create', 'patch', 'delete'"
    if 'blockOwnerDeletion' in (error.message or ''):  # by the plugin OwnerReferencesPermissionEnforcement
        resource, names, verbs = owner, f'{owner.plural}/finalizers', "'update'"
    elif error.is_by_admission:
        return f"{key} cannot be applied, as the API server refuses it: {error.message}."
    role = 'ClusterRole' if key.namespace is None else f"Role in the namespace {key.namespace!r}"
    return (
        f"{key} cannot be applied, as the operator has no permission: {error.message}. Grant it by a {role}: "
        f"apiGroups: ['{resource.group}'], resources: ['{names}'], verbs: [{verbs}]."
    )


class ChildrenOfKind(Collection[Body]):
    """
    The children of one object of one kind, as they are in memory now; read-only.

    It yields bodies. A child is found by its name if it is in the namespace of its owner, or cluster-scoped; any child
    is found by a pair of its namespace and its name.
    """

    __slots__ = ('_namespace', '_objects', '_owner')

    def __init__(self, objects: OwnedObjects | None, owner: Body) -> None:
        self._objects = objects
        self._owner = owner.metadata.uid or ''
        self._namespace = owner.metadata.namespace

    def __repr__(self) -> str:
        return repr([self._name(each) for each in self._get()])

    def __len__(self) -> int:
        return len(self._get())

    def __iter__(self) -> Iterator[Body]:
        for each in self._get():
            yield Body(each.copy())

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: str | tuple[str | None, str]) -> Body:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return Body(found.copy())

    def get(self, key: str | tuple[str | None, str], default: Body | None = None) -> Body | None:
        """Return the child with this name; the default if there is none."""
        found = self._find(key)
        return default if found is None else Body(found.copy())

    def _get(self) -> list[OwnedObject]:
        found = [] if self._objects is None else self._objects.of(self._owner)
        return sorted(found, key=lambda each: (each.namespace or '', each.name))

    def _find(self, key: object) -> OwnedObject | None:
        if self._objects is None:
            return None
        places = [key] if isinstance(key, tuple) else [(self._namespace, key), (None, key)]
        found = (self._objects.find(*place) for place in places if len(place) == 2)
        return next((each for each in found if each is not None and self._owner in each.owners), None)

    def _name(self, each: OwnedObject) -> str:
        return each.name if each.namespace in (None, self._namespace) else f'{each.namespace}/{each.name}'


class Children(Mapping[str, ChildrenOfKind]):
    """
    The children of the object, by their resources as named in ``owns=``.

    See `SyncChildren` and `AsyncChildren` for applying them.
    """

    __slots__ = ('_run',)

    def __init__(self, run: ChildrenRun, /) -> None:
        self._run = run

    def __repr__(self) -> str:
        return repr(dict(self))

    def keep(self, child: Any, /) -> None:
        """
        Do not delete the child after this run, although it is not applied.

        Args:
            child: the child, as it was read from here or applied, or another object with its kind and name.

        Raises:
            PermanentError: if it is no object, or its kind is not in ``owns=``.
        """
        self._run.keep(child)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[str]:
        return iter([each.resource.plural for each in self._run.kinds.relations if each.resource is not None])

    def __getitem__(self, name: str) -> ChildrenOfKind:
        relations = self._run.kinds.find(name)
        if relations is None:
            raise ChildError(
                f"children[{name!r}]: it is not in owns= of {self._run.kinds.handler}: "
                f"add it there, so that it is watched."
            )
        return ChildrenOfKind(relations.objects, self._run.adopter.body)


class AsyncChildren(Children):
    """The children, for coroutines."""

    __slots__ = ()

    async def apply(self, obj: Any, *, ready: bool | ReadyFn = False, replace: bool = False) -> Body:
        """
        Make the object a child, apply it server-side if that is needed, and return its newest state.

        Args:
            obj: the object, with the desired fields.
            ready: whether the run must end here if the child is not ready yet; or a function that gets the body of
                the child, and returns whether it is ready.
            replace: whether the child is deleted and created again if a field of it cannot be changed.

        Raises:
            ChildError: if the object is wrong or refused.
            NotReadyError: if the child is not ready. It ends the run without counting as a failure.
        """
        return await self._run.apply(obj, ready=ready, replace=replace)


class SyncChildren(Children):
    """The children, for functions that run in threads."""

    __slots__ = ('_loop',)

    def __init__(self, run: ChildrenRun, loop: asyncio.AbstractEventLoop, /) -> None:
        super().__init__(run)
        self._loop = loop

    def apply(self, obj: Any, *, ready: bool | ReadyFn = False, replace: bool = False) -> Body:
        """Do the same as `AsyncChildren.apply`, and wait for it."""
        # The task inherits the context variables of the thread, which are those of the handler.
        applying = self._run.apply(obj, ready=False, replace=replace)
        body = asyncio.run_coroutine_threadsafe(applying, self._loop).result()
        if ready is not False:
            # Why not check it in the coroutine? The function of the user can block, and would block the event loop.
            check_ready(self._run.find_key(body), body, ready)
        return body


def make_children(run: ChildrenRun) -> Children:
    """Return the argument of the handler; called in the event loop."""
    if run.kinds.handler.asynchronous:
        return AsyncChildren(run)
    return SyncChildren(run, asyncio.get_running_loop())
