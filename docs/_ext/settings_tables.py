"""The directive ``.. settings-tables::`` renders all settings with their defaults and descriptions.

They are taken from the code, so that they are never out of date: the descriptions are the texts below the attributes.
"""

import dataclasses
import inspect
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from kopf import OperatorSettings


class SettingsTables(SphinxDirective):
    """One section a group of settings, with one table each."""

    def run(self) -> list[nodes.Node]:
        texts = [line for group in dataclasses.fields(OperatorSettings) for line in _render_group(group)]
        parent = nodes.section()
        parent.document = self.state.document
        self.state.nested_parse(StringList(texts, source="settings"), 0, parent, match_titles=True)
        return parent.children


def _render_group(group: dataclasses.Field[Any]) -> list[str]:
    cls = group.default_factory
    assert isinstance(cls, type)
    title = f"settings.{group.name}"
    lines = [
        title,
        "-" * len(title),
        "",
        inspect.getdoc(cls) or "",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: 25 15 60",
        "",
        "   * - Setting",
        "     - Default",
        "     - Meaning",
    ]
    for name, default, text in _list_settings(cls):
        first, *others = text.strip().splitlines()
        lines += [f"   * - ``{name}``", f"     - {default}", f"     - {first}", *(f"       {line}" for line in others)]
    return [*lines, ""]


def _list_settings(cls: type) -> list[tuple[str, str, str]]:
    docs = ModuleAnalyzer.for_module(cls.__module__).find_attr_docs()
    instance = cls()
    found = []
    for name in _list_names(cls):
        attribute = inspect.getattr_static(cls, name, None)
        text = inspect.getdoc(attribute) if isinstance(attribute, property) else None
        text = text or "\n".join(docs.get((cls.__name__, name), []))
        if not text or text.startswith("Deprecated"):
            continue
        found.append((name, _render_default(name, instance), inspect.cleandoc(text)))
    return found


def _list_names(cls: type) -> list[str]:
    fields = [field.name for field in dataclasses.fields(cls)]
    return [name for name in dict.fromkeys([*fields, *vars(cls)]) if not name.startswith("_")]


def _render_default(name: str, instance: object) -> str:
    if name == "executor":
        return "a thread pool"
    value = getattr(instance, name)
    if isinstance(value, (str, int, float, tuple, type(None))):
        return f"``{value!r}``"
    return f"``{type(value).__name__}()``"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("settings-tables", SettingsTables)
    return {"parallel_read_safe": True}
