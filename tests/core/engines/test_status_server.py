"""The server for requests about the operator: where it listens, and that it leaves nothing behind."""

import asyncio
import contextlib
import logging
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest
from aiohttp import web

from kopf._core.engines import status_server
from kopf._core.engines.status_server import Endpoint, EndpointError, StatusServer, StatusServerError


async def greet(request):
    return web.Response(text="Hello!")


def ask_now(port, path='/hello'):
    with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=60) as response:
        return response.read()


def make_server(port=0):
    return StatusServer('127.0.0.1', port, {'/hello': greet}, purpose="the greetings")


@pytest.mark.parametrize(
    'url, host, port, path',
    [
        ('http://0.0.0.0:8080/healthz', '0.0.0.0', 8080, '/healthz'),
        ('http://:8080/path', None, 8080, '/path'),
        ('http://localhost:8080', 'localhost', 8080, '/'),
        ('http://localhost', 'localhost', 80, '/'),
        ('http://[::1]:8080/', '::1', 8080, '/'),
    ],
)
def test_endpoints_are_read_from_urls(url, host, port, path):
    assert Endpoint.parse(url) == Endpoint(host, port, path)


@pytest.mark.parametrize(
    'url', ['', 'https://localhost/', 'localhost:8080', 'http://', 'http://x:99999/', 'http://x:y/']
)
def test_urls_that_are_no_endpoints_are_refused(url):
    with pytest.raises(EndpointError):
        Endpoint.parse(url)


@pytest.mark.parametrize(
    'url, other, shared',
    [
        ('http://0.0.0.0:80/a', 'http://0.0.0.0:80/b', True),
        ('http://:80/a', 'http://0.0.0.0:80/b', True),
        ('http://[::]:80/a', 'http://:80/b', True),
        ('http://:80/a', 'http://:81/b', False),
        ('http://localhost:80/a', 'http://:80/b', False),
    ],
)
def test_endpoints_of_one_address_share_a_server(url, other, shared):
    assert Endpoint.parse(url).shares_server(Endpoint.parse(other)) is shared


async def test_the_server_responds_while_the_loop_is_blocked():
    async with make_server() as server:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(ask_now(server.port)))
        thread.start()
        thread.join()  # here the event loop is blocked
    assert answers == [b"Hello!"]


@pytest.mark.parametrize('sent', [b'', b'GET /hello HTTP/1.1\r\nHost: x\r\n\r\n'], ids=["unused", "used"])
async def test_idle_connections_are_closed(monkeypatch, sent):
    monkeypatch.setattr(status_server, 'IDLE_TIMEOUT', 0.1)
    async with make_server() as server:
        reader, writer = await asyncio.open_connection('127.0.0.1', server.port)
        writer.write(sent)
        response = await asyncio.wait_for(reader.read(), 30)  # until the end of the connection
        writer.close()
    assert response.endswith(b"Hello!" if sent else b"")


async def test_a_port_in_use_is_named_in_the_error():
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StatusServerError, match=rf"The server of the greetings cannot listen at 127\.0\.0\.1:{port}: .*in use"
        ):
            async with make_server(port):
                pass


async def test_frequent_requests_are_debug_messages(caplog):
    caplog.set_level(logging.DEBUG, 'aiohttp.access')
    routes = {'/hello': greet, '/bye': greet}
    async with StatusServer('127.0.0.1', 0, routes, purpose="the greetings", quiet=['/hello']) as server:
        await asyncio.to_thread(ask_now, server.port)
        await asyncio.to_thread(ask_now, server.port, '/bye')
    (quiet, usual) = [record for record in caplog.records if record.name == 'aiohttp.access']
    assert quiet.levelno == logging.DEBUG and '"GET /hello" 200' in quiet.getMessage()
    assert usual.levelno == logging.INFO and '"GET /bye HTTP/1.1" 200' in usual.getMessage()


async def test_only_failed_probes_of_kubelet_are_logged(caplog):
    async def fail(request):
        return web.Response(status=503)

    def probe(port, path):
        request = urllib.request.Request(f'http://127.0.0.1:{port}{path}', headers={'User-Agent': 'kube-probe/1.34'})
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=5):
            pass

    caplog.set_level(logging.INFO, 'aiohttp.access')
    async with StatusServer('127.0.0.1', 0, {'/ok': greet, '/bad': fail}, purpose="the greetings") as server:
        await asyncio.to_thread(probe, server.port, '/ok')
        await asyncio.to_thread(probe, server.port, '/bad')
        await asyncio.to_thread(ask_now, server.port, '/ok')
    texts = [record.getMessage() for record in caplog.records if record.name == 'aiohttp.access']
    assert [re.search(r'GET (\S+) .*?" (\d+)', text).groups() for text in texts] == [('/bad', '503'), ('/ok', '200')]


async def test_nothing_is_left_behind():
    before = set(threading.enumerate())
    async with make_server() as server:
        assert await asyncio.to_thread(ask_now, server.port) == b"Hello!"
    for thread in set(threading.enumerate()) - before:
        if thread.name == 'kopf-status':
            thread.join(5)
            assert not thread.is_alive()
    with pytest.raises(OSError):
        ask_now(server.port)


@pytest.mark.parametrize('iterations', [1, 5, 20, 50, 100, 200, 500, 1000])
async def test_the_start_can_be_cancelled_at_any_moment(caplog, iterations):
    async def serve():
        async with StatusServer('127.0.0.1', 0, {}, purpose='tests'):
            await asyncio.Event().wait()

    for _ in range(5):
        task = asyncio.create_task(serve())
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 10)
    assert not caplog.messages
    for thread in threading.enumerate():
        if thread.name == 'kopf-status':
            thread.join(5)
            assert not thread.is_alive()
