"""Rules of CRDs in CEL: their refusals in the words of a real server."""

import subprocess
import sys

import pytest

pytest.importorskip("cel_expr_python")

MERGE = "application/merge-patch+json"
GROUP = "things.example.dev"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INTEGER, STRING = {"type": "integer"}, {"type": "string", "maxLength": 100}


def ruled(schema, *rules):
    """Return a schema with rules: texts, pairs of a text and a message, or dicts."""
    pairs = [(rule, "") if isinstance(rule, str) else rule for rule in rules]
    return {
        **schema,
        "x-kubernetes-validations": [
            rule if isinstance(rule, dict) else {"rule": rule[0], **({"message": rule[1]} if rule[1] else {})}
            for rule in pairs
        ],
    }


def objects(**properties):
    return {"type": "object", "properties": properties}


def lists(items, **more):
    return {"type": "array", "maxItems": 10, "items": items, **more}


SPEC = ruled(
    {
        "type": "object",
        "properties": {
            "min": {**INTEGER, "default": 0},
            "max": {**INTEGER, "default": 10},
            "divisor": INTEGER,
            "word": {**STRING, "default": "W"},
            "absent": STRING,
            "list": {**lists(ruled(INTEGER, ("self % 2 == 0", "must be even"))), "default": []},
            "name": ruled(STRING, ("self == oldSelf", "name is immutable")),
            "frozen": ruled(
                STRING,
                {
                    "rule": "oldSelf.hasValue() ? self == oldSelf.value() : self == 'new'",
                    "optionalOldSelf": True,
                    "message": "frozen",
                },
            ),
            "sub": ruled(
                objects(name=STRING), "self.name.startsWith('a')", ("self.name.find('[0-9]+') == ''", "no digits")
            ),
            "map": {
                "type": "object",
                "maxProperties": 5,
                "additionalProperties": ruled(STRING, ("self.size() < 5", "short")),
            },
            "items": lists(
                ruled(
                    {**objects(k=STRING, v=INTEGER), "required": ["k"]},
                    ("!has(oldSelf.v) || self.v >= oldSelf.v", "v may only grow"),
                ),
                **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
            ),
            "at": ruled(
                {"type": "string", "format": "date-time"}, ("self > timestamp('2020-01-01T00:00:00Z')", "too early")
            ),
            "wait": ruled({"type": "string", "format": "duration"}, ("self < duration('1h')", "too long")),
            "times": ruled(
                objects(at={"type": "string", "format": "date-time"}),
                ("self.at > timestamp('2020-01-01T00:00:00Z')", "too early"),
            ),
            "either": ruled(
                {"x-kubernetes-int-or-string": True}, ("type(self) == int ? self > 0 : self.endsWith('%')", "either")
            ),
            "quantity": ruled(
                STRING, ("isQuantity(self) && quantity(self).isGreaterThan(quantity('1Mi'))", "quantity")
            ),
            "url": ruled(STRING, ("isURL(self) && url(self).getScheme() == 'https'", "url")),
            "address": ruled(STRING, ("isIP(self) && cidr('10.0.0.0/8').containsIP(self)", "address")),
            "sorted": ruled(
                lists(INTEGER),
                ("self.isSorted()", "sorted"),
                ("self.sum() < 100 && self.max() < 50", "sum"),
                ("!sets.contains(self, [13])", "thirteen"),
            ),
            "double": ruled({"type": "number"}, ("self > 0.5", "double")),
            "multi": ruled(STRING, ("self != 'a'\n  && self != 'b'", "multi")),
            "with-dash": STRING,
            "namespace": STRING,
        },
    },
    ("self.min <= self.max", "min must not exceed max"),
    "self.min >= 0",
    {"rule": "self.min < 50", "messageExpression": "'min is wrong for ' + self.word"},
    {"rule": "self.min != 13", "message": "thirteen", "messageExpression": "'bad luck: ' + self.absent"},
    {"rule": "self.max != 77", "reason": "FieldValueForbidden", "fieldPath": ".max", "message": "not 77"},
    {"rule": "self.max != 78", "reason": "FieldValueDuplicate", "message": "not 78"},
    {"rule": "self.max != 79", "reason": "FieldValueRequired", "fieldPath": ".sub.name", "message": "not 79"},
    ("!has(self.divisor) || self.max / self.divisor > 0", "division"),
    ("self.list.all(x, self.max > x)", "list too large"),
    ("!has(self.__namespace__) || self.with__dash__dash == self.__namespace__", "names"),
)


