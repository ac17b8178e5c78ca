"""
Level-triggered handlers: ``@kopf.on.reconcile``. They run for the newest state of an object, not for each change.

A `Leveler` receives each new state of the objects of one resource. It triggers a handler if the digest of the essence
(or of the handler's field) differs from the previous one. A `Controller` represents one handler, with the plans for its
objects in all resources and namespaces. The module `planning` decides when a handler runs. All of this is kept in
memory only.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from kopf._cogs.aiokits.coalesced_timers import CoalescedTimer
from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.bodies import Body, RawBody, is_older_version
from kopf._cogs.structs.body_guards import BodyGuard
from kopf._cogs.structs.conditions import Condition, ConditionEdits
from kopf._cogs.structs.dicts import resolve
from kopf._cogs.structs.diffs import is_same
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.packed_objects import PackedObject, ParsedCache
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Namespace, Resource, Selector
from kopf._core.actions.execution import Outcome, RunTimeoutError, TemporaryError, outlive, run_handler, utcnow
from kopf._core.actions.handler_states import HandlerState, digest_essence
from kopf._core.actions.loggers import ObjectLogger
from kopf._core.engines.adoption import Adopter, ChildKey
from kopf._core.engines.child_marks import OwnerMarks
from kopf._core.engines.children import (
    ChildrenMemory,
    ChildrenRun,
    OwnedKinds,
    make_children,
    make_manager,
    name_rival,
)
from kopf._core.engines.contests import Truce
from kopf._core.engines.field_ownership import Path, render
from kopf._core.engines.indexing import Indexed, wait_for_indexing
from kopf._core.engines.owned_objects import OwnedObject, OwnedObjects
from kopf._core.engines.planning import NONE, Again, Pace, Plan, Planner, Trigger
from kopf._core.engines.relations import Key, Relations
from kopf._core.engines.selfruns import LOOP_WARNING, OwnPatch, RunChain
from kopf._core.engines.spawning import OperatorDaemons
from kopf._core.engines.verdicts import Verdict, derive_conditions, is_own_kind, judge
from kopf._core.intents import filters
from kopf._core.intents.causes import ReconcilingCause, make_conditions
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.edits import find_written, is_edited
from kopf._core.intents.handlers import ReconcilingHandler, ResourceHandler, Source
from kopf._core.intents.storage_errors import StorageError

_UNPOSTED: Final = {'k8s_skip': True}

Place = tuple[str, str, Namespace]
"""The group, the plural name, and the namespace: the same for all versions of a resource."""

CONTESTED: Final = 'Contested'
"""The type of the condition that reports fields of children that another client changes again and again."""

FIELDLESS: Final = ''
"""The digest of an object that lacks the field of the handler, but matches its other filters."""


UNCOMPARED: Final = '?'
"""
The digest of an object that has matched the handler before, after a state for which the filters have failed.

