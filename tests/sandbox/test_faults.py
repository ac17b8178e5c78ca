"""Faults: each one fails exactly the requests that it is for."""

import aiohttp
import pytest

MERGE = "application/merge-patch+json"


@pytest.fixture
def faults(sandbox):
    yield sandbox.faults
    sandbox.faults.clear()


async def test_errors_for_the_next_requests(client, faults):
    faults.error(500, times=2)
    assert [(await client("GET", client.things)).status for _ in range(3)] == [500, 500, 200]
    assert faults.pending() == []


async def test_refusals_can_say_when_to_retry(client, faults):
    faults.error(429, retry_after=7, message="slow down")
    answer = await client("GET", client.things)
    assert (answer.status, answer.headers["Retry-After"], answer.body["reason"]) == (429, "7", "TooManyRequests")
    assert (answer.message, answer.body["details"]) == ("slow down", {"retryAfterSeconds": 7})


@pytest.mark.parametrize(
    "conditions, hit",
    [
        ({"method": "POST"}, False),
        ({"method": "get"}, True),
        ({"verb": "list"}, True),
        ({"verb": "watch"}, False),
        ({"resource": "things"}, True),
        ({"resource": "pods"}, False),
        ({"path": r"/things$"}, True),
        ({"namespace": "other"}, False),
        ({"name": "a"}, False),
        ({"user_agent": "kopf/"}, False),
        ({"user_agent": "Python"}, True),
        ({"query": "limit=7"}, False),
    ],
)
async def test_faults_hit_only_what_their_conditions_say(client, faults, conditions, hit):
    faults.error(503, **conditions)
    assert (await client("GET", client.things)).status == (503 if hit else 200)


async def test_failed_writes_do_nothing(client, faults, make_thing):
    faults.error(500, verb="create", times=None)
    assert (await client("POST", client.things, make_thing("a"))).status == 500
    faults.clear()
    assert (await client("GET", client.things)).names == []


async def test_dropped_connections_fail_the_request(client, faults):
    faults.drop(verb="create")
    with pytest.raises(aiohttp.ClientError):
        await client("POST", client.things, {})


async def test_lost_answers_do_not_undo_the_request(client, faults, make_thing):
    faults.lose(verb="create", times=2)
    for _ in range(2):
        with pytest.raises(aiohttp.ClientError):
            await client("POST", client.things, make_thing("a"))
    assert (await client("GET", client.things)).names == ["a"]


async def test_delays_hold_requests_up(client, faults):
    faults.delay(0.1, verb="list")
    with pytest.raises(TimeoutError):
        async with client.session.get(client.url + client.things, timeout=aiohttp.ClientTimeout(total=0.05)):
            pass
    assert (await client("GET", client.things)).status == 200


async def test_dropped_watches_fail_for_the_client(client, faults):
    async with client.watch() as watch:
        await client.create("a")
        await watch.next()
        assert faults.drop_watches() == 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()


async def test_watches_cut_in_the_middle_of_a_line(client, faults):
    async with client.watch() as watch:
        faults.cut_watches()
        await client.create("a")
        piece = await watch.response.content.readany()
        assert piece.startswith(b'{"type":"ADDED"') and not piece.endswith(b"\n")
        with pytest.raises(aiohttp.ClientError):
            await watch.response.content.readany()


async def test_frozen_watches_get_no_events_until_cleared(client, faults):
    async with client.watch() as watch:
        faults.freeze_watches()
        await client.create("a")
        with pytest.raises(TimeoutError):
            await watch.next(timeout=0.2)
        faults.clear()
        assert await watch.until(1) == [("ADDED", "a")]


async def test_watches_can_be_frozen_for_a_time(client, faults):
    async with client.watch() as watch:
        faults.freeze_watches(0.1, times=1)
        await client.create("a")
        assert await watch.until(1) == [("ADDED", "a")]


async def test_expired_watches_end_with_an_error(client, faults):
    async with client.watch() as watch:
        faults.expire_watches()
        event = await watch.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert await watch.next() is None


async def test_errors_in_watches_end_them(client, faults):
    async with client.watch() as watch:
        faults.fail_watches(500, reason='InternalError', message='oops')
        event = await watch.next()
        assert (event["type"], event["object"]["code"], event["object"]["message"]) == ("ERROR", 500, "oops")
        assert await watch.next() is None


async def test_watches_end_as_often_as_asked(client, faults):
    async with client.watch() as watch:
        faults.end_watches(times=2)
        assert await watch.next() is None
    async with client.watch() as watch:  # a new one, too: at once
        assert await watch.next() is None
    async with client.watch() as watch:
        await client.create("a")
        assert await watch.until(1) == [("ADDED", "a")]


