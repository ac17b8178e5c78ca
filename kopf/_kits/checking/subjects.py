"""The input of a check: an operator, the actions of its user, and the systems outside of the cluster."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kopf._kits.checking.clusters import ClusterPlace
from kopf._kits.checking.plans import Plan
from kopf._kits.testing.sandbox import Sandbox

Scenario = Callable[[Sandbox], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """An operator, the actions of its user, and systems outside of the cluster."""

    arguments: Sequence[str]
    """The arguments of ``kopf run``."""
    options: Mapping[str, Any]
    """The options of the sandbox."""
    scenario: Scenario
    observers: Mapping[str, Callable[[], Any]]
    """Functions that return the states of systems outside of the cluster."""
    folder: Path
    """The folder for temporary files."""
    outside: Sequence[str] = ()
    """The names of the modules that simulate these systems."""
    rest: float = 0.0
    """In real time, how long the operator must have written nothing to be at rest (in seconds); 0 in virtual time."""

    cluster: ClusterPlace | None = None
    """The cluster, if the check runs on one; None for the sandbox."""

    @property
    def is_real(self) -> bool:
        """Return whether the operators run in real time."""
        return self.rest > 0

    def choose_scenario(self, plan: Plan) -> Scenario:
        """Return the scenario without the objects that the plan omits."""
        return self.scenario.reduce(plan.without) if isinstance(self.scenario, Loading) else self.scenario


class Loading:
    """
    A scenario that creates the given objects, one after another.

    If an object is given twice, the second one is an edit, which is made when the operator is at rest.
    """

    def __init__(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.bodies = bodies

    def reduce(self, without: Sequence[int]) -> 'Loading':
        """Return the scenario without these objects (by their numbers, from 1)."""
        return Loading([body for number, body in enumerate(self.bodies, 1) if number not in without])

    def __call__(self, sandbox: Any) -> None:
        """Create the objects."""
        seen = set()
        for body in self.bodies:
            meta = body.get('metadata') or {}
            key = (body.get('apiVersion'), body.get('kind'), meta.get('namespace'), meta.get('name'))
            if key in seen:
                sandbox.writes.settle()
            seen.add(key)
            sandbox.apply(body)


class Recreation:
    """A scenario that creates objects with their final specs, instead of editing them."""

    def __init__(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        self._bodies = bodies

    def __call__(self, sandbox: Sandbox) -> None:
        """Create the objects."""
        for body in self._bodies:
            sandbox.create(body)
