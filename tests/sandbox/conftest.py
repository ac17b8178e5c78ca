"""One sandbox for each module of tests, and a client that speaks plain HTTP to it, with a namespace for each test."""

import asyncio
import dataclasses
import io
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import aiohttp
import pytest

from kopf.testing import Sandbox

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
GROUP = "things.example.dev"

SPEC_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 100},
        "color": {"type": "string", "default": "red", "enum": ["red", "green"]},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


@dataclasses.dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        return str(self.body["message"])

    @property
    def fields(self) -> set[str]:
        return {cause["field"] for cause in self.body["details"]["causes"]}

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


class Client:
    """A client without any opinion: what is sent is what the test says."""

    def __init__(self, session: aiohttp.ClientSession, url: str, namespace: str) -> None:
        self.session, self.url, self.namespace = session, url, namespace
        self.things = f"/apis/{GROUP}/v1/namespaces/{namespace}/things"
        self.configmaps = f"/api/v1/namespaces/{namespace}/configmaps"

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        data: str | None = None,
        **params: str,
    ) -> Answer:
        text = data if data is not None or body is None else json.dumps(body)
        sent = {"Accept": "application/json", **(headers or {})}
        if text is not None:
            sent["Content-Type"] = type
        content: Any = None if text is None else io.BytesIO(text.encode())
        async with self.session.request(method, self.url + path, data=content, headers=sent, params=params) as response:
            received = await response.text()
            try:
                decoded = json.loads(received)
            except ValueError:
                decoded = received
            return Answer(response.status, decoded, response.headers)

    async def create(self, name: str, spec: Any = None, **meta: Any) -> Any:
        answer = await self("POST", self.things, thing(name, spec, **meta))
        assert answer.status == 201, answer
        return answer.body

    async def version(self) -> str:
        """Return the version of the whole storage now."""
        answer = await self("GET", self.things)
        return str(answer.body["metadata"]["resourceVersion"])

    def watch(self, path: str = "", *, headers: Mapping[str, str] | None = None, **params: str) -> "Watching":
        return Watching(self, path or self.things, params, headers or {})


class Watching:
    """An open watch: `await w.next()` gives events one by one."""

    def __init__(self, client: Client, path: str, params: Mapping[str, str], headers: Mapping[str, str]) -> None:
        self.client, self.path, self.params, self.headers = client, path, {"watch": "true", **params}, headers

    async def __aenter__(self) -> "Watching":
        self.response = await self.client.session.get(
            self.client.url + self.path, params=self.params, headers=self.headers
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if (connection := self.response.connection) is not None and connection.transport is not None:
            connection.transport.abort()  # Closing it would leave its last words to the next test.
        self.response.close()

    async def next(self, timeout: float = 60) -> Any:
        """Return the next event; None when the stream ends, an exception when it is broken off."""
        async with asyncio.timeout(timeout):
            line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def until(self, count: int) -> list[tuple[str, str]]:
        """Return the types and names of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    async def rest(self) -> list[Any]:
        """All events until the end of the stream."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


def thing(name: str, spec: Any = None, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Thing",
        "metadata": {"name": name, **meta},
        "spec": {"size": 1} if spec is None else spec,
    }


def crd(
    plural: str,
    kind: str,
    *,
    spec: Mapping[str, Any] | None = None,
    scope: str = "Namespaced",
    status: bool = True,
    **version: Any,
) -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec or free, "status": free}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}} if status else {},
                    **version,
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    things = crd(
        "things",
        "Thing",
        spec=SPEC_SCHEMA,
        additionalPrinterColumns=[{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    )
    things["spec"]["names"].update(shortNames=["th"], categories=["all"])
    with Sandbox(crds=[things]) as sandbox:
        yield sandbox


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[Client]:
    namespace = f"ns-{secrets.token_hex(3)}"
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    context = ssl.create_default_context(cadata=sandbox.ca.decode())
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {sandbox.token}"},
        connector=aiohttp.TCPConnector(ssl=context),
        read_bufsize=2**20,
    ) as session:
        yield Client(session, sandbox.url, namespace)


@pytest.fixture
def make_thing() -> Callable[..., dict[str, Any]]:
    return thing


@pytest.fixture
def make_crd() -> Callable[..., dict[str, Any]]:
    return crd
