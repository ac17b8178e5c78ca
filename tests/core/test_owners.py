"""State has one owner: a module assigns no attributes of another module's objects; and a question changes nothing."""

import ast
import collections
import functools
import pathlib
from collections.abc import Callable, Collection

import pytest

KOPF = pathlib.Path(__file__).parents[2] / 'kopf'
CORE = KOPF / '_core'
FRAMEWORK = sorted([*CORE.rglob('*.py'), *(KOPF / '_cogs').rglob('*.py')])
FOLDERS = sorted({path.parent for path in FRAMEWORK})
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

CHANGING = frozenset(
    'add append appendleft cancel clear discard extend pop popitem popleft remove set setdefault update'.split()
)
"""The methods of collections, flags and tasks that change them."""

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


@functools.cache
def list_nodes(path: pathlib.Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a module."""
    return list(ast.walk(parse(path)))


def is_own(node: ast.expr) -> bool:
    """Check whether this is the object of the present method, or its class; to unparse all nodes would take seconds."""
    return isinstance(node, ast.Name) and node.id in ('self', 'cls')


def find_assignments(path: pathlib.Path) -> list[str]:
    """Return the assignments of attributes of shared objects in a module that does not define their class."""
    source, nodes = path.read_text(), list_nodes(path)
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, 'id', None)
            owner = SHARED.get((name or '').lstrip('_'))
            if owner is not None and owner not in classes and not (name == 'record' and 'LogRecord' in source):
                found.append(f'{path.name}:{node.lineno}: {name}.{node.attr}, which {owner} owns')
    return found


def find_by_path(folder: pathlib.Path, find: Callable[[pathlib.Path], Collection[str]]) -> dict[str, Collection[str]]:
    """Return what is found in the modules of the folder: a test for each module would cost more than the search."""
    found = {path.name: find(path) for path in FRAMEWORK if path.parent == folder}
    return {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    'folder',
    [folder for folder in FOLDERS if folder.is_relative_to(CORE)],
    ids=lambda folder: str(folder.relative_to(KOPF)),
)
def test_only_owners_assign_the_attributes_of_shared_objects(folder: pathlib.Path) -> None:
    assert find_by_path(folder, find_assignments) == {}


PERMITTED = {
    'settings': "operators change them, and so does the operator for its options",
    'record.message': "of a `logging.LogRecord`",
    'own.exit_code': "of an error that is made there",
    'self.vault.authenticate': "how an operator lends its login to its vault",
    'call.carried': "instruments may leave a text there, as its description says",
}
"""The assigned attributes of other objects, and why they are no states of another module."""


@functools.cache
def find_attributes(path: pathlib.Path) -> frozenset[str]:
    """Return the attributes that the classes of a module have."""
    classes = [node for node in list_nodes(path) if isinstance(node, ast.ClassDef)]
    assigned = {
        node.attr
        for cls in classes
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == 'self'
    }
    declared = {
        node.target.id
        for cls in classes
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return frozenset(assigned | declared)


@functools.cache
def find_all_attributes() -> frozenset[str]:
    """Return the attributes that the classes of the framework have."""
    return frozenset().union(*(find_attributes(path) for path in FRAMEWORK))


@functools.cache
def find_foreign_assignments(path: pathlib.Path) -> set[str]:
    """Return the assigned attributes of objects whose classes are in other modules, whatever the objects are called."""
    own = find_attributes(path)
    others = find_all_attributes() - own
    return {
        ast.unparse(node)
        for node in list_nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if not is_own(node.value) and node.attr in others
    }


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: str(folder.relative_to(KOPF)))
def test_no_attributes_of_classes_of_other_modules_are_assigned(folder: pathlib.Path) -> None:
    def find(path: pathlib.Path) -> set[str]:
        found = {each for each in find_foreign_assignments(path) if 'settings' not in each.split('.')[:2]}
        return found - PERMITTED.keys()

    assert find_by_path(folder, find) == {}


def test_permitted_assignments_exist() -> None:
    found = frozenset().union(*(find_foreign_assignments(path) for path in FRAMEWORK))
    assert PERMITTED.keys() - found == {'settings'}, "an exception is not needed any more: remove it"


def test_names_of_shared_objects_are_in_use() -> None:
    names: collections.Counter[str] = collections.Counter()
    for path in CORE.rglob('*.py'):
        for node in list_nodes(path):
            if isinstance(node, ast.Attribute):
                name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, 'id', '')
                names[name.lstrip('_')] += 1
    assert all(names[name] > 0 for name in SHARED), "a name is not used any more: mend the list"


def is_question(function: ast.AST) -> bool:
    """Check whether the function is a question by its name, or is a property."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    is_property = any(isinstance(each, ast.Name) and each.id == 'property' for each in function.decorator_list)
    return is_property or function.name.lstrip('_').startswith(QUESTIONS)


def is_change(node: ast.AST) -> bool:
    """Check whether an attribute or an item is assigned or deleted, or a collection of the object is changed."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        return ast.unparse(node.func.value).startswith('self.')
    return isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)


def find_changes_by_questions(tree: ast.AST) -> list[str]:
    """Return what questions change, except for caches of their answers."""
    return [
        f'{node.lineno}: {function.name} changes {ast.unparse(node)}'
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and is_question(function)
        for node in ast.walk(function)
        if is_change(node) and not (isinstance(node, ast.Attribute) and node.attr == CACHES.get(function.name))
    ]


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: str(folder.relative_to(KOPF)))
def test_questions_change_nothing(folder: pathlib.Path) -> None:
    assert find_by_path(folder, lambda path: find_changes_by_questions(parse(path))) == {}


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
        self.keys.pop(key)

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
        '12: has_key changes self.keys.pop(key)',
        '19: spec changes self.other',
    ]
