"""Tests wait for conditions, or in virtual time: a sleep is too short on a busy machine, and too long on others."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ['cogs', 'core', 'faults', 'kits', 'public', 'sandbox']

LIMITS = 'the limits of real sockets are its subject'
SILENCE = 'nothing may happen, and the servers are real'
ASLEEP = {
    'cogs/aiokits/test_loop_monitors.py': (4, 'a thread measures the loop by the real clock'),
    'cogs/clients/test_api.py': (1, 'a request must have begun to wait for a connection'),
    'cogs/clients/test_connection_pools.py': (1, LIMITS),
    'cogs/clients/test_pacing.py': (1, 'a request must have begun to wait'),
    'core/engines/test_blocking.py': (2, 'a thread measures the loop by the real clock'),
    'core/engines/test_running_calls.py': (1, 'the real clock must go on'),
    'core/reactor/test_discovery_sinks.py': (2, SILENCE),
    'core/reactor/test_indexing_gate.py': (1, 'a task must have ended'),
    'core/reactor/test_running.py': (1, 'the loop of another process is blocked'),
    'core/reactor/test_stale_events.py': (10, 'the times of lists are those of the real clock'),
    'faults/test_ending.py': (1, 'the loop of another process is meant'),
    'faults/test_gaps.py': (1, SILENCE),
    'faults/test_garbage.py': (1, 'connections must have ended'),
    'sandbox/test_states.py': (2, 'a thread writes the file'),
    'sandbox/test_virtual_time.py': (1, 'the sleep is virtual'),
    'sandbox/test_workloads.py': (1, SILENCE),
    'sandbox/virtual/test_seams.py': (2, 'the sleep is virtual'),
    'sandbox/wire/test_httpconnections.py': (11, LIMITS),
    'sandbox/wire/test_httplisteners.py': (5, LIMITS),
}
"""How many sleeps there are in tests of these modules, in real time and outside of loops, and why. Make it fewer."""


SLEEP = re.compile(r'\b(asyncio|time)\.sleep\((?!0\))')
"""The sleeps in a text: to parse the other modules would take a second."""


def is_sleep(node: ast.AST) -> bool:
    """Check whether this waits for some time. To sleep for 0 seconds lets others run, and waits for nothing."""
    call = node.value if isinstance(node, ast.Expr) else None
    call = call.value if isinstance(call, ast.Await) else call
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ('asyncio.sleep', 'time.sleep'):
        return False
    return not (isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)


def is_virtual(nodes: list[ast.expr]) -> bool:
    """Check whether one of these marks or decorators lets a test run in virtual time."""
    return any(word in ast.unparse(node) for node in nodes for word in ('looptime', 'virtual_time'))


def find_sleeps(tree: ast.Module) -> list[int]:
    """
    Return the lines of tests that sleep in real time, by themselves.

    What handlers do in their functions is their work, and a loop that sleeps waits for its condition.
    """
    marks = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node).startswith('pytestm')
    ]
    if is_virtual(marks):
        return []
    found: list[int] = []
    nodes: list[ast.AST] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith('test_')
        and not is_virtual(node.decorator_list)
    ]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
                if is_sleep(node):
                    found.append(node.lineno)
                elif not isinstance(node, ast.While | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    nodes.append(node)
    return sorted(found)


@pytest.mark.parametrize('folder', FOLDERS)
def test_tests_sleep_in_virtual_time_only(folder):
    found = {}
    for path in (ROOT / 'tests' / folder).rglob('test_*.py'):
        text = path.read_text()
        if SLEEP.search(text) and (lines := find_sleeps(ast.parse(text))):
            found[path.relative_to(ROOT / 'tests').as_posix()] = lines
    expected = {path: number for path, (number, _) in ASLEEP.items() if path.startswith(f'{folder}/')}
    counts = {path: len(lines) for path, lines in found.items()}
    assert counts == expected, f"wait for a condition or in virtual time, instead of: {found}"


def test_sleeps_in_real_time_are_found():
    source = '''
async def test_a(world):
    async with world:
        await asyncio.sleep(1)
        await asyncio.sleep(0)
        async def handle():
            await asyncio.sleep(1)
    while not world:
        await asyncio.sleep(1)

def test_b():
    time.sleep(x)

@in_virtual_time
async def test_c(world):
    await asyncio.sleep(1)
'''
    assert find_sleeps(ast.parse(source)) == [4, 12]
    assert find_sleeps(ast.parse('pytestmark = [pytest.mark.looptime]\n' + source)) == []
