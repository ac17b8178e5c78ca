"""HTTP as bytes: a server that answers with what is scripted, in any pieces."""

import asyncio

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
REQUEST = b'GET /x HTTP/1.1\r\nHost: h\r\n\r\n'


async def close(writer):
    writer.close()
    return True


def get(pool, *, repeatable=True):
    return pool.request(REQUEST, connect_timeout=5, repeatable=repeatable)


async def until(predicate):
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0.001)


class RawServer:
    """Answers the requests of all connections with what is scripted: bytes to be sent one after another, or actions."""

    def __init__(self):
        self.scripts = []
        self.connections = []  # the numbers of requests in each
        self.received = []

    async def serve(self, reader, writer):
        self.connections.append(0)
        number = len(self.connections) - 1
        try:
            while True:
                self.received.append(await reader.readuntil(b'\r\n\r\n'))
                self.connections[number] += 1
                for step in self.scripts.pop(0) if self.scripts else [OK]:
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                        await asyncio.sleep(0)
                    elif await step(writer):
                        return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.close()
