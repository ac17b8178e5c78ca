"""Deletion: finalizers, garbage collection, and the contents of namespaces and CRDs."""

import asyncio

import pytest

MERGE = "application/merge-patch+json"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def gone(client):
    """Wait until there is nothing at a path any more."""

    async def gone(path):
        async with asyncio.timeout(60):
            while (await client("GET", path)).status != 404:
                await asyncio.sleep(0)

    return gone


def owned(name, *owners, **reference):
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **reference,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}}


async def test_without_finalizers_an_object_is_gone_at_once(client):
    body = await client.create("a")
    answer = await client("DELETE", f"{client.things}/a")
    assert (answer.status, answer.body["status"]) == (200, "Success")
    assert answer.body["details"]["uid"] == body["metadata"]["uid"]
    assert (await client("DELETE", f"{client.things}/a")).status == 404


async def test_finalizers_hold_an_object(client):
    await client.create("a", finalizers=["x.dev/y"])
    async with client.watch(resourceVersion=await client.version()) as watch:
        meta = (await client("DELETE", f"{client.things}/a")).body["metadata"]
        assert meta["deletionTimestamp"] and meta["deletionGracePeriodSeconds"] == 0 and meta["generation"] == 2
        again = await client("DELETE", f"{client.things}/a")
        assert again.body["metadata"] == meta
        kept = await client("PATCH", f"{client.things}/a", {"metadata": {"deletionTimestamp": None}}, type=MERGE)
        assert kept.body["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
        last = await client("PATCH", f"{client.things}/a", {"metadata": {"finalizers": []}}, type=MERGE)
        assert last.status == 200
        assert (await client("GET", f"{client.things}/a")).status == 404
        assert await watch.until(2) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_no_new_finalizers_during_deletion(client):
    await client.create("a", finalizers=["x.dev/y"])
    await client("DELETE", f"{client.things}/a")
    more = {"metadata": {"finalizers": ["x.dev/y", "x.dev/z"]}}
    answer = await client("PATCH", f"{client.things}/a", more, type=MERGE)
    assert answer.status == 422
    assert "no new finalizers can be added" in answer.message


async def test_deletions_keep_to_their_preconditions(client):
    body = await client.create("a")
    for condition in ({"uid": "other"}, {"resourceVersion": "1"}):
        answer = await client("DELETE", f"{client.things}/a", {"preconditions": condition})
        assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    exact = {"uid": body["metadata"]["uid"], "resourceVersion": body["metadata"]["resourceVersion"]}
    assert (await client("DELETE", f"{client.things}/a", {"preconditions": exact})).status == 200


@pytest.mark.parametrize(
    "options, status",
    [
        ({"propagationPolicy": "Other"}, 422),
        ({"kind": "Other", "apiVersion": "v1"}, 400),
    ],
)
async def test_unknown_policies_and_kinds_of_options_are_refused(client, options, status):
    await client.create("a")
    assert (await client("DELETE", f"{client.things}/a", options)).status == status


async def test_dry_deletions_keep_the_object(client):
    await client.create("a")
    assert (await client("DELETE", f"{client.things}/a", {"dryRun": ["All"]})).status == 200
    assert (await client("DELETE", f"{client.things}/a", dryRun="All")).status == 200
    assert (await client("GET", f"{client.things}/a")).status == 200


async def test_collections_are_deleted_by_selectors(client):
    for name in "abc":
        await client.create(name, labels={"old": "yes"} if name != "c" else {})
    answer = await client("DELETE", client.things, labelSelector="old")
    assert answer.names == ["a", "b"]
    assert (await client("GET", client.things)).names == ["c"]


async def test_dependents_go_with_their_last_owner(client, gone):
    one, two = await client.create("one"), await client.create("two")
    await client("POST", client.configmaps, owned("child", one, two))
    await client("DELETE", f"{client.things}/one")
    async with asyncio.timeout(60):
        while len((await client("GET", f"{client.configmaps}/child")).body["metadata"]["ownerReferences"]) > 1:
            await asyncio.sleep(0)
    await client("DELETE", f"{client.things}/two")
    await gone(f"{client.configmaps}/child")


async def test_objects_of_absent_owners_are_collected(client, gone):
    owner = await client.create("one")
    await client("DELETE", f"{client.things}/one")
    await client("POST", client.configmaps, owned("child", owner))
    await gone(f"{client.configmaps}/child")


async def test_orphans_stay_without_their_owner(client, gone):
    owner = await client.create("one")
    await client("POST", client.configmaps, owned("child", owner))
    answer = await client("DELETE", f"{client.things}/one", {"propagationPolicy": "Orphan"})
    assert answer.body["metadata"]["finalizers"] == ["orphan"]
    await gone(f"{client.things}/one")
    assert "ownerReferences" not in (await client("GET", f"{client.configmaps}/child")).body["metadata"]


async def test_foreground_deletion_waits_for_the_dependents(client, gone):
    owner = await client.create("one")
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["x.dev/y"]
    await client("POST", client.configmaps, child)
    answer = await client("DELETE", f"{client.things}/one", {"propagationPolicy": "Foreground"})
    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    async with asyncio.timeout(60):
        while "deletionTimestamp" not in (await client("GET", f"{client.configmaps}/child")).body["metadata"]:
            await asyncio.sleep(0)
    assert (await client("GET", f"{client.things}/one")).status == 200
    await client("PATCH", f"{client.configmaps}/child", {"metadata": {"finalizers": None}}, type=MERGE)
    await gone(f"{client.configmaps}/child")
    await gone(f"{client.things}/one")


async def test_namespaces_take_their_content_with_them(client, gone):
    namespace = f"/api/v1/namespaces/{client.namespace}"
    await client.create("held", finalizers=["x.dev/y", "x.dev/z"])
    await client("POST", client.configmaps, {"metadata": {"name": "c"}})
    answer = await client("DELETE", namespace)
    assert answer.body["status"] == {"phase": "Terminating"}
    await gone(f"{client.configmaps}/c")
    late = await client("POST", client.configmaps, {"metadata": {"name": "late"}})
    assert (late.status, late.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await client("PATCH", f"{client.things}/held", {"metadata": {"finalizers": ["x.dev/y"]}}, type=MERGE)
    expected = {
        "NamespaceContentRemaining": "Some resources are remaining: things.things.example.dev has 1 resource instances",
        "NamespaceFinalizersRemaining": "Some content in the namespace has finalizers remaining: x.dev/y in 1 resource instances",
    }
    async with asyncio.timeout(60):
        told = None
        while told != expected:
            conditions = (await client("GET", namespace)).body["status"].get("conditions", [])
            told = {item["type"]: item["message"] for item in conditions if item["status"] == "True"}
    await client("PATCH", f"{client.things}/held", {"metadata": {"finalizers": []}}, type=MERGE)
    await gone(namespace)


async def test_some_namespaces_stay(client):
    answer = await client("DELETE", "/api/v1/namespaces/default")
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")


async def test_definitions_take_their_objects_with_them(client, make_crd, gone):
    await client("POST", DEFINITIONS, make_crd("brieves", "Brief"))
    brieves = f"/apis/things.example.dev/v1/namespaces/{client.namespace}/brieves"
    await client(
        "POST",
        brieves,
        {
            "apiVersion": "things.example.dev/v1",
            "kind": "Brief",
            "metadata": {"name": "held", "finalizers": ["x.dev/y"]},
        },
    )
    definition = f"{DEFINITIONS}/brieves.things.example.dev"
    answer = await client("DELETE", definition)
    assert answer.body["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    async with asyncio.timeout(60):
        while "deletionTimestamp" not in (await client("GET", f"{brieves}/held")).body["metadata"]:
            await asyncio.sleep(0)
    assert (await client("POST", brieves, {})).status == 405
    await client("PATCH", f"{brieves}/held", {"metadata": {"finalizers": []}}, type=MERGE)
    await gone(definition)
    assert (await client("GET", brieves)).status == 404


@pytest.mark.parametrize(
    "finalizers, options, expected",
    [
        (["orphan"], {}, ["orphan"]),
        (["orphan"], {"propagationPolicy": "Background"}, None),
        (["orphan", "x.dev/y"], {"propagationPolicy": "Foreground"}, ["x.dev/y", "foregroundDeletion"]),
        (["x.dev/y"], {"orphanDependents": True}, ["x.dev/y", "orphan"]),
        (["foregroundDeletion", "x.dev/y"], {"orphanDependents": False}, ["x.dev/y"]),
    ],
)
async def test_each_deletion_decides_what_becomes_of_dependents(client, finalizers, options, expected):
    await client.create("a", finalizers=finalizers)
    answer = await client("DELETE", f"{client.things}/a", {"dryRun": ["All"], **options})
    assert answer.body["metadata"].get("finalizers") == expected
    assert (await client("GET", f"{client.things}/a")).body["metadata"]["finalizers"] == finalizers
    answer = await client("DELETE", f"{client.things}/a", options)
    assert (answer.body["metadata"].get("finalizers"), answer.body["kind"]) == (
        expected,
        "Thing" if expected else "Status",
    )


async def test_a_later_deletion_can_decide_otherwise(client, gone):
    owner = await client.create("one", finalizers=["x.dev/y"])
    await client("POST", client.configmaps, owned("child", owner))
    await client("DELETE", f"{client.things}/one")
    answer = await client("DELETE", f"{client.things}/one", {"propagationPolicy": "Foreground"})
    assert answer.body["metadata"]["finalizers"] == ["x.dev/y", "foregroundDeletion"]
    await gone(f"{client.configmaps}/child")
    async with asyncio.timeout(60):
        while len((await client("GET", f"{client.things}/one")).body["metadata"]["finalizers"]) > 1:
            await asyncio.sleep(0)


async def test_foreground_deletion_spares_dependents_with_other_owners(client, gone):
    one, two = await client.create("one"), await client.create("two")
    await client("POST", client.configmaps, owned("child", one, two, blockOwnerDeletion=True))
    await client("DELETE", f"{client.things}/one", {"propagationPolicy": "Foreground"})
    await gone(f"{client.things}/one")
    left = (await client("GET", f"{client.configmaps}/child")).body["metadata"]["ownerReferences"]
    assert [reference["name"] for reference in left] == ["two"]


async def test_foreground_deletion_in_generations(client, gone):
    one = await client.create("one")
    child = (await client("POST", client.configmaps, owned("child", one, blockOwnerDeletion=True))).body
    await client("POST", client.configmaps, owned("grandchild", child, blockOwnerDeletion=True))
    async with client.watch(client.configmaps, resourceVersion=await client.version()) as watch:
        await client("DELETE", f"{client.things}/one", {"propagationPolicy": "Foreground"})
        assert await watch.until(3) == [("MODIFIED", "child"), ("DELETED", "grandchild"), ("DELETED", "child")]
    await gone(f"{client.things}/one")


async def test_owners_are_looked_for_in_the_same_namespace(client, gone, sandbox):
    other = sandbox.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "elsewhere"}})
    await client("POST", client.configmaps, owned("child", other))
    await gone(f"{client.configmaps}/child")


