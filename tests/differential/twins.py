"""Both servers: the same requests are sent to them at the same time, and their answers are put side by side."""

import asyncio
import dataclasses
import json
import pathlib
import ssl
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import normal
import steps
import yarl

#: The headers that clients look at.
HEADERS = ("Content-Type", "Warning", "Retry-After", "Allow", "Location", "X-Content-Type-Options", "Cache-Control")
PATIENCE = 20.0


@dataclasses.dataclass
class Answer:
    """What a server has said."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        """The word for machines in a Status."""
        is_status = isinstance(self.body, dict) and self.body.get("kind") == "Status"
        return str(self.body.get("reason", "")) if is_status else ""


class Server:
    """One of the two."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, step: steps.Step, memory: steps.Memory) -> Answer:
        """Send the request; ``Answer.status`` is 0 if there was no answer."""
        body = steps.resolve(step.body, memory)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Accept": step.accept, **step.headers}
        if data is not None and step.type:
            headers["Content-Type"] = step.type
        params = "&".join(f"{key}={_quoted(steps.resolve(value, memory))}" for key, value in step.params)
        url = yarl.URL(f"{self._url}{step.path}{'?' if params else ''}{params}", encoded=True)
        try:
            async with self._session.request(
                step.method,
                url,
                data=data,
                headers=headers,
                allow_redirects=False,
                skip_auto_headers=["Content-Type"],
                timeout=aiohttp.ClientTimeout(total=PATIENCE),
            ) as response:
                text = await response.text(errors="replace")
                return Answer(
                    response.status, normal.decoded(text, response.headers.get("Content-Type", "")), response.headers
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            return Answer(0, f"{type(error).__name__}: {error}", {})

    async def settle(self, step: steps.Step, memory: steps.Memory) -> Answer:
        """Send the request until its answer is the one that is waited for."""
        for _ in range(100):
            answer = await self.ask(step, memory)
            if not step.until or answer.status == step.until:
                return answer
            await asyncio.sleep(0.05)
        return answer


def _quoted(value: Any) -> str:
    return str(yarl.URL.build(query={"x": str(value)}).raw_query_string[2:]) if not isinstance(value, Raw) else value


class Raw(str):
    """A parameter's value that is sent as it is."""


class Twins:
    """Both servers, as an asynchronous context manager: from the kubeconfigs of the sandbox and of the real one."""

    def __init__(self, sandbox: str, real: str) -> None:
        self._paths = (sandbox, real)
        self._sessions: list[aiohttp.ClientSession] = []
        self.servers: list[Server] = []

    async def __aenter__(self) -> Self:
        for path in self._paths:
            url, token = credentials(path)
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {token}"}, connector=aiohttp.TCPConnector(ssl=context, limit=32)
            )
            self._sessions.append(session)
            self.servers.append(Server(session, url))
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions:
            await session.close()

    async def ask(self, step: steps.Step, memories: list[steps.Memory]) -> list[Answer]:
        """Return the answers of the sandbox and of the real server."""
        asked = [server.settle(step, memory) for server, memory in zip(self.servers, memories, strict=True)]
        answers = list(await asyncio.gather(*asked))
        for answer, memory in zip(answers, memories, strict=True):
            if step.target and 200 <= answer.status < 300 and isinstance(answer.body, dict):
                if ("dryRun", "All") not in step.params:
                    memory.learn(step.target, answer.body)
        return answers


def credentials(path: str) -> tuple[str, str]:
    """Return the address and the token in a kubeconfig of one cluster and one user."""
    import yaml

    config = yaml.safe_load(pathlib.Path(path).read_text())
    return config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
