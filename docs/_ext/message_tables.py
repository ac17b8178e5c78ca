"""The directive `message-tables`: the warnings and errors in the logs, each with an anchor."""

import pathlib
import types
from typing import Any

from docutils import nodes
from message_texts import LEVELS, Message, find_errors, find_handler_errors, find_messages
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import kopf
from kopf._core.actions.message_codes import CODES, COMPOSED, name_code


class MessageTables(SphinxDirective):
    """One list for each level of the logs, with the texts as they are in the code, and one of errors."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        assert kopf.__file__
        package = pathlib.Path(kopf.__file__).parent
        messages = find_messages(package)
        return [
            self._make_list("Errors that end a command", "messages-commands", _name_codes(find_errors(package))),
            self._make_list("Errors that functions raise", "messages-handlers", find_handler_errors(package)),
            self._make_list("Messages of varying texts", "messages-varying", COMPOSED),
            *(
                self._make_section(level, [message for message in messages if message.level == level])
                for level in reversed(LEVELS)
            ),
        ]

    def _make_list(self, title: str, anchor: str, texts: dict[str, str]) -> nodes.section:
        section = nodes.section("", nodes.title(title, title), ids=[anchor])
        section.document = self.state.document
        entries = nodes.bullet_list()
        for code, text in texts.items():
            paragraph = nodes.paragraph("", "", nodes.literal(f"[{code}]", f"[{code}]"), nodes.Text(" "))
            paragraph += nodes.Text(" ".join(text.split("\n\n")[0].replace("`", "").split()) + " ")
            paragraph += nodes.reference("", "¶", refid=code, internal=True, classes=["headerlink", "shown"])
            entries += nodes.list_item("", _index(code), paragraph, ids=[code])
        section += entries
        return section

    def _make_section(self, level: str, messages: list[Message]) -> nodes.section:
        title = {"critical": "Critical errors", "error": "Errors", "warning": "Warnings"}[level]
        section = nodes.section("", nodes.title(title, title), ids=[f"messages-{level}"])
        section.document = self.state.document
        entries = nodes.bullet_list()
        for message in messages:
            own = [] if message.code is None else [message.code]
            codes = own or [code for beginning, code in CODES.items() if message.has_beginning(beginning)]
            anchor = codes[0] if codes else message.anchor
            link = nodes.reference("", "¶", refid=anchor, internal=True, classes=["headerlink", "shown"])
            text = f"{message.text} [{codes[0]}]" if codes and not own else message.text
            paragraph = nodes.paragraph("", "", nodes.literal(text, text), nodes.Text(" "), link)
            entries += nodes.list_item("", *map(_index, codes), paragraph, ids=[*codes, message.anchor])
        section += entries
        return section


def _name_codes(errors: dict[str, str]) -> dict[str, str]:
    return {name_code(types.new_class(name, (Exception,))): text for name, text in errors.items()}


def _index(code: str) -> addnodes.index:
    """Return an entry of the index: the search shows the place of a code before pages that contain its words."""
    return addnodes.index(entries=[("single", code, code, "main", None)])


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