Meanwhile, other triggers can run the handler for such states, so the next comparable state triggers it in any case.
"""


class Record(Protocol):
    """The record of an object; it belongs to the `Host`."""

    uid: str
    namespace: str | None
    name: str

    @property
    def level(self) -> 'ObjectLevel | None':
        """The state of the object for level-triggered handlers; ``None`` if no such handler handles it."""

    def attach_level(self, level: 'ObjectLevel', /) -> None:
        """Called when level-triggered handlers begin to handle the object."""

    def detach_level(self) -> None:
        """Called when level-triggered handlers do not handle the object any more."""


class Host(Protocol):
    """The processor of the objects of the resource."""

    def call(self, record: Any, /, *, urgent: bool) -> bool:
        """Request a worker for the object; return false if the object already has one, busy or throttled."""

    def is_cancelled(self) -> bool:
        """Check whether the current task, which runs handlers, is cancelled by its owner."""

    def get_memo(self, record: Any, /) -> Any:
        """Return the memo of the object."""

    def find_level(self, uid: str, /) -> 'ObjectLevel | None':
        """Return the state of the object with this uid; ``None`` if it is not handled, or not known yet."""

    @property
    def is_listed(self) -> bool:
        """Return whether all objects were listed."""

    async def patch_owner(self, plan: Any, body: Body, patch: Patch, logger: ObjectLogger, /) -> None:
        """Apply the patch to the object of the plan, without triggering the handler of the plan."""

    def report_mutation(self, record: Any, explanation: str, keys: Collection[HandlerId], /) -> None:
        """Log a warning that these handlers have mutated the object; the mutations are undone."""


class HandlerPlan(Plan):
    """The plan of one handler for one object: the next run, and the digest of the state that it has seen last."""

    __slots__ = (
        'carried',
        'chain',
        'children',
        'controller',
        'digest',
        'is_unsure',
        'level',
        'nonconformity',
        'verdict',
    )

    def __init__(self, level: 'ObjectLevel', controller: 'Controller') -> None:
        super().__init__(level)
        self.level = level
        self.controller = controller
        self.digest: str | None = None
        """
        The digest of the last essence that was compared; ``None`` if the object does not match the handler.

        It is `FIELDLESS` if the object lacks only the field of the handler. When the field is removed, the handler is
        run once more; after this run, no further runs are planned.
        """
        self.is_unsure = False
        """Whether it is unknown if the object matches the handler now, as the filters of the handler have failed."""
        self.carried: Sequence[ConditionEdits] = ()
        """The changes of conditions that the last run could not write because of conflicts with other clients."""
        self.verdict: Verdict | None = None
        """The result of the last run, if the framework sets the conditions for this handler."""
        self.chain: RunChain | None = None
        """
        The current chain of runs, in which the patch of one run triggers the next run. It is ``None`` if something else
        than a patch of a handler was the last trigger.
        """
        self.nonconformity: str | None = None
        """Why the object did not conform to the class of its kind in the last run, if the run has failed for that."""
        self.children: ChildrenMemory | None = None
        """The children that the handler has applied for the object; ``None`` if it has not applied any yet."""

    def enter_chain(self) -> RunChain:
        """Return the chain of runs that patches of handlers have triggered; begin it if there is none."""
        if self.chain is None:
            self.chain = RunChain()
        return self.chain

    def leave_chain(self) -> None:
        """Called when a trigger other than a patch of a handler runs the handler."""
        self.chain = None

    def note_conformity(self, nonconformity: str | None) -> None:
        """Called with the reason if the last run has failed because the object does not conform to its class."""
        self.nonconformity = nonconformity

    def note_filters(self, *, failed: bool) -> None:
        """Called when the filters of the handler were applied to a new state of the object."""
        self.is_unsure = failed
        if failed and self.digest:
            self.digest = UNCOMPARED

    def find_wanted(self) -> Collection[ChildKey] | None:
        """Return the children that the handler wants for the object; ``None`` if they are not known yet."""
        if self.children is not None:
            return self.children.get_wanted()
        return None if self.digest or self.is_unsure else ()

    def remember_children(self) -> ChildrenMemory:
        """Return the memory of the children that the handler has applied; create it at the first call."""
        if self.children is None:
            appliers = self.level.find_appliers(self)
            known = next((each.children for each in appliers if each.children is not None), None)
            self.children = ChildrenMemory() if known is None else known
            for each in appliers:
                each.children = self.children
        return self.children

    def may_want(self, key: ChildKey) -> bool:
        """Check whether the handler applies the child for the object, or could do so in its next run."""
        return self.children is None or self.children.may_want(key)

    @property
    def owner_name(self) -> str:
        """Return the namespace and the name of the object."""
        record = self.level.record
        return f"{record.namespace}/{record.name}" if record.namespace else str(record.name)

    def forget_children(self) -> None:
        """Called after a pause: meanwhile, another operator with the same name can have applied other children."""
        self.children = None


class ObjectLevel:
    """The newest state of one object, and the plans of its handlers."""

    __slots__ = (
        'aside',
        'is_patched',
        'leveler',
        'marks',
        'packed',
        'patched',
        'plans',
        'record',
        'seen_at',
        'timer',
        'timer_at',
        'version',
    )

    def __init__(self, leveler: 'Leveler', record: Any, raw: RawBody, cache: ParsedCache) -> None:
        self.leveler = leveler
        self.record = record
        self.packed = PackedObject(cache, raw)
        self.version: str | None = None
        """The resource version of the state; ``None`` if the next state is accepted whatever its version is."""
        self.seen_at = 0.0
        self.is_patched = False
        """Whether a patch of a run was sent, and its response has not arrived yet."""
        self.patched: OwnPatch | None = None
        """The newest patch of a run, sent or being sent; ``None`` if another client has changed the object after it."""
        self.aside: tuple[RawBody, float | None] | None = None
        """The newest state received since the patch was sent, and the time when its list was requested, if from one."""
        self.plans: tuple[HandlerPlan, ...] = ()
        self.marks: OwnerMarks | None = None
        """The marks that the object needs for its children; ``None`` if no handler with children was run yet."""
        self.timer: CoalescedTimer | asyncio.TimerHandle | None = None
        self.timer_at: float | None = None

    @property
    def is_queued(self) -> bool:
        """Return whether a handler is triggered, but the limit of its concurrency is reached."""
        return any(plan.is_waiting for plan in self.plans)

    @property
    def is_held_up(self) -> bool:
        """Return whether a handler waits for its next attempt, or until another object is ready."""
        return any(plan.message is not None for plan in self.plans)

    def renew(self, raw: RawBody, *, asked_at: float | None) -> bool:
        """Replace the known state by this one if this one is newer; return whether it was replaced."""
        version = raw['metadata'].get('resourceVersion')
        # The same state comes up to three times: in the response to a patch, in its echo, and in a list.
        if version is not None and version == self.version:
            return False
        if version is not None and is_older_version(version, self.version):
            if asked_at is None or asked_at <= self.seen_at:
                return False
        self.packed[0], self.version, self.seen_at = raw, version, time.monotonic()
        return True

    def begin_patching(self, patch: OwnPatch) -> None:
        """Called before a patch of a run is sent."""
        self.is_patched, self.patched = True, patch

    def note_edit(self) -> None:
        """Called when another client has changed the object."""
        self.patched = None

    def get_cause(self, raw: RawBody) -> OwnPatch | None:
        """Return the patch of a run that has led to this state; ``None`` if another client has changed the object."""
        is_own = self.is_patched or raw['metadata'].get('resourceVersion') == self.version
        return self.patched if is_own else None

    def put_aside(self, raw: RawBody, asked_at: float | None) -> None:
        """Keep the state until the response to the patch arrives."""
        self.aside = raw, asked_at

    def end_patching(self) -> tuple[RawBody, float | None] | None:
        """Called after the patch has succeeded or failed; return the newest state that was put aside, if any."""
        aside, self.aside, self.is_patched = self.aside, None, False
        return aside

    def forget_version(self) -> None:
        """Accept the next state with any version."""
        self.version = None

    def move(self, leveler: 'Leveler', plans: Sequence[HandlerPlan]) -> None:
        """Called when another leveler takes over the object, with these plans."""
        self.leveler, self.plans, self.version = leveler, tuple(plans), None

    def remember_marks(self, operator: str) -> OwnerMarks:
        """Return the marks that the object needs for its children; create them at the first call."""
        if self.marks is None:
            versions = self.leveler.find_versions(self)
            known = next((each.marks for each in versions if each.marks is not None), None)
            self.marks = OwnerMarks(operator) if known is None else known
        return self.marks

    def forget_marks(self) -> None:
        """Called after a pause: meanwhile, another operator with the same name can have written other marks."""
        self.marks = None

    def find_appliers(self, plan: HandlerPlan) -> Sequence[HandlerPlan]:
        """
        Return the plans that apply the same children as this one, in the order of their declarations.

        One function can be declared several times, for several fields or labels. Whichever of the declarations runs it,
        it applies all the children. So they share the memory of the children, and are no rivals.
        """
        return [each for each in self.plans if each.controller.applies_like(plan.controller)] or [plan]

    def set_timer(self, levels: 'Levels') -> None:
        """Set the timer to the time when the first of the plans is due; cancel the timer if no plan has a time."""
        times = [time for plan in self.plans for time in (plan.due_at, plan.paused_until) if time is not None]
        due_at = min(times, default=None)
        due_at = None if levels.is_closed else due_at
        # One timer for all handlers of the object. It is kept if the earliest plan has not changed.
        if due_at != self.timer_at:
            if self.timer is not None:
                self.timer.cancel()
            self.timer_at = due_at
            self.timer = None if due_at is None else levels.timers.set(due_at, functools.partial(self._ring, levels))
            levels.note_timer(self, due_at is not None)

    def _ring(self, levels: 'Levels') -> None:
        self.timer = self.timer_at = None
        now = asyncio.get_running_loop().time()
        for plan in self.plans:
            plan.controller.planner.ring(plan, now)
        levels.note_timer(self, False)
        self.set_timer(levels)


class LeftThread(NamedTuple):
    """A run that has timed out, and whose thread is still running."""

    plan: HandlerPlan
    thread: 'asyncio.Task[Any]'
    """The task that waits for the thread."""

    def __str__(self) -> str:
        return f'the thread of {self.plan.controller.handler} of {self.plan.level.record!r}'


class Controller:
    """One level-triggered handler, with all its objects."""

    def __init__(self, handler: ReconcilingHandler, kinds: OwnedKinds | None = None) -> None:
        self.handler = handler
        self.kinds = kinds
        """The kinds of the children; ``None`` if the function does not take the argument ``children``."""
        pace = Pace(interval=handler.interval, backoff=handler.backoffs, concurrency=handler.concurrency)
        self.planner = Planner(pace, self._call)
        self.keeps_conditions = handler.conditions
        self.uses_conditions = handler.uses_conditions
        """Whether the handler can set conditions: if so, each generation needs a run that updates them."""
        self.relations = {source: Relations(handler, source) for source in handler.sources}
        if kinds is not None:
            self.relations.update({relations.source: relations for relations in kinds.relations})
        self._plans: dict[Key, HandlerPlan] = {}
        self._namesakes: dict[Key, dict[HandlerPlan, None]] = {}
        """
        The further plans with keys of `_plans`: objects of other kinds can have the same name, and so can a deleted
        object that is not forgotten yet. Why not a set of plans for each key? Hardly any key has several plans, and
        thousands of sets would take much memory.
        """
        self._waiting: dict[HandlerPlan, dict[ChildKey, set[str]]] = {}
        """The uids of the objects that wait until the owner of the plan does not want a child any more."""
        self._unwatched: set[HandlerPlan] = set()
        """The plans of the objects that wait until one more kind or namespace is watched."""
        self._threads: dict[str, LeftThread] = {}
        self._owns = any(source.fn is None for source in handler.sources)
        self._watches = any(source.fn is not None for source in handler.sources)
        self._is_warned = self._is_warned_of_loop = False

    def applies_like(self, other: 'Controller') -> bool:
        """Check whether both handlers apply the same children: they are one function, with the same arguments."""
        mine, its = self.handler, other.handler
        return self is other or (
            (mine.fn is its.fn and mine.param is its.param and mine.prune == its.prune)
            and (self.kinds is not None and other.kinds is not None)
            and self.kinds.selectors == other.kinds.selectors
        )

    @staticmethod
    def _call(plan: Plan) -> bool:
        level: ObjectLevel = plan.target
        return level.leveler.host.call(level.record, urgent=plan.is_urgent)

    def add(self, plan: HandlerPlan) -> None:
        """Register the object by its keys, for `trigger_all`."""
        for key in self._iter_keys(plan):
            if self._plans.setdefault(key, plan) is not plan:
                self._namesakes.setdefault(key, {})[plan] = None
        if (left := self._threads.get(plan.level.record.uid)) is not None:
            self._hold(plan, left)

    def leave(self, plan: HandlerPlan, thread: 'asyncio.Task[Any]', present: Collection[HandlerPlan]) -> None:
        """
        Begin no run for the object until the thread has ended: a handler must not run twice at the same time for it.

        Why not only by the plan? The object can leave the selection and enter it again, which makes a new plan.

        Args:
            plan: the plan of the run.
            thread: the task that waits for the thread, which cannot be stopped.
            present: the plans that the object has now.
        """
        left = self._threads[plan.level.record.uid] = LeftThread(plan, thread)
        thread.add_done_callback(lambda _: self._forget_thread(left))
        for each in {plan, *present}:
            if each.controller is self:
                self._hold(each, left)

    def _hold(self, plan: HandlerPlan, left: 'LeftThread') -> None:
        self.planner.hold(plan)
        left.thread.add_done_callback(lambda _: self.planner.release(plan))

    def _forget_thread(self, left: 'LeftThread') -> None:
        uid = left.plan.level.record.uid
        if self._threads.get(uid) is left:
            del self._threads[uid]

    def get_threads(self) -> Collection['LeftThread']:
        """Return the threads of the runs that have timed out and have not ended yet."""
        return self._threads.values()

    def discard(self, plan: HandlerPlan) -> None:
        """Remove the object, and drop its plan."""
        self.planner.drop(plan)
        self._unwatched.discard(plan)
        self.trigger_all_waiting(plan)
        for key in self._iter_keys(plan):
            self._discard_key(key, plan)

    def _discard_key(self, key: Key, plan: HandlerPlan) -> None:
        namesakes = self._namesakes.get(key, {})
        if self._plans.get(key) is not plan:
            namesakes.pop(plan, None)
        elif namesakes:
            self._plans[key], _ = namesakes.popitem()
        else:
            del self._plans[key]
        if not namesakes:
            self._namesakes.pop(key, None)

    def _iter_keys(self, plan: HandlerPlan) -> Iterator[Key]:
        record = plan.level.record
        if self._owns:
            yield record.uid
        if self._watches:
            yield record.namespace, record.name

    def serve(self, resource: Resource) -> None:
        """Called before the operator begins to handle the objects of this resource with the handler."""
        for relations in self.relations.values():
            relations.note_owner(resource)

    def find_claimant(self, key: ChildKey, owners: Collection[str], own: str) -> HandlerPlan | None:
        """Return the plan of another one of these owners for which the handler applies, or may apply, the child."""
        for owner in owners:
            plan = None if owner == own else self._plans.get(owner)
            if plan is not None and plan.digest and plan.may_want(key):
                return plan
        return None

    def retry_when_unwanted(self, claimant: HandlerPlan, key: ChildKey, own: str) -> None:
        """Trigger the handler for the object with this uid as soon as the claimant does not want the child any more."""
        self._waiting.setdefault(claimant, {}).setdefault(key, set()).add(own)

    def trigger_waiting(self, plan: HandlerPlan) -> None:
        """Trigger the handler for the objects that wait for children which the owner of the plan does not want now."""
        waiting = self._waiting.get(plan)
        if waiting is None:
            return
        for key in [key for key in waiting if not plan.may_want(key)]:
            self.trigger_all(waiting.pop(key), Trigger.OWNED, None)
        if not waiting:
            del self._waiting[plan]

    def trigger_all_waiting(self, plan: HandlerPlan) -> None:
        """Trigger the handler for all objects that wait for children of the owner of the plan: it wants none now."""
        for uids in self._waiting.pop(plan, {}).values():
            self.trigger_all(uids, Trigger.OWNED, None)

    def retry_when_watched(self, plan: HandlerPlan) -> None:
        """Trigger the handler for the object as soon as another watch of its children begins."""
        self._unwatched.add(plan)

    def trigger_unwatched(self) -> None:
        """Called when the watch of a kind begins: trigger the handler for all objects that wait for one."""
        plans, self._unwatched = self._unwatched, set()
        for plan in plans:
            if plan.digest:
                self.trigger(plan, Trigger.OWNED, None)

    def trigger(self, plan: HandlerPlan, reason: Trigger, cause: OwnPatch | None) -> None:
        """Trigger the handler for the object; pause it if its patches keep triggering runs."""
        if cause is None:
            plan.leave_chain()
            self.planner.trigger(plan, reason)
            if plan.paused_until is not None:
                self.planner.resume(plan)
            return
        now = asyncio.get_running_loop().time()
        chain = plan.enter_chain()
        if pause := chain.note(cause, now):
            self.planner.pause(plan, now + pause)
            plan.level.leveler.slow_down(plan, cause)
        self.planner.trigger(plan, reason)

    def trigger_all(self, keys: Collection[Key], reason: Trigger, cause: OwnPatch | None) -> None:
        """Trigger the handler for the objects with these keys; skip those that do not exist or do not match."""
        for key in keys:
            plan = self._plans.get(key)
            if plan is None:
                continue
            for each in (plan, *self._namesakes.get(key, ())):
                if each.digest:
                    self.trigger(each, reason, cause)

    def warn_of_loop(self, cause: OwnPatch, logger: ObjectLogger) -> None:
        """Warn, once for the handler, that patches keep triggering it."""
        if not self._is_warned_of_loop:
            self._is_warned_of_loop = True
            logger.warning(LOOP_WARNING, self.handler, cause.handler, cause.fields, cause.depth + 1)

    def warn_of_result(self, result: object, logger: ObjectLogger) -> None:
        """Warn, once for the handler, that its result has no effect."""
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s has returned %r, which has no effect: return kopf.Again(after=...) or nothing.",
                self.handler,
                result,
            )


class Watches(Protocol):
    """The watches of the operator."""

    def see(self, raw: RawBody, /) -> Collection[Indexed]:
        """Receive a written child before the stream brings it; return the records for which its state is new."""

    def serves(self, resource: Resource, namespace: Namespace, /) -> bool:
        """Check whether the objects of the resource in the namespace are watched."""

    def is_watched(self, resource: Resource, /) -> bool:
        """Check whether objects of the resource are watched, in any namespace."""

    def find_namespaces(self) -> Collection[str]:
        """Return the served namespaces; none if the whole cluster is served, or if some are not known yet."""


class Levels:
    """The level-triggered handlers of an operator."""

    def __init__(
        self,
        context: OperatorContext,
        background: OperatorDaemons,
        watches: Watches,
    ) -> None:
        self.context = context
        self.watches = watches
        self.timers = background.coalesced_timers
        self.cache = background.parsed_cache
        self.is_halted = background.is_halted
        self.is_closed = False
        self._controllers: dict[ResourceHandler, Controller] = {}
        self._timed: set[ObjectLevel] = set()
        self._versions: dict[Place, list[Leveler]] = {}

    def note_timer(self, level: ObjectLevel, is_set: bool) -> None:
        """Called when the timer of the object was set or removed."""
        (self._timed.add if is_set else self._timed.discard)(level)

    def close(self) -> None:
        """Cancel all timers: if the event loop outlives the operator, the timers would keep the operator in memory."""
        self.is_closed = True
        for level in list(self._timed):
            level.set_timer(self)

    def get_controller(self, handler: ResourceHandler) -> Controller:
        """Return the controller of the handler; create it when it is requested for the first time."""
        controller = self._controllers.get(handler)
        if controller is None:
            assert isinstance(handler, ReconcilingHandler)
            controller = self._controllers[handler] = Controller(handler, self._find_kinds(handler))
        return controller

    def find_threads(self, concerns: Callable[[Any], bool]) -> list[LeftThread]:
        """Return the threads of the runs that have timed out, for the objects whose records the check selects."""
        found = itertools.chain.from_iterable(controller.get_threads() for controller in self._controllers.values())
        return [left for left in found if concerns(left.plan.level.record)]

    def _find_kinds(self, handler: ReconcilingHandler) -> OwnedKinds | None:
        if 'children' not in handler.extras or 'children' in self.context.indices:
            return None
        operator = self.context.settings.applying.operator
        relations = [
            Relations(handler, source, OwnedObjects(make_manager(operator), self.cache))
            for source in handler.sources
            if source.fn is None
        ]
        return OwnedKinds(handler, relations, operator)

    def find_elsewhere(self, resource: Resource, handlers: Collection[ResourceHandler]) -> list[Controller]:
        """Return the controllers of handlers, besides these, that handle the same objects in other versions."""
        found = []
        for handler in self.context.registry.iter_resource_handlers():
            selector = handler.selector
            # A function that selects resources gets all versions, and usually selects by the kind.
            if isinstance(handler, ReconcilingHandler) and handler not in handlers and selector and selector.fn is None:
                version = selector.version or resource.version
                if selector.check(dataclasses.replace(resource, version=version, preferred=True)):
                    found.append(self.get_controller(handler))
        return found

    def add_version(self, place: Place, leveler: 'Leveler') -> None:
        """Called when the leveler begins to handle the objects of this place in one of several versions."""
        self._versions.setdefault(place, []).append(leveler)

    def remove_version(self, place: Place, leveler: 'Leveler') -> None:
        """Called when the leveler does not handle the objects of this place any more."""
        self._versions[place].remove(leveler)
        if not self._versions[place]:
            del self._versions[place]

    def get_versions(self, place: Place) -> Sequence['Leveler']:
        """Return the levelers of this place, of all versions."""
        return self._versions.get(place, ())

    def find_outdated(self) -> list[Relations]:
        """Return the relations whose objects must be listed again, as some of their owners were not known before."""
        return [
            relations
            for controller in self._controllers.values()
            for relations in controller.relations.values()
            if relations.is_outdated and relations.resource is not None
        ]

    def find_dependents(
        self,
        pairs: Collection[tuple[ResourceHandler, Source]],
        resource: Resource,
    ) -> list[tuple[Controller, Relations]]:
        """Return the controllers of these handlers, each with its relations to the objects of the resource."""
        found = []
        for handler, source in pairs:
            controller = self.get_controller(handler)
            relations = controller.relations[source]
            relations.serve(resource)
            controller.trigger_unwatched()
            found.append((controller, relations))
        return found


class ChildrenOfPlan:
    """
    The operations that the code for children needs from this module: on the owner, and on other objects and handlers.

    It implements the protocol `children.ChildrenHost` for the plan of one handler and one owner.
    """

    def __init__(self, plan: HandlerPlan, body: Body, logger: ObjectLogger) -> None:
        self._plan = plan
        self._body = body
        self._logger = logger

    async def patch_owner(self, patch: Patch) -> None:
        """Apply the patch to the owner. The patch does not trigger the handler."""
        await self._plan.level.leveler.host.patch_owner(self._plan, self._body, patch, self._logger)

    def is_handled(self) -> bool:
        """Check whether the operator still handles the owner: it is not being deleted, and not handed over."""
        return self._plan.level.record.level is self._plan.level

    async def see(self, raw: RawBody) -> None:
        """
        Pass the state of a child to the indices and the other handlers, before the stream of the watch brings it.

        The method returns when the index functions have finished. The handler reads the indices next, and must find the
        new state there: no later event of the child will trigger the handler again.
        """
        await wait_for_indexing(self._plan.level.leveler.watches.see(raw))

    def serves(self, key: ChildKey) -> bool:
        """Check whether the operator watches the child, and so receives changes by other clients."""
        return self._plan.level.leveler.watches.serves(key.resource, key.namespace)

    def is_watched(self, resource: Resource) -> bool:
        """Check whether the operator watches the resource in any namespace."""
        return self._plan.level.leveler.watches.is_watched(resource)

    def retry_when_watched(self) -> None:
        """Trigger the handler when the watch of one of its kinds begins, in any namespace."""
        if self.is_handled():  # the owner can have gone during the run, and its plan is dropped then
            self._plan.controller.retry_when_watched(self._plan)

    def find_served(self) -> Collection[Resource]:
        """Return the kinds of children of all handlers of the object."""
        return [each.resource for each in self.find_relations() if each.resource is not None]

    def find_unserved(self) -> Collection[Selector]:
        """Return the selectors of kinds of children that are not found in the cluster yet."""
        return [each.source.selector for each in self.find_relations() if each.resource is None]

    def find_namespaces(self) -> Collection[str]:
        """Return the served namespaces; none if the whole cluster is served, or if some are not known yet."""
        return self._plan.level.leveler.watches.find_namespaces()

    def find_relations(self) -> Collection[Relations]:
        """Return the relations of all handlers of the object to their children."""
        kinds = [each.kinds for each in self._find_controllers()]
        return [relations for each in kinds if each is not None for relations in each.relations]

    def find_former(self, resource: Resource) -> Collection[str]:
        """Return the ids of the handlers that prune the children of the object, but do not name this kind of them."""
        former = {
            plan.controller.handler.id
            for plan in self._plan.level.plans
            # Why not those that do not match the object? What they have applied stays.
            if plan.controller.handler.prune and (plan is self._plan or plan.digest)
        }
        # Handlers of one function, or of several versions, can share their id.
        return former - {
            each.handler.id for each in self._find_controllers() if each.kinds is None or each.kinds.can_have(resource)
        }

    def _find_controllers(self) -> Collection[Controller]:
        """Return the controllers of all handlers of the object, those of other versions of the resource included."""
        level = self._plan.level
        return [*(plan.controller for plan in level.plans), *level.leveler.elsewhere]

    def contest(self, key: ChildKey, truces: Mapping[Path, Truce], manager: str) -> None:
        """Called when the operator stops applying contested fields for a while."""
        for path, truce in truces.items():
            self._logger.warning(
                "%s of %s is contested by %s and %r, which is this operator. The operator stops applying it for "
                "%g seconds. Do not apply %s any more, or stop the other client.",
                render(path) or "The whole",
                key,
                name_rival(truce.manager, manager),
                manager,
                truce.duration,
                "this field" if path else "it",
            )

    def trigger(self, owners: Collection[str]) -> None:
        """Trigger the handler for the objects with these uids."""
        self._plan.controller.trigger_all(owners, Trigger.OWNED, None)

    def forget_elsewhere(self, key: ChildKey) -> None:
        """
        Called when the run has applied the child: handlers that do not match the object cannot want it any more.

        If they remembered it, it would stay for ever when this handler does not apply it any more.
        """
        for plan in self._find_others():
            if plan.children is not None and not any(each.digest for each in plan.level.find_appliers(plan)):
                plan.children.forget(key)

    def find_rival(self, key: ChildKey, desired: bytes, known: OwnedObject | None) -> str | None:
        """Return the name of another handler or owner that applies the same child; ``None`` if there is none."""
        for plan in self._find_others():
            # A handler that does not match the object any more hands its children over to those that do.
            if plan.children is None or not plan.digest:
                continue
            applied = plan.children.get(key)
            if applied is not None and applied.desired != desired:
                place = '' if plan.level is self._plan.level else f" for {plan.level.leveler.resource}"
                return f"{plan.controller.handler}{place}"
        claimant = self._find_claimant(key, known)
        return None if claimant is None else claimant.owner_name

    def retry_when_unwanted(self, key: ChildKey, known: OwnedObject | None) -> None:
        """Trigger the handler when the other object that applies the child does not want it any more."""
        claimant = self._find_claimant(key, known)
        if claimant is not None:
            claimant.controller.retry_when_unwanted(claimant, key, self._plan.level.record.uid)

    def _find_claimant(self, key: ChildKey, known: OwnedObject | None) -> HandlerPlan | None:
        """Return the plan of another object that applies the same child; ``None`` if there is none."""
        if known is None:
            return None
        controllers = [plan.controller for plan in self._plan.level.find_appliers(self._plan)]
        claimants = (each.find_claimant(key, known.owners, self._plan.level.record.uid) for each in controllers)
        return next(filter(None, claimants), None)

    def _find_others(self) -> Collection[HandlerPlan]:
        """Return the plans of the object that apply other children."""
        level = self._plan.level
        appliers = level.find_appliers(self._plan)
        return [plan for plan in level.leveler.find_plans(level) if plan not in appliers]


class Run(NamedTuple):
    """One run of a handler that has begun."""

    plan: HandlerPlan
    reasons: frozenset[Trigger]
    raw: RawBody
    """The state that the handler sees: a copy for this run only."""
    patch: Patch
    logger: ObjectLogger
    children: ChildrenRun | None = None
    """The operations of the run on the children of the object, if the handler has any."""


class Leveler:
    """Triggers and runs the level-triggered handlers of the objects of one resource."""

    def __init__(self, host: Host, decider: Decider, levels: Levels) -> None:
        self.host = host
        self._decider = decider
        self._levels = levels
        self.settings = levels.context.settings
        """The settings of the operator."""
        handlers = decider.table.of(ReconcilingHandler)
        self._controllers = [levels.get_controller(handler) for handler in handlers]
        self.uses_conditions = any(controller.uses_conditions for controller in self._controllers)
        for controller in self._controllers:
            controller.serve(decider.table.resource)
        self.elsewhere = levels.find_elsewhere(decider.table.resource, handlers)
        """The controllers of handlers of the same objects in other versions; few operators have any."""
        self._place: Place | None = None
        self._is_selective = not all(filters.is_unconditional(handler) for handler in handlers)
        self._rules = levels.context.make_rules(levels.is_halted, is_cancelled=host.is_cancelled)
        self._reports = filters.FailureReports()

    @property
    def watches(self) -> Watches:
        """The watches of the operator."""
        return self._levels.watches

    @property
    def resource(self) -> Resource:
        """The resource."""
        return self._decider.table.resource

    # Other versions of the resource. Each version has its own watch, leveler, and states of the objects.

    def open(self, namespace: Namespace) -> None:
        """Called before the first object in this namespace, or of the cluster, is received."""
        if self.elsewhere:
            self._place = self.resource.group, self.resource.plural, namespace
            self._levels.add_version(self._place, self)

    def close(self) -> None:
        """Called when no more objects are received."""
        if self._place is not None:
            self._levels.remove_version(self._place, self)
            self._place = None

    def _find_siblings(self) -> Sequence['Leveler']:
        return () if self._place is None else [each for each in self._levels.get_versions(self._place) if each != self]

    def find_versions(self, level: ObjectLevel) -> Sequence[ObjectLevel]:
        """Return the states of the object for handlers of other versions of the resource."""
        found = (each.host.find_level(level.record.uid) for each in self._find_siblings())
        return [each for each in found if each is not None and each is not level]

    def find_plans(self, level: ObjectLevel) -> Sequence[HandlerPlan]:
        """Return the plans of all handlers of the object, those of other versions of the resource included."""
        versions = self.find_versions(level)
        if not versions:
            return level.plans
        # In the same order for all versions, as texts of conditions are made of them.
        levels = sorted((level, *versions), key=lambda each: each.leveler.resource.version)
        return [plan for each in levels for plan in each.plans]

    def find_unlisted(self, level: ObjectLevel) -> Sequence[Controller]:
        """Return the controllers of other versions that get a plan for the object if their list brings it."""
        if not self.elsewhere:
            return ()
        known = {plan.controller for plan in self.find_plans(level)}
        siblings = [each for each in self._find_siblings() if not each.host.is_listed]
        return [each for sibling in siblings for each in sibling._controllers if each not in known]

    # States.

    def receive(self, record: Record, raw: RawBody, *, asked_at: float | None = None) -> None:
        """
        Receive a state of the object, and trigger the handlers for which it has changed.

        A state is newer than the known one if its version is newer. A state from a list is also newer if the list was
        requested (at ``asked_at``) after the known state was received.
        """
        is_ending = raw['metadata'].get('deletionTimestamp') is not None
        level = record.level
        if level is None and not is_ending:
            level = ObjectLevel(self, record, raw, self._levels.cache)
            level.move(self, [HandlerPlan(level, controller) for controller in self._controllers])
            record.attach_level(level)
            for plan in level.plans:
                plan.controller.add(plan)
        # Until the response to a patch arrives, it is unknown whether a state is the echo of the patch or an edit by
        # another client.
        if level is not None and level.is_patched:
            level.put_aside(raw, asked_at)
        elif level is not None and level.renew(raw, asked_at=asked_at):
            level.note_edit()
            self._compare_all(level, raw, Trigger.CHANGE if asked_at is None else Trigger.START)

    def _compare_all(
        self, level: ObjectLevel, raw: RawBody, reason: Trigger, *, own: HandlerPlan | None = None
    ) -> None:
        """Trigger the handlers for which the object has changed, except for the one that has changed it."""
        if raw['metadata'].get('deletionTimestamp') is not None:
            self.forget(level.record)
            return
        digests = self._find_digests(level, raw)
        for plan in level.plans:
            plan.note_filters(failed=plan not in digests)
            if plan in digests:
                self._compare(plan, digests[plan], reason, is_own=plan is own)
            if plan.nonconformity is not None:
                self._compare_conformity(plan, raw)
        if level.marks is not None and level.marks.note_state(raw):
            self._request_marks(level)

    @staticmethod
    def _request_marks(level: ObjectLevel) -> None:
        """Trigger a handler that applies children, because another client has removed the marks of the object."""
        # Any run restores the marks of all handlers. No handler notices the loss: the marks are not in the essence.
        for plan in level.plans:
            if plan.children is not None and plan.digest:
                plan.controller.trigger(plan, Trigger.CHANGE, level.patched)
                return

    @staticmethod
    def _compare_conformity(plan: HandlerPlan, raw: RawBody) -> None:
        """Trigger the handler if the object does not conform to the class of its kind for another reason, or does."""
        model = plan.controller.handler.model
        # The status can be what does not conform, and it is no part of the digest.
        if plan.digest and (model is None or model.find_nonconformity(Body(raw)) != plan.nonconformity):
            plan.note_conformity(None)
            plan.controller.trigger(plan, Trigger.CHANGE, plan.level.patched)

    def _compare(self, plan: HandlerPlan, digest: str | None, reason: Trigger, *, is_own: bool) -> None:
        former, plan.digest = plan.digest, digest
        if digest is None:
            # The object does not match the handler any more. So cancel all runs, including planned retries.
            plan.controller.planner.drop(plan)
            plan.controller.trigger_all_waiting(plan)
        # A handler must not be triggered by its own patch: it would patch and run for ever. The exception is a patch
        # by which the object begins to match the handler.
        elif former == digest or (is_own and former and former != UNCOMPARED) or not (former or digest):
            return
        else:
            reason = reason if former is None else Trigger.CHANGE
            plan.controller.trigger(plan, reason, plan.level.patched)

    def _find_digests(self, level: ObjectLevel, raw: RawBody) -> Mapping[HandlerPlan, str | None]:
        """Return the digest of the state for each handler, except for the handlers whose filters raise errors."""
        body = Body(raw)
        failures: filters.Failures = {}
        handlers = matching = [plan.controller.handler for plan in level.plans]
        fieldless: Collection[ResourceHandler] = ()
        if self._is_selective:
            cause = self._make_cause(level.record, body, Patch(body=body), NONE)
            passed = filters.sift(handlers, cause, filters.prematch, failures)
            matching = list(filters.deduplicate(passed))
            others = [handler for handler in handlers if handler not in passed and handler not in failures]
            fieldless = filters.sift(others, cause, filters.matches_besides_field, failures)
            if failures:
                self._reports.report(failures, cause)
        try:
            essence = self._decider.essences.of(body)
        except StorageError:
            # The processor of the object reports the error. Until the storage works again, each new state counts as
            # a change.
            return {plan: level.version for plan in level.plans if plan.controller.handler in matching}
        whole = digest_essence(essence)
        digests: dict[ResourceHandler, str] = dict.fromkeys(fieldless, FIELDLESS)
        for handler in matching:
            field = handler.field
            digests[handler] = whole if field is None else digest_essence({'': resolve(essence, field, None)})
        if self.uses_conditions:
            self._add_generation(digests, body._data())
        plans = [plan for plan in level.plans if plan.controller.handler not in failures]
        return {plan: digests.get(plan.controller.handler) for plan in plans}

    # Conditions.

    @property
    def is_counted(self) -> bool:
        """Return whether only changes of the desired state increment the generations of the objects."""
        return 'status' in self._decider.table.resource.subresources

    def get_generation(self, raw: Mapping[str, Any]) -> int | None:
        """Return the generation of the object in this state; ``None`` if other changes increment it, too."""
        return raw['metadata'].get('generation') if self.is_counted else None

    def _add_generation(self, digests: dict[ResourceHandler, str], raw: Mapping[str, Any]) -> None:
        """
        Add the generation to the digests of handlers that set conditions, so that each new generation triggers them.

        Clients wait until the conditions have the newest generation. Otherwise, some generations would trigger no run,
        and the clients would wait for ever. Examples are an edit that is undone at once, and an edit of other fields
        than that of the handler.
        """
        generation = self.get_generation(raw)
        for controller in self._controllers if generation is not None else ():
            if controller.uses_conditions and digests.get(controller.handler):
                digests[controller.handler] += f':{generation}'

    def keeps_conditions(self, run: 'Run') -> bool:
        """Check whether the framework sets the conditions of the object for this handler."""
        return run.plan.controller.keeps_conditions and is_own_kind(self._decider.table.resource)

    def judge_run(
        self,
        run: 'Run',
        outcome: Outcome,
        generation: int | None,
        changed: Mapping[str, Condition | None],
    ) -> Mapping[str, Condition | None]:
        """Return the conditions after the run, except for those that the handler has changed itself."""
        run.plan.verdict = judge(run.plan.controller.handler, outcome, generation, changed)
        verdicts: dict[str, Verdict | None] = {}
        for plan in self._find_keepers(run):
            id = str(plan.controller.handler.id)
            # The handlers of several versions can have the same id.
            id = f'{id} for {plan.level.leveler.resource}' if id in verdicts else id
            verdicts[id] = plan.verdict
        for controller in self.find_unlisted(run.plan.level):
            if controller.keeps_conditions:
                verdicts.setdefault(str(controller.handler.id))
        return derive_conditions(verdicts, generation, changed)

    def _find_keepers(self, run: 'Run') -> list[HandlerPlan]:
        """Return the plans of the handlers that match the object, and for which the framework sets its conditions."""
        return [
            plan
            for plan in self.find_plans(run.plan.level)
            if plan.controller.keeps_conditions and (plan.digest or plan is run.plan)
        ]

    def carry(self, run: 'Run', edits: Sequence[ConditionEdits]) -> None:
        """Keep the changes of conditions that were not written, for the next run."""
        run.plan.carried = edits

    def refresh(self, run: 'Run') -> None:
        """Update the state of a run before its handler is called: a newer state may have arrived since the trigger."""
        # In place: the body and the patch of the run refer to this very dict.
        run.raw.clear()  # type: ignore[attr-defined]
        run.raw.update(cast(RawBody, run.plan.level.packed.copy()))

    @contextlib.contextmanager
    def patching(self, run: Run) -> Iterator[None]:
        """
        Keep the states that the stream brings while the run is patching the object, until the response arrives.

        The stream can bring the patched state before the response. Until the version in the response is known, it is
        unclear which of these states were caused by the patch, and which by other clients.
        """
        level = run.plan.level
        now = asyncio.get_running_loop().time()
        level.begin_patching(OwnPatch.of(run.plan.chain, run.plan.controller.handler, run.patch, now))
        try:
            yield
        finally:
            aside = level.end_patching()
            if aside is not None and level.record.level is level:
                level.leveler.receive(level.record, aside[0], asked_at=aside[1])

    def receive_response(self, run: Run, raw: RawBody, patch: Patch, *, observed: int | None = None) -> bool:
        """
        Receive the response to a patch of a run. Changes that result from the patch do not trigger its handler.

        Args:
            run: the run.
            raw: the state of the object in the response.
            patch: the patch.
            observed: the generation in the conditions, if the patch has set any.

        Returns:
            Whether all changes result from the patch.
        """
        level = run.plan.level
        if level.record.level is not level:
            # The object was deleted in the meantime, and another one with the same name can exist now.
            return False
        known = cast(RawBody, level.packed.copy())
        try:
            is_ours = not self._is_edited(Body(known), Body(raw), patch)
        except StorageError:
            is_ours = False
        if observed is not None and observed != raw['metadata'].get('generation'):
            is_ours = False  # clients wait for conditions with the newer generation, so the handler must run again
        # A webhook or a policy can write something new at each update, so that the patches of a handler trigger it
        # endlessly. So only edits end the chain of runs.
        if not is_ours and not self._is_mutated(known, raw, patch):
            level.note_edit()
        if level.renew(raw, asked_at=None):
            self._compare_all(level, raw, Trigger.CHANGE, own=run.plan if is_ours else None)
        return is_ours

    def _is_mutated(self, known: RawBody, raw: RawBody, patch: Patch) -> bool:
        """Check whether a webhook or a policy has changed the object by the patch."""
        try:
            return self._decider.is_mutated(known, raw, patch)
        except StorageError:
            return False

    def _is_edited(self, known: Body, body: Body, patch: Patch) -> bool:
        """Check whether another client has also changed the object, in addition to the patch."""
        essences = self._decider.essences
        expected, essence = essences.predict(known, patch), essences.of(body)
        if is_same(expected, essence):
            return False
        return is_edited(expected, essence, patch, find_written(essences.of(known), expected, patch))

    def reset(self, record: Record) -> None:
        """Forget the state and the plans after a pause: another operator could have handled the object meanwhile."""
        if record.level is not None:
            record.level.forget_version()
            record.level.forget_marks()
            for plan in record.level.plans:
                plan.controller.planner.drop(plan)
                plan.digest = None
                plan.forget_children()
            record.level.set_timer(self._levels)

    def forget(self, record: Record) -> None:
        """Called when the object is being deleted, was deleted, or is not served any more."""
        if record.level is not None:
            for plan in record.level.plans:
                plan.controller.discard(plan)
            record.level.set_timer(self._levels)
            record.detach_level()

    def take_over(self, record: Record, *, redefined: bool) -> None:
        """Take the object over from another leveler; keep the plans of the handlers that both levelers have."""
        level = record.level
        if level is None:
            return
        former = {plan.controller: plan for plan in level.plans}
        # The kept plans include their retries and back-offs, as the object has not changed.
        plans = [former.get(controller) or HandlerPlan(level, controller) for controller in self._controllers]
        for plan in level.plans:
            if plan not in plans:
                plan.controller.discard(plan)
        level.move(self, plans)
        for plan in plans:
            plan.controller.add(plan)
        if redefined:
            self.reset(record)

    # Runs.

    def yield_slots(self, record: Record) -> None:
        """Called when the worker does other work on the object first. Its slots go to other objects meanwhile."""
        if record.level is not None:
            for plan in record.level.plans:
                plan.controller.planner.yield_slot(plan)

    def is_pending(self, record: Record) -> bool:
        """Check whether any handler is triggered, and could run now if the object had a worker."""
        plans = () if record.level is None else record.level.plans
        return any(plan.is_ready for plan in plans)

    def slow_down(self, plan: HandlerPlan, cause: OwnPatch) -> None:
        """Called when the runs of the plan are paused because patches of handlers keep triggering them."""
        logger = ObjectLogger(body=Body(plan.level.packed.copy()), settings=self.settings)
        plan.controller.warn_of_loop(cause, logger)
        plan.level.set_timer(self._levels)

    def begin(self, record: Record) -> Run | None:
        """Begin the next run of the object, if a handler is triggered and its concurrency permits one more run."""
        level = record.level
        for plan in () if level is None else level.plans:
            reasons = plan.controller.planner.take(plan)
            if reasons:
                if plan.chain is not None:
                    plan.chain.begin(asyncio.get_running_loop().time())
                # A copy for each run, as the function can change it in place.
                raw = cast(RawBody, plan.level.packed.copy())
                body = Body(raw)
                logger = ObjectLogger(body=body, settings=self.settings)
                return Run(plan, reasons, raw, Patch(body=body), logger, self._begin_children(plan, body, logger))
        return None

    def _begin_children(self, plan: HandlerPlan, body: Body, logger: ObjectLogger) -> ChildrenRun | None:
        kinds = plan.controller.kinds
        if kinds is None:
            return None
        # Always the same id, so that the child does not change with the declaration of the function that runs.
        handler = plan.level.find_appliers(plan)[0].controller.handler
        adopter = Adopter(body, self._decider.table.resource, kinds.operator, handler.id if handler.prune else None)
        return ChildrenRun(
            kinds,
            plan.remember_children(),
            adopter,
            marks=plan.level.remember_marks(kinds.operator),
            host=ChildrenOfPlan(plan, body, logger),
            logger=logger,
        )

    async def execute(self, run: Run) -> Outcome:
        """Call the function of the handler; undo its mutations of the object, with a warning."""
        plan, controller = run.plan, run.plan.controller
        record, handler, planner = plan.level.record, controller.handler, controller.planner
        cause = self._make_cause(record, Body(run.raw), run.patch, run.reasons, run.logger, run.children)
        run.logger.debug("%s is run because of: %s.", handler, ', '.join(sorted(run.reasons)))
        find_backoff = functools.partial(planner.find_backoff, plan)
        rules = self._rules._replace(find_backoff=find_backoff, run_timeout=handler.run_timeout)
        state = HandlerState(started=utcnow(), retries=planner.get_attempts(plan))
        guard = BodyGuard(run.raw)
        try:
            outcome = await run_handler(handler, cause, state, rules)
            await outlive(rules)
            if run.children is not None and outcome.verdict not in ('succeeded', 'waiting'):
                run.children.yield_unapplied()
        finally:
            if run.children is not None:
                run.children.end()
                self._tell_contested(run, cause)
        if guard.is_changed:
            self.host.report_mutation(record, guard.explain(), [handler.id])
            # In place, as the body and the patch of the run refer to this dict.
            run.raw.clear()  # type: ignore[attr-defined]
            run.raw.update(guard.original)
        if outcome.result is not None and not isinstance(outcome.result, Again):
            controller.warn_of_result(outcome.result, run.logger)
        return outcome

    def _tell_contested(self, run: Run, cause: ReconcilingCause) -> None:
        """Set or remove the condition about contested fields, if the framework keeps the conditions."""
        if not run.plan.controller.keeps_conditions:
            return
        conditions = make_conditions(cause)
        now = time.monotonic()
        # Why those of all handlers? They share the condition: each would remove what another one has set.
        texts = [
            plan.children.explain_contests(plan.controller.kinds.manager, now)
            for plan in self._find_keepers(run)
            if plan.children is not None and plan.controller.kinds is not None
        ]
        text = '; '.join(filter(None, dict.fromkeys(texts)))
        try:
            if text:
                conditions[CONTESTED] = Condition(True, 'FieldContested', text)
            elif CONTESTED in conditions:
                del conditions[CONTESTED]
        except TypeError:
            return  # status.conditions is not a list, which is reported at the end of the run

    async def prune(self, run: Run, outcome: Outcome) -> Outcome:
        """Delete the children that a successful run has not applied; return the outcome of the whole run."""
        children, plan = run.children, run.plan
        if children is None or outcome.verdict != 'succeeded' or plan.level.record.level is not plan.level:
            return outcome
        # It does not match any more; or, after a pause, it is unknown what other handlers have applied.
        if plan.digest is None:
            return outcome
        children.memory.note_success(children.wanted, children.kept)
        failure = "The finalizer and the annotation for the children of %s are not restored"
        try:
            await children.restore_marks()
            failure = "The children of %s are not pruned"
            if children.kinds.handler.prune:
                await children.prune(self._find_wanted_by_others(plan))
        except APIError as error:
            return self.fail(run, error, failure)
        return outcome

    def _find_wanted_by_others(self, plan: HandlerPlan) -> Mapping[str, Collection[ChildKey] | None]:
        """Return the children that other handlers want, by the ids of the handlers; ``None`` if still unknown."""
        appliers = plan.level.find_appliers(plan)
        others: dict[str, Collection[ChildKey] | None] = {}
        # Also those that do not match the object: only they may delete their children.
        for other in self.find_plans(plan.level):
            if other not in appliers and other.controller.kinds is not None:
                id, wanted = other.controller.handler.id, other.find_wanted()
                former = others.get(id, ())
                others[id] = None if wanted is None or former is None else {*former, *wanted}
        # Handlers of versions that are not served, or whose watches do not select the object, do not match it either.
        for controller in self.elsewhere:
            if controller.kinds is not None:
                others.setdefault(controller.handler.id, ())
        unknown = self.find_unlisted(plan.level)
        return others | dict.fromkeys(each.handler.id for each in unknown if each.kinds is not None)

    async def restore_marks(self, run: Run) -> None:
        """Mark the object again after a run that has failed or waits, if another client has removed the marks."""
        if run.children is None or run.plan.level.record.level is not run.plan.level:
            return
        try:
            await run.children.restore_marks()
        except (APIError, TemporaryError) as error:
            # Why does the outcome stay? The next successful run restores the marks, too.
            run.logger.error(
                "The finalizer and the annotation for the children of %s are not restored; "
                "the next run will try it again: %r",
                run.plan.controller.handler,
                error,
                extra=_UNPOSTED,
            )

    def fail(self, run: Run, error: Exception, what: str = "The patch of %s is not applied") -> Outcome:
        """Log the error of the patch or of the pruning, and return the outcome of the failed run."""
        handler, planner = run.plan.controller.handler, run.plan.controller.planner
        is_last = handler.retries is not None and planner.get_attempts(run.plan) + 1 >= handler.retries
        delay = None if is_last else planner.find_backoff(run.plan)
        ending = "waits for the next change" if delay is None else f"will be run again in {delay} seconds"
        run.logger.error(f"{what}; it %s: %r", handler, ending, error, extra=_UNPOSTED)
        return Outcome(final=is_last, delay=delay, exception=error)

    def end(self, run: Run, outcome: Outcome | None) -> None:
        """End the run, and plan the next one; the outcome of a cancelled run is ``None``."""
        plan, planner = run.plan, run.plan.controller.planner
        is_served = plan.level.record.level is plan.level and plan in plan.level.plans and plan.digest is not None
        thread = (
            outcome.exception.thread if outcome is not None and isinstance(outcome.exception, RunTimeoutError) else None
        )
        now = asyncio.get_running_loop().time()
        recurring = plan.digest != FIELDLESS
        if thread is not None:
            present = self.host.find_level(plan.level.record.uid)
            plan.controller.leave(plan, thread, () if present is None else present.plans)
        planner.end(plan, outcome if is_served else None, now, held=thread is not None, recurring=recurring)
        model = plan.controller.handler.model
        if model is not None:
            is_failed = outcome is not None and model.is_nonconformity(outcome.exception, Body(run.raw))
            plan.note_conformity(outcome.message if outcome is not None and is_failed else None)
            if is_failed and is_served:
                # The object can have changed during the run.
                self._compare_conformity(plan, cast(RawBody, plan.level.packed[0]))
        if is_served and recurring and outcome is not None and not (outcome.final and outcome.is_error):
            self._plan_for_contests(plan, now)
        if run.children is not None:
            for each in plan.level.find_appliers(plan):
                each.controller.trigger_waiting(each)
        plan.level.set_timer(self._levels)

    @staticmethod
    def _plan_for_contests(plan: HandlerPlan, now: float) -> None:
        """Plan a run for the time when contested fields may be applied again: no event would trigger it."""
        clock = time.monotonic()
        until = None if plan.children is None else plan.children.find_contest_end(clock)
        if until is not None:
            plan.controller.planner.plan_by(plan, now + until - clock)

    def _make_cause(
        self,
        record: Record,
        body: Body,
        patch: Patch,
        reasons: frozenset[str],
        logger: ObjectLogger | None = None,
        children: ChildrenRun | None = None,
    ) -> ReconcilingCause:
        return ReconcilingCause(
            logger=ObjectLogger(body=body, settings=self.settings) if logger is None else logger,
            memo=self.host.get_memo(record),
            indices=self._levels.context.indices,
            resource=self._decider.table.resource,
            body=body,
            patch=patch,
            selected=self._decider.table.label_selector is not None,
            reasons=reasons,
            children=None if children is None else functools.partial(make_children, children),
        )