def definition(make_crd, plural, spec, *root):
    made = make_crd(plural, plural[:-1].title(), spec=spec)
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = ruled(schema, *root) if root else schema
    return made


class Rules:
    def __init__(self, client, plural):
        self.client, self.plural = client, plural
        self.path = f"/apis/{GROUP}/v1/namespaces/{client.namespace}/{plural}"

    async def post(self, name, spec=None):
        return await self.client(
            "POST",
            self.path,
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": self.plural[:-1].title(),
                "metadata": {"name": name},
                **({} if spec is None else {"spec": spec}),
            },
        )

    async def patch(self, name, **patch):
        return await self.client("PATCH", f"{self.path}/{name}", patch, type=MERGE)


@pytest.fixture
async def rules(client, make_crd):
    await client(
        "POST",
        DEFINITIONS,
        definition(
            make_crd,
            "rules",
            SPEC,
            ("self.metadata.name != 'evil'", "evil name"),
            ("self.metadata.name.startsWith('x') || self.spec.min < 40", "only x"),
        ),
    )
    yield Rules(client, "rules")


def causes(answer):
    assert answer.status == 422, answer
    return [(cause["field"], cause["message"]) for cause in answer.body["details"]["causes"]]


@pytest.mark.parametrize(
    "spec, expected",
    [
        ({"min": 6, "max": 5}, [("spec", "Invalid value: min must not exceed max")]),
        ({"min": -1}, [("spec", "Invalid value: failed rule: self.min >= 0")]),
        ({"min": 50, "max": 60}, [("<nil>", "Invalid value: only x"), ("spec", "Invalid value: min is wrong for W")]),
        ({"min": 13, "max": 60}, [("spec", "Invalid value: thirteen")]),
        ({"max": 77}, [("spec.max", "Forbidden: not 77")]),
        ({"max": 78}, [("spec", "Duplicate value")]),
        ({"max": 79}, [("spec.sub.name", "Required value: not 79")]),
        ({"divisor": 0}, [("spec", 'Invalid value: "object": division by zero evaluating rule: division')]),
        (
            {"list": [2, 3, 30]},
            [("spec", "Invalid value: list too large"), ("spec.list[1]", "Invalid value: 3: must be even")],
        ),
        ({"frozen": "old"}, [("spec.frozen", 'Invalid value: "old": frozen')]),
        (
            {"sub": {"name": "b1"}},
            [
                ("spec.sub", "Invalid value: failed rule: self.name.startsWith('a')"),
                ("spec.sub", "Invalid value: no digits"),
            ],
        ),
        (
            {"sub": {}},
            [
                ("spec.sub", "Invalid value: \"object\": no such key: name evaluating rule: self.name.startsWith('a')"),
                ("spec.sub", 'Invalid value: "object": no such key: name evaluating rule: no digits'),
            ],
        ),
        ({"map": {"a": "ok", "b": "toolong"}}, [("spec.map[b]", 'Invalid value: "toolong": short')]),
        ({"at": "2019-01-01T00:00:00Z"}, [("spec.at", 'Invalid value: "2019-01-01T00:00:00Z": too early')]),
        ({"times": {"at": "2019-01-01T00:00:00Z"}}, [("spec.times", "Invalid value: too early")]),
        ({"wait": "2h"}, [("spec.wait", 'Invalid value: "2h": too long')]),
        ({"either": -1}, [("spec.either", "Invalid value: -1: either")]),
        ({"either": "5"}, [("spec.either", 'Invalid value: "5": either')]),
        ({"quantity": "1k"}, [("spec.quantity", 'Invalid value: "1k": quantity')]),
        ({"quantity": "x"}, [("spec.quantity", 'Invalid value: "x": quantity')]),
        ({"url": "http://a"}, [("spec.url", 'Invalid value: "http://a": url')]),
        ({"url": "x"}, [("spec.url", 'Invalid value: "x": url')]),
        ({"address": "11.0.0.1"}, [("spec.address", 'Invalid value: "11.0.0.1": address')]),
        ({"sorted": [3, 2]}, [("spec.sorted", "Invalid value: sorted")]),
        ({"sorted": [60, 70]}, [("spec.sorted", "Invalid value: sum")]),
        ({"sorted": [13]}, [("spec.sorted", "Invalid value: thirteen")]),
        ({"double": 0.1}, [("spec.double", "Invalid value: 0.1: double")]),
        ({"multi": "a"}, [("spec.multi", 'Invalid value: "a": multi')]),
        ({"with-dash": "a", "namespace": "b"}, [("spec", "Invalid value: names")]),
        (
            {"min": 6, "max": 5, "name": 5},
            [
                ("spec.name", 'Invalid value: "integer": spec.name in body must be of type string: "integer"'),
                (
                    "<nil>",
                    "Invalid value: null: some validation rules were not checked because the object "
                    "was invalid; correct the "
                    "existing errors to complete validation",
                ),
            ],
        ),
        (None, [("<nil>", 'Invalid value: "object": no such key: spec evaluating rule: only x')]),
    ],
)
async def test_broken_rules_refuse_the_object(rules, spec, expected):
    assert causes(await rules.post("b", spec)) == expected


