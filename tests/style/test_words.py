"""How docstrings, comments, messages and pages read: the rules of CONTRIBUTING.md that can be checked."""

import ast
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted([*(ROOT / 'kopf').rglob('*.py'), ROOT / 'pytest_kopf.py'])
TESTS = [
    path
    for path in sorted((ROOT / 'tests').rglob('*.py'))
    if not path.is_relative_to(ROOT / 'tests' / 'style')  # has the words themselves
    and not path.is_relative_to(ROOT / 'tests' / 'conformance' / 'scenarios')  # operators as their users write them
]

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
    # Why not `ast.walk`? Functions are statements, and most nodes are parts of expressions.
    for field in ('body', 'orelse', 'finalbody', 'handlers', 'cases'):
        for node in getattr(tree, field, ()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node):
                yield node
            yield from find_functions(node)


def find_odd_beginnings(tree: ast.AST) -> list[str]:
    """Return the docstrings of functions that do not begin with a verb, except for those of tests."""
    odd = []
    for function in find_functions(tree):
        if function.name.startswith('test_'):
            continue
        summary = (ast.get_docstring(function) or 'Return').partition('\n')[0]
        word = re.split(r'\W', summary, maxsplit=1)[0]
        is_third_person = word.endswith('s') and not word.endswith('ss')
        is_odd = word == 'Whether' if is_property(function) else word in NO_VERBS or is_third_person
        if is_odd or summary.startswith('Make it that'):
            odd.append(f'{function.lineno}: {summary}')
    return odd


SUSPICIOUS = re.compile(
    r':[ \t]*(?:#[^\n]*)?\n\s+[rR]?(?:"""|\'\'\')\s*'
    rf'(?:(?:{"|".join(sorted(NO_VERBS))})\b|Make it that|\w*[^s\W]s\b)'
)
"""The beginnings of docstrings that are odd in functions; classes may have them."""


def is_suspicious(text: str) -> bool:
    """Check whether a function can have an odd docstring: to parse all modules would take seconds."""
    starts = (match.start() for match in SUSPICIOUS.finditer(text))
    return any(text.rfind('def ', 0, start) > text.rfind('class ', 0, start) for start in starts)


def find_odd_docstrings(text: str) -> list[str]:
    return find_odd_beginnings(ast.parse(text)) if is_suspicious(text) else []


def find_vague_words(text: str) -> list[str]:
    if not any(word in text.lower() for word in ('body', 'whoever', 'those who', 'those_who')):
        return []
    return [f'{number}: {line.strip()}' for number, line in enumerate(text.splitlines(), 1) if VAGUE.search(line)]


FOLDERS: dict[pathlib.Path, list[pathlib.Path]] = {}
for path in [*MODULES, *TESTS]:
    FOLDERS.setdefault(path.parent, []).append(path)


def find_by_path(folder: pathlib.Path, find: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """Return what is found in the modules of the folder: a test for each module would cost more than the search."""
    found = {path.name: find(path.read_text()) for path in FOLDERS[folder]}
    return {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize('folder', sorted(FOLDERS), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_docstrings_of_functions_begin_with_a_verb(folder):
    assert find_by_path(folder, find_odd_docstrings) == {}


@pytest.mark.parametrize('folder', sorted(FOLDERS), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_texts_name_the_actor(folder):
    assert find_by_path(folder, find_vague_words) == {}


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

def test_f_is_small():
    """The size is small."""
'''
    assert find_odd_docstrings(source) == [
        '2: Give the size.',
        '5: Returns the size.',
        '16: Whether it is large.',
    ]


@pytest.mark.parametrize('function', ['def f():', 'async def f(\n    a: str,\n) -> str:  # a comment'])
@pytest.mark.parametrize('words', ['The size.', 'Returns it.', 'Make it that way.', '\n    Gives it.'])
def test_odd_beginnings_are_found_without_parsing_all_modules(function, words):
    assert is_suspicious(f'class A:\n    """An object."""\n\n{function}\n    """{words}"""\n')
    assert not is_suspicious(f'{function}\n    """Pass it."""\n\nclass A:\n    """{words}"""\n')


def test_words_that_name_no_actor_are_found():
    assert find_vague_words('x\n# Nobody knows\n# those who wait\nanybody') == [
        '2: # Nobody knows', '3: # those who wait', '4: anybody',
    ]  # fmt: skip
    assert find_vague_words('body, embody') == []
