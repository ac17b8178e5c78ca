"""
Waits for a state of one object, and their error reports.

After a timeout, the author of a test needs to know what the operator has done. So the error contains the Events of the
object and the logs of the operators, which the plugin for pytest adds to its report.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import orjson

from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.serving.api_dispatch import Api
from kopf._kits.testing.wire import statuses

Predicate = Callable[[Body], object]


class WaitTimeout(TimeoutError):
    """
    Raised when the object has not reached the state in time; the message contains the object.

    ``events`` are the Events of the object, a line each; ``logs`` are the outputs of the operators of the sandbox.
    """

    __module__ = 'kopf.testing'

    def __init__(self, message: str, events: list[str]) -> None:
        super().__init__(message)
        self.events = events
        self.logs: list[str] = []


class PredicateError(TypeError):
    """Raised when the predicate is not a function that returns whether the object is as expected."""

    __module__ = 'kopf.testing'


class ExpectedState:
    """
    The expected state of an object, in one wait.

    Args:
        resource: the name of the resource, as the caller has given it.
        name: the name of the object.
        predicate: a function of the object; if None, the object must only exist.

    Raises:
        PredicateError: the predicate is not such a function.
    """

    def __init__(self, resource: str, name: str, predicate: Predicate | None) -> None:
        self._resource = resource
        self._name = name
        self._predicate = predicate
        self._failure: Exception | None = None
        self._has_decided = False
        if predicate is not None and not callable(predicate):
            raise PredicateError(f'the predicate must be a function of the object, not {predicate!r}')
        if inspect.iscoroutinefunction(predicate):
            raise PredicateError('the predicate must not be an async function: its result is needed at once')

    @property
    def wanted(self) -> str:
        """The expected state, for messages."""
        return 'as expected' if self._predicate is not None else 'there'

    def accept(self, body: Body) -> bool:
        """Return whether the predicate is true; errors about absent parts of the object count as false."""
        self._failure = None
        if self._predicate is None:
            return True
        try:
            result = self._predicate(body)
            self._has_decided = self._has_decided or result is not None
            return bool(result)
        except (LookupError, StopIteration) as error:
            self._failure = error
        except (AttributeError, TypeError) as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise PredicateError(f'the predicate cannot be called with the object: {error}') from None
            if 'NoneType' not in str(error):
                raise
            self._failure = error
        return False

    def explain(self, wanted: str, timeout: float, last: Body | None) -> str:
        """Return the message of a timeout, with the last state of the object (None if it was absent)."""
        failure = ''
        if self._failure is not None:
            failure = f' (the predicate has failed: {_describe(self._failure)})'
        elif self._predicate is not None and last is not None and not self._has_decided:
            failure = ' (the predicate has returned None: is there no return in it?)'
        state = 'absent' if last is None else orjson.dumps(_tidy(last), option=orjson.OPT_INDENT_2).decode()
        return f'{self._resource} {self._name!r} is not {wanted} after {timeout} s{failure}; it is: {state}'


class Wait:
    """Waits for one object, with or without a predicate."""

    def __init__(self, api: Api, resource: str, name: str, namespace: str | None, predicate: Predicate | None) -> None:
        self._api = api
        self._resource = resource
        self._name = name
        self._namespace = namespace
        self._expected = ExpectedState(resource, name, predicate)
        self._last: Body | None = None
        self._is_served = False

    async def until_there(self, timeout: float) -> Body:
        """Wait until the object exists and the predicate is true of it; return the object."""
        found = await self._until(
            lambda body: body is not None and self._expected.accept(body), timeout, self._expected.wanted
        )
        return found or {}

    async def until_gone(self, timeout: float) -> None:
        """Wait until the object does not exist."""
        await self._until(lambda body: body is None, timeout, 'gone')

    async def _until(self, condition: Callable[[Body | None], bool], timeout: float, wanted: str) -> Body | None:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                while True:
                    kind = await self._served()
                    self._is_served = True
                    table = kind.store
                    record = table.get(self._place(kind), self._name)
                    await kind.ready(*[record] if record is not None else [])
                    self._last = kind.body(record) if record is not None else None
                    if condition(self._last):
                        return self._last
                    waiter = table.waiter()
                    try:
                        await waiter
                    finally:
                        table.discard(waiter)
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the predicate
            raise WaitTimeout(self._explain(wanted, timeout), self._list_events()) from None

    async def _served(self) -> Kind:
        while True:
            try:
                return self._api.catalog.named(self._resource)
            except statuses.Refusal:
                await asyncio.sleep(0.02)

    def _place(self, kind: Kind) -> str:
        return (self._namespace or 'default') if kind.namespaced else ''

    def _explain(self, wanted: str, timeout: float) -> str:
        if not self._is_served:
            return (
                f'{self._resource} {self._name!r} is not {wanted} after {timeout} s: '
                f'there is no kind {self._resource!r}'
            )
        return self._expected.explain(wanted, timeout, self._last)

    def _list_events(self) -> list[str]:
        """Return the Events of the object, also of an absent one: a line each, the oldest first."""
        kind = self._api.catalog.named('events.v1')
        bodies = [kind.body(record) for record in kind.store.records('')]
        return [_format(body) for body in bodies if self._is_meant(body.get('involvedObject') or {})]

    def _is_meant(self, reference: Body) -> bool:
        if self._last is not None:
            return bool(reference.get('uid') == self._last['metadata']['uid'])
        try:
            kind = self._api.catalog.named(self._resource)
        except statuses.Refusal:
            return False
        return (reference.get('kind'), reference.get('name')) == (kind.name, self._name)


def _describe(error: Exception) -> str:
    return f'{type(error).__name__}: {error}' if str(error) else type(error).__name__


def _tidy(body: Body) -> Body:
    """Return the object without the fields that matter only to the server."""
    metadata: dict[str, Any] = {key: value for key, value in body['metadata'].items() if key != 'managedFields'}
    return {**body, 'metadata': metadata}


def _format(event: Body) -> str:
    count = (event.get('series') or {}).get('count') or event.get('count') or 1
    times = f' (x{count})' if count > 1 else ''
    return f"{event.get('type') or '-'} {event.get('reason') or '-'}{times}: {event.get('message') or ''}"