async def test_rules_of_the_root_refuse_without_a_field(rules):
    refused = await rules.post("evil", {})
    assert causes(refused) == [("<nil>", "Invalid value: evil name")]
    assert refused.message == 'Rule.things.example.dev "evil" is invalid: <nil>: Invalid value: evil name'


@pytest.mark.parametrize(
    "spec",
    [
        {"min": 1, "max": 5},
        {"either": "5%"},
        {"quantity": "1Gi"},
        {"url": "https://a/b"},
        {"sorted": [1, 2]},
        {"double": 1},
        {"frozen": "new"},
        {"address": "10.1.2.3"},
        {"times": {"at": "2021-01-01T00:00:00Z"}},
        {"name": None},
        {"with-dash": "a", "namespace": "a"},
    ],
)
async def test_valid_objects_are_accepted(rules, spec):
    assert (await rules.post("a", spec)).status == 201


async def test_rules_see_the_former_values(rules):
    await rules.post("n", {"name": "x", "frozen": "new", "items": [{"k": "a", "v": 5}, {"k": "b"}]})
    assert (await rules.patch("n", spec={"min": 2})).status == 200
    assert causes(await rules.patch("n", spec={"name": "y"})) == [
        ("spec.name", 'Invalid value: "y": name is immutable')
    ]
    assert causes(await rules.patch("n", spec={"frozen": "other"})) == [
        ("spec.frozen", 'Invalid value: "other": frozen')
    ]
    shrunk = [{"k": "b", "v": 1}, {"k": "a", "v": 4}]
    assert causes(await rules.patch("n", spec={"items": shrunk})) == [
        ("spec.items[1]", "Invalid value: v may only grow")
    ]
    assert (await rules.patch("n", spec={"name": None})).status == 200
    assert (await rules.patch("n", spec={"name": "y"})).status == 200


async def test_what_was_broken_before(client, make_crd):
    """New rules are not held against old values, as long as those stay as they are."""
    await client("POST", DEFINITIONS, definition(make_crd, "olds", objects(a=INTEGER, b=INTEGER)))
    olds = Rules(client, "olds")
    await olds.post("o", {"a": 1, "b": 1})
    strict = definition(
        make_crd, "olds", ruled(objects(a=ruled(INTEGER, ("self > 5", "five")), b=INTEGER), ("self.a < self.b", "less"))
    )
    await client("PATCH", f"{DEFINITIONS}/olds.{GROUP}", {"spec": strict["spec"]}, type=MERGE)
    assert (await olds.patch("o", metadata={"labels": {"a": "b"}})).status == 200
    assert (await olds.patch("o", spec={"b": 2})).status == 200
    assert causes(await olds.patch("o", spec={"a": 2})) == [
        ("spec", "Invalid value: less"),
        ("spec.a", "Invalid value: 2: five"),
    ]


