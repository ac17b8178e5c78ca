"""The files of the page: all that they use is in the package."""

import re

import pytest

from kopf._core.engines.inspector_page import TYPES, iter_files

FILES = {path: content.decode() for path, _, content in iter_files()}


def test_the_page_is_at_the_root():
    assert '<!doctype html>' in FILES['/'].lower()


def test_types_are_those_of_the_files():
    assert {(path.rpartition('.')[2] if path != '/' else 'html', type_) for path, type_, _ in iter_files()} <= {
        (suffix.removeprefix('.'), type_) for suffix, type_ in TYPES.items()
    }


@pytest.mark.parametrize('path', FILES)
def test_nothing_of_other_hosts_is_used(path):
    text = FILES[path].replace('http://www.w3.org/2000/svg', '')
    assert not re.search(r'https?://|//[a-z0-9-]+\.[a-z]|@import|url\(', text)


@pytest.mark.parametrize('path', FILES)
def test_no_code_is_in_texts(path):
    text = FILES[path]
    assert not re.search(r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function', text)
    assert not re.search(r'<script>|<style|\sstyle=|\son\w+=', text)


def test_all_mentioned_files_are_there():
    mentioned = {
        name for text in FILES.values() for name in re.findall(r"(?:src|href)=\"([\w.-]+)\"|from '\./([\w.-]+)'", text)
    }
    assert {f'/{first or second}' for first, second in mentioned} <= FILES.keys()


@pytest.mark.parametrize('path', [path for path in FILES if path.endswith('.js')])
def test_lines_of_scripts_are_not_too_long(path):
    # Nothing formats these files, because that would need a package index of JavaScript.
    assert [line for line in FILES[path].splitlines() if len(line) > 120] == []
