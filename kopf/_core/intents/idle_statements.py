"""
Statements in the functions of users that do nothing: errors that are not raised, coroutines that are not awaited.

Python runs them without a word, or warns only afterwards, and the handler succeeds. They are found in the bytecode when
the function is declared. Why not in the source? It would have to be read and parsed for each function, and some
functions have none. Only functions that use one of the few names here are looked through.
"""

import functools
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dis

_REMEDIES: Mapping[tuple[str, str], tuple[str, str]] = {
    ('kopf', 'PermanentError'): ('raise', "is not raised"),
    ('kopf', 'TemporaryError'): ('raise', "is not raised"),
    ('kopf', 'AdmissionError'): ('raise', "is not raised"),
    ('kopf', 'Again'): ('return', "is not returned"),
    ('children', 'apply'): ('await', "is not awaited"),
    ('stopped', 'wait'): ('await', "is not awaited"),
    ('deleting', 'wait'): ('await', "is not awaited"),
    ('kopf', 'apply'): ('await', "is not awaited"),
    ('asyncio', 'sleep'): ('await', "is not awaited"),
}
"""The calls whose results are needed: what to write before them, and what is missing."""

_ATTRIBUTES = frozenset(attribute for _, attribute in _REMEDIES)

_REPLACED: Mapping[str, str] = {
    'patch': "patch.status['field'] = ..., or patch.update(...)",
    'settings': "settings.posting.enabled = ...",
}
"""The arguments that are there to be changed, with examples of how to do so."""


_READ = ('obj', 'spec', 'status')
"""The arguments that are what was read from the cluster: objects of classes can be changed, mappings cannot."""


def find_idle_statements(fn: object) -> Iterator[str]:
    """Yield what is wrong with each statement of the function that does nothing, with its line."""
    code = _find_code(fn)
    if code is None:
        return
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    replaced, read = [[name for name in names if name in arguments] for names in (_REPLACED, _READ)]
    if not replaced and not read and _ATTRIBUTES.isdisjoint(code.co_names):
        return
    import dis  # many operators do not need it, and it takes time

    steps = list(dis.get_instructions(code))
    for name in replaced:
        if (line := _find_replacement(steps, name)) is not None:
            yield (
                f"replaces its argument {name!r} in line {line}, which changes nothing. "
                f"Change what is in it: {_REPLACED[name]}"
            )
    for name, attribute, line in _iter_assignments(steps, read):
        yield (
            f"assigns to {attribute!r} of its argument {name!r} in line {line}, which changes nothing in the cluster. "
            f"Use the argument patch, such as patch.spec[{attribute!r}] = ..."
        )
    is_async = bool(code.co_flags & inspect.CO_COROUTINE)
    for (base, attribute), line in _iter_dropped(steps):
        keyword, lack = _REMEDIES[base, attribute]
        if keyword != 'await' or is_async:
            call = f'{base}.{attribute}'
            yield f"has {call}(...) in line {line}, which {lack}, and so does nothing. Write: {keyword} {call}(...)"


def _find_code(fn: Any) -> types.CodeType | None:
    while isinstance(fn, functools.partial) or hasattr(fn, '__wrapped__'):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    code = getattr(fn, '__code__', None)
    return code if type(code) is types.CodeType else None  # mocks only claim to have some


def _find_replacement(steps: Sequence['dis.Instruction'], name: str) -> int | None:
    """Return the line that assigns to the argument, if the function has not used it before."""
    jumped, stored = False, None
    for step in steps:
        if 'JUMP' in step.opname or step.opname == 'FOR_ITER':
            jumped = True
        # Python 3.13 and later join two accesses in one instruction.
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in names or step.opname in ('MAKE_CELL', 'COPY_FREE_VARS', 'LOAD_CONST', 'KW_NAMES'):
            continue
        stores = step.opname.startswith(('STORE_FAST', 'STORE_DEREF'))
        if not stores or (names[0] != name and step.opname != 'STORE_FAST_STORE_FAST'):
            # It is loaded. After a branch, this can be the argument itself.
            return None if jumped else stored
        if stored is None:
            stored = step.positions.lineno if step.positions is not None else None
            if not jumped:
                return stored
    return stored


def _iter_assignments(steps: Sequence['dis.Instruction'], names: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the assignments to attributes of these arguments, each as the argument, the attribute, and the line."""
    replaced = {step.argval for step in steps if step.opname.startswith('STORE_FAST')}
    places = {
        _find_start(step): step.argval
        for step in steps
        if step.opname.startswith('LOAD_FAST') and step.argval in names and step.argval not in replaced
    }
    for step in steps:
        start = _find_start(step)
        if step.opname == 'STORE_ATTR' and start is not None and start in places:
            yield places[start], step.argval, start[0]


def _iter_dropped(steps: Sequence['dis.Instruction']) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the calls whose results are not used, each as the object, the attribute, and the line."""
    for index, (step, following) in enumerate(zip(steps, steps[1:], strict=False)):
        if following.opname != 'POP_TOP' or step.opname not in ('CALL', 'CALL_KW', 'CALL_FUNCTION_EX'):
            continue
        # A call begins where its function does in the source.
        start = _find_start(step)
        loads = [each for each in steps[:index] if _find_start(each) == start and each.opname.startswith('LOAD_')]
        if start is None or not loads:
            continue
        names = [each.argval for each in loads]
        pairs = list(zip(names, names[1:], strict=False))
        if loads[0].opname == 'LOAD_GLOBAL':
            pairs.append(('kopf', names[0]))  # imported by its own name
        if (found := next((pair for pair in pairs if pair in _REMEDIES), None)) is not None:
            yield found, start[0]


def _find_start(step: 'dis.Instruction') -> tuple[int, int] | None:
    positions = step.positions
    if positions is None or positions.lineno is None or positions.col_offset is None:
        return None
    return positions.lineno, positions.col_offset
