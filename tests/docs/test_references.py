"""What docstrings say of the documentation is there: the sections that specify the behaviour of a module."""

import ast
import pathlib
import re
import subprocess

import pytest
from snippets import PAGES, ROOT

TITLES = r'"[A-Z][^"]*"(?:(?:[\s,]|and|or)+"[A-Z][^"]*")*'
REFERENCE = re.compile(rf"(?:documentation(?:'s)?|[Ss]ee)((?:[\s,]|and|or)*{TITLES})")


def find_titles() -> set[str]:
    """Return the titles of all sections of all pages."""
    titles = set()
    for page in PAGES:
        lines = page.read_text().splitlines()
        titles |= {
            title.strip()
            for title, line in zip(lines, lines[1:], strict=False)
            if title.strip() and re.fullmatch(r'([=\-~^"])\1{2,}', line) and len(line) >= len(title.rstrip())
        }
    return titles


def find_references() -> list[tuple[str, str]]:
    """Return the places in the package that refer to sections, with the titles of these."""
    found = []
    for path in sorted(ROOT.glob('kopf/**/*.py')):
        source = path.read_text()
        if not REFERENCE.search(source):
            continue  # most modules have none, and to parse all of them takes a second in each process
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ' '.join((ast.get_docstring(node) or '').split())
                for match in REFERENCE.finditer(text):
                    found += [(str(path.relative_to(ROOT)), title) for title in re.findall(r'"([^"]*)"', match[1])]
    return found


@pytest.mark.parametrize('place, title', find_references())
def test_sections_that_docstrings_refer_to_exist(place: str, title: str) -> None:
    assert title in find_titles(), f"{place} refers to {title!r}, which is no section of any page"


def test_references_are_found() -> None:
    assert len(find_references()) > 20


def test_code_that_pages_include_exists() -> None:
    included = [
        match.groups()
        for page in PAGES
        for match in re.finditer(r'literalinclude:: \.\./\.\./(\S+\.py)(?:\n +:pyobject: (\S+))?', page.read_text())
    ]
    assert any(name for _, name in included)
    for path, name in included:
        node: ast.AST = ast.parse((ROOT / path).read_text())
        for part in name.split('.') if name else ():
            found = {getattr(each, 'name', None): each for each in ast.iter_child_nodes(node)}
            assert part in found, f"there is no {name} in {path}"
            node = found[part]


def test_the_guide_for_contributors_names_every_folder() -> None:
    table = (ROOT / 'CONTRIBUTING.md').read_text()
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    parts = [pathlib.PurePath(line).parts for line in listed.stdout.splitlines()]
    folders = {parts[0] for parts in parts if len(parts) > 1} - {'.ci', 'kopf', 'tests'}
    folders |= {'/'.join(parts[:2]) for parts in parts if len(parts) > 2 and parts[0] in ('kopf', 'tests')}
    assert not [folder for folder in sorted(folders) if f'`{folder}/`' not in table]
