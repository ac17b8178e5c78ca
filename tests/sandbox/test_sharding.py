"""Lists and watches of shards."""

import functools
import pathlib
import ssl

import aiohttp
import pytest

from kopf._kits.testing.storing import sharding
from kopf.testing import Sandbox

LOW, MIDDLE, HIGH = "0x0000000000000000", "0x8000000000000000", "0x10000000000000000"
PATH = "/api/v1/namespaces/default/configmaps"


def shard(start, end, field="uid"):
    return f"shardRange(object.metadata.{field}, '{start}', '{end}')"


def test_the_hash_is_that_of_kubernetes():
    assert sharding.digest("") == "cbf29ce484222325"
    assert sharding.digest("foobar") == "85944171f73967e8"


@pytest.mark.parametrize(
    "text, message",
    [
        ("  ", "empty shard selector is not allowed"),
        ("foo(1)", 'unsupported function "foo"; only shardRange() and || are allowed'),
        ("shardRange()", "shardRange() requires exactly 3 arguments, got 0"),
        (shard(LOW, HIGH, "name"), 'unsupported field path "object.metadata.name"'),
        (shard(MIDDLE, LOW), f"shard range start {MIDDLE} must be less than end {LOW}"),
        (shard("0x1", HIGH), '(did you mean "0x0000000000000001"?)'),
        (shard("1", HIGH), "hexStart must have '0x' prefix, got \"1\""),
        (shard(LOW, "0x10000000000000001"), "17-digit hex value must be '0x10000000000000000' (2^64)"),
        (shard(LOW, "0x00000000000000zz"), 'hexEnd: invalid hex character "z"'),
        (f"{shard(LOW, HIGH)} || {shard(LOW, HIGH, 'namespace')}", "all shard ranges must use the same field"),
        (f"{shard(LOW, HIGH)} && {shard(LOW, HIGH)}", 'unsupported function "_&&_"'),
        ("x", "unexpected expression kind 3"),
    ],
)
def test_invalid_selectors_are_refused_with_the_words_of_a_real_server(text, message):
    with pytest.raises(Exception) as caught:
        sharding.parse(text)
    assert (caught.value.code, caught.value.message.startswith("invalid shard selector: ")) == (500, True)
    assert message in caught.value.message


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def sandbox(request):
    with Sandbox(sharding=request.param) as sandbox:
        for number in range(40):
            sandbox.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}})
        sandbox.is_on = request.param
        yield sandbox


@pytest.fixture
async def ask(sandbox):
    return functools.partial(get, sandbox, PATH)


async def get(sandbox, path, **params):
    context = ssl.create_default_context(cadata=sandbox.ca.decode())
    headers = {"Authorization": f"Bearer {sandbox.token}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=headers) as session,
        session.get(sandbox.url + path, params=params) as response,
    ):
        return await response.json() if "watch" not in params else await response.text()


def names(answer):
    return {item["metadata"]["name"] for item in answer["items"]}


async def test_shards_are_disjoint_and_complete_where_they_are_on(sandbox, ask):
    everything = names(await ask())
    low = await ask(shardSelector=shard(LOW, MIDDLE))
    high = await ask(shardSelector=shard(MIDDLE, HIGH))
    if not sandbox.is_on:
        assert names(low) == everything and "shardInfo" not in low["metadata"]
        return
    assert names(low) | names(high) == everything and not names(low) & names(high) and names(low) and names(high)
    assert low["metadata"]["shardInfo"] == {"selector": shard(LOW, MIDDLE)}
    both = await ask(shardSelector=f"{shard(LOW, MIDDLE)}||{shard(MIDDLE, HIGH)}")
    assert names(both) == everything


async def test_lists_of_custom_resources_do_not_say_that_they_are_shards():
    with Sandbox(crds=[pathlib.Path(__file__).parents[2] / "examples" / "crd.yaml"], sharding=True) as sandbox:
        for number in range(10):
            sandbox.create({"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": f"e{number}"}})
        path = "/apis/kopf.dev/v1/kopfexamples"
        lists = []
        for start, end in [(LOW, MIDDLE), (MIDDLE, HIGH)]:
            lists.append(await get(sandbox, path, shardSelector=shard(start, end)))
    assert sum(len(names(each)) for each in lists) == 10 == len(names(lists[0]) | names(lists[1]))
    assert not any("shardInfo" in each["metadata"] for each in lists)


async def test_watches_show_the_same_part(sandbox, ask):
    part = names(await ask(shardSelector=shard(LOW, MIDDLE)))
    text = await ask(shardSelector=shard(LOW, MIDDLE), watch="true", timeoutSeconds="1")
    assert text.count('"type":"ADDED"') == len(part)
