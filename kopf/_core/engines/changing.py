"""
Running the change-detecting handlers (``@kopf.on.create`` and so on) in one step of a cycle, with their sub-handlers.

A handler can declare sub-handlers while it runs. They are run right after it, with the same rules, and their progress
is stored beside that of the parent. The parent is finished only when all of them are. Until then, it is retried, and
declares its sub-handlers again each time. Specified in the documentation's "Sub-handlers" and "Idempotence".
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from kopf._cogs.helpers.explanations import INTERRUPTIONS, name_error
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.patches import Patch
from kopf._core.actions.execution import (
    Execution,
    HandlerChildrenRetry,
    Logger,
    Outcome,
    TemporaryError,
    outlive,
    run_handler,
    utcnow,
)
from kopf._core.actions.handler_states import State
from kopf._core.actions.invocation import ThreadCalls, read_arguments
from kopf._core.actions.lifecycles import PLAIN_LIFECYCLES, LifeCycleFn
from kopf._core.intents import filters, mistakes
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.declarations import make_subhandler
from kopf._core.intents.dependencies import find_arguments_of
from kopf._core.intents.handlers import ChangingHandler, SubHandlerOptions
from kopf._core.intents.registries import ChangingRegistry


class Step:
    """
    One step of a handling cycle: one attempt of some of the handlers that are due.

    Args:
        cause: the cause of the change.
        state: the progress of all handlers of the cycle.
        rules: how handlers are run.
        lifecycle: the function that picks the handlers.
        is_halted: checks whether the operator is pausing, so that no further handler may begin.
    """

    def __init__(
        self,
        cause: ChangingCause,
        state: State,
        rules: Execution,
        lifecycle: LifeCycleFn,
        is_halted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.cause = cause
        self.state = state
        self.rules = rules
        self.lifecycle = lifecycle
        self._is_halted = is_halted
        self.outcomes: dict[HandlerId, Outcome] = {}
        self._calls_of_children: ThreadCalls | None = None  # of sub-handlers of all levels; `None` if there were none

    def narrowed(self, parent: ChangingHandler) -> 'Step':
        """Create the step for the sub-handlers: they inherit the field that the parent is declared for."""
        cause = self.cause.narrowed(parent.field) if parent.field else self.cause
        rules = self.rules
        if rules.is_cancelled is not None:
            self._calls_of_children = ThreadCalls(rules.running)
            # The parent can have a time-out around them, which cancels the task.
            rules = rules._replace(running=self._calls_of_children, is_cancelled=None)
        step = Step(cause, self.state, rules, self.lifecycle, self._is_halted)
        # Why not copied? The outcomes of sub-handlers belong to the whole step, and are delivered together.
        step.outcomes = self.outcomes
        return step

    async def run(self, due: Sequence[ChangingHandler], lifecycle: LifeCycleFn | None = None) -> None:
        """Run the handlers that the lifecycle picks, one after another, and store their outcomes in the state."""
        pick, patch = lifecycle if lifecycle is not None else self.lifecycle, self.cause.patch
        known = _express(patch)
        for handler in self._pick(due, pick):
            # The operator can have paused since the step began, or the process was frozen meanwhile. The operator that
            # takes over waits only for the handler that is running, and runs the remaining ones itself.
            if self._is_halted():
                break
            former = known
            outcome = await self._run_one(handler)
            known = _express(patch)
            if not outcome.has_begun:
                break  # it has waited for a thread until the operator paused
            # A handler can also have requested what another one has requested before.
            if outcome.result is not None or known != former or (patch and _can_patch(handler)):
                self.state.note_contribution(handler.id)
            # Note the outcomes after each handler, so that a cancelled step keeps the successes so far.
            self.state.note_outcome(handler.id, outcome, utcnow())
            self.outcomes[handler.id] = outcome = outcome.without_exception()
            # After a time-out or a stray cancellation, the parent has not waited for the threads of its sub-handlers.
            # But it can be called again, and they with it.
            if self._calls_of_children is not None and self.rules.is_cancelled is not None:
                await self._calls_of_children.outwait(self.rules.is_cancelled)
            await outlive(self.rules)

    def _pick(self, due: Sequence[ChangingHandler], lifecycle: LifeCycleFn) -> Iterable[ChangingHandler]:
        try:
            return [*lifecycle(due, **self._get_kwargs_of(lifecycle))]  # here, as it can be a generator
        except (Exception, *INTERRUPTIONS):
            raise
        except BaseException as error:  # it would end the event loop, the worker, or the operator
            raise RuntimeError(f"The lifecycle {lifecycle!r} has raised {name_error(error)}.") from error

    def _get_kwargs_of(self, lifecycle: LifeCycleFn) -> dict[str, Any]:
        # Kwargs about the object are slow to build (diffs, copies), so only those that the lifecycle names are built.
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
            except ValueError:  # the operator has abandoned the task, and the coroutine is closed in another context
                pass


class SubHandlers:
    """The sub-handlers that one handler declares in one attempt."""

    def __init__(self, step: Step, parent: ChangingHandler) -> None:
        self._outer = step
        self.parent = parent
        self.declared = ChangingRegistry()
        self._executed = False

    @functools.cached_property
    def step(self) -> Step:
        """The step as the sub-handlers see it."""
        return self._outer.narrowed(self.parent)  # not in `__init__`, as few handlers have sub-handlers

    async def execute_declared(self) -> None:
        """Run the declared sub-handlers, unless the handler has run them by `kopf.execute`."""
        if len(self.declared) and not self._executed:
            await self.execute(self.declared)

    async def execute(self, handlers: Iterable[ChangingHandler], lifecycle: LifeCycleFn | None = None) -> None:
        """
        Run the sub-handlers that are due.

        Raises:
            HandlerChildrenRetry: if some of them are not finished.
            TemporaryError: if some of their filters have failed, so that it is unknown whether these sub-handlers must
                run.
        """
        # Other handlers, passed to `kopf.execute`, do not count: the declared ones still have to run.
        self._executed = self._executed or handlers is self.declared
        step, state = self.step, self.step.state
        failures: filters.Failures = {}
        found = list(filters.sift(handlers, step.cause, filters.match, failures))
        matching = list(filters.deduplicate(found))
        if len(found) != len({handler.id for handler in found}):
            _report_namesakes(found, step.cause.logger)
        ids = [handler.id for handler in matching]
        state.begin(ids, utcnow())
        state.adopt(self.parent.id, ids)
        await step.run(state.due(matching, utcnow()), lifecycle)
        if not state.done(matching):
            raise HandlerChildrenRetry(state.delay(matching, utcnow()))
        if failures:  # the others are finished; the parent is retried until the filters of these work
            backoff = self.parent.backoff if self.parent.backoff is not None else step.rules.find_backoff()
            raise TemporaryError('; '.join(error.explain(handler) for handler, error in failures.items()), backoff)


def _can_patch(handler: ChangingHandler) -> bool:
    names = find_arguments_of([handler.fn])
    return names is None or 'patch' in names


def _express(patch: Patch) -> object:
    """Return the changes in the patch in a form that can be compared; it is ``None`` for a patch without changes."""
    try:
        # Why a text? It is faster than a copy, and tells 1 and true apart. Why not of JSON? It lacks some values.
        return repr(patch) if patch else None
    except Exception:  # of a user's object in the patch
        return object()  # which equals nothing else


def _report_namesakes(handlers: Iterable[ChangingHandler], logger: Logger) -> None:
    """Warn of functions that are not called, as another sub-handler has the same id; once for each place."""
    first: dict[HandlerId, ChangingHandler] = {}
    for handler in handlers:
        former = first.setdefault(handler.id, handler)
        if former.fn is not handler.fn:
            places = dict.fromkeys([mistakes.locate(former.fn), mistakes.locate(handler.fn)])
            text = (
                f"{handler} is declared twice in one attempt: in {' and in '.join(places)}. Only the first of these "
                f"functions is called. Give each an id of its own: @kopf.subhandler(id=...)"
            )
            if text not in _reported and len(_reported) < _MAX_REPORTED:
                _reported.add(text)
                logger.warning("%s", text, extra={'message_code': 'handlers-of-one-id'})


_reported: set[str] = set()
"""The warnings of `_report_namesakes` that were logged: each attempt for each object would repeat them."""

_MAX_REPORTED = 100
"""The number of such warnings: ids can be made of data."""

_children_var: ContextVar[SubHandlers] = ContextVar('children_var')


def append_subhandler(fn: Callable[..., Any], options: SubHandlerOptions | Mapping[str, Any]) -> None:
    """
    Add a sub-handler to the current handler.

    Raises:
        LookupError: if called outside of a change-detecting handler.
    """
    children = _get_children()
    handler = _make_child(fn, children, options)
    # Unlike other ids, ids of sub-handlers do not include the field. But ids must be unique, and one function can be
    # declared for several fields.
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
    Run sub-handlers in the middle of the current handler, and return when all of them are finished.

    Without functions, handlers, or a registry, it runs the sub-handlers declared so far by `subhandler` and `register`.
    If some are not finished, the call raises an error that ends this attempt of the current handler. The handler is
    retried later.

    Args:
        fns: the functions, or a mapping of ids to functions.
        handlers: handlers made before.
        registry: a registry of handlers made before.
        lifecycle: the function that selects the handlers for one step; by default, the lifecycle of the operator.
        cause: the cause to run them for; it must be that of the current handler.

    Raises:
        TypeError: if several sources of handlers are given.
        LookupError: if called outside of a change-detecting handler.
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