async def test_what_has_broken_the_schema_before(client, make_crd):
    """Values that do not fit a new schema may stay as they are; of rules that they break, one is warned."""
    await client(
        "POST", DEFINITIONS, definition(make_crd, "elders", objects(a=INTEGER, b=INTEGER, s=STRING, l=lists(INTEGER)))
    )
    elders = Rules(client, "elders")
    await elders.post("o", {"a": 1, "b": 1, "s": "x", "l": [1, 20]})
    strict = definition(
        make_crd,
        "elders",
        objects(
            a=ruled(INTEGER, "self > 3"),
            b={**INTEGER, "maximum": 0},
            s={**STRING, "enum": ["y"]},
            l=lists(ruled(INTEGER, "self < 10")),
        ),
    )
    await client("PATCH", f"{DEFINITIONS}/elders.{GROUP}", {"spec": strict["spec"]}, type=MERGE)
    answer = await elders.patch("o", spec={"b": 0})
    assert (answer.status, answer.headers.getall("Warning")) == (
        200,
        [
            '299 - "spec.a: Invalid value: 1: failed rule: self > 3"',
            '299 - "spec.l[1]: Invalid value: 20: failed rule: self < 10"',
        ],
    )
    assert causes(await elders.patch("o", spec={"b": 2})) == [
        ("spec.b", "Invalid value: 2: spec.b in body should be less than or equal to 0")
    ]
    assert causes(await elders.patch("o", spec={"l": [20]})) == [
        ("spec.l[0]", "Invalid value: 20: failed rule: self < 10")
    ]
    assert causes(await elders.patch("o", spec={"s": "z"})) == [
        ("spec.s", 'Unsupported value: "z": supported values: "y"'),
        (
            "<nil>",
            "Invalid value: null: some validation rules were not checked because the object was invalid; correct "
            "the existing errors to complete validation",
        ),
    ]


