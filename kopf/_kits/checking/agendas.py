"""
The agenda: the plans that a check tries, and their order.

The budget can be used up at any time. So the plans that find mistakes most often come first, and the kinds of plans
take turns.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._kits.checking import schema_edits
from kopf._kits.checking.end_states import ANNOTATION
from kopf._kits.checking.outcomes import HIDDEN, Facts, Outcome, Request
from kopf._kits.checking.plans import Edit, Moment, Plan, Target

MAX_EDITS = 40
"""The maximal number of edits of the spec that a check tries."""


class Durations(NamedTuple):
    """The durations of disturbances (in seconds)."""

    frozen: float = 30.0
    """How long a watch is silent."""
    away: float = 5.0
    """How long no operator runs while the user edits objects."""
    hanging: float = 100.0
    """How long an operator is suspended: longer than the validity of its lease or its record in the peering."""
    delayed: float = 90.0
    """The delay of a late request: longer than the clients' timeouts."""


VIRTUAL_DURATIONS = Durations()
"""The durations in virtual time."""

REAL_DURATIONS = Durations(frozen=5.0, away=2.0, hanging=70.0, delayed=8.0)
"""The durations in real time. The delays are shorter than the timeouts of many clients, so that a check ends soon."""

ANNOTATED = {'metadata': {'annotations': {ANNOTATION: 'another-client'}}}
"""The patch with which other clients edit children."""

OUTAGE = 12
"""The number of requests that fail in an outage: more than the client of the framework retries."""


WEIGHTS = {'fresh': 3, 'edits': 3, 'kill': 2, 'away': 2}
"""The turns of the kinds of plans that find most mistakes in practice; each other kind has one turn."""


