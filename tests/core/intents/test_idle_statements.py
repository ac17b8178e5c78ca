"""Statements that do nothing are found in functions of all forms; statements that do something are not."""

import asyncio
import functools

import pytest

import kopf
from kopf import PermanentError
from kopf._core.intents.idle_statements import find_idle_statements

# ruff: noqa: F841, RUF006


def not_raised(spec, **_):
    if spec:
        kopf.TemporaryError(f"There are {len(spec)} fields.", delay=5)


def not_raised_by_its_own_name(**_):
    PermanentError("It is wrong.")


def not_returned(**_):
    kopf.Again(after=5)


async def not_awaited(children, name, **_):
    children.apply({'metadata': {'name': str(name)}})


async def not_awaited_in_a_block(**_):
    try:
        asyncio.sleep(1)
    finally:
        print("over")


@functools.lru_cache
def wrapped(**_):
    kopf.PermanentError("It is wrong.")


def replaced(patch, **_):
    patch = {'status': {}}


def replaced_in_a_branch(patch, spec, **_):
    if spec:
        patch = {'status': {}}


def replaced_with_another_variable(patch, **_):
    other, patch = {}, {}


def replaced_by_a_variable_of_a_function(patch, **_):
    patch = {}
    return lambda: patch


def assigned(spec, **_):
    spec.replicas = 1


def assigned_deeply(obj, **_):
    obj.spec.template.replicas = 1


@pytest.mark.parametrize(
    'fn, text',
    [
        (assigned, "assigns to 'replicas' of its argument 'spec' in line {line}"),
        (assigned_deeply, "assigns to 'replicas' of its argument 'obj' in line {line}"),
        (not_raised, "kopf.TemporaryError(...) in line {line}, which is not raised"),
        (not_raised_by_its_own_name, "kopf.PermanentError(...) in line {line}, which is not raised"),
        (not_returned, "kopf.Again(...) in line {line}, which is not returned"),
        (not_awaited, "children.apply(...) in line {line}, which is not awaited"),
        (not_awaited_in_a_block, "asyncio.sleep(...) in line {line}, which is not awaited"),
        (wrapped, "kopf.PermanentError(...) in line {line}, which is not raised"),
        (functools.partial(not_returned), "kopf.Again(...) in line {line}, which is not returned"),
        (replaced, "replaces its argument 'patch' in line {line}"),
        (replaced_in_a_branch, "replaces its argument 'patch' in line {line}"),
        (replaced_with_another_variable, "replaces its argument 'patch' in line {line}"),
        (replaced_by_a_variable_of_a_function, "replaces its argument 'patch' in line {line}"),
    ],
)
def test_statements_that_do_nothing_are_found(fn, text):
    [found] = find_idle_statements(fn)
    code = getattr(getattr(fn, 'func', fn), '__wrapped__', getattr(fn, 'func', fn)).__code__
    lines = {line for _, _, line in code.co_lines()}
    assert any(text.format(line=line) in found for line in lines), found


def raised(**_):
    raise kopf.TemporaryError("Later.", delay=5)


def raised_afterwards(**_):
    error = PermanentError("It is wrong.")
    raise error


def returned(**_):
    return kopf.Again(after=5)


async def awaited(children, stopped, **_):
    await children.apply({})
    while not await stopped.wait(5):
        asyncio.create_task(asyncio.sleep(1))
    await asyncio.gather(children.apply({}), children.apply({}))


def in_a_thread(children, stopped, **_):
    children.apply({})
    stopped.wait(5)


def changed(patch, settings, **_):
    patch.status['field'] = 1
    settings.posting.enabled = False


def completed(patch, **_):
    patch = patch or kopf.Patch()
    patch |= {'spec': {}}


def replaced_perhaps(patch, spec, **_):
    if spec:
        patch = kopf.Patch()
    patch.status['field'] = 1


def assigned_elsewhere(spec, patch, memo, **_):
    patch.spec = spec
    memo.spec = spec.replicas
    print(spec.replicas, memo.spec.replicas)


def assigned_to_a_new_one(status, **_):
    status = kopf.Memo()
    status.replicas = 1


def replaced_after_the_use(patch, **_):
    patch.status['field'] = 1
    patch = None


@pytest.mark.parametrize(
    'fn',
    [
        raised,
        raised_afterwards,
        returned,
        awaited,
        in_a_thread,
        changed,
        completed,
        replaced_perhaps,
        assigned_elsewhere,
        assigned_to_a_new_one,
        replaced_after_the_use,
        lambda **_: kopf.PermanentError("It is returned."),
        dict,
        functools.partial(dict),
        print,
    ],
)
def test_statements_that_do_something_are_not_found(fn):
    assert not [*find_idle_statements(fn)]
