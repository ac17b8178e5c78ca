"""
Running the handlers of one step of a change, sub-handlers included.

A handler may declare sub-handlers while it runs. They are run right after it, by the same rules, and their records are
kept beside its own. The parent is finished only when all of them are; until then it is run again, each time declaring
them anew. Specified in the documentation's "Sub-handlers" and "Idempotence".
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from kopf._cogs.structs.ids import HandlerId
from kopf._core.actions.execution import (
    Execution,
    HandlerChildrenRetry,
    Outcome,
    TemporaryError,
    run_handler,
    utcnow,
)
from kopf._core.actions.handler_states import State
from kopf._core.actions.invocation import read_arguments
from kopf._core.actions.lifecycles import PLAIN_LIFECYCLES, LifeCycleFn
from kopf._core.intents import filters, mistakes
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.declarations import make_subhandler
from kopf._core.intents.handlers import ChangingHandler, SubHandlerOptions
from kopf._core.intents.registries import ChangingRegistry


class Step:
    """One step of the handling: some of the handlers that are due, each run once."""

    def __init__(self, cause: ChangingCause, state: State, rules: Execution, lifecycle: LifeCycleFn) -> None:
        self.cause = cause
        self.state = state
        self.rules = rules
        self.lifecycle = lifecycle
        self.outcomes: dict[HandlerId, Outcome] = {}

    def narrowed(self, parent: ChangingHandler) -> 'Step':
        """Give the same step for the sub-handlers: they see what their parent sees, be it one field."""
        if not parent.field:
            return self
        step = Step(self.cause.narrowed(parent.field), self.state, self.rules, self.lifecycle)
        step.outcomes = self.outcomes
        return step

    async def run(self, due: Sequence[ChangingHandler], lifecycle: LifeCycleFn | None = None) -> None:
        """Run those of the handlers that the lifecycle picks, one after another."""
        pick = lifecycle if lifecycle is not None else self.lifecycle
        for handler in pick(due, **self._get_kwargs_of(pick)):
            outcome = await self._run_one(handler)
            self.state.conclude(handler.id, outcome, utcnow())
            self.outcomes[handler.id] = outcome = outcome.without_exception()

    def _get_kwargs_of(self, lifecycle: LifeCycleFn) -> dict[str, Any]:
        if lifecycle in PLAIN_LIFECYCLES:
            return {'state': self.state}
        names = read_arguments(lifecycle, positional=1).names
        if names is None:
            return {**self.cause.base_kwargs(), 'state': self.state}
        getters = self.cause.GETTERS
        kwargs = {name: getters[name](self.cause) for name in names if name in getters}
        return {**kwargs, 'state': self.state} if 'state' in names else kwargs

    async def _run_one(self, handler: ChangingHandler) -> Outcome:
        children, state = SubHandlers(self, handler), self.state[handler.id]
        token = _children_var.set(children)
        try:
            return await run_handler(handler, self.cause, state, self.rules, after=children.execute_declared)
        finally:
            try:
                _children_var.reset(token)
            except ValueError:  # it was abandoned, and is closed in another context
                pass


class SubHandlers:
    """The sub-handlers of one handler in one run of it."""

    def __init__(self, step: Step, parent: ChangingHandler) -> None:
        self._outer = step
        self.parent = parent
        self.declared = ChangingRegistry()
        self._executed = False

    @functools.cached_property
    def step(self) -> Step:
        return self._outer.narrowed(self.parent)  # few handlers have sub-handlers

    async def execute_declared(self) -> None:
        """Run the sub-handlers that were declared, unless the handler did so itself."""
        if len(self.declared) and not self._executed:
            await self.execute(self.declared)

    async def execute(self, handlers: Iterable[ChangingHandler], lifecycle: LifeCycleFn | None = None) -> None:
        """
        Run the sub-handlers that are due.

        :raises HandlerChildrenRetry: if not all of them are finished.
        :raises TemporaryError: if filters of some of them have failed, so that it is unknown whether to run them.
        """
        self._executed = self._executed or handlers is self.declared
        step, state = self.step, self.step.state
        failures: filters.Failures = {}
        matching = list(filters.deduplicate(filters.sift(handlers, step.cause, filters.match, failures)))
        ids = [handler.id for handler in matching]
        state.begin(ids, utcnow())
        state.adopt(self.parent.id, ids)
        await step.run(state.due(matching, utcnow()), lifecycle)
        if not state.done(matching):
            raise HandlerChildrenRetry(state.delay(matching, utcnow()))
        if failures:  # the others are done, but the parent is not: it must find out whether to run these
            backoff = self.parent.backoff if self.parent.backoff is not None else step.rules.default_backoff
            raise TemporaryError('; '.join(error.explain(handler) for handler, error in failures.items()), backoff)


_children_var: ContextVar[SubHandlers] = ContextVar('children_var')


def append_subhandler(fn: Callable[..., Any], options: SubHandlerOptions | Mapping[str, Any]) -> None:
    """Add a sub-handler to the handler that is being run; `LookupError` if none is."""
    children = _get_children()
    handler = _make_child(fn, children, options)
    # Unlike those of other handlers, the ids have no fields in them, unless it is one function for several fields.
    if handler.field and any(each.id == handler.id and each.field != handler.field for each in children.declared):
        handler = dataclasses.replace(handler, id=HandlerId(f"{handler.id}/{'.'.join(handler.field)}"))
    if handler.field and children.step.cause.reason is Reason.UPDATE:
        handler = dataclasses.replace(handler, needs_change=True)  # as for the handlers of updates
    children.declared.append(handler)


async def execute(
    *,
    fns: Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]] | None = None,
    handlers: Iterable[ChangingHandler] | None = None,
    registry: ChangingRegistry | None = None,
    lifecycle: LifeCycleFn | None = None,
    cause: ChangingCause | None = None,
) -> None:
    """
    Run sub-handlers in the middle of the handler, and return when all of them are finished.

    Without any functions, handlers, or a registry, those declared so far by `subhandler` and `register` are run.
    As long as some are not finished, the call does not return: the handler ends here, and is run again later.

    :param fns: the functions, or a mapping of ids to functions.
    :param handlers: handlers made before.
    :param registry: a registry of handlers made before.
    :param lifecycle: which of them to run in one step; by default, as all other handlers of the operator.
    :param cause: the cause to run them for; only that of the current handler is possible.
    :raises TypeError: if several sources of handlers are given.
    :raises LookupError: if called outside of a change-detecting handler.
    """
    if sum(source is not None for source in (fns, handlers, registry)) > 1:
        raise TypeError("Only one of fns=, handlers=, registry= can be given to kopf.execute().")
    children = _get_children()
    if cause is not None and cause is not children.step.cause:
        raise TypeError("Only the cause of the current handler can be given to kopf.execute().")
    if isinstance(fns, Mapping):
        chosen: Iterable[ChangingHandler] = [_make_child(fn, children, {'id': id}) for id, fn in fns.items()]
    elif fns is not None:
        chosen = [_make_child(fn, children, {}) for fn in fns]
    elif handlers is not None:
        chosen = list(handlers)
    else:
        chosen = registry if registry is not None else children.declared
    await children.execute(chosen, lifecycle)


def _make_child(
    fn: Callable[..., Any],
    children: SubHandlers,
    options: SubHandlerOptions | Mapping[str, Any],
) -> ChangingHandler:
    handler = make_subhandler(fn, children.parent, options)
    for problem in mistakes.find_missing(handler, children.step.cause.indices):
        raise TypeError(problem)
    return handler


def _get_children() -> SubHandlers:
    try:
        return _children_var.get()
    except LookupError:
        raise LookupError(
            "Sub-handlers can be declared and run only inside of change-detecting handlers: "
            "those of @kopf.on.create/update/delete/resume/field."
        ) from None
