"""Names of options, such as `--leader-election`, are marked: browsers would break them after their hyphens."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 28
"""The number of characters that fit into a line on a phone, beside another column; longer words are broken."""


def mark_options(app: Sphinx, doctree: nodes.document) -> None:
    """Called for each page that was read. Add the class `option` to literals with names of options."""
    for literal in doctree.findall(nodes.literal):
        words = literal.astext().split()
        if any(word.startswith("-") for word in words) and max(map(len, words)) <= LONGEST:
            literal["classes"].append("option")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-read", mark_options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
