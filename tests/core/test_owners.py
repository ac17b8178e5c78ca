"""State has one owner: a module assigns no attributes of another module's objects."""

import ast
import collections
import pathlib

import pytest

CORE = pathlib.Path(__file__).parents[2] / 'kopf' / '_core'

SHARED = {
    'record': 'ObjectRecord',
    'daemons': 'ObjectDaemons',
    'throttle': 'Throttle',
    'cycle': 'Cycle',
    'decision': 'Decision',
    'expected': 'Expectation',
    'watch': 'ResourceWatch',
    'workforce': 'Workforce',
    'indexation': 'Indexation',
}
"""By which names the objects of several modules go, and which class owns what they are."""


def find_assignments(path: pathlib.Path) -> list[str]:
    """Return the assignments of attributes of shared objects in a module that does not define their class."""
    tree = ast.parse(source := path.read_text())
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
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, 'id', '')
                names[name.lstrip('_')] += 1
    assert all(names[name] > 0 for name in SHARED), "a name is not used any more: mend the list"