@pytest.mark.parametrize(
    "rule, field, message",
    [
        ({"rule": " "}, "rule", "Required value: rule is not specified"),
        (
            {"rule": "self.a >"},
            "rule",
            'Invalid value: {"Rule":"self.a \\u003e","Message":"","MessageExpression":"","Reason":null,"FieldPath":"",'
            '"OptionalOldSelf":null}: compilation failed: ERROR: <input>:1:9: Syntax error: '
            "mismatched input '<EOF>' expecting "
            "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, "
            "STRING, BYTES, IDENTIFIER}\n"
            " | self.a >\n | ........^",
        ),
        ({"rule": "self.a.foo()"}, "rule", "undeclared reference to 'foo' (in container '')"),
        ({"rule": "size(self.s)"}, "rule", "cel expression must evaluate to a bool"),
        ({"rule": "self.a > 1", "reason": "Other"}, "reason", 'Unsupported value: "Other": supported values: '),
        ({"rule": "self.a > 1", "fieldPath": ".zz"}, "fieldPath", 'Invalid value: ".zz": must be a valid path'),
        (
            {"rule": "self.a > 1", "messageExpression": "'x' +"},
            "messageExpression",
            "messageExpression compilation failed: ",
        ),
        (
            {"rule": "self.a > 1", "messageExpression": "1 + 1"},
            "messageExpression",
            "messageExpression must evaluate to a string",
        ),
        ({"rule": "self.a > 1", "message": "a\nb"}, "message", 'Invalid value: "a\\nb": must not contain line breaks'),
        ({"rule": "self.a > 1", "message": " "}, "message", 'Invalid value: " ": must be non-empty if specified'),
        (
            {"rule": "self.a > 1\n&& self.a < 5"},
            "message",
            "Required value: message must be specified if rule contains line breaks",
        ),
        (
            {"rule": "self.a > 1", "optionalOldSelf": True},
            "optionalOldSelf",
            "Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
    ],
)
async def test_wrong_rules_refuse_the_definition(client, make_crd, rule, field, message):
    answer = await client(
        "POST", DEFINITIONS, definition(make_crd, "wrongs", ruled(objects(a=INTEGER, s=STRING), rule))
    )
    ((place, text),) = causes(answer)
    assert place == f"spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].{field}"
    assert message in text


OBJECTS = objects(x=INTEGER)
OPTIONAL = {"optionalOldSelf": True}


@pytest.mark.parametrize(
    "schema, rule, message",
    [
        (objects(a=INTEGER), "self.b > 1", "undefined field 'b'\n | self.b > 1\n | ....^"),
        (objects(a=OBJECTS), "self.a.c > 1", "undefined field 'c'\n | self.a.c > 1\n | ......^"),
        (objects(a=INTEGER), "has(self.b)", "undefined field 'b'\n | has(self.b)\n | ...^"),
        (objects(l=lists(OBJECTS)), "self.l.all(e, e.y > 1)", "undefined field 'y'"),
        (
            objects(m={"type": "object", "maxProperties": 3, "additionalProperties": OBJECTS}),
            "self.m.all(k, self.m[k].y > 1)",
            "undefined field 'y'",
        ),
        (objects(x_a=objects(b=INTEGER), xA=OBJECTS), "self.x_a.b > self.xA.y", "undefined field 'y'"),
        (objects(a={"x-kubernetes-preserve-unknown-fields": True}), "self.a == 1", "undefined field 'a'"),
        ({**objects(a=INTEGER), "x-kubernetes-preserve-unknown-fields": True}, "self.x == 1", "undefined field 'x'"),
        (objects(a=INTEGER), "self.?b.orValue(1) == 1", "undefined field 'b'"),
        (
            objects(a=INTEGER, s=STRING),
            "self.a == self.s",
            "found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (objects(s=STRING), "self.s < 5", "found no matching overload for '_<_' applied to '(string, int)'"),
        (
            objects(d={"type": "number"}),
            "self.d == 1",
            "found no matching overload for '_==_' applied to '(double, int)'",
        ),
        (objects(s=STRING), "self.s == null", "found no matching overload for '_==_' applied to '(string, null)'"),
        (
            objects(s={"type": "string", "format": "byte", "maxLength": 5}),
            "self.s == 'x'",
            "found no matching overload for '_==_' applied to '(bytes, string)'",
        ),
        (objects(s=STRING), "self.s", "cel expression must evaluate to a bool"),
        (
            objects(a=INTEGER),
            {"rule": "oldSelf.a == self.a", **OPTIONAL},
            "found no matching overload for '_==_' applied to '(optional_type(int), int)'\n | oldSelf.a == self.a\n",
        ),
        (
            objects(a=INTEGER),
            {"rule": "oldSelf.hasValue() ? oldSelf.value().b == self.a : true", **OPTIONAL},
            "ERROR: <input>:1:37: undefined field 'b'",
        ),
        (
            {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": OBJECTS}},
            "size(self.metadata.labels) == 1",
            "undefined field 'labels'",
        ),
    ],
)
async def test_what_rules_refer_to(client, make_crd, schema, rule, message):
    answer = await client("POST", DEFINITIONS, definition(make_crd, "wrongs", ruled(schema, rule)))
    text = dict(causes(answer))["spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"]
    assert message in text


@pytest.mark.parametrize(
    "schema, rule",
    [
        (objects(d={"type": "number"}), "self.d < 1 && self.d >= 0"),
        (objects(a=INTEGER), "self.?a.orValue(1) == 1"),
        (objects(a=INTEGER), {"rule": "oldSelf.hasValue() ? oldSelf.value().a == self.a : true", **OPTIONAL}),
        (objects(l=lists(lists(INTEGER))), "self.l[0][0] == 1"),
        (objects(m={"type": "object", "additionalProperties": lists(INTEGER)}), "self.m['a'].size() < 5"),
        (objects(**{"namespace": STRING, "a-b": STRING, "__x": STRING}), "self.__namespace__ == self.a__dash__b"),
        (objects(a={"x-kubernetes-int-or-string": True}), "self.a == 1 || self.a == 'x'"),
        (objects(t={"type": "string", "format": "date"}), "self.t < timestamp('2020-01-01T00:00:00Z')"),
        (
            {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": OBJECTS}},
            "self.kind == self.metadata.name || self.spec.x == 1",
        ),
        (objects(s=STRING), "semver(self.s).major() == 1"),
        # What the library does not have is not evaluated, either.
        (objects(l=lists(STRING)), "self.l.indexOf('a') == 1"),
        (objects(l=lists(STRING)), "self.l.all(i, v, v == 'x')"),
    ],
)
async def test_what_rules_may_say(client, make_crd, schema, rule):
    made = definition(make_crd, "rights", ruled(schema, rule))
    assert (await client("POST", DEFINITIONS, made, dryRun="All")).status == 201


async def test_rules_of_whole_objects_see_only_a_part_of_the_metadata(client, make_crd):
    rules = ("self.spec.b == 1", "self.metadata.labels == 1", "self.metadata.generateName == self.kind", "self.other")
    answer = await client("POST", DEFINITIONS, definition(make_crd, "wrongs", objects(a=INTEGER), *rules))
    places = [
        place.removeprefix("spec.validation.openAPIV3Schema.x-kubernetes-validations") for place, _ in causes(answer)
    ]
    assert places == ["[0].rule", "[1].rule", "[3].rule"]


@pytest.mark.parametrize("inner", [ruled(INTEGER, "self == oldSelf"), objects(a=ruled(INTEGER, "self == oldSelf"))])
async def test_items_without_an_identity_have_no_old_values(client, make_crd, inner):
    answer = await client("POST", DEFINITIONS, definition(make_crd, "wrongs", objects(l=lists(inner))))
    ((_, text),) = causes(answer)
    assert text == (
        'Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within '
        "spec.validation.openAPIV3Schema.properties[spec].properties[l]"
    )


@pytest.mark.parametrize(
    "spec, field, message",
    [
        ({**ruled(objects(a=INTEGER), "self.a > 1"), "default": {}}, ".default", "no such key: a evaluating rule: "),
        (objects(a={**ruled(INTEGER, "self > 1"), "default": 1}), ".properties[a].default", "failed rule: self > 1"),
        (objects(a={**ruled(INTEGER, "f("), "default": 1}), ".properties[a].default", "rule compile error: "),
        (
            {**objects(a=INTEGER), "allOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]},
            ".allOf[0].x-kubernetes-validations",
            "must be empty to be structural",
        ),
        (
            objects(a=ruled({"x-kubernetes-preserve-unknown-fields": True}, "self == 1")),
            ".properties[a].x-kubernetes-validations",
            "unable to convert structural schema to CEL declarations",
        ),
        (objects(b={"type": "wrong"}, a=ruled(INTEGER, "self > 1")), ".properties[b].type", "Unsupported value"),
        (ruled(objects(b={"type": "wrong"}), "self.c > 1"), ".properties[b].type", "Unsupported value"),
    ],
)
async def test_rules_are_ignored_in_wrong_schemas(client, make_crd, spec, field, message):
    """Rules are not looked at where the schema itself is wrong."""
    ((place, text),) = causes(await client("POST", DEFINITIONS, definition(make_crd, "wrongs", spec)))
    assert (place, message in text) == (f"spec.validation.openAPIV3Schema.properties[spec]{field}", True)


WITHOUT = """
import logging, sys
logging.basicConfig(format="%(message)s")
sys.modules["cel_expr_python"] = None
from kopf.testing import Sandbox
rule = {"x-kubernetes-validations": [{"rule": "self.a > ("}]}
def crd(name):
    spec = {"type": "object", "properties": {"a": {"type": "integer"}}, **rule}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}s.a.dev"}, "spec": {"group": "a.dev", "scope": "Namespaced",
        "names": {"plural": f"{name}s", "kind": name.title()}, "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}}
with Sandbox(crds=[crd("one"), crd("two")]) as sandbox:
    sandbox.create({"apiVersion": "a.dev/v1", "kind": "One", "metadata": {"name": "x"}, "spec": {"a": 0}})
"""


@pytest.mark.long
def test_without_the_library():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "The validation rules of custom resources (x-kubernetes-validations) are not checked: install "
        "the library that evaluates them by `pip install 'kopf[cel]>=1.46'`.\n"
    )
