"""Connections in memory: they behave as those of sockets do."""

import asyncio
import contextvars
import random

import pytest

from kopf._kits.testing.virtual.memory_networks import HIGH_WATER
from kopf._kits.testing.virtual.virtual_clocks import VirtualClock
from kopf._kits.testing.virtual.virtual_loops import VirtualLoop


@pytest.fixture
def run():
    """Run a coroutine in a loop of virtual time."""

    def refuse(message):
        raise AssertionError(message)

    loop = VirtualLoop(VirtualClock(), random.Random(0), refuse)
    yield loop.run_until_complete
    for writer in WRITERS:
        writer.close()
    WRITERS.clear()
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()


WRITERS = []


async def talk(serve):
    """Start a server with this handler of connections; return a client's ends of a connection to it."""
    loop = asyncio.get_running_loop()

    def make():
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, begin)

    async def begin(reader, writer):
        WRITERS.append(writer)
        await serve(reader, writer)

    await loop.create_server(make, port=80)
    reader, writer = await asyncio.open_connection('127.0.0.1', 80)
    WRITERS.append(writer)
    return reader, writer


def test_each_end_is_called_in_its_own_context(run):
    side = contextvars.ContextVar('side')
    seen = []

    class Recorder(asyncio.Protocol):
        def connection_made(self, transport):
            seen.append(('made', side.get()))

        def data_received(self, data):
            seen.append(('received', side.get()))

        def connection_lost(self, error):
            seen.append(('lost', side.get()))

    async def main():
        loop = asyncio.get_running_loop()
        side.set('server')
        await loop.create_server(Recorder, port=80)
        side.set('client')
        transport, _ = await loop.create_connection(asyncio.Protocol, '127.0.0.1', 80)
        transport.write(b'text')
        transport.close()
        await asyncio.sleep(1)

    run(main())
    assert seen == [('made', 'server'), ('received', 'server'), ('lost', 'server')]


def test_data_arrive_in_the_order_of_writing(run):
    async def serve(reader, writer):
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    async def main():
        reader, writer = await talk(serve)
        for number in range(100):
            writer.write(b'line %d\n' % number)
        writer.write_eof()
        return await reader.read()

    assert run(main()) == b''.join(b'LINE %d\n' % number for number in range(100))


def test_data_need_time(run):
    async def serve(reader, writer):
        writer.write(await reader.readline())

    async def main():
        reader, writer = await talk(serve)
        started = asyncio.get_running_loop().time()
        writer.write(b'ping\n')
        await reader.readline()
        return asyncio.get_running_loop().time() - started

    assert 0.0002 < run(main()) < 0.005


def test_writers_wait_for_slow_readers(run):
    written, received = [], []

    async def serve(reader, writer):
        for _ in range(100):
            writer.write(b'x' * 10_000)
            await writer.drain()
            written.append(10_000)
        writer.close()

    async def main():
        reader, writer = await talk(serve)
        await asyncio.sleep(10)
        ahead = sum(written)
        while data := await reader.read(1000):
            received.append(len(data))
        return ahead

    assert HIGH_WATER <= run(main()) <= 5 * HIGH_WATER
    assert sum(received) == sum(written) == 1_000_000


def test_broken_connections_lose_what_is_on_its_way(run):
    async def serve(reader, writer):
        writer.write(b'never read')
        writer.transport.abort()

    async def main():
        reader, writer = await talk(serve)
        with pytest.raises(ConnectionResetError):
            await reader.read()

    run(main())


def test_closed_connections_deliver_what_is_on_its_way(run):
    async def serve(reader, writer):
        writer.write(b'still read')
        writer.close()

    async def main():
        reader, writer = await talk(serve)
        return await reader.read()

    assert run(main()) == b'still read'


def test_connections_to_nothing_are_refused(run):
    with pytest.raises(ConnectionRefusedError, match=r"Connect call failed \('127.0.0.1', 80\)"):
        run(asyncio.open_connection('127.0.0.1', 80))


def test_closed_servers_refuse_connections_and_their_ports_are_free(run):
    async def main():
        loop = asyncio.get_running_loop()
        first = await loop.create_server(asyncio.Protocol, port=80)
        first.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection('127.0.0.1', 80)
        await loop.create_server(asyncio.Protocol, port=80)
        _, writer = await asyncio.open_connection('localhost', 80)
        WRITERS.append(writer)
        return writer.get_extra_info('peername')

    assert run(main()) == ('localhost', 80)
