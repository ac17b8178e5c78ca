"""The page of changes is CHANGELOG.md, converted from Markdown."""

import importlib.util
import re
import types

from snippets import PAGES, ROOT


def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("markdown_texts", ROOT / "docs" / "_ext" / "markdown_texts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_markdown_is_converted():
    text = "## [1.46.0]\n\n### Added\n\n- `kopf run`: see `docs/howto/models.rst`, and\n  [this](https://a.b/c).\n"
    assert load().convert(text).splitlines() == [
        "1.46.0",
        "------",
        "",
        "Added",
        "~~~~~",
        "",
        "- ``kopf run``: see :doc:`/howto/models`, and",
        "  `this <https://a.b/c>`__.",
    ]


def test_the_changelog_names_pages_that_exist():
    pages = {str(path.relative_to(ROOT)) for path in PAGES}
    named = set(re.findall(r"docs/[a-z]+/[\w-]+\.rst", (ROOT / "CHANGELOG.md").read_text()))
    assert named and named <= pages


def test_each_release_says_how_to_upgrade():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert all("\n### Upgrading\n" in release for release in releases)
