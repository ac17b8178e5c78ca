"""Unknown and repeated fields: warnings, refusals, or neither."""

import json

import pytest

from kopf._kits.testing.schemas import strictness

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
HEAD = '{"apiVersion": "things.example.dev/v1", "kind": "Thing", '


@pytest.mark.parametrize(
    "text, paths",
    [
        ('{"a": 1, "b": {"a": 2}}', []),
        ('{"a": "\\":"}', []),
        ('{"a": 1, "a": 2}', ["a"]),
        ('{"a" :1, "a" :2}', ["a"]),
        ('{"a": 1, "a": 2, "a": 3}', ["a"]),
        ('{"a": {"b": 1, "b": 2}, "a": {}}', ["a.b", "a"]),
        ('{"a": [{"b": 1}, {"b": 1, "b": 2}]}', ["a[1].b"]),
        ("a: 1", []),
        ('{"a"', []),
    ],
)
def test_fields_given_twice_are_found(text, paths):
    assert strictness.duplicates(text.encode()) == [f'duplicate field "{path}"' for path in paths]


def warnings(answer):
    return [json.loads(text.removeprefix("299 - ")) for text in answer.headers.getall("Warning", [])]


@pytest.fixture(params=["", "Warn", "Ignore", "Strict"])
def validation(request):
    return {"fieldValidation": request.param} if request.param else {}


@pytest.mark.parametrize(
    "rest, mistakes",
    [
        ('"metadata": {"name": "a"}, "spec": {"size": 1, "size": 2}}', ['duplicate field "spec.size"']),
        (
            '"metadata": {"name": "a"}, "spec": {"size": 1, "x": 2}, "top": 3}',
            ['unknown field "spec.x"', 'unknown field "top"'],
        ),
        (
            '"metadata": {"name": "a", "x": 1}, "kind": "Thing"}',
            ['duplicate field "kind"', 'unknown field "metadata.x"'],
        ),
        (
            '"metadata": {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", '
            '"z": 1}]}}',
            ['unknown field "metadata.ownerReferences[0].z"'],
        ),
    ],
)
async def test_mistakes_in_new_objects_are_refused_or_warned_of(client, validation, rest, mistakes):
    answer = await client("POST", client.things, data=HEAD + rest, **validation)
    if validation.get("fieldValidation") == "Strict":
        assert (answer.status, answer.message) == (
            400,
            f'Thing in version "v1" cannot be handled as a Thing: strict decoding error: {", ".join(mistakes)}',
        )
        return
    assert answer.status == 201
    assert warnings(answer) == ([] if validation.get("fieldValidation") == "Ignore" else mistakes)


@pytest.mark.parametrize(
    "type, patch, mistakes",
    [
        (MERGE, '{"spec": {"size": 2, "size": 3, "x": 1}}', ['duplicate field "spec.size"', 'unknown field "spec.x"']),
        (JSON, '[{"op": "add", "path": "/spec/x", "value": 1}]', ['unknown field "spec.x"']),
        (
            JSON,
            '[{"op": "add", "path": "/spec/size", "value": 1, "value": 2, "more": 3}]',
            ['json patch duplicate field "[0].value"', 'json patch unknown field "[0].more"'],
        ),
    ],
)
async def test_mistakes_in_patches_are_refused_or_warned_of(client, validation, type, patch, mistakes):
    await client.create("a")
    answer = await client("PATCH", f"{client.things}/a", data=patch, type=type, **validation)
    if validation.get("fieldValidation") == "Strict":
        assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "patch")
        assert answer.message.endswith(f'": strict decoding error: {", ".join(mistakes)}')
        assert (await client("GET", f"{client.things}/a")).body["metadata"]["generation"] == 1
        return
    assert answer.status == 200
    assert warnings(answer) == ([] if validation.get("fieldValidation") == "Ignore" else mistakes)


async def test_mistakes_in_updates_are_refused(client):
    body = await client.create("a")
    body["spec"]["x"] = 1
    answer = await client("PUT", f"{client.things}/a", body, fieldValidation="Strict")
    assert (answer.status, 'unknown field "spec.x"' in answer.message) == (400, True)


@pytest.mark.parametrize("number", ["1" + 400 * "0", "1e400", "-1e400"])
async def test_too_large_numbers_are_refused(client, number):
    text = '{"apiVersion": "things.example.dev/v1", "kind": "Thing", "metadata": {"name": "big"}, "spec": {"size": %s}}'
    answer = await client("POST", client.things, data=text % number)
    assert (answer.status, answer.message) == (
        400,
        'Thing in version "v1" cannot be handled as a Thing: '
        f"json: cannot unmarshal number {number} into Go value of type float64",
    )
    patch = f'{{"spec": {{"free": {{"x": {number}}}}}}}'
    await client.create("big")
    answer = await client("PATCH", f"{client.things}/big", data=patch, type="application/merge-patch+json")
    assert (answer.status, answer.message) == (
        400,
        f"error decoding patch: json: cannot unmarshal number {number} into Go value of type float64",
    )


@pytest.mark.parametrize(
    "given, stored",
    [
        (r'"x\udcff"', "x\ufffd"),
        (r'"\ud800\u0041"', "\ufffdA"),
        (r'"\ud83d\ude00\ud83d"', "\U0001f600\ufffd"),
        (r'["\udcff", 1000000000000000000000000000000]', ["\ufffd", 1e30]),
    ],
)
async def test_halves_of_characters_are_replaced(client, given, stored):
    path = f"{client.things}/h"
    await client.create("h")
    for type, patch in (
        (MERGE, f'{{"spec":{{"free":{{"a":{given}}}}}}}'),
        (JSON, f'[{{"op": "add", "path": "/spec/free", "value": {{"a": {given}}}}}]'),
    ):
        answer = await client("PATCH", path, data=patch, type=type)
        assert (answer.status, answer.body["spec"]["free"]) == (200, {"a": stored})


@pytest.mark.parametrize("depth", [400, 3000])
@pytest.mark.parametrize("type", ["application/json", "application/yaml"])
async def test_too_deep_objects_are_refused_without_a_traceback(client, depth, type, caplog):
    deep = '{"a": ' * depth + "1" + "}" * depth
    text = f'{HEAD}"metadata": {{"name": "d"}}, "spec": {{"size": 1, "free": {deep}}}}}'
    answer = await client("POST", client.things, data=text, type=type)
    assert answer.status == 501 and answer.message.endswith("the object is nested too deeply")
    assert not caplog.records
