"""YAML as the server reads it, and its errors: each row was seen on a real server."""

import pytest

from kopf._kits.testing.wire import clientyaml
from kopf._kits.yaml_texts import load_yaml


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


@pytest.mark.parametrize("load", [lambda text: [clientyaml.load(text.encode())], load_yaml], ids=["one", "stream"])
@pytest.mark.parametrize(
    "text, value",
    [
        *[(word, True) for word in ("y", "Y", "yes", "On", "TRUE")],
        *[(word, False) for word in ("n", "N", "No", "OFF", "false")],
        *[(word, 1000) for word in ("1e3", "1E3", "1.e3", "+1000", "1_000", "1_00e1", "0x3e8", "0o1750", "01750")],
        *[(word, -3) for word in ("-3", "-0b11", "-0o3", "-_3", "-3.0", "-003")],
        *[("1e-3", 0.001), (".5", 0.5), ("12e45", 1.2e46), ("08", 8), ("0x_1f", 31), ("0xffffffffffffffff", 2.0**64)],
        *[("null", None), ("~", None)],
        *[(word, word) for word in ("1:30", "2001-01-01", "=", "<<", "_1", "._1", "0o8", "0b2", "0x", "1e", "1e400")],
        *[(word, word) for word in ("nan", "inf", "1,000", "0x1p4", "0xfffffffffffffffff", "1.2.3", "tRUE")],
    ],
)
def test_words_are_resolved_as_by_kubectl(load, text, value):
    [loaded] = load(f"k: {text}\n")
    assert loaded == {"k": value} and type(loaded["k"]) is type(value)
