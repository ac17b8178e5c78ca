"""Connections that are opened, kept, and given up: what servers see of that."""

import asyncio

import pytest
from rawhttp import OK, REQUEST, close, get, until

from kopf._cogs.clients.connection_pools import Origin, Pool
from kopf._cogs.clients.connections import ConnectionLost


async def test_requests_are_repeated_if_old_connections_are_closed_meanwhile(raw_server, pool):
    await get(pool)
    raw_server.scripts = [[close]]
    assert (await get(pool)).body == b'ok'
    assert raw_server.connections == [2, 1]


async def test_writes_are_not_repeated(raw_server, pool):
    await get(pool)
    raw_server.scripts = [[close]]
    with pytest.raises(ConnectionLost) as e:
        await get(pool, repeatable=False)
    assert e.value.early


async def test_requests_are_not_repeated_on_new_connections(raw_server, pool):
    raw_server.scripts = [[close], [close]]
    with pytest.raises(ConnectionLost):
        await get(pool)
    assert raw_server.connections == [1]


async def test_old_connections_that_are_being_closed_are_not_used(raw_server, pool):
    async def close_soon(writer):
        asyncio.get_running_loop().call_later(0.01, writer.close)

    raw_server.scripts = [[OK, close_soon]]
    await get(pool)
    await asyncio.sleep(0.1)
    assert (await get(pool, repeatable=False)).body == b'ok'
    assert raw_server.connections == [1, 1]


async def test_closed_pools_open_nothing(raw_server, pool):
    await get(pool)
    _, stream = await pool.stream(REQUEST, connect_timeout=5, total_timeout=None)
    opening = asyncio.create_task(pool.stream(REQUEST, connect_timeout=5, total_timeout=None))
    await asyncio.sleep(0)
    pool.close()
    for wait in [get(pool), opening]:
        with pytest.raises(ConnectionError):
            await wait
    while await stream.read():  # what has come before
        pass


async def test_parallel_requests_have_connections_of_their_own(raw_server, pool):
    responses = await asyncio.gather(*[get(pool) for _ in range(5)])
    assert [response.body for response in responses] == [b'ok'] * 5
    assert raw_server.connections == [1] * 5
    for _ in range(5):
        await get(pool)
    assert sorted(raw_server.connections) == [1, 1, 1, 1, 6]


async def test_unused_connections_expire(raw_server):
    pool = Pool(Origin('127.0.0.1', raw_server.port, None, None), keepalive=0.05)
    await get(pool)
    raw_server.scripts = [[OK]]
    await until(lambda: not pool._idle)
    await get(pool)
    assert raw_server.connections == [1, 1]
    pool.close()


async def test_connections_are_too_old_even_before_they_are_swept_away(raw_server, pool, monkeypatch):
    await get(pool)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, 'time', lambda: now + 31)  # the pool has had no time to look after them
    await get(pool)
    assert raw_server.connections == [1, 1]


async def test_hosts_are_found_by_name(raw_server):
    pool = Pool(Origin('localhost', raw_server.port, None, None), keepalive=30)  # which may also be ::1
    assert (await get(pool)).body == b'ok'
    pool.close()


async def test_connecting_has_a_time_limit(raw_server):
    pool = Pool(
        Origin('192.0.2.1', 81, None, None), keepalive=30
    )  # an address for documentation; either refused or silent
    with pytest.raises(OSError):
        await pool.request(REQUEST, connect_timeout=0.01, repeatable=True)
