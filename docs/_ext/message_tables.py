"""The directive `message-tables`: the warnings and errors in the logs, each with an anchor."""

import pathlib
from typing import Any

from docutils import nodes
from message_texts import LEVELS, Message, find_messages
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import kopf


class MessageTables(SphinxDirective):
    """One definition list for each level of the logs, with the texts as they are in the code."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        assert kopf.__file__
        messages = find_messages(pathlib.Path(kopf.__file__).parent)
        return [
            self._make_section(level, [message for message in messages if message.level == level])
            for level in reversed(LEVELS)
        ]

    def _make_section(self, level: str, messages: list[Message]) -> nodes.section:
        title = {"critical": "Critical errors", "error": "Errors", "warning": "Warnings"}[level]
        section = nodes.section("", nodes.title(title, title), ids=[f"messages-{level}"])
        section.document = self.state.document
        entries = nodes.bullet_list()
        for message in messages:
            link = nodes.reference("", "¶", refid=message.anchor, internal=True, classes=["headerlink", "shown"])
            paragraph = nodes.paragraph("", "", nodes.literal(message.text, message.text), nodes.Text(" "), link)
            entries += nodes.list_item("", paragraph, ids=[message.anchor])
        section += entries
        return section


def add_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Called for each page that was read. Give each message in the tables of troubleshooting an anchor and a link."""
    if app.env.docname != "howto/troubleshooting":
        return
    anchors: set[str] = set()
    for row in doctree.findall(nodes.row):
        for literal in list(row.children[-1].findall(nodes.literal))[:1]:
            anchor = Message(literal.astext(), "error").anchor
            if anchor not in anchors and isinstance(literal.parent, nodes.paragraph):
                anchors.add(anchor)
                row["ids"].append(anchor)
                literal.parent += nodes.Text(" ")
                literal.parent += nodes.reference("", "¶", refid=anchor, internal=True, classes=["headerlink", "shown"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("message-tables", MessageTables)
    app.connect("doctree-read", add_anchors)
    return {"parallel_read_safe": True}