async def test_the_last_event_shows_the_object_as_it_was_stored(client):
    await client.create("a", finalizers=["x.dev/y"])
    await client("DELETE", f"{client.things}/a")
    async with client.watch(resourceVersion=await client.version()) as watch:
        answer = await client("PATCH", f"{client.things}/a", {"metadata": {"finalizers": None}}, type=MERGE)
        assert "finalizers" not in answer.body["metadata"]
        event = await watch.next()
    assert (event["type"], event["object"]["metadata"]["finalizers"]) == ("DELETED", ["x.dev/y"])
    await client.create("b", finalizers=["orphan"])
    async with client.watch(resourceVersion=await client.version()) as watch:
        await client("DELETE", f"{client.things}/b", {"propagationPolicy": "Background"})
        event = await watch.next()
    assert (event["type"], event["object"]["metadata"]["finalizers"]) == ("DELETED", ["orphan"])


@pytest.mark.parametrize(
    "query, options, status, message",
    [
        ({}, {"propagationPolicy": "Orphan", "orphanDependents": True}, 422, "cannot be both set"),
        (
            {},
            {"propagationPolicy": 5},
            400,
            "cannot unmarshal number into Go struct field DeleteOptions.propagationPolicy",
        ),
        ({}, {"dryRun": ["Some"]}, 422, 'Unsupported value: ["Some"]'),
        ({}, [], 400, "json: cannot unmarshal array"),
        ({"propagationPolicy": "Some"}, None, 422, 'Unsupported value: "Some"'),
        ({"gracePeriodSeconds": "x"}, None, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ],
)
async def test_invalid_options_are_refused_with_the_reason(client, query, options, status, message):
    answer = await client("DELETE", f"{client.things}/absent", options, **query)
    assert (answer.status, message in answer.message) == (status, True)


async def test_what_is_being_deleted_is_in_the_way(client, make_thing):
    await client.create("a", finalizers=["x.dev/y"])
    await client("DELETE", f"{client.things}/a")
    answer = await client("POST", client.things, make_thing("a"))
    assert (answer.status, answer.message) == (
        409,
        'object is being deleted: things.things.example.dev "a" already exists',
    )
