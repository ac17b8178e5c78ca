"""Pages: what they must mention, and their width: lines of prose end within 120 characters, for readable diffs."""

import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 120
PAGES = [
    *ROOT.glob('*.md'),
    *ROOT.glob('docs/[a-z]*/*.rst'),
    *ROOT.glob('examples/**/*.md'),
    *ROOT.glob('benchmarks/*.md'),
    *ROOT.glob('tests/**/*.md'),
]

UNBROKEN = re.compile(r'``[^`]+``|:[a-z]+:`[^`]+`|`[^`]+`_?_?|\[[^\]]*\]\([^)]*\)')
"""Literals, references and links, which stay on one line."""


def iter_prose(text: str, *, markdown: bool) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of paragraphs and lists: neither code, nor tables, nor the content of directives."""
    is_code = is_table = False
    outer, former = None, ''  # the indentation of the directive or of the paragraph that ends with `::`
    lines = text.splitlines()
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ''], strict=True), 1):
        content = line.lstrip()
        indent = len(line) - len(content)
        if markdown and content.startswith(('```', '<!--')):
            is_code = not is_code if content.startswith('```') else '-->' not in line
        elif is_code:
            is_code = '-->' not in line
        elif not content:
            outer = len(former) - len(former.lstrip()) if former.endswith('::') and not markdown else outer
        elif outer is not None and indent > outer:
            continue
        elif not markdown and content.startswith('..'):
            outer = indent
        else:
            outer = None
            if not markdown and re.fullmatch(r'=+( +=+)+', content):
                is_table = not is_table or bool(following.strip())  # a header ends with such a line, too
            elif not is_table and content[0] not in '|+#':
                yield number, line
        former = line


def test_contributors_are_told_what_each_folder_is() -> None:
    table = (ROOT / 'CONTRIBUTING.md').read_text()
    folders = [
        f'{path.relative_to(ROOT)}/'
        for parent in (ROOT, ROOT / 'tests')
        for path in parent.iterdir()
        if path.is_dir() and not path.name.startswith(('.', '__')) and any(path.glob('*.*'))
    ]
    assert {'docs/', 'tests/core/'} <= {*folders}
    missing = [folder for folder in folders if f'`{folder}' not in table]
    assert missing == []


EXTRAS = re.compile(r'\bkopf\[(?!\.\.\.)[^\]]*\](?!>=1\.46)')
"""The package with extras, but without the version that only this package has: pip installs upstream kopf then."""


@pytest.mark.parametrize('path', [*PAGES, ROOT / 'docs' / 'index.rst'], ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_with_extras_cannot_install_upstream(path):
    assert EXTRAS.findall(path.read_text()) == []


def find_long_lines(path: pathlib.Path) -> list[int]:
    """Return the numbers of the lines of prose that are too long, and could be broken."""
    return [
        number
        for number, line in iter_prose(path.read_text(), markdown=path.suffix == '.md')
        if len(line) > LIMIT and ' ' in UNBROKEN.sub(lambda match: match[0].replace(' ', '_'), line.strip())[:LIMIT]
    ]


@pytest.mark.parametrize('path', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_prose_are_not_too_long(path):
    assert find_long_lines(path) == []


@pytest.mark.parametrize(
    'suffix, text, lines',
    [
        ('.rst', 'LONG\n\n* LONG\n', [1, 3]),
        ('.rst', 'Code::\n\n    LONG\n\n.. note::\n\n    LONG\n\nLONG\n', [9]),
        ('.rst', '====  ====\nLONG\n====  ====\nLONG\n====  ====\n\nLONG\n', [7]),
        ('.md', 'LONG\n\n- LONG\n\n```\nLONG\n```\n\n| LONG |\n\nLONG\n', [1, 3, 11]),
    ],
    ids=['prose', 'code', 'table', 'markdown'],
)
def test_long_lines_of_prose_are_found(suffix, text, lines, tmp_path):
    path = tmp_path / f'page{suffix}'
    path.write_text(text.replace('LONG', 'word ' * 30 + 'end'))
    assert find_long_lines(path) == lines
