"""The directive ``.. decorator-tables::`` renders all decorators with their options: types, defaults, meanings.

They are taken from the code, so that they are never out of date: the texts are those that `help` shows.
"""

import inspect
import types
from typing import Any

from decorator_options import list_decorators, list_options
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class DecoratorTables(SphinxDirective):
    """The description of each decorator of ``kopf.on``, with a table of its options."""

    def run(self) -> list[nodes.Node]:
        lines = [".. py:module:: kopf.on", ""]
        for fn in list_decorators():
            lines += _render(fn)
        parent = nodes.section()
        parent.document = self.state.document
        self.state.nested_parse(StringList(lines, source="kopf.on"), 0, parent)
        return parent.children


def _render(fn: types.FunctionType) -> list[str]:
    doc = inspect.getdoc(fn) or ""
    text, _, _ = doc.partition("\n\nArgs:\n")
    text, _, _ = text.partition("\n\nRaises:\n")
    lines = [f".. py:function:: {fn.__name__}({_name_arguments(fn)})", ""]
    lines += [f"   {line}" for line in text.splitlines()]
    table = [".. list-table::", "   :header-rows: 1", "   :widths: 20 25 55", ""]
    table += ["   * - Option", "     - Type, default", "     - Meaning"]
    for name, type, default, meaning in list_options(fn):
        kind = f"``{type}``" + (f", ``{default}``" if default else "")
        table += [f"   * - ``{name}``", f"     - {kind}", f"     - {meaning}"]
    return [*lines, "", *(f"   {line}" if line else "" for line in table), ""]


def _name_arguments(fn: types.FunctionType) -> str:
    positional = [each for each in inspect.signature(fn).parameters.values() if each.kind is not each.KEYWORD_ONLY]
    # The resource has up to three names, which the page on resources explains.
    first = "fn, " if positional and positional[0].name == "fn" else "*resource, " if positional else ""
    return f"{first}**options"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("decorator-tables", DecoratorTables)
    return {"parallel_read_safe": True}
