"""
Faults on request: simulated failures of a cluster for tests of operators.

A fault is a rule for a number of requests: each matching request uses it once; older rules come first. Rules about
watches also apply to open watches. All methods can be called from any thread.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

T = TypeVar('T')

Action = Literal['error', 'delay', 'drop', 'lose', 'freeze', 'cut', 'gone', 'fail', 'end', 'say', 'call']
WATCH_ACTIONS: frozenset[str] = frozenset({'freeze', 'cut', 'gone', 'fail', 'end', 'say'})
REASONS = {
    400: 'BadRequest',
    401: 'Unauthorized',
    403: 'Forbidden',
    404: 'NotFound',
    409: 'Conflict',
    410: 'Expired',
    422: 'Invalid',
    429: 'TooManyRequests',
    500: 'InternalError',
    503: 'ServiceUnavailable',
    504: 'Timeout',
}


@dataclasses.dataclass(slots=True, eq=False)
class SeenRequest:
    """One request as the sandbox has seen it; ``status`` is 0 until it is answered."""

    method: str
    path: str
    query: Mapping[str, str]
    user_agent: str
    content_type: str
    # a lambda, because virtual time replaces `time.time` later
    time: float = dataclasses.field(default_factory=lambda: time.time())
    verb: str = ''
    group: str = ''
    version: str = ''
    resource: str = ''
    namespace: str = ''
    name: str = ''
    subresource: str = ''
    kind: str = ''
    user: str = ''
    body: bytes = b''
    status: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class Fault:
    """
    One rule: an action for the requests that meet the conditions; ``times`` limits its use (None: no limit).

    Empty conditions match everything. ``path`` and ``query`` are regular expressions that can match anywhere.
    ``seconds`` is the length of a delay, or of a freeze (None: until `Faults.clear`). ``line`` is the line to insert.
    ``function`` is called before the request is executed, or, with ``late``, between its execution and the response. If
    it returns an awaitable, the request waits for that. ``condition`` is a function of a request that meets all other
    conditions; it returns whether the rule applies.
    """

    action: Action
    times: int | None = 1
    method: str = ''
    path: str = ''
    query: str = ''
    verb: str = ''
    resource: str = ''
    namespace: str = ''
    name: str = ''
    user_agent: str = ''
    status: int = 500
    reason: str = ''
    message: str = ''
    retry_after: int | None = None
    seconds: float | None = None
    line: str = ''
    function: Callable[[], object] | None = None
    late: bool = False
    condition: Callable[[SeenRequest], bool] | None = None

    def matches(self, request: SeenRequest) -> bool:
        """Check whether the request meets the conditions, no matter whether the rule is used up."""
        for field in ('method', 'verb', 'resource', 'namespace', 'name'):
            wanted = getattr(self, field)
            if wanted and wanted.lower() != getattr(request, field).lower():
                return False
        query = '&'.join(f'{key}={value}' for key, value in request.query.items()) if self.query else ''
        return (
            (not self.path or re.search(self.path, request.path) is not None)
            and (not self.query or re.search(self.query, query) is not None)
            and self.user_agent in request.user_agent
            and (self.condition is None or self.condition(request))
        )


class Faults:
    """
    All rules that are not used up.

    ``sandbox.faults.error(429, times=3, retry_after=1, verb='patch')`` makes the next three patches fail;
    ``sandbox.faults.drop_watches()`` breaks off all open watches. The conditions are the fields of `Fault`.
    """

    def __init__(self, controls: 'Controls') -> None:
        self._controls = controls
        self._rules: list[Fault] = []
        self._frozen: set[Fault] = set()

    def add(self, action: Action, **fields: Any) -> Fault:
        """
        Add a rule with these fields of `Fault`.

        Raises:
            TypeError: `Fault` has no such field.
            ValueError: A value is not allowed.
        """
        if action not in get_args(Action):
            raise ValueError(f'unknown fault {action!r}: it must be one of {", ".join(get_args(Action))}')
        rule = Fault(action, **fields)
        if (action == 'call') is not callable(rule.function):
            raise ValueError('function= is required for the fault "call", and not allowed for other faults')
        if not (rule.condition is None or callable(rule.condition)):
            raise ValueError('condition= is a function of the request: it is not for other clients')

        def append() -> None:
            self._rules.append(rule)
            self._controls.wake()

        self._controls.call(append)
        return rule

    def error(self, status: int = 500, *, times: int | None = 1, **fields: Any) -> Fault:
        """Answer with this error instead of executing the request; all other options are optional."""
        return self.add('error', status=status, times=times, **fields)

    def delay(self, seconds: float, *, times: int | None = 1, **fields: Any) -> Fault:
        """Wait for this time (in seconds) before the request is executed."""
        return self.add('delay', seconds=seconds, times=times, **fields)

    def drop(self, *, times: int | None = 1, **fields: Any) -> Fault:
        """Break off the connection instead of answering, and do not execute the request."""
        return self.add('drop', times=times, **fields)

    def lose(self, *, times: int | None = 1, **fields: Any) -> Fault:
        """Execute the request, but break off the connection: the client does not learn the outcome."""
        return self.add('lose', times=times, **fields)

    def call(
        self,
        function: Callable[[], object],
        *,
        times: int | None = 1,
        late: bool = False,
        **fields: Any,
    ) -> Fault:
        """Call the function before the request is executed, or (``late``) when it is executed but not answered yet."""
        return self.add('call', function=function, times=times, late=late, **fields)

    def freeze_watches(self, seconds: float | None = None, *, times: int | None = None, **fields: Any) -> Fault:
        """Keep watches open but send no more data, for this time (in seconds) or until `clear`."""
        return self.add('freeze', seconds=seconds, times=times, **fields)

    def cut_watches(self, *, times: int | None = 1, **fields: Any) -> Fault:
        """Break off watches in the middle of the next line."""
        return self.add('cut', times=times, **fields)

    def expire_watches(self, *, times: int | None = 1, **fields: Any) -> Fault:
        """End watches by an in-stream error 410."""
        return self.add('gone', times=times, **fields)

    def fail_watches(self, status: int = 500, *, times: int | None = 1, **fields: Any) -> Fault:
        """End watches by an in-stream error; ``reason`` and ``message`` are optional."""
        return self.add('fail', status=status, times=times, **fields)

    def end_watches(self, *, times: int | None = 1, **fields: Any) -> Fault:
        """End watches at once without an error, as servers do at their timeouts, and proxies at any time."""
        return self.add('end', times=times, **fields)

    def say(self, line: str, *, times: int | None = 1, **fields: Any) -> Fault:
        """Insert an arbitrary line into watches, which continue after it."""
        return self.add('say', line=line, times=times, **fields)

    def drop_watches(self) -> int:
        """Break off all open watches; return their number."""
        return self._controls.call(self._controls.drop_watches)

    def forget_history(self) -> None:
        """Make all present versions too old: watches that begin at them are answered with 410."""
        self._controls.call(self._controls.forget_history)

    def expire_tokens(self) -> None:
        """Refuse all tokens that were issued until now with 401; the kubeconfig gets a new token."""
        self._controls.call(self._controls.expire_tokens)

    def refuse_connections(self, seconds: float | None = None) -> None:
        """Close the port and all connections, for this time (in seconds) or until `accept_connections`."""
        self._controls.call_async(lambda: self._controls.refuse_connections(seconds))

    def accept_connections(self) -> None:
        """Listen again, on the same port."""
        self._controls.call_async(self._controls.accept_connections)

    def take_down(self, group: str) -> None:
        """Make the API group unavailable, as if it had a server of its own that is down."""
        self._controls.call(lambda: self._controls.set_availability(group, False))

    def freeze_discovery(self, frozen: bool = True) -> None:
        """Keep the discovery documents unchanged, even if kinds are added or removed."""
        self._controls.call(lambda: self._controls.freeze_discovery(frozen))

    def bring_up(self, group: str) -> None:
        """Make the API group available again."""
        self._controls.call(lambda: self._controls.set_availability(group, True))

    def clear(self) -> None:
        """Remove all rules, and continue frozen watches."""

        def clear() -> None:
            self._rules.clear()
            self._frozen.clear()
            self._controls.wake()

        self._controls.call(clear)

    def pending(self) -> list[Fault]:
        """Return the rules that are not used up."""
        return list(self._rules)

    def take(self, request: SeenRequest, *, watching: bool = False, idle: bool = False) -> Fault | None:
        """
        Return the first rule that matches the request, and count its use.

        Args:
            request: the request; it can be that of an open watch.
            watching: whether to look for rules about watches, or else for those about requests.
            idle: whether the watch has no line to send now: then, rules that cut a line do not apply.
        """
        for rule in self._rules:
            if (rule.action in WATCH_ACTIONS) is not watching or (idle and rule.action == 'cut'):
                continue
            if rule.matches(request):
                if rule.times is not None:
                    rule.times -= 1
                    if rule.times <= 0:
                        self._rules.remove(rule)
                if rule.action == 'freeze':
                    self._frozen.add(rule)
                return rule
        return None

    def is_frozen(self, rule: Fault) -> bool:
        """Check whether a freeze was not cleared; its time limit is not considered."""
        return rule in self._frozen


class Controls:
    """The methods of the server that faults need; they are called in the server's thread by `call`."""

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the server's thread and wait for it."""
        raise NotImplementedError

    def call_async(self, function: Callable[[], Any]) -> None:
        """Call the coroutine function in the server's thread and wait for it."""
        raise NotImplementedError

    def wake(self) -> None:
        """Wake up all watches, so that they check the rules."""
        raise NotImplementedError

    def drop_watches(self) -> int:
        """Break off all watches."""
        raise NotImplementedError

    def forget_history(self) -> None:
        """Drop the history of all resources."""
        raise NotImplementedError

    def freeze_discovery(self, frozen: bool) -> None:
        """Freeze the discovery, or update it again."""
        raise NotImplementedError

    def set_availability(self, group: str, available: bool) -> None:
        """Make the API group available or unavailable."""
        raise NotImplementedError

    def expire_tokens(self) -> None:
        """Replace the token."""
        raise NotImplementedError

    async def refuse_connections(self, seconds: float | None = None) -> None:
        """Close the port and all connections, for a time or until `accept_connections`."""
        raise NotImplementedError

    async def accept_connections(self) -> None:
        """Listen again."""
        raise NotImplementedError
