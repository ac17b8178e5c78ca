"""Certificates by each of the tools that can create them."""

import shutil
import ssl
import sys

import pytest

from kopf._kits.testing.wire import tls


@pytest.fixture(params=["library", "command"])
def way(request, monkeypatch):
    if request.param == "command":
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl")
        monkeypatch.setitem(sys.modules, "cryptography.x509", None)


def test_server_and_clients_trust_each_other(way, tmp_path):
    authority = tls.Authority()
    pair = authority.client("alice", ("team",))
    (tmp_path / "client.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.load_cert_chain(tmp_path / "client.pem")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = authority.context().wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    subject = dict(pair for group in server.getpeercert()["subject"] for pair in group)
    assert subject == {"commonName": "alice", "organizationName": "team"}


def test_neither_library_nor_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(tls.CertificatesUnavailable, match='install the Python package "cryptography"'):
        tls.Authority()
