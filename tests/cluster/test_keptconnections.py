"""Connections that are kept: how many there are, and what happens when the server has closed them."""

import http.server
import ssl
import threading

import pytest
from keptconnections import KeptConnections


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.ports.append(self.client_address[1])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Warning", '299 - "careful"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.is_closing

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server():
    """Yield a server that notes from which ports it is asked, and that closes connections without notice if told to."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ports, server.is_closing = [], False
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    connections = KeptConnections(f"http://127.0.0.1:{server.server_port}", ssl.create_default_context())

    def ask():
        answer = connections.request("POST", "/", b"text", {})
        assert (answer.status, answer.headers["Warning"], answer.text) == (201, '299 - "careful"', "text")

    return ask


def test_requests_share_a_connection(server, ask):
    for _ in range(3):
        ask()
    assert len(server.ports) == 3 and len(set(server.ports)) == 1


def test_connections_that_the_server_has_closed_are_opened_again(server, ask):
    server.is_closing = True
    for _ in range(3):
        ask()
    assert len(set(server.ports)) == 3


def test_servers_that_are_gone_are_told_of(server, ask):
    ask()
    server.is_closing = True
    ask()
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionRefusedError):
        ask()
