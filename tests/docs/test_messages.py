"""The page of messages has all warnings and errors of the package, each with an anchor of its own."""

import functools
import importlib.util
import re
import sys
import types

import pytest
from snippets import ROOT

from kopf._core.actions.message_codes import CODES, name_code


@functools.cache
def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("message_texts", ROOT / "docs" / "_ext" / "message_texts.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def find_all_messages():
    """Return all messages of the package; its modules are parsed once for all tests."""
    return load().find_messages(ROOT / "kopf")


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
    messages = find_all_messages()
    assert len(messages) > 90
    anchors = [message.anchor for message in messages]
    assert sorted({anchor for anchor in anchors if anchors.count(anchor) > 1}) == []


def test_each_code_is_that_of_one_message():
    messages = find_all_messages()
    found = {code: [each.text for each in messages if each.has_beginning(start)] for start, code in CODES.items()}
    assert {code: texts for code, texts in found.items() if len(texts) != 1} == {}
    assert len(set(CODES.values())) == len(CODES)


def test_messages_that_ask_for_an_action_have_codes():
    """Those of upstream kopf keep their texts as they are, and have only anchors."""
    asking = re.compile(r"\b(Grant|Add|Set|Raise|Define|Remove|Check|Name|Use|Do not|[Ii]nstall|set settings)\b")
    upstream = ["Unresolved resources cannot be served", "Ambiguous resources will not be served"]
    messages = [message for message in find_all_messages() if asking.search(message.text)]
    assert len(messages) > 15
    assert [
        message.text for message in messages if not any(message.has_beginning(start) for start in [*CODES, *upstream])
    ] == []


def test_errors_that_end_a_command_are_found_with_their_descriptions():
    errors = load().find_errors(ROOT / "kopf")
    assert errors["LoadError"].startswith("Raised if a file or a module of the user cannot be loaded")
    assert {name for name, text in errors.items() if not text} == set()
    assert len(errors) > 20


@pytest.mark.thorough
def test_each_code_has_an_anchor_on_the_page_of_messages():
    page = ROOT / "docs" / "_build" / "reference" / "messages.html"
    if not page.exists():
        pytest.skip("it needs the site: make docs")
    text = page.read_text()
    codes = [*CODES.values(), *(name_code(type(name, (Exception,), {})) for name in load().find_errors(ROOT / "kopf"))]
    assert [code for code in codes if f'id="{code}"' not in text or f"[{code}]" not in text] == []
