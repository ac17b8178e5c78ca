"""The name of this host: the same choice as upstream's, as it was observed with the same names."""

import socket

import pytest

from kopf._cogs.helpers.hostnames import get_descriptive_hostname


@pytest.mark.parametrize(
    'name, aliases, addresses, expected',
    [
        ('fq.example.com', ['alias', 'alias.two.com'], ['10.0.0.1'], 'fq.example.com'),
        ('short', ['longer.alias.example.com', 'mid.com'], ['10.0.0.1'], 'longer.alias.example.com'),
        ('short', ['alias'], ['10.0.0.1'], 'short'),
        ('short', ['alias'], ['strange.address'], 'strange.address'),
        ('localhost', ['myhost'], ['127.0.0.1'], 'myhost'),
        ('localhost', ['ip6-localhost', 'ip6-loopback'], ['::1'], 'ip6-localhost'),
        ('localhost', [], ['127.0.0.1'], 'plain'),
        ('localhost.localdomain', ['localhost', 'myhost.localdomain'], ['127.0.0.1'], 'localhost'),
        ('1.0.0.127.in-addr.arpa', ['yy', 'zzz.com'], ['10.0.0.1'], 'zzz.com'),
        ('1.0.0.127.ip6.arpa', ['::1', 'fe80::1%eth0'], ['10.0.0.1'], 'plain'),
        ('10.0.0.5', ['10.0.0.6'], ['10.0.0.5'], 'plain'),
        ('myhost.local', [], [], 'myhost'),
        ('host.local.localdomain', [], [], 'host'),
        ('host.locality', [], [], 'host.locality'),
        ('a.local', ['b.c'], [], 'a'),
    ],
)
def test_the_most_descriptive_hostname_is_taken(monkeypatch, name, aliases, addresses, expected):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'plain')
    monkeypatch.setattr(socket, 'gethostbyaddr', lambda host: (name, aliases, addresses))
    assert get_descriptive_hostname() == expected


@pytest.mark.parametrize(
    'name, expected',
    [
        ('host', 'host'),
        ('host.local', 'host'),
        ('host.localdomain.local', 'host'),
        ('10.0.0.5', '10.0.0.5'),
        ('a.local.b', 'a.local.b'),
        ('', 'localhost'),
    ],
)
@pytest.mark.parametrize('error', [OSError(), socket.herror(), socket.gaierror(), UnicodeError()], ids=repr)
def test_names_that_are_not_resolved_are_taken_as_they_are(monkeypatch, name, expected, error):
    def fail(host):
        raise error

    monkeypatch.setattr(socket, 'gethostname', lambda: name)
    monkeypatch.setattr(socket, 'gethostbyaddr', fail)
    assert get_descriptive_hostname() == expected
