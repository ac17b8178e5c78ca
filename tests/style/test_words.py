"""How docstrings, comments, messages and pages read: the rules of CONTRIBUTING.md that can be checked."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted([*(ROOT / 'kopf').rglob('*.py'), ROOT / 'pytest_kopf.py'])
TESTS = sorted((ROOT / 'tests' / 'core').rglob('*.py'))

VAGUE = re.compile(r"(?<![a-z])(nobody|somebody|anybody|whoever|those[ _]who)(?![a-z])", re.IGNORECASE)
"""Words that hide the actor: the worker, the watch, the API server, another client, the user's handler."""

NO_VERBS = frozenset(
    {
        *('A', 'An', 'The', 'It', 'This', 'For', 'From', 'In', 'Is', 'Are', 'Has', 'What', 'Which', 'Who', 'Whether'),
        *('Give', 'Tell', 'Know', 'Say'),  # return, log, check and remember are the words of the field
    }
)
"""The words that docstrings of functions do not begin with."""


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Check whether the function is a property, whose docstring is a noun phrase, or says when it is true."""
    names = {ast.unparse(decorator).rpartition('.')[2] for decorator in function.decorator_list}
    return not names.isdisjoint({'property', 'cached_property', 'setter'})


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Check whether the function is a command of the command line, whose docstring is its help."""
    return any(
        'main.' in ast.unparse(decorator) or 'click.' in ast.unparse(decorator) for decorator in function.decorator_list
    )


def find_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node):
            yield node


def find_odd_beginnings(tree: ast.AST) -> list[str]:
    """Return the docstrings of functions that do not begin with a verb in the imperative."""
    odd = []
    for function in find_functions(tree):
        summary = (ast.get_docstring(function) or 'Return').partition('\n')[0]
        word = re.split(r'\W', summary, maxsplit=1)[0]
        is_third_person = word.endswith('s') and not word.endswith('ss')
        is_odd = word == 'Whether' if is_property(function) else word in NO_VERBS or is_third_person
        if is_odd or summary.startswith('Make it that'):
            odd.append(f'{function.lineno}: {summary}')
    return odd


@pytest.mark.parametrize('path', MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_of_functions_begin_with_a_verb(path):
    assert find_odd_beginnings(ast.parse(path.read_text())) == []


@pytest.mark.parametrize('path', [*MODULES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_name_the_actor(path):
    lines = enumerate(path.read_text().splitlines(), 1)
    assert [f'{number}: {line.strip()}' for number, line in lines if VAGUE.search(line)] == []


def test_odd_beginnings_are_found():
    source = '''
def a():
    """Give the size."""

def b():
    """Returns the size."""

def c():
    """Pass the size on."""

@property
def d(self):
    """The size."""

@property
def e(self):
    """Whether it is large."""
'''
    assert find_odd_beginnings(ast.parse(source)) == [
        '2: Give the size.',
        '5: Returns the size.',
        '16: Whether it is large.',
    ]
