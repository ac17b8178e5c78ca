"""The page of messages has all warnings and errors of the package, each with an anchor of its own."""

import functools
import importlib.util
import re
import sys
import types

import pytest
from snippets import ROOT

from kopf._core.actions.message_codes import CODES, COMPOSED, name_code


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
        'logger.warning(AGAIN, a)\n'
        'logger.warning("It is one of these." if a else "It is another one.")\n'
        'logger.log(level, "The %s cannot be reached now.", a)\n'
        'AGAIN = "%s is called again and again."\n'
    )
    assert [(message.text, message.level) for message in load().find_messages(tmp_path)] == [
        ("Failed for … seconds: …", "error"),
        ("… is called again and again.", "warning"),
        ("It is another one.", "warning"),
        ("It is one of these.", "warning"),
        ("The request … has …", "error"),
        ("The … cannot be reached now.", "warning"),
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
    asking = re.compile(
        r"\b(Grant|Add|Set|Raise|Define|Remove|Check|Name|Use|Do not|[Ii]nstall|set settings|Apply|Create|Rename|Give|"
        r"Let only|Store|Return from|Did you mean|To run|call kopf|must have|has no effect|which is left out|scale)\b"
    )
    upstream = ["Unresolved resources cannot be served", "Ambiguous resources will not be served"]
    messages = [message for message in find_all_messages() if asking.search(message.text)]
    assert len(messages) > 30
    assert [
        message.text
        for message in messages
        if not message.code and not any(message.has_beginning(start) for start in [*CODES, *upstream])
    ] == []


def test_messages_of_varying_texts_have_codes_that_are_described():
    given = load().find_given_codes(ROOT / "kopf")
    assert given - set(COMPOSED) == set()
    assert set(COMPOSED) - given == {"member-untrue", "shards-differ", "shards-lease-foreign"}, "a method adds these"


# These log what handlers have raised and what peers do, in the words of upstream kopf; or what needs no action.
UNNAMED = """
    actions/execution.py actions/loggers.py engines/admission.py engines/conversion_reviews.py engines/levels.py
    kopf/cli.py testing/controllers/workloads.py
""".split()


def test_messages_without_words_of_their_own_have_codes():
    found = []
    without_words = re.compile(r"\.(?:warning|error|critical)\(\s*f?[\"'](?:%s[ :;]*|\{\w+\}[; ]*)+[\"'].*")
    for path in sorted((ROOT / "kopf").rglob("*.py")):
        for call in without_words.findall(path.read_text()):
            if "message_code" not in call and not str(path).endswith(tuple(UNNAMED)):
                found.append(f"{path}: {call}")
    assert found == []


def test_each_code_is_used_once():
    errors = [name_code(type(name, (Exception,), {})) for name in load().find_errors(ROOT / "kopf")]
    own = [message.code for message in find_all_messages() if message.code]
    codes = [*CODES.values(), *COMPOSED, *load().find_handler_errors(ROOT / "kopf"), *errors, *own]
    assert sorted({code for code in codes if codes.count(code) > 1}) == []


def test_errors_of_functions_in_handlers_are_found_with_their_descriptions():
    errors = load().find_handler_errors(ROOT / "kopf")
    assert errors["child-error"].startswith("Raised if the operator cannot apply a child.")
    assert len(errors) > 5 and all(errors.values())


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
    errors = [name_code(type(name, (Exception,), {})) for name in load().find_errors(ROOT / "kopf")]
    own = [message.code for message in find_all_messages() if message.code]
    codes = [*CODES.values(), *COMPOSED, *load().find_handler_errors(ROOT / "kopf"), *errors, *own]
    assert [code for code in codes if f'id="{code}"' not in text or f"[{code}]" not in text] == []
