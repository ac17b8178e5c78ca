"""How fast the sandbox is on this machine: `python scripts/sandbox_speed.py`, the figures of docs/howto/sandbox.rst.

The server is `kopf sandbox` in a process of its own. The client is as thin as it can be, HTTP written by hand on 8
connections, so that it does not measure itself; but it competes with the server for the processors.
"""

import asyncio
import json
import pathlib
import ssl
import statistics
import subprocess
import sys
import time

OBJECTS = 6000
WATCHERS = 10
LIST = "/api/v1/namespaces/default/configmaps"
BODY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"a": "b"}}, "data": {"field": "value" * 20}}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Client:
    """Requests to the server of a kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        config = json.loads(pathlib.Path(kubeconfig).read_text())
        self.port = int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])
        self.token = config["users"][0]["user"]["token"]
        self.context = ssl._create_unverified_context()

    async def connect(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context, limit=2**24)

    async def send(self, streams: Streams, method: str, path: str, body: bytes = b"") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        streams[1].write(head.encode() + body)

    async def create(self, streams: Streams, number: int) -> float:
        body = {**BODY, "metadata": {**BODY["metadata"], "name": f"object-{number}"}}  # type: ignore[dict-item]
        began = time.perf_counter()
        await self.send(streams, "POST", LIST, json.dumps(body).encode())
        head = (await streams[0].readuntil(b"\r\n\r\n")).lower()
        assert b" 201 " in head, head
        await streams[0].readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        return time.perf_counter() - began

    async def watch(self) -> int:
        """Count events until there is one for each object."""
        streams, count = await self.connect(), 0
        await self.send(streams, "GET", f"{LIST}?watch=true&resourceVersion=0")
        while count < OBJECTS:
            count += (await streams[0].readuntil(b"\n")).startswith(b'{"type":"ADDED"')
        streams[1].transport.abort()
        return count


async def measure(client: Client) -> None:
    watchers = [asyncio.create_task(client.watch()) for _ in range(WATCHERS)]
    await asyncio.sleep(0.5)
    numbers, latencies = iter(range(OBJECTS)), list[float]()

    async def create() -> None:
        streams = await client.connect()
        for number in numbers:
            latencies.append(await client.create(streams, number))

    began = time.perf_counter()
    await asyncio.gather(*(create() for _ in range(8)))
    created = time.perf_counter() - began
    events = sum(await asyncio.gather(*watchers))
    watched = time.perf_counter() - began
    print(
        f"creates with {WATCHERS} watchers: {OBJECTS / created:,.0f} a second, the median takes "
        f"{statistics.median(latencies) * 1000:.1f} ms; live events to them: {events / watched:,.0f} a second"
    )
    began = time.perf_counter()
    print(f"events to a new watcher: {await client.watch() / (time.perf_counter() - began):,.0f} a second")


def main() -> None:
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "kopf", "sandbox"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            kubeconfig = server.stdout.readline().partition("=")[2].strip()
            print(f"ready in {time.perf_counter() - began:.2f} s, with the start of Python; {memory(server.pid)} MB")
            asyncio.run(measure(Client(kubeconfig)))
            print(f"{memory(server.pid)} MB with {OBJECTS} objects")
        finally:
            server.terminate()


def memory(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True).stdout) // 1024


if __name__ == "__main__":
    main()
