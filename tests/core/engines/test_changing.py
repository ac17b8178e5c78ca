"""One step of a change: which handlers and sub-handlers are run, and which progress is kept."""

import asyncio
import datetime
import gc
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Execution
from kopf._core.actions.handler_states import State
from kopf._core.engines.changing import Step
from kopf._core.intents.causes import ChangingCause, Reason
from kopf._core.intents.handlers import ChangingHandler

NOW = datetime.datetime.now(datetime.UTC)
LATER = NOW + datetime.timedelta(days=3650)  # even if tests in virtual time have run before


class Steps:
    """Handlers of a change, and the steps that are made with them."""

    def __init__(self, executor):
        self.rules = Execution(find_executor=lambda: executor)
        self.halted = False
        self.calls = []
        self.handlers = []
        self.state = State('create')
        self.body = {'metadata': {'name': 'x', 'labels': {'x': 'y'}}, 'spec': {'field': 'value'}}

    def declare(self, id, fn=None, **options):
        def noting(**kwargs):
            self.calls.append(id)
            return None if fn is None else fn(**kwargs)

        async def async_noting(**kwargs):
            self.calls.append(id)
            return await fn(**kwargs)

        is_async = asyncio.iscoroutinefunction(fn)
        self.handlers.append(ChangingHandler(id=id, fn=async_noting if is_async else noting, **options))

    def sub(self, id, fn=None, **options):
        """Return a function to be declared as a sub-handler."""

        def noting(**kwargs):
            self.calls.append(id)
            return None if fn is None else fn(**kwargs)

        kopf.subhandler(id=id, **options)(noting)

    async def step(self, lifecycle=kopf.lifecycles.all_at_once, now=LATER, **change):
        self.state.begin([handler.id for handler in self.handlers], NOW)
        self.calls.clear()
        cause = ChangingCause(
            logger=logging.getLogger('test'),
            memo=None,
            resource=Resource('kopf.dev', 'v1', 'kopfexamples'),
            body=Body(self.body),
            patch=kopf.Patch(),
            **{'reason': Reason.CREATE, **change},
        )
        step = Step(cause, self.state, self.rules, lifecycle, lambda: self.halted)
        await step.run(self.state.due(self.handlers, now))
        return step.outcomes

    def restart(self):
        """Forget all but what is stored."""
        storage, patch = kopf.AnnotationsProgressStorage(), kopf.Patch()
        self.state.store(storage=storage, body=Body(self.body), patch=patch)
        self.state, self.body = State('create'), patch.applied_to(self.body)
        self.state.load([handler.id for handler in self.handlers], storage=storage, body=Body(self.body), now=NOW)

    @property
    def done(self):
        return self.state.done(self.handlers)

    @property
    def finished(self):
        return sorted(id for id, state in self.state.items() if state.finished)


@pytest.fixture
def steps():
    with ThreadPoolExecutor(1) as executor:
        yield Steps(executor)


class Failing:
    """Fails so many times."""

    def __init__(self, times, error):
        self.times, self.error = times, error

    def __call__(self, **_):
        self.times -= 1
        if self.times >= 0:
            raise self.error


def temporarily(times, delay=0):
    return Failing(times, kopf.TemporaryError('boo', delay=delay))


async def test_all_handlers_that_are_due_are_run_and_their_results_are_kept(steps):
    steps.declare('a', lambda **_: 'result')
    steps.declare('b', temporarily(1))
    outcomes = await steps.step()
    assert steps.calls == ['a', 'b'] and not steps.done
    assert outcomes['a'].result == 'result' and not outcomes['b'].final
    await steps.step()
    assert steps.calls == ['b'] and steps.done


async def test_no_more_handlers_are_begun_when_the_operator_has_paused(steps):
    steps.declare('a', lambda **_: setattr(steps, 'halted', True))
    steps.declare('b')
    await steps.step()
    assert (steps.calls, steps.finished, steps.done) == (['a'], ['a'], False)
    steps.halted = False
    await steps.step()
    assert (steps.calls, steps.done) == (['b'], True)


