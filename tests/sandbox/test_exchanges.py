"""Exchanges of requests and responses over one connection to the sandbox."""

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

import pytest

from kopf.testing import Sandbox


@pytest.fixture
async def sandbox():
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
async def connect(sandbox):
    """Open connections, as `asyncio.open_connection` does."""
    context = ssl.create_default_context(cadata=sandbox.ca.decode())
    url = urlsplit(sandbox.url)
    async with contextlib.AsyncExitStack() as stack:

        async def connect():
            reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
            stack.push_async_callback(close, writer)
            return reader, writer

        yield connect


async def close(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def read_response(reader):
    head = await reader.readuntil(b'\r\n\r\n')
    status, *lines = head.decode().splitlines()
    headers = dict(line.lower().split(': ', 1) for line in lines if line)
    return status, headers, await reader.readexactly(int(headers.get('content-length', 0)))


async def test_requests_at_once_are_answered_in_their_order(connect):
    reader, writer = await connect()
    writer.write(b'GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
    assert b'gitVersion' in (await read_response(reader))[2]
    assert (await read_response(reader))[2] == b'ok'


async def test_requests_are_read_in_pieces(connect):
    reader, writer = await connect()
    for piece in (b'GET /hea', b'lthz HTTP/1.1\r\nHo', b'st: x\r\n\r', b'\n'):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    assert (await read_response(reader))[::2] == ('HTTP/1.1 200 OK', b'ok')


async def test_the_last_request_of_a_connection(connect):
    reader, writer = await connect()
    writer.write(b'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
    assert (await read_response(reader))[2] == b'ok'
    assert await reader.read() == b''


async def test_heads_are_answered_without_a_body(connect):
    reader, writer = await connect()
    writer.write(b'HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
    head = await reader.readuntil(b'\r\n\r\n')
    assert b'content-length: 2' in head.lower()
    assert (await read_response(reader))[2] == b'ok'


async def test_clients_may_wait_for_the_permission_to_send_the_body(connect, sandbox):
    reader, writer = await connect()
    body = b'{"metadata":{"name":"x"}}'
    writer.write(
        b'POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n'
        b'Authorization: Bearer %b\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n'
        % (sandbox.token.encode(), len(body))
    )
    assert await reader.readuntil(b'\r\n\r\n') == b'HTTP/1.1 100 Continue\r\n\r\n'
    writer.write(body)
    assert (await read_response(reader))[0] == 'HTTP/1.1 201 Created'


async def test_changes_of_the_protocol_are_answered_as_requests(connect):
    reader, writer = await connect()
    writer.write(b'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n\x80\x03')
    assert (await read_response(reader))[2] == b'ok'
    assert await reader.read() == b''


async def test_what_is_not_http(connect):
    reader, writer = await connect()
    writer.write(b'\x80\x03\x00\x01 no HTTP at all\r\n\r\n')
    assert (await reader.read()).startswith(b'HTTP/1.1 400 Bad Request\r\n')
