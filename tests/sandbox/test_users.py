"""Authentication: tokens and certificates, and the responses about users."""

import json
import ssl

import aiohttp
import pytest

from kopf.testing import Sandbox

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
async def send(client, sandbox):
    """Return a client that shows the given certificate, or nothing at all."""

    async def send(method, path, *, pair=None, token=None, tmp_path=None):
        context = ssl.create_default_context(cadata=ca)
        if pair is not None:
            (tmp_path / "pem").write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(tmp_path / "pem")
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=headers) as session:
            async with session.request(method, client.url + path, json={} if method == "POST" else None) as response:
                return response.status, await response.json()

    ca = sandbox.ca.decode()
    return send


async def test_only_known_tokens_are_accepted(send, sandbox):
    assert (await send("GET", "/api", token=sandbox.token))[0] == 200
    status, body = await send("GET", "/api", token="wrong")
    assert (status, body["reason"]) == (401, "Unauthorized")


async def test_requests_without_credentials_are_anonymous(send):
    status, body = await send("GET", "/api/v1/namespaces")
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["message"] == (
        'namespaces is forbidden: User "system:anonymous" cannot list resource "namespaces" in '
        'API group "" at the cluster scope'
    )
    assert (await send("GET", "/version"))[0] == 200


async def test_client_certificates_name_the_user_and_groups(send, sandbox, tmp_path):
    pair = sandbox.client_certificate("alice", ["team-a", "team-b"])
    status, body = await send("POST", REVIEWS, pair=pair, tmp_path=tmp_path)
    assert status == 201
    user = body["status"]["userInfo"]
    assert (user["username"], set(user["groups"])) == ("alice", {"team-a", "team-b", "system:authenticated"})


async def test_certificates_of_others_are_not_accepted(send, tmp_path):
    with Sandbox() as other:
        pair = other.client_certificate()
    with pytest.raises(aiohttp.ClientError):
        await send("GET", "/api", pair=pair, tmp_path=tmp_path)


async def test_tokens_of_other_users(send, sandbox):
    token = sandbox.issue_token("bob", ["team"])
    _, body = await send("POST", REVIEWS, token=token)
    assert body["status"]["userInfo"] == {"username": "bob", "groups": ["team", "system:authenticated"]}


async def test_tokens_of_service_accounts(client, send):
    accounts = f"/api/v1/namespaces/{client.namespace}/serviceaccounts"
    await client("POST", accounts, {"metadata": {"name": "robot"}})
    answer = await client("POST", f"{accounts}/robot/token", {"spec": {}})
    _, body = await send("POST", REVIEWS, token=answer.body["status"]["token"])
    assert body["status"]["userInfo"]["username"] == f"system:serviceaccount:{client.namespace}:robot"
    review = {"spec": {"token": answer.body["status"]["token"]}}
    known = await client("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert known.body["status"]["authenticated"] is True


async def test_everything_is_allowed(client):
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await client("POST", path, {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}})
    assert (answer.status, answer.body["status"]["allowed"]) == (201, True)
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    answer = await client("POST", path, {"spec": {"namespace": "default"}})
    assert answer.body["status"]["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]


async def test_tokens_expire_on_request(tmp_path):
    with Sandbox(kubeconfig=tmp_path / "config") as sandbox:
        old = sandbox.token
        sandbox.faults.expire_tokens()
        context = ssl.create_default_context(cadata=sandbox.ca.decode())
        new = json.loads((tmp_path / "config").read_text())["users"][0]["user"]["token"]
        assert new == sandbox.token != old
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            for token, status in ((old, 401), (new, 200)):
                async with session.get(f"{sandbox.url}/api", headers={"Authorization": f"Bearer {token}"}) as response:
                    assert response.status == status