async def test_lines_can_be_inserted_into_watches(client, faults):
    async with client.watch() as watch:
        faults.say("boo")
        assert await watch.response.content.readline() == b"boo\n"
        await client.create("a")
        assert await watch.until(1) == [("ADDED", "a")]


@pytest.mark.parametrize("accept", ["application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", ""])
async def test_groups_can_be_taken_down(client, faults, accept):
    async def discover():
        answer = await client("GET", "/apis", headers={"Accept": accept} if accept else None)
        if not accept:
            return (await client("GET", client.things.partition("/namespaces/")[0])).status
        (group,) = [item for item in answer.body["items"] if item["metadata"]["name"] == "things.example.dev"]
        return [(version["freshness"], bool(version["resources"])) for version in group["versions"]]

    before = await discover()
    faults.take_down("things.example.dev")
    assert await discover() == ([("Stale", False)] * len(before) if accept else 503)
    answer = await client("GET", client.things)
    assert (answer.status, answer.body["reason"]) == (503, "ServiceUnavailable")
    assert (await client("GET", "/api/v1/namespaces")).status == 200
    faults.bring_up("things.example.dev")
    assert await discover() == before
    assert (await client("GET", client.things)).status == 200


async def test_faults_can_depend_on_the_query(client, faults):
    faults.error(503, query="limit=[0-9]")
    assert (await client("GET", client.things)).status == 200
    assert (await client("GET", f"{client.things}?limit=7")).status == 503


async def test_discovery_can_lag_behind(client, faults):
    before = (await client("GET", "/apis")).body
    faults.freeze_discovery()
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "late.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": "late", "kind": "Late"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    await client("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert (await client("GET", "/apis/example.org/v1/late")).status == 200
    assert (await client("GET", "/apis")).body == before
    faults.freeze_discovery(False)
    assert (await client("GET", "/apis")).body != before
    await client("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/late.example.org")


async def test_faults_of_watches_leave_other_requests_alone(client, faults):
    faults.expire_watches()
    assert (await client("GET", client.things)).status == 200
    assert len(faults.pending()) == 1


async def test_forgotten_history_expires_old_versions(client, faults):
    version = await client.version()
    await client.create("a")
    faults.forget_history()
    async with client.watch(resourceVersion=version) as watch:
        assert (await watch.next())["object"]["code"] == 410
    async with client.watch(resourceVersion=await client.version()) as watch:
        await client.create("b")
        assert await watch.until(1) == [("ADDED", "b")]


async def test_refused_connections_can_be_accepted_again(client, faults):
    async with client.watch() as watch:
        await client.create("a")
        await watch.next()
        faults.refuse_connections()
        with pytest.raises(aiohttp.ClientError):
            await client("GET", client.things)
        with pytest.raises(aiohttp.ClientError):
            await watch.next()
    faults.accept_connections()
    assert (await client("GET", client.things)).names == ["a"]


async def test_unknown_faults_are_refused(faults):
    with pytest.raises(ValueError, match="unknown fault"):
        faults.add("earthquake")
    with pytest.raises(TypeError):
        faults.error(500, colour="red")


async def test_faults_can_be_made_over_http(client, faults):
    rule = {"action": "error", "status": 403, "times": 1, "resource": "things"}
    assert (await client("POST", "/_sandbox/faults", rule)).status == 201
    (pending,) = (await client("GET", "/_sandbox/faults")).body["faults"]
    assert (pending["action"], pending["status"], pending["resource"]) == ("error", 403, "things")
    assert (await client("GET", client.things)).status == 403
    await client("POST", "/_sandbox/faults", {"action": "delay", "seconds": 60})
    assert (await client("DELETE", "/_sandbox/faults")).status == 200
    assert faults.pending() == []
    assert (await client("POST", "/_sandbox/faults", {"action": "x"})).status == 400
    assert (await client("POST", "/_sandbox/forget-history")).status == 200
    requests = (await client("GET", "/_sandbox/requests")).body["requests"]
    assert requests[-1]["path"] == client.things


async def test_connections_can_be_refused_for_a_time(client, faults):
    answer = await client("POST", "/_sandbox/refuse-connections", {"seconds": 0.2})
    assert answer.status == 200
    async with client.watch() as watch:
        with pytest.raises(aiohttp.ClientError):
            while True:
                await watch.next()
    while True:
        try:
            assert (await client("GET", client.things)).status == 200
            break
        except aiohttp.ClientError:
            pass


async def test_late_calls_come_before_refusals_too(client, faults):
    seen = []
    faults.call(lambda: seen.append("called"), late=True, verb="get")
    assert (await client("GET", f"{client.things}/absent")).status == 404
    assert seen == ["called"]
