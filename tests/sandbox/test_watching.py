"""Watches: their start, their events, and their end."""

import asyncio

import pytest

MERGE = "application/merge-patch+json"
WATCHLIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


async def test_changes_from_a_version_on(client):
    version = await client.version()
    await client.create("a")
    async with client.watch(resourceVersion=version) as watch:
        await client("PATCH", f"{client.things}/a", {"spec": {"size": 2}}, type=MERGE)
        await client("DELETE", f"{client.things}/a")
        assert await watch.until(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_versions_grow_and_deletions_have_one_of_their_own(client):
    await client.create("a")
    async with client.watch(resourceVersion=await client.version()) as watch:
        await client("PATCH", f"{client.things}/a", {"spec": {"size": 2}}, type=MERGE)
        await client("DELETE", f"{client.things}/a")
        versions = [int((await watch.next())["object"]["metadata"]["resourceVersion"]) for _ in range(2)]
    assert versions[0] < versions[1]


async def test_without_a_version_the_present_comes_first(client):
    await client.create("a")
    for params in ({}, {"resourceVersion": "0"}):
        async with client.watch(**params) as watch:
            await client.create(f"b{len(params)}")
            assert (await watch.until(2))[0] == ("ADDED", "a")


async def test_initial_events_end_with_a_bookmark(client):
    await client.create("a")
    async with client.watch(**WATCHLIST, allowWatchBookmarks="true") as watch:
        assert (await watch.next())["type"] == "ADDED"
        bookmark = await watch.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["kind"] == "Thing"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert bookmark["object"]["metadata"]["resourceVersion"] == await client.version()
        await client.create("b")
        assert await watch.until(1) == [("ADDED", "b")]


async def test_initial_events_can_be_left_out(client):
    await client.create("a")
    async with client.watch(sendInitialEvents="false", resourceVersionMatch="NotOlderThan") as watch:
        await client.create("b")
        assert await watch.until(1) == [("ADDED", "b")]


async def test_nothing_is_missed_or_doubled_between_the_initial_events_and_the_rest(client):
    async def create():
        for number in range(50):
            await client.create(f"x{number}")

    task = asyncio.create_task(create())
    async with client.watch(**WATCHLIST) as watch:
        names = [name for _, name in await watch.until(50)]
    await task
    assert sorted(names) == sorted(f"x{number}" for number in range(50))


async def test_objects_that_cease_to_match_are_deleted_for_the_watch(client):
    await client.create("a", labels={"t": "1"})
    async with client.watch(labelSelector="t=1", resourceVersion=await client.version()) as watch:
        for value in ("2", "1"):
            await client("PATCH", f"{client.things}/a", {"metadata": {"labels": {"t": value}}}, type=MERGE)
        await client("PATCH", f"{client.things}/a", {"metadata": {"labels": {"t": "3"}}}, type=MERGE)
        await client("DELETE", f"{client.things}/a")
        await client.create("b", labels={"t": "1"})
        first = await watch.next()
        assert first["type"] == "DELETED"
        assert first["object"]["metadata"]["labels"] == {"t": "1"}
        assert await watch.until(3) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")]


async def test_field_selectors_choose_the_watched_objects(client):
    async with client.watch(fieldSelector="metadata.name=b") as watch:
        await client.create("a")
        await client.create("b")
        assert await watch.until(1) == [("ADDED", "b")]


async def test_other_namespaces_are_not_seen(client):
    async with client.watch() as watch:
        await client(
            "POST",
            "/apis/things.example.dev/v1/namespaces/default/things",
            {"apiVersion": "things.example.dev/v1", "kind": "Thing", "metadata": {"generateName": "x-"}},
        )
        await client.create("own")
        assert await watch.until(1) == [("ADDED", "own")]


async def test_watches_from_too_old_versions_end_with_an_error(client):
    async with client.watch(resourceVersion="1") as watch:
        event = await watch.next()
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert await watch.next() is None


async def test_the_end_comes_when_it_was_asked_for(client):
    async with client.watch(timeoutSeconds="1", resourceVersion=await client.version()) as watch:
        assert await watch.rest() == []


async def test_a_bookmark_comes_before_the_end(client):
    version = await client.version()
    async with client.watch(timeoutSeconds="2", allowWatchBookmarks="true", resourceVersion=version) as watch:
        (bookmark,) = await watch.rest()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"] == {"resourceVersion": version}


@pytest.mark.parametrize(
    "params, status",
    [
        ({"sendInitialEvents": "true"}, 422),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersionMatch": "NotOlderThan"}, 422),
        ({"labelSelector": "a b"}, 400),
        ({"resourceVersion": "x"}, 500),
    ],
)
async def test_wrong_parameters_are_refused(client, params, status):
    assert (await client("GET", client.things, watch="true", **params)).status == status


async def test_watches_can_send_tables_and_metadata(client):
    await client.create("a")
    async with client.watch(headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}) as watch:
        assert (await watch.next())["object"]["rows"][0]["cells"] == ["a", 1]
    partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    async with client.watch(headers={"Accept": partial}, **WATCHLIST, allowWatchBookmarks="true") as watch:
        assert "spec" not in (await watch.next())["object"]
        assert (await watch.next())["object"]["kind"] == "PartialObjectMetadata"


async def test_the_stream_ends_with_its_resource(client, make_crd):
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client("POST", definitions, make_crd("fleetings", "Fleeting"))
    async with client.watch("/apis/things.example.dev/v1/fleetings") as watch:
        await client("DELETE", f"{definitions}/fleetings.things.example.dev")
        assert await watch.next() is None


async def test_no_bookmark_skips_the_objects_of_a_new_resource(client, make_crd):
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    path = "/apis/things.example.dev/v1/brieflies"
    await client("POST", definitions, make_crd("brieflies", "Briefly"))
    version = (await client("GET", path)).body["metadata"]["resourceVersion"]
    options = {"timeoutSeconds": "2", "allowWatchBookmarks": "true", "resourceVersion": version}
    async with client.watch(path, **options) as watch:
        await client("DELETE", f"{definitions}/brieflies.things.example.dev")
        assert await watch.rest() == []


async def test_events_of_a_new_resource_do_not_continue_those_of_an_old_one(client, make_crd):
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    path = "/apis/things.example.dev/v1/renewals"
    await client("POST", definitions, make_crd("renewals", "Renewal"))
    version = (await client("GET", path)).body["metadata"]["resourceVersion"]
    await client("DELETE", f"{definitions}/renewals.things.example.dev")
    while (await client("GET", f"{definitions}/renewals.things.example.dev")).status != 404:
        await asyncio.sleep(0)
    await client("POST", definitions, make_crd("renewals", "Renewal"))
    async with client.watch(path, resourceVersion=version) as watch:
        assert (await watch.next())["object"]["code"] == 410
