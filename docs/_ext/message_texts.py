"""Find the warnings and errors that the package logs, in its code: the page of messages has all of them."""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

LEVELS = ("warning", "error", "critical")
PLACEHOLDER = re.compile(r"%[-+ #0]*[\d.]*[a-z]")
LOGGING = re.compile(r"\.(warning|error|critical|exception|log)\(")
CODE = re.compile(r" \[([a-z-]+)\]$")


class Message(NamedTuple):
    """A message in the log."""

    text: str
    level: str

    @property
    def anchor(self) -> str:
        """The anchor of the message on its page: its first words."""
        words = re.findall(r"[a-z0-9]+", self.text.lower())
        return "message-" + "-".join(words[:8])

    @property
    def code(self) -> str | None:
        """The code that is a part of the text itself: where no formatter can add it."""
        found = CODE.search(self.text)
        return found and found[1]

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
    code: str | None


class _Package(NamedTuple):
    messages: list[Message]
    classes: dict[str, _Class]
    codes: set[str]


@functools.cache
def _read_package(package: pathlib.Path) -> _Package:
    """Return what is needed of all modules. The trees themselves would be a million objects, so they are not kept."""
    found = _Package([], {}, set())
    constants: dict[str, str] = {}
    calls: list[tuple[str, list[ast.expr]]] = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        found.codes.update(re.findall(r"'message_code': '([a-z-]+)'", text))
        if LOGGING.search(text):
            calls.extend(_iter_calls(tree))
        for node in tree.body:
            match node:
                case ast.ClassDef():
                    bases = [_name(each) for each in node.bases if isinstance(each, ast.Name | ast.Attribute)]
                    code = next(filter(None, map(_read_code, node.body)), None)
                    found.classes[node.name] = _Class(bases, ast.get_docstring(node) or "", code)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    constants[name] = _read_text(value) or ""
    for level, templates in calls:
        for template in templates:
            known = constants.get(template.id) if isinstance(template, ast.Name) else _read_text(template)
            text = _mark_values(known or "")
            if len(re.findall(r"[A-Za-z]{2,}", text)) > 2:  # others are made of placeholders only
                found.messages.append(Message(text, level))
    return found


def _iter_calls(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield the level and the templates of each call that logs a message; there are two of `a if condition else b`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="log"), args=[ast.Name(id="level"), template, *_]):
                level = "warning"  # all of these are, when they are logged for the first time
            case ast.Call(func=ast.Attribute(attr="exception"), args=[template, *_]):
                level = "error"
            case ast.Call(func=ast.Attribute(attr=level), args=[template, *_]) if level in LEVELS:
                pass
            case _:
                continue
        yield level, [template.body, template.orelse] if isinstance(template, ast.IfExp) else [template]


def _read_code(node: ast.stmt) -> str | None:
    match node:
        case ast.Assign(targets=[ast.Name(id="message_code")], value=ast.Constant(value=str(code))):
            return code
    return None


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


def find_handler_errors(package: pathlib.Path) -> dict[str, str]:
    """Return the descriptions of the errors that functions of the framework raise in handlers, by their codes."""
    classes = _read_package(package).classes
    return {each.code: each.description for _, each in sorted(classes.items()) if each.code is not None}


def find_given_codes(package: pathlib.Path) -> set[str]:
    """Return the codes that are given with records, as their messages have no beginning in common."""
    return _read_package(package).codes


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
