"""The page of messages has all warnings and errors of the package, each with an anchor of its own."""

import importlib.util
import sys
import types

from snippets import ROOT


def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("message_texts", ROOT / "docs" / "_ext" / "message_texts.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_are_found_with_their_levels(tmp_path):
    (tmp_path / "module.py").write_text(
        'logger.warning("The %s is not %r: " "add it.", a, b)\n'
        'logger.error(f"Failed for {seconds} seconds: {error!r}")\n'
        'logger.exception("The request %s has " + state, request)\n'
        'logger.warning("%s: %s", a, b)\n'
        'logger.info("It has begun to work.")\n'
    )
    assert [(message.text, message.level) for message in load().find_messages(tmp_path)] == [
        ("Failed for … seconds: …", "error"),
        ("The request … has …", "error"),
        ("The … is not …: add it.", "warning"),
    ]


def test_each_message_is_there_once_with_its_anchor():
    messages = load().find_messages(ROOT / "kopf")
    assert len(messages) > 90
    anchors = [message.anchor for message in messages]
    assert sorted({anchor for anchor in anchors if anchors.count(anchor) > 1}) == []
