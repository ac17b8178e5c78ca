"""YAML as the server reads it, and its errors: each row was seen on a real server."""

import pytest

from kopf._kits.testing.wire import clientyaml


@pytest.mark.parametrize(
    "text, message",
    [
        (b"a: [1\nb: {", "line 1: did not find expected ',' or ']'"),
        (b"a: [1, 2", "line 1: did not find expected ',' or ']'"),
        (b"{a: 1", "line 1: did not find expected ',' or '}'"),
        (b"a: b: c", "mapping values are not allowed in this context"),
        (b"a: 'x", "found unexpected end of stream"),
        (b"a:\n\t- x", "line 2: found character that cannot start any token"),
        (b"- a\nb: 1", "line 1: did not find expected '-' indicator"),
        (b"*x", "unknown anchor 'x' referenced"),
        (b"a: &", "did not find expected alphabetic or numeric character"),
        (b"%", "could not find expected directive name"),
        (b"@", "found character that cannot start any token"),
        (b'a: "\\q"', "found unknown escape character"),
        (b"{", "line 1: did not find expected node content"),
        (b"}", "did not find expected node content"),
        (b"\0", "control characters are not allowed"),
        (b"a: |\n b\nc", "line 4: could not find expected ':'"),
    ],
)
def test_complaints_are_those_of_kubectl(text, message):
    with pytest.raises(clientyaml.YamlError) as caught:
        clientyaml.load(text)
    assert str(caught.value) == f"yaml: {message}"


def test_words_and_keys_are_read_as_by_clients():
    text = b"n: off\non: 2001-02-03\n2: ~\na: {b: [1, x]}"
    assert clientyaml.load(text) == {"false": False, "true": "2001-02-03", "2": None, "a": {"b": [1, "x"]}}
