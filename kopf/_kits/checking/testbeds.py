"""
Testbeds: the environment of a course, which is an API with faults, a clock, and the operators that use that API.

There is one in virtual time, one in real time with a sandbox, and one in real time with a cluster. Courses and
disturbances are the same in all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kopf._cogs.structs.references import Resource
from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.checking.call_records import CallRecorder
from kopf._kits.checking.end_states import StoredObject
from kopf._kits.testing.serving.faults import Faults, SeenRequest


class Pace(NamedTuple):
    """The times of a course (in seconds)."""

    start: float
    """How long an operator may take to start watching its resources."""
    silence: float
    """How long an operator must have written nothing to be at rest."""
    patience: float
    """How long an operator may take to come to rest."""
    periodic_patience: float
    """The same for operators that write periodically: they never come to rest, so this is shorter."""
    quiet: float
    """How long an operator at rest is observed."""
    idle: float
    """The additional idle time of each undisturbed course, compared with the previous one."""
    stride: float
    """The length of one step of time."""
    short_stride: float
    """The same while the operator writes often."""
    killed: float
    """How long a killed operator does not run, if the plan has no duration."""
    answered: float
    """How long a response takes to reach the operator."""
    stale: float
    """How long a watch has been silent before the user edits the object."""
    collected: float
    """How long the user waits between the deletion and the recreation of an object."""
    moment: float
    """The longest duration of a handler's call that does nothing."""


VIRTUAL = Pace(
    start=60.0,
    silence=100.0,  # longer than the usual delays of retries
    patience=1800.0,
    periodic_patience=300.0,
    quiet=600.0,
    idle=130.0,
    stride=25.0,
    short_stride=0.25,
    killed=1.0,
    answered=0.005,  # connections in memory are faster
    stale=5.0,
    collected=5.0,
    moment=0.0002,
)
"""The pace of courses in virtual time."""


def make_real_pace(rest: float, disturbed: float) -> Pace:
    """
    Return the pace of courses in real time.

    Args:
        rest: how long the operators must have written nothing to be at rest (in seconds).
        disturbed: the duration of the disturbance (in seconds); the time for coming to rest begins after it.
    """
    return Pace(
        start=60.0,
        silence=rest,
        patience=disturbed + 150.0 + 10 * rest,  # twice the usual delay of retries
        periodic_patience=disturbed + 10 * rest,
        quiet=rest,
        idle=1.0,
        stride=max(0.1, rest / 10),
        short_stride=0.1,
        killed=1.0,
        answered=0.1,
        stale=min(rest, 2.0),
        collected=2.0,
        moment=0.02,
    )


class KindFacts(NamedTuple):
    """The properties of a kind that checks need."""

    resource: Resource
    schema: Mapping[str, Any] | None = None
    """The schema of a custom resource; None for other kinds."""


class Write(NamedTuple):
    """A write of a client other than the operator: an edit by a merge patch, or a deletion."""

    resource: str
    name: str
    namespace: str
    patch: Mapping[str, Any] | None


class CannotContinue(Exception):
    """Raised when a course cannot continue for a reason outside of the operator; the message has the reason."""


class RunningOperator(Protocol):
    """One operator in a testbed."""

    recorder: CallRecorder

    @property
    def is_starting(self) -> bool:
        """True until the operator has started its watches and registered its webhooks."""

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the operator runs."""

    @property
    def output(self) -> str:
        """The output so far, including the log."""

    def kill(self) -> None:
        """Kill the operator immediately."""

    def stop(self) -> None:
        """Stop the operator gracefully."""

    def hang(self, seconds: float) -> None:
        """Suspend the operator for a time (in seconds)."""


class Testbed(ABC):
    """The base class of all testbeds; each is used for one course."""

    pace: Pace
    user: Any
    """The API for the user: the sandbox, or an object with its methods."""
    registry: OperatorRegistry | None = None
    """The handlers of the operator; None before its first start."""
    has_cheap_lists: bool = True
    """Whether listing all objects is fast enough to do so after each write."""
    untried: Sequence[str] = ()
    """The parts of a check that are impossible in this testbed, one sentence each, for the report."""

    @abstractmethod
    def open(self) -> None:
        """Open the testbed."""

    @abstractmethod
    def close(self) -> None:
        """Stop the operators and the API."""

    @property
    @abstractmethod
    def now(self) -> float:
        """The time (in seconds)."""

    @abstractmethod
    def get_time(self, request: SeenRequest) -> float:
        """Return the time of a request, on the scale of `now`."""

    @property
    @abstractmethod
    def requests(self) -> Sequence[SeenRequest]:
        """All requests of the operators."""

    @property
    @abstractmethod
    def faults(self) -> Faults:
        """The faults for the operator's requests."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass."""

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call the function after the time (in seconds)."""

    @abstractmethod
    def call_in_request(self, function: Callable[[], object], *, ends: bool) -> Any:
        """
        Call the function during a request; return a coroutine if the request must wait for it.

        Args:
            function: the function to call.
            ends: whether the function kills the client of the request, so that the request must not continue.
        """

    @abstractmethod
    def write(self, get_writes: Callable[[], Sequence[Write]], done: Callable[[], None], *, waits: bool) -> None:
        """
        Make the writes of another client; ignore refusals.

        Args:
            get_writes: returns the writes.
            done: called after each write.
            waits: whether to wait for the writes. It must be false while a request is processed.
        """

    @abstractmethod
    def start_operator(self, number: int, recorder: CallRecorder) -> RunningOperator:
        """Start an operator; the number (from 0) distinguishes several operators of one course."""

    def list_imports(self) -> Sequence[str]:
        """Return the modules that the operator imports from the standard library and from installed packages."""
        return ()

    @abstractmethod
    def check(self) -> None:
        """Update the records about the operators, such as the calls of their handlers."""

    @abstractmethod
    def is_stable(self) -> bool:
        """Check whether operators that have written nothing for a while have nothing left to do."""

    @abstractmethod
    def list_objects(self) -> list[StoredObject]:
        """Return all objects that were created or changed since the start."""

    @abstractmethod
    def list_versions(self) -> Mapping[tuple[str, str], Any]:
        """Return the versions of all objects, by their resources and keys."""

    @abstractmethod
    def list_kinds(self) -> Mapping[str, KindFacts]:
        """Return the kinds of objects by the names of their resources."""

    @abstractmethod
    def name_resource(self, api_version: str, kind: str) -> str:
        """Return the name of the resource of an object."""