async def test_no_more_subhandlers_are_begun_when_the_operator_has_paused(steps):
    def parent(**_):
        steps.sub('x', lambda **_: setattr(steps, 'halted', True))
        steps.sub('y')

    steps.declare('a', parent, field=('spec', 'field'))
    await steps.step()
    assert (steps.calls, steps.finished) == (['a', 'x'], ['a/x'])
    steps.halted = False
    await steps.step()
    assert (steps.calls, steps.done) == (['a', 'y'], True)


async def test_no_handlers_are_begun_when_the_operator_has_paused_before_the_first_one(steps):
    steps.declare('a')
    steps.halted = True
    await steps.step()
    assert (steps.calls, steps.finished, steps.done) == ([], [], False)
    steps.halted = False
    await steps.step()
    assert (steps.calls, steps.done) == (['a'], True)


async def test_no_subhandlers_are_begun_when_the_operator_has_paused_in_their_parent(steps):
    def parent(retry, **_):
        steps.sub('x')
        steps.halted = retry == 0

    steps.declare('a', parent)
    await steps.step()
    assert (steps.calls, steps.finished) == (['a'], [])
    steps.halted = False
    await steps.step()
    assert (steps.calls, steps.done) == (['a', 'x'], True)


async def test_only_the_handlers_that_the_lifecycle_picks_are_run(steps):
    for id in 'abc':
        steps.declare(id)
    for id in 'abc':
        await steps.step(kopf.lifecycles.asap)
        assert steps.calls == [id]
    assert steps.done


async def test_lifecycles_get_all_kwargs(steps):
    def lifecycle(handlers, *, state, body, reason, **kwargs):
        assert state is steps.state and body.metadata.name == 'x' and reason == 'create' and 'memo' in kwargs
        return handlers[1:]

    steps.declare('a')
    steps.declare('b')
    await steps.step(lifecycle)
    assert steps.calls == ['b']


async def test_subhandlers_are_run_after_their_parents(steps):
    def fn(**_):
        steps.sub('x', lambda **_: 'result')
        steps.sub('y', temporarily_y)

    temporarily_y = temporarily(1)
    steps.declare('fn', fn)
    outcomes = await steps.step()
    assert steps.calls == ['fn', 'x', 'y'] and steps.finished == ['fn/x']
    assert outcomes['fn/x'].result == 'result' and not outcomes['fn'].final
    assert steps.state['fn'].subrefs == ('fn/x', 'fn/y')
    await steps.step()
    assert steps.calls == ['fn', 'y'] and steps.finished == ['fn', 'fn/x', 'fn/y']


async def test_subhandlers_are_picked_by_the_lifecycle_too(steps):
    steps.declare('fn', lambda **_: [steps.sub(id) for id in 'xyz'])
    for id in 'xyz':
        await steps.step(kopf.lifecycles.asap)
        assert steps.calls == ['fn', id]
        assert steps.done is (id == 'z')


async def test_parents_wait_for_the_first_of_their_subhandlers(steps):
    def fn(**_):
        steps.sub('x', temporarily(1, delay=50))
        steps.sub('y', temporarily(1, delay=20))

    steps.declare('fn', fn)
    outcomes = await steps.step()
    assert outcomes['fn'].delay == pytest.approx(20, abs=1)
    await steps.step(now=NOW + datetime.timedelta(seconds=15))
    assert steps.calls == []


@pytest.mark.parametrize('failures, success', [(0, True), (1, True), (2, False)])
async def test_waiting_for_subhandlers_does_not_count_towards_the_limit(steps, failures, success):
    failing, waiting = temporarily(0), temporarily(4)

    def fn(**kwargs):
        failing(**kwargs)
        steps.sub('x', waiting)

    steps.declare('fn', fn, retries=2)
    for _ in range(3):
        await steps.step()
    assert steps.finished == [] and steps.state['fn'].retries == 3
    steps.restart()
    failing.times = failures
    for _ in range(failures + 2):
        await steps.step()
    assert steps.state['fn'].finished and steps.state['fn'].success is success