class Agenda:
    """The plans to try, by their kind: the kinds take turns."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Plan]] = {}
        self._known: set[str] = set()
        self._turns: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def count(self) -> Counter[str]:
        """Return the number of waiting plans of each kind."""
        return Counter({kind: len(queue) for kind, queue in self._queues.items() if queue})

    def add(self, kind: str, plans: Iterable[Plan]) -> None:
        """Add plans of a kind of disturbances, except for those that were added before."""
        queue = self._queues.setdefault(kind, deque())
        if not queue:
            # A new kind begins with the present number of turns of the others. With 0, it would get all turns for a
            # while.
            waiting = [self._turns[other] / WEIGHTS.get(other, 1) for other, queue in self._queues.items() if queue]
            self._turns[kind] = max(self._turns[kind], int(min(waiting, default=0) * WEIGHTS.get(kind, 1)))
        for plan in plans:
            text = repr(plan)
            if text not in self._known:
                self._known.add(text)
                queue.append(plan)

    def take(self) -> Plan | None:
        """Remove and return the next plan of the kind whose turn it is."""
        waiting = [kind for kind, queue in self._queues.items() if queue]
        if not waiting:
            return None
        kind = min(waiting, key=lambda kind: self._turns[kind] / WEIGHTS.get(kind, 1))
        self._turns[kind] += 1
        return self._queues[kind].popleft()


def list_moments(requests: Sequence[Request], phases: Collection[str]) -> list[tuple[Moment, Request]]:
    """Return the requests of these phases at which a disturbance can begin: writes, and reads of single objects."""
    counts: dict[tuple[str, str, str], int] = {}
    found = []
    for request in requests:
        if request.phase == 'restart':  # disturbed courses have no such phase
            continue
        key = (request.verb, request.resource, request.subresource)
        counts[key] = counts.get(key, 0) + 1
        if request.phase in phases and request.resource not in HIDDEN and (request.is_write or request.verb == 'get'):
            moment = Moment(verb=key[0], resource=key[1], subresource=key[2], number=counts[key])
            found.append((moment, request))
    return found


def spread(items: Sequence[Any]) -> list[Any]:
    """Return the items reordered: the first, the last, and then again and again the middle of each remaining gap."""
    order: list[Any] = []
    gaps = deque([(0, len(items) - 1)])
    seen: set[int] = set()
    while gaps:
        low, high = gaps.popleft()
        if low > high:
            continue
        for position in (low, high):
            if position not in seen:
                seen.add(position)
                order.append(items[position])
        middle = (low + high) // 2
        if high - low > 1:
            gaps += [(low + 1, middle), (middle + 1, high - 1)]
    return order


class Planner:
    """
    Makes plans from the facts about the operator.

    Args:
        seed: the seed of all plans.
        facts: the facts that the undisturbed course has shown.
        durations: the durations of the disturbances.
    """

    def __init__(self, seed: int, facts: Facts, durations: Durations = VIRTUAL_DURATIONS) -> None:
        self._durations = durations
        self._seed = seed
        self._facts = facts

    def plan_course(self, agenda: Agenda, outcome: Outcome, edits: tuple[Edit, ...], phases: Collection[str]) -> None:
        """Add the plans that disturb the requests of an undisturbed course with these edits."""
        moments = list_moments(outcome.requests, phases)
        # Later phases come first: objects have more state after edits, so a disturbance can break more.
        writes = spread([moment for moment, request in moments if request.is_write])
        calls = spread([moment for moment, _ in list_moments(outcome.calls, phases)])
        base: dict[str, Any] = {'seed': self._seed, 'edits': edits}
        agenda.add('kill', (Plan(do='kill', when='unanswered', request=moment, **base) for moment in writes))
        agenda.add('kill', (Plan(do='kill', when='before', request=moment, **base) for moment in writes))
        agenda.add('call', (Plan(do='kill', when='after', request=moment, **base) for moment in calls))
        agenda.add('lose', (Plan(do='lose', request=moment, **base) for moment in writes))
        agenda.add('error', self._plan_errors(moments, base))
        agenda.add('freeze', self._plan_freezes(outcome, moments, base))
        agenda.add('away', self._plan_absences(outcome, edits))
        if 'deletion' not in phases or len(phases) > 1:
            kept = [moment for moment, request in moments if request.is_write and request.phase != 'deletion']
            agenda.add('delete', self._plan_deletions(kept, base))
        agenda.add('drop', (Plan(do='drop', request=moment, **base) for moment in writes))
        late = {**base, 'seconds': self._durations.delayed}
        agenda.add('delay', (Plan(do='delay', request=moment, **late) for moment in writes))
        agenda.add('kill', (Plan(do='kill', when='after', request=moment, **base) for moment in writes))

    def _plan_errors(self, moments: Sequence[tuple[Moment, Request]], base: Mapping[str, Any]) -> Iterator[Plan]:
        chosen = spread(moments)
        for moment, _ in chosen:
            yield Plan(do='error', status=500, request=moment, **base)
        for moment, request in chosen:
            # Why not also 409? It would be wrong: for a creation, it means that the object exists, and for a
            # server-side apply, that another client owns a field.
            if request.method == 'PUT' or (request.method == 'PATCH' and not request.is_apply):
                yield Plan(do='error', status=409, request=moment, **base)
        for moment, _ in chosen:
            yield Plan(do='error', status=429, request=moment, **base)
        if not self._facts.is_limited:
            for moment, _ in chosen:
                yield Plan(do='error', status=500, times=OUTAGE, request=moment, **base)

    def _plan_freezes(
        self,
        outcome: Outcome,
        moments: Sequence[tuple[Moment, Request]],
        base: Mapping[str, Any],
    ) -> Iterator[Plan]:
        steps = range(len(outcome.steps), 0, -1)
        for resource in self._facts.watched:
            target = Target(resource=resource)
            for step in steps:
                yield Plan(do='freeze', step=step, target=target, seconds=self._durations.frozen, **base)
        for moment, request in moments:
            if request.is_write and moment.resource in self._facts.watched and request.phase != 'deletion':
                target = Target(resource=moment.resource)
                yield Plan(do='freeze', request=moment, target=target, seconds=self._durations.frozen, **base)

    def _plan_absences(self, outcome: Outcome, edits: tuple[Edit, ...]) -> Iterator[Plan]:
        for do in ('kill', 'stop'):
            for step in [*range(len(outcome.steps), 0, -1), 0]:
                yield Plan(seed=self._seed, do=do, step=step, seconds=self._durations.away, edits=edits)

    def plan_replicas(self, agenda: Agenda, outcome: Outcome) -> None:
        """Add the plans with two operators, of which the working one is killed, stopped, or suspended."""
        moments = [moment for moment, request in list_moments(outcome.requests, ('scenario', 'deletion'))]
        moments = spread(moments)
        base: dict[str, Any] = {'seed': self._seed, 'replicas': 2}
        hang: dict[str, Any] = {'do': 'hang', 'seconds': self._durations.hanging, **base}
        steps = [*range(len(outcome.steps), 0, -1), 0]
        agenda.add('replicas', [Plan(**base)])
        agenda.add('replicas', (Plan(do='kill', when='unanswered', request=moment, **base) for moment in moments))
        agenda.add('hang', (Plan(step=step, **hang) for step in steps))
        agenda.add('hang', (Plan(when='unanswered', request=moment, **hang) for moment in moments))
        agenda.add('hang', (Plan(when='before', request=moment, **hang) for moment in moments))
        agenda.add('replicas', (Plan(do='stop', step=step, seconds=self._durations.away, **base) for step in steps))
        agenda.add('replicas', (Plan(do='kill', when='before', request=moment, **base) for moment in moments))

    def _plan_deletions(self, moments: Sequence[Moment], base: Mapping[str, Any]) -> Iterator[Plan]:
        for when in ('unanswered', 'before'):
            for parent in self._facts.parents:
                for moment in spread(moments):
                    yield Plan(do='delete', when=when, request=moment, target=parent, **base)

    def plan_children(self, agenda: Agenda, outcome: Outcome) -> None:
        """Add the plans in which another client deletes or edits children, or the user recreates objects."""
        numbers: dict[tuple[str, str], int] = {}
        for child, item in self._iter_children(outcome):
            key = (child.resource, child.namespace)
            numbers[key] = numbers.get(key, 0) + 1
            annotated = Plan(seed=self._seed, do='annotate', step=0, edits=(Edit(child, ANNOTATED),))
            if child.resource in self._facts.tended:
                continue
            if child.resource in self._facts.watched:
                agenda.add('annotate', [annotated])
            agenda.add('annotate', self.plan_absent(annotated))
            if child.resource not in self._facts.watched:
                continue
            plan = Plan(seed=self._seed, do='delete', step=0, target=child)
            agenda.add('child', [plan])
            if child.resource in self._facts.owned:
                agenda.add('child', self.plan_absent(plan))
                patch = find_tampering(item)
                if patch:
                    edited = Plan(seed=self._seed, do='tamper', step=0, edits=(Edit(child, patch),))
                    agenda.add('child', [edited, *self.plan_absent(edited)])
        for parent in self._facts.parents if not self._facts.tended else ():
            agenda.add('recreate', [Plan(seed=self._seed, do='recreate', step=0, target=parent)])

    def _iter_children(self, outcome: Outcome) -> Iterator[tuple[Target, Mapping[str, Any]]]:
        bodies = {(item.resource, item.namespace, item.name): item.body for item in outcome.end.objects}
        for child in self._facts.children:
            yield child, bodies[child.resource, child.namespace, child.name]

    def plan_absent(self, plan: Plan) -> list[Plan]:
        """Return the same plan, but with the disturbance while no operator runs."""
        return [Plan(**{**vars(plan), 'when': 'away', 'seconds': self._durations.away})]

    def list_edits(self, outcome: Outcome) -> list[Edit]:
        """Return the edits of the user's objects; the objects and their fields take turns."""
        bodies = {(item.resource, item.namespace, item.name): item.body for item in outcome.end.objects}
        rows: list[deque[Edit]] = []
        for parent in self._facts.parents:
            body = bodies.get((parent.resource, parent.namespace, parent.name))
            if body is not None:
                schema = self._facts.schemas.get(parent.resource, {})
                fields: dict[tuple[str, ...], deque[Edit]] = {}
                for edit in schema_edits.iter_edits(parent, body, schema):
                    fields.setdefault(get_field(edit), deque()).append(edit)
                rows += fields.values()
        found: list[Edit] = []
        while rows and len(found) < MAX_EDITS:
            found += [row.popleft() for row in rows]
            rows = [row for row in rows if row]
        return found[:MAX_EDITS]

    def is_handled(self, edit: Edit) -> bool:
        """Check whether the operator has a handler for the change."""
        path = get_field(edit)
        fields = self._facts.updated.get(edit.target.resource, [])
        return any(path[: len(field)] == field or field[: len(path)] == path for field in fields)

    def plan_concurrent(self, agenda: Agenda, outcome: Outcome, edit: Edit) -> None:
        """Add the plans in which the user edits an object at each request."""
        moments = [moment for moment, request in list_moments(outcome.requests, ('scenario',)) if request.is_write]
        for when in ('unanswered', 'before'):
            agenda.add(
                'edit',
                (
                    Plan(seed=self._seed, do='edit', when=when, request=moment, edits=(edit,))
                    for moment in spread(moments)
                ),
            )
        for moment in spread(moments):
            if moment.resource in self._facts.watched and moment.resource != edit.target.resource:
                target = Target(resource=moment.resource)
                plan = Plan(
                    seed=self._seed,
                    do='stale',
                    request=moment,
                    target=target,
                    seconds=self._durations.frozen,
                    edits=(edit,),
                )
                agenda.add('stale', [plan])


def get_field(edit: Edit) -> tuple[str, ...]:
    """Return the path of the field that is edited."""
    path: list[str] = []
    value: Any = edit.patch
    while isinstance(value, Mapping) and len(value) == 1:
        [(key, value)] = value.items()
        path.append(key)
    return tuple(path)


def find_tampering(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch of one field that the operator has set in the child; empty if there is no such field."""
    for entry in body.get('metadata', {}).get('managedFields') or ():
        if entry.get('operation') == 'Apply':
            patch = _change(entry.get('fieldsV1') or {}, body)
            if patch:
                return patch
    return {}


def _change(fields: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    for key, inner in fields.items():
        name = key.removeprefix('f:')
        if not key.startswith('f:') or name in ('metadata', 'selector') or name not in body:
            continue
        value = body[name]
        if isinstance(value, Mapping):
            if patch := _change(inner, value):
                return {name: patch}
        elif isinstance(value, str) and not inner:
            return {name: f'{value}-tampered'}
        elif isinstance(value, int) and not inner:
            return {name: not value if isinstance(value, bool) else value + 1}
    return {}
