"""
The present activities of an operator: running handlers and their lines, waiting objects, the states of watches.

All facts are computed on request, in the thread of the status server, while the event loop continues or is blocked. So
each collection is copied in one atomic step, and facts about different objects can be from slightly different moments.
"""

import asyncio
import datetime
import heapq
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.aiokits.loop_monitors import LoopMonitor
from kopf._cogs.helpers.versions import version
from kopf._cogs.structs.meters import name_resource
from kopf._core.actions.execution import utcnow
from kopf._core.engines.running_calls import RunningCalls
from kopf._core.engines.timelines import Story, Timelines
from kopf._core.reactor.census import Census, find_state
from kopf._core.reactor.object_records import ObjectRecord
from kopf._core.reactor.orchestration import Orchestrator
from kopf._core.reactor.watches import ResourceWatch
from kopf._core.reactor.workers import WorkerPool

LAG_LIMIT = 0.3
"""How long a request waits for the event loop of the operator (in seconds); then, the loop is reported as blocked."""

MAX_STACKS = 50
"""The number of running handlers in live updates, with their stacks: the handlers that have run longest."""

UNREADY = 'unready'
"""The reason for waiting for another object, such as a child: until it changes, and at most until the next run."""


class OperatorInspection:
    """
    Provides the facts about the present activities of an operator.

    Args:
        orchestrator: knows the watches with the records of the objects.
        workers: knows which objects have workers.
        monitor: the monitor of the event loop.
        calls: knows which handlers run.
        timelines: the timelines of the objects, if they are recorded.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        workers: WorkerPool,
        monitor: LoopMonitor[Any],
        calls: RunningCalls,
        timelines: Timelines | None = None,
    ) -> None:
        self._orchestrator = orchestrator
        self._workers = workers
        self._monitor = monitor
        self._calls = calls
        self._timelines = timelines
        self._census = Census(orchestrator, workers)
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()

    async def describe(self, limit: int) -> Mapping[str, Any]:
        """Return the present activities of the operator, with at most this number of waiting objects."""
        waiting = list(self._iter_waiting())
        counts: dict[str, dict[str, int]] = {}
        for (resource, state), count in self._census.count_objects().items():
            counts.setdefault(resource, {})[state] = count
        return {
            **await self.describe_operator(None),
            'waiting': heapq.nsmallest(limit, waiting, key=_get_time),
            'waiting_total': len(waiting),
            'objects': counts,
        }

    async def describe_operator(self, limit: int | None = MAX_STACKS) -> Mapping[str, Any]:
        """Return the facts that need no iteration over all objects, with at most this number of running handlers."""
        lag, responds = await self._monitor.measure_lag(LAG_LIMIT)
        blocker = None if responds else self._monitor.find_current_task()
        culprit = None if responds else self._monitor.culprit or self._monitor.look()
        return {
            'version': version,
            'pid': os.getpid(),
            'time': round(time.time(), 3),
            'seconds': round(time.monotonic() - self._began, 3),
            'paused': self._workers.paused,
            'loop': {'lag': round(lag, 6), 'blocked': not responds, 'by': None if culprit is None else str(culprit)},
            'running': self._calls.describe(blocker, self._monitor.thread_id, limit=limit),
            'running_total': len(self._calls),
            'watches': [_describe_watch(watch) for watch in self._orchestrator.get_watches()],
        }

    def list_objects(self, filters: Mapping[str, str], limit: int) -> Mapping[str, Any]:
        """Return the objects with these values of ``resource``, ``namespace``, ``name`` and ``state``."""
        working, now = self._workers.find_working(), self._loop.time()
        objects: list[dict[str, Any]] = []
        total = 0
        for watch, record in self._iter_records():
            facts = self._describe_object(watch, record, working, now)
            if all(facts.get(name) == value for name, value in filters.items()):
                total += 1
                if len(objects) < limit:
                    objects.append(facts)
        return {'objects': objects, 'total': total}

    async def describe_timeline(self, uid: str, after: int) -> Mapping[str, Any]:
        """Return the object, its running handlers, and its timeline after the entry with this number."""
        story = Story(0, [], None) if self._timelines is None else self._timelines.read(uid, after)
        responds = (await self._monitor.measure_lag(LAG_LIMIT))[1]
        blocker = None if responds else self._monitor.find_current_task()
        return {
            'uid': uid,
            'time': round(time.time(), 3),
            'number': story.number,
            'entries': story.entries,
            'diff': story.diff,
            'objects': self.describe_objects([uid]),
            'running': self._calls.describe(blocker, self._monitor.thread_id, uid=uid, limit=MAX_STACKS),
        }

    # Live updates.

    def follow(self) -> None:
        """Remember from now on which objects change."""
        if self._timelines is not None:
            self._timelines.follow()

    def unfollow(self) -> None:
        """Do not remember which objects change any more."""
        if self._timelines is not None:
            self._timelines.unfollow()

    def take_changed(self, limit: int) -> Collection[str]:
        """Return the uids of some objects that have changed since the last call."""
        return () if self._timelines is None else self._timelines.take_changed(limit)

    def get_known(self) -> Mapping[str, frozenset[str]]:
        """Return the uids of all objects by the names of their resources."""
        known: dict[str, frozenset[str]] = {}
        for watch in self._orchestrator.get_watches():
            name = name_resource(watch.resource)
            known[name] = known.get(name, frozenset()).union(list(watch.records))
        return known

    def describe_objects(self, uids: Collection[str]) -> list[dict[str, Any]]:
        """Return the objects with these uids, except for unknown ones."""
        working, now = self._workers.find_working(), self._loop.time()
        return [
            self._describe_object(watch, record, working, now)
            for watch in self._orchestrator.get_watches()
            for uid in uids
            if (record := watch.records.get(uid)) is not None
        ]

    def _describe_object(
        self, watch: ResourceWatch, record: ObjectRecord, working: Collection[ObjectRecord], now: float
    ) -> dict[str, Any]:
        daemons, timelines = get_daemons(record), self._timelines
        facts = _identify(watch, record) | {
            'state': find_state(record, is_working=record in working),
            'daemons': len(daemons),
            'number': 0 if timelines is None else timelines.get_number(record.uid),
        }
        if timelines is not None and (failure := timelines.find_failure(record.uid)) is not None:
            facts['failed'], facts['error'] = failure
        if record.wakeup is not None or daemons or record.level is not None:
            facts |= _describe_plan(record, now)
        return facts

    def _iter_records(self) -> Iterator[tuple[ResourceWatch, ObjectRecord]]:
        for watch in self._orchestrator.get_watches():
            for record in list(watch.records.values()):
                yield watch, record

    def _iter_waiting(self) -> Iterator[dict[str, Any]]:
        """Return everything that waits for a certain time: delayed handlers, daemons, timers, planned runs."""
        now = self._loop.time()
        for watch, record in self._iter_records():
            for facts in _find_delays(record, now):
                yield _identify(watch, record) | facts


# The attributes of records are read only once: the event loop can reset them meanwhile.


def _find_delays(record: ObjectRecord, now: float) -> Iterator[dict[str, Any]]:
    yield from _find_retries(record, now)
    yield from _find_daemons(record, now)
    yield from _find_plans(record, now)


def _describe_plan(record: ObjectRecord, now: float) -> dict[str, Any]:
    """Return the next time that the object waits for, or the other object, and the error that has caused the wait."""
    plan = min(_find_delays(record, now), key=_rank, default=None)
    if plan is None or (plan['seconds'] is None and plan['why'] != UNREADY):
        return {}
    facts = {'why': plan['why'], 'handlers': [each['handler'] for each in plan['handlers']]}
    if plan['seconds'] is not None:
        facts['until'] = round(time.time() + plan['seconds'], 1)
    if plan['why'] == UNREADY:
        return facts | {'awaited': plan['handlers'][0]['message']}
    if plan['error'] is not None:
        return facts | {'failed': None, 'error': plan['error']}
    for each in plan['handlers']:
        if each['message']:
            return facts | {'failed': each['handler'], 'error': each['message']}
    return facts


def _find_retries(record: ObjectRecord, now: float) -> Iterator[dict[str, Any]]:
    wakeup, throttle = record.wakeup, record.throttle
    if wakeup is None:
        return
    is_failed = record.throttled and throttle is not None
    yield {
        'seconds': _round(wakeup.when() - now),
        'why': 'error' if is_failed else 'retry',
        'handlers': [] if is_failed else _describe_delayed(record),
        'error': throttle.last_error if is_failed and throttle is not None else None,
    }


def _find_daemons(record: ObjectRecord, now: float) -> Iterator[dict[str, Any]]:
    for daemon in get_daemons(record):
        if daemon.task is None:
            state = daemon.state
            retries, message = (0, None) if state is None else (state.retries, state.message)
            yield {
                'seconds': _round(daemon.due_at - now),
                'why': daemon.handler.kind.lower(),
                'handlers': [{'handler': daemon.handler.id, 'retry': retries, 'message': message}],
                'error': None,
            }


def _find_plans(record: ObjectRecord, now: float) -> Iterator[dict[str, Any]]:
    level = record.level
    for plan in () if level is None else level.plans:
        times = [at for at in (plan.due_at, plan.paused_until) if at is not None]
        awaits, message = plan.awaits_readiness, plan.message
        if not plan.is_running and (times or plan.is_waiting or awaits):
            yield {
                'seconds': _round(max(times) - now) if times else None,
                'why': 'limit' if plan.is_waiting else UNREADY if awaits else str(plan.due_reason),
                'handlers': [{'handler': plan.controller.handler.id, 'retry': plan.failures, 'message': message}],
                'error': None,
            }


def _identify(watch: ResourceWatch, record: ObjectRecord) -> dict[str, Any]:
    return {
        'resource': name_resource(watch.resource),
        'namespace': record.namespace,
        'name': record.name,
        'uid': record.uid,
    }


def _describe_delayed(record: ObjectRecord) -> list[dict[str, Any]]:
    """Return the handlers of the object that are delayed, with their last errors."""
    cycle, now = record.cycle, utcnow()
    states = [] if cycle is None else list(cycle.state.items())
    return [
        {'handler': id, 'retry': state.retries, 'message': state.message}
        for id, state in states
        if not state.finished and _is_later(state.delayed, now)
    ]


def _is_later(at: datetime.datetime | None, now: datetime.datetime) -> bool:
    return at is not None and at > now


def get_daemons(record: ObjectRecord) -> list[Any]:
    """Return the daemons and timers of the object; callable from any thread."""
    daemons = record.daemons
    return [] if daemons is None else [daemon for daemon in list(daemons.known.values()) if daemon is not None]


def _describe_watch(watch: ResourceWatch) -> dict[str, Any]:
    return {
        'resource': name_resource(watch.resource),
        'version': watch.resource.version,
        'namespace': watch.namespace,
        'state': watch.state.value,
        'paused': watch.paused,
        'complete': watch.complete,
        'objects': len(watch.records),
        'silent': round(time.monotonic() - watch.last_event_at, 3),
        'failure': watch.failure,
    }


def _round(seconds: float) -> float | None:
    """Return the time, not less than zero; ``None`` if there is none, as for a timer that waits for a change."""
    return None if math.isinf(seconds) else round(max(0.0, seconds), 3)


def _rank(facts: Mapping[str, Any]) -> tuple[bool, float]:
    """Return the key to sort what an object waits for: what has failed or is missing first, then by time."""
    is_trouble = facts['error'] is not None or any(each['message'] for each in facts['handlers'])
    return not is_trouble, _get_time(facts)


def _get_time(facts: Mapping[str, Any]) -> float:
    seconds = facts['seconds']
    return math.inf if seconds is None else float(seconds)