@given(
    attempts=st.fixed_dictionaries({id: st.integers(0, 4) for id in ['fn', 'x', 'y', 'x1', 'x2']}),
    failing=st.sets(st.sampled_from(['y', 'x1', 'x2'])),
    restarts=st.sets(st.integers(0, 20)),
    lifecycle=st.sampled_from([kopf.lifecycles.all_at_once, kopf.lifecycles.asap, kopf.lifecycles.one_by_one]),
)
def test_subhandlers_end_once_each_and_then_their_parents(attempts, failing, restarts, lifecycle):
    steps, ends = Steps(None), []

    def declare(id, *children):
        trouble = temporarily(attempts[id])

        async def fn(**kwargs):
            trouble(**kwargs)
            for child in children:
                kopf.subhandler(id=child)(fns[child])
            if not children:
                ends.append(id)
            if id in failing:
                raise kopf.PermanentError('boo')

        fns[id] = fn

    async def play():
        for number in range(100):
            if number in restarts:
                steps.restart()
            await steps.step(lifecycle)
            assert set(ends) == {id.rpartition('/')[2] for id in steps.finished} - {'fn', 'x'}
            if steps.done:
                return
        raise AssertionError("It does not end.")

    fns = {}
    for id, children in [('x1', ()), ('x2', ()), ('y', ()), ('x', ('x1', 'x2')), ('fn', ('x', 'y'))]:
        declare(id, *children)
    steps.declare('fn', fns['fn'])
    asyncio.run(play())
    assert sorted(ends) == ['x1', 'x2', 'y'] and len(steps.finished) == 5 and steps.state['fn'].success


async def test_failed_subhandlers_do_not_hold_their_parents(steps):
    def fn(**_):
        steps.sub('x', Failing(9, kopf.PermanentError('boo')))

    steps.declare('fn', fn)
    await steps.step()
    assert steps.done and steps.state['fn/x'].failure and steps.state['fn'].success


async def test_subhandlers_can_have_subhandlers_of_their_own(steps):
    steps.declare('fn', lambda **_: steps.sub('x', lambda **_: steps.sub('y', lambda **_: steps.sub('z'))))
    await steps.step()
    assert steps.calls == ['fn', 'x', 'y', 'z'] and steps.done
    assert steps.state['fn'].subrefs == ('fn/x', 'fn/x/y', 'fn/x/y/z')
    assert steps.state['fn/x'].subrefs == ('fn/x/y', 'fn/x/y/z')


async def test_subhandlers_are_filtered(steps):
    def fn(**_):
        steps.sub('x', labels={'x': 'y'})
        steps.sub('y', labels={'x': 'z'})
        steps.sub('z', when=lambda **_: False)

    steps.declare('fn', fn)
    await steps.step()
    assert steps.calls == ['fn', 'x'] and steps.done and 'fn/y' not in steps.state


async def test_subhandlers_of_updates_are_for_fields_that_have_changed(steps):
    def fn(**_):
        steps.sub('x', field='spec.x')
        steps.sub('y', field='spec.y')
        steps.sub('z', field='spec.x', value=1)
        steps.sub('new', field='spec.x', new=1)

    steps.declare('fn', fn)
    old, new = {'spec': {'x': 1, 'y': 1}}, {'spec': {'x': 2, 'y': 1}}
    await steps.step(reason=Reason.UPDATE, old=old, new=new, diff=diff(old, new))
    assert steps.calls == ['fn', 'x', 'z']


