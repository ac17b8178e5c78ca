"""
The result of a course: the observed requests and calls, the states of the objects, and the errors.

The result of an undisturbed course also has the facts about the operator from which the check makes its plans.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kopf._kits.checking.call_records import Call
from kopf._kits.checking.end_states import State
from kopf._kits.checking.plans import Target
from kopf._kits.testing.operator_processes import WEBHOOKS
from kopf._kits.testing.sandbox import UNIMPORTANT

MAX_WRITES = 600
"""The number of writes before the rest after which the operator is considered to be in a loop."""

HIDDEN = UNIMPORTANT | WEBHOOKS | {'selfsubjectrulesreviews', 'selfsubjectaccessreviews', 'selfsubjectreviews'}
"""
The resources that are not compared as a part of the end state.

Configurations of webhooks, for example, belong to the operator and not to its objects.
"""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request of the operator."""

    verb: str
    resource: str
    subresource: str
    method: str
    path: str
    status: int
    phase: str
    """The phase of the course: ``start``, ``scenario``, ``edits``, ``quiet``, ``restart``, ``deletion``."""
    is_apply: bool = False
    """Whether the request is a server-side apply."""

    @property
    def is_write(self) -> bool:
        """Return whether the request can change something."""
        return self.method not in ('GET', 'HEAD')

    def __str__(self) -> str:
        return f'{self.method} {self.path}: {self.status}'


@dataclasses.dataclass
class Facts:
    """The facts about an operator and its objects that an undisturbed course has shown."""

    created: list[tuple[Target, Mapping[str, Any]]] = dataclasses.field(default_factory=list)
    """The objects of the user, with the user's later edits, in the order of their creation."""
    tended: set[str] = dataclasses.field(default_factory=set)
    """The resources for which the scenario has made writes that creating the objects of the user does not repeat."""
    parents: list[Target] = dataclasses.field(default_factory=list)
    """The objects of the user that the operator handles."""
    children: list[Target] = dataclasses.field(default_factory=list)
    """The objects that the operator has created."""
    watched: list[str] = dataclasses.field(default_factory=list)
    """The resources that the operator watches."""
    owned: list[str] = dataclasses.field(default_factory=list)
    """The resources whose objects level-triggered handlers restore when other clients have changed them."""
    updated: dict[str, list[tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    """The fields whose changes are handled, by their resource."""
    results: list[str] = dataclasses.field(default_factory=list)
    """The ids of handlers that store their results in the status."""
    schemas: dict[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """The schemas of custom resources."""
    is_limited: bool = False
    """Whether any handler has a limit of its retries or its time."""
    is_coordinated: bool = False
    """Whether only one of several operators works at a time, because they use peering or elect a leader."""
    is_periodic: bool = False
    """Whether some handlers are called periodically."""
    imports: list[str] = dataclasses.field(default_factory=list)
    """The modules that the operator imports from the standard library and from installed packages."""
    untried: list[str] = dataclasses.field(default_factory=list)
    """The parts of the check that the testbed does not support, one sentence each."""


@dataclasses.dataclass
class Outcome:
    """The result of a course."""

    problem: str = ''
    """Why the course was not completed, if the reason is outside of the operator."""
    exceeds_virtual_time: bool = False
    """Whether the problem is an action that is impossible in virtual time."""
    failure: str = ''
    """The failure of the operator that has ended the course: no start, an exit, or a timeout."""
    scenario_error: str = ''
    """The error that the scenario has raised."""
    has_begun: bool = False
    """Whether the disturbance has happened."""
    user_goes_on: bool = False
    """Whether the scenario has made writes after the edit of the disturbance, so that they can have replaced it."""
    rests: bool = True
    """Whether the operator has come to rest after the scenario."""
    is_cut_short: bool = False
    """Whether the scenario could not be played to its end because of the edit of the disturbance."""
    requests: list[Request] = dataclasses.field(default_factory=list)
    calls: list[Request] = dataclasses.field(default_factory=list)
    """The calls of external services."""
    steps: list[str] = dataclasses.field(default_factory=list)
    """The writes of the user."""
    quiet: float = 600.0
    """How long the operator was observed at rest (in seconds)."""
    end: State = State((), {})
    final: State = State((), {})
    """The state after the deletion of all objects of the user."""
    restarted: State | None = None
    """The state after a restart at rest, if there was one."""
    restart_writes: list[str] = dataclasses.field(default_factory=list)
    quiet_writes: list[str] = dataclasses.field(default_factory=list)
    needless_writes: list[str] = dataclasses.field(default_factory=list)
    """The writes at rest that were repeated although nothing had changed."""
    overlaps: list[str] = dataclasses.field(default_factory=list)
    early: list[str] = dataclasses.field(default_factory=list)
    """The children that were created when their owners were already Ready."""
    failed: list[Call] = dataclasses.field(default_factory=list)
    """The handlers that have failed for good."""
    retried: list[Call] = dataclasses.field(default_factory=list)
    """The handlers that are still being retried at the end."""
    logged: list[str] = dataclasses.field(default_factory=list)
    """The errors and the warnings with codes in the log of an undisturbed course until its end."""
    facts: Facts = dataclasses.field(default_factory=Facts)
    log: str = ''
    """The log of all requests, if it was requested."""
    output: str = ''
    """The end of the output of the operators."""
