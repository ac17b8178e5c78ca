"""The directive `changelog`: CHANGELOG.md as a part of a page, without a library for Markdown."""

import pathlib
import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from markdown_texts import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Changelog(SphinxDirective):
    """One section for each release, with the changes as in the file."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        path = pathlib.Path(self.env.srcdir).parent / "CHANGELOG.md"
        self.env.note_dependency(str(path))
        text = re.sub(r"\A# .*\n", "", path.read_text())
        parent = nodes.section()
        parent.document = self.state.document
        self.state.nested_parse(StringList(convert(text).splitlines(), source=str(path)), 0, parent, match_titles=True)
        return parent.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("changelog", Changelog)
    return {"parallel_read_safe": True}