@pytest.mark.parametrize('reason', ['create', 'update'])
async def test_subhandlers_see_the_field_that_their_parent_sees(steps, reason):
    seen = {}

    def see(id):
        return lambda old, new, diff, **_: seen.update({id: (old, new, diff)})

    def fn(**_):
        steps.sub('whole', see('whole'))
        steps.sub('part', see('part'), field='x')
        steps.sub('other', field='y', value=3)
        steps.sub('picked', when=lambda new, **_: new == {'x': 2})
        steps.sub('absolute', field='spec.x')

    steps.declare('fn', fn, field=('spec',), needs_change=True)
    steps.body['spec'] = {'x': 2}
    old, new = {'spec': {'x': 1}} if reason == 'update' else None, {'spec': {'x': 2}}
    await steps.step(reason=Reason(reason), old=old, new=new, diff=diff(old, new))
    assert steps.calls == ['fn', 'whole', 'part', 'picked']
    assert (
        seen
        == {
            'whole': ({'x': 1}, {'x': 2}, (('change', ('x',), 1, 2),)),
            'part': (1, 2, (('change', (), 1, 2),)),
        }
        if reason == 'update'
        else {
            'whole': (None, {'x': 2}, (('add', (), None, {'x': 2}),)),
            'part': (None, 2, (('add', (), None, 2),)),
        }
    )


async def test_ids_of_subhandlers_have_fields_only_to_tell_them_apart(steps):
    def parent(**_):
        for field in ('spec.field', 'metadata.labels', 'spec.absent'):
            steps.sub('sub', field=field)
        steps.sub('other', field='spec')

    steps.declare('fn', parent)
    await steps.step()
    assert sorted(steps.state) == ['fn', 'fn/other', 'fn/sub', 'fn/sub/metadata.labels']


async def test_subhandlers_of_failing_parents_are_not_run(steps):
    def fn(**_):
        steps.sub('x')
        raise kopf.TemporaryError('boo')

    steps.declare('fn', fn)
    await steps.step()
    assert steps.calls == ['fn'] and 'fn/x' not in steps.state


@pytest.mark.parametrize('given', ['list', 'mapping', 'declared'])
async def test_subhandlers_can_be_executed_in_the_middle_of_their_parents(steps, given):
    def x(**_):
        steps.calls.append('x')

    y_fails = temporarily(1)

    def y(**_):
        steps.calls.append('y')
        y_fails()

    async def fn(**_):
        if given == 'list':
            x.__qualname__, y.__qualname__ = 'x', 'y'
            await kopf.execute(fns=[x, y])
        elif given == 'mapping':
            await kopf.execute(fns={'x': x, 'y': y})
        else:
            kopf.register(x, id='x')
            kopf.register(y, id='y')
            await kopf.execute()
        steps.calls.append('after')

    steps.declare('fn', fn)
    await steps.step()
    assert steps.calls == ['fn', 'x', 'y']
    await steps.step()
    assert steps.calls == ['fn', 'y', 'after'] and steps.finished == ['fn', 'fn/x', 'fn/y']


async def test_executed_subhandlers_can_have_a_lifecycle_of_their_own(steps):
    async def fn(**_):
        await kopf.execute(
            fns={id: lambda id=id, **_: steps.calls.append(id) for id in 'xyz'}, lifecycle=kopf.lifecycles.one_by_one
        )

    steps.declare('fn', fn)
    for id in 'xyz':
        await steps.step()
        assert steps.calls == ['fn', id]
    assert steps.done


async def test_contradictory_sources_of_subhandlers_are_refused(steps):
    errors = []

    async def fn(**_):
        for wrong in [{'fns': [], 'handlers': []}, {'fns': [], 'cause': object()}]:
            try:
                await kopf.execute(**wrong)
            except TypeError as error:
                errors.append(error)

    steps.declare('fn', fn)
    await steps.step()
    assert len(errors) == 2


async def test_subhandlers_are_refused_outside_of_handlers():
    with pytest.raises(LookupError, match='only inside of change-detecting handlers'):
        kopf.subhandler()(lambda **_: None)
    with pytest.raises(LookupError, match='only inside of change-detecting handlers'):
        await kopf.execute(fns=[])


async def test_errors_are_freed_without_the_garbage_collector(steps):
    class Boo(kopf.TemporaryError):
        """It is logged without its traceback: otherwise, the captured logs would keep it."""

    references = []

    async def fail(**_):
        error = Boo("boo")
        references.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    steps.declare('fail', fail)
    gc.disable()
    try:
        outcomes = await steps.step()
        assert list(outcomes) == ['fail']
        assert [reference() for reference in references] == [None]
    finally:
        gc.enable()
