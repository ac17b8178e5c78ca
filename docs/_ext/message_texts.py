"""Find the warnings and errors that the package logs, in its code: the page of messages has all of them."""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

LEVELS = ("warning", "error", "critical")
PLACEHOLDER = re.compile(r"%[-+ #0]*[\d.]*[a-z]")
LOGGING = re.compile(r"\.(warning|error|critical|exception)\(")


class Message(NamedTuple):
    """A message in the log."""

    text: str
    level: str

    @property
    def anchor(self) -> str:
        """The anchor of the message on its page: its first words."""
        words = re.findall(r"[a-z0-9]+", self.text.lower())
        return "message-" + "-".join(words[:8])

    def has_beginning(self, beginning: str) -> bool:
        """Check whether the template of the message begins so; `%s` and the like stand for what varies."""
        return self.text.startswith(_mark_values(beginning))


def find_messages(package: pathlib.Path) -> list[Message]:
    """Return all messages of the package, in the order of their texts; "…" stands for what varies.

    A message that is logged at several levels is returned once, with the highest one.
    """
    found: dict[str, Message] = {}
    for message in _read_package(package).messages:
        known = found.setdefault(message.anchor, message)
        found[message.anchor] = max(message, known, key=lambda each: LEVELS.index(each.level))
    return sorted(found.values(), key=lambda message: message.text.lstrip("… '").lower())


class _Class(NamedTuple):
    bases: list[str]
    description: str


class _Package(NamedTuple):
    messages: list[Message]
    classes: dict[str, _Class]


@functools.cache
def _read_package(package: pathlib.Path) -> _Package:
    """Return what is needed of all modules. The trees themselves would be a million objects, so they are not kept."""
    found = _Package([], {})
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        if LOGGING.search(text):
            found.messages.extend(_iter_messages(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = [_name(each) for each in node.bases if isinstance(each, ast.Name | ast.Attribute)]
                found.classes[node.name] = _Class(bases, ast.get_docstring(node) or "")
    return found


def _iter_messages(tree: ast.Module) -> Iterator[Message]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in (*LEVELS, "exception")
            and node.args
        ):
            text = _mark_values(_read_text(node.args[0]) or "")
            if len(re.findall(r"[A-Za-z]{2,}", text)) > 2:  # others are made of placeholders only
                yield Message(text, "error" if node.func.attr == "exception" else node.func.attr)


def _mark_values(template: str) -> str:
    """Return the template of a message with "…" for each value."""
    return re.sub(r"(\{…\}|…)+", "…", PLACEHOLDER.sub("…", template).replace("%%", "%"))


def find_errors(package: pathlib.Path, base: str = "ExplainedError") -> dict[str, str]:
    """Return the descriptions of all errors that end a command with their texts alone, by the names of their types."""
    classes = _read_package(package).classes
    names = {base}
    while found := {name for name, each in classes.items() if name not in names and names.intersection(each.bases)}:
        names |= found
    return {name: classes[name].description for name in sorted(names - {base}) if not name.startswith("_")}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _read_text(node: ast.expr) -> str | None:
    """Return the text of a literal, of a literal with values in it, or of a sum of these."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_read_text(left) or "…") + (_read_text(right) or "…")
    return None
