"""State has one owner: a module assigns no attributes of another module's objects; and a question changes nothing."""

import ast
import collections
import functools
import pathlib

import pytest

KOPF = pathlib.Path(__file__).parents[2] / 'kopf'
CORE = KOPF / '_core'
QUESTIONS = ('is_', 'are_', 'has_', 'can_', 'may_', 'must_', 'needs_', 'wants_')

SHARED = {
    'record': 'ObjectRecord',
    'daemons': 'ObjectDaemons',
    'level': 'ObjectLevel',
    'throttle': 'Throttle',
    'cycle': 'Cycle',
    'decision': 'Decision',
    'expected': 'Expectation',
    'watch': 'ResourceWatch',
    'workers': 'WorkerPool',
    'indexing_gate': 'IndexingGate',
}
"""By which names the objects of several modules go, and which class owns what they are."""

CACHES = {
    'extra': '_mark',
    'labels': '_labels',
    'annotations': '_annotations',
    'metadata': '_meta',
    'spec': '_spec',
    'status': '_status',
    'is_last': '_is_last',
}
"""The questions that remember their answer, and where they do."""


@functools.cache
def parse(path: pathlib.Path) -> ast.Module:
    """Return the syntax tree of a module; it is parsed once for all tests."""
    return ast.parse(path.read_text())


def find_assignments(path: pathlib.Path) -> list[str]:
    """Return the assignments of attributes of shared objects in a module that does not define their class."""
    source, tree = path.read_text(), parse(path)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, 'id', None)
            owner = SHARED.get((name or '').lstrip('_'))
            if owner is not None and owner not in classes and not (name == 'record' and 'LogRecord' in source):
                found.append(f'{path.name}:{node.lineno}: {name}.{node.attr}, which {owner} owns')
    return found


@pytest.mark.parametrize('path', sorted(CORE.rglob('*.py')), ids=lambda path: str(path.relative_to(CORE)))
def test_only_owners_assign_the_attributes_of_shared_objects(path: pathlib.Path) -> None:
    assert not find_assignments(path)


def test_names_of_shared_objects_are_in_use() -> None:
    names: collections.Counter[str] = collections.Counter()
    for path in CORE.rglob('*.py'):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute):
                name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, 'id', '')
                names[name.lstrip('_')] += 1
    assert all(names[name] > 0 for name in SHARED), "a name is not used any more: mend the list"


def is_question(function: ast.AST) -> bool:
    """Check whether the function is a question by its name, or is a property."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    return function.name.lstrip('_').startswith(QUESTIONS) or 'property' in decorators


def find_changes_by_questions(tree: ast.AST) -> list[str]:
    """Return the attributes and items that questions assign or delete, except for caches of their answers."""
    return [
        f'{node.lineno}: {function.name} changes {ast.unparse(node)}'
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and is_question(function)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if not (isinstance(node, ast.Attribute) and node.attr == CACHES.get(function.name))
    ]


@pytest.mark.parametrize(
    'path',
    sorted([*CORE.rglob('*.py'), *(KOPF / '_cogs').rglob('*.py')]),
    ids=lambda path: str(path.relative_to(KOPF)),
)
def test_questions_change_nothing(path: pathlib.Path) -> None:
    assert not find_changes_by_questions(parse(path))


def test_questions_that_change_something_are_found() -> None:
    source = """
class Thing:
    @property
    def size(self):
        self.asked = True

    def _is_known(self, key):
        del self.keys[key]

    async def has_key(self, key):
        self.count += 1

    def take(self):
        self.taken = True

    @property
    def spec(self):
        self._spec = self.other = {}
"""
    assert find_changes_by_questions(ast.parse(source)) == [
        '5: size changes self.asked',
        '8: _is_known changes self.keys[key]',
        '11: has_key changes self.count',
        '18: spec changes self.other',
    ]
