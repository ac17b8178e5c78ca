"""Calls of modules that stand for the world outside of the cluster: they are seen, and can be the last ones."""

import asyncio
import sys
import types

import pytest

from kopf._kits.checking.outside_calls import Killed, OutsideCalls, find_modules

CLOUD = """
servers = {}

def create(size):
    check(size)
    servers[len(servers)] = size
    return len(servers)

def check(size):
    if size < 0:
        raise ValueError(size)

async def order(size):
    return create(size)

def iterate():
    yield from servers

def _hidden():
    pass

class Client:
    def __init__(self):
        self.calls = 0

    def create(self, size):
        self.calls += 1
        return create(size)
"""


@pytest.fixture
def cloud(monkeypatch):
    """Create a module with a fake cloud."""
    module = types.ModuleType("cloud")
    monkeypatch.setitem(sys.modules, "cloud", module)
    exec(CLOUD, vars(module))
    return module


def test_calls_from_outside_are_noted_when_they_return(cloud):
    noted = []
    with OutsideCalls(["cloud"], noted.append, lambda: True).recorded():
        assert cloud.create(1) == 1
        with pytest.raises(ValueError):
            cloud.create(-1)
        client = cloud.Client()
        assert client.create(2) == 2
        assert list(cloud.iterate()) == [0, 1]
        cloud._hidden()
    cloud.create(3)
    assert noted == ["cloud.create", "cloud.Client.create"]


def test_coroutines_are_noted_when_they_return(cloud):
    noted = []
    with OutsideCalls(["cloud"], noted.append, lambda: True).recorded():
        assert asyncio.run(cloud.order(1)) == 1
    assert noted[-1] == "cloud.order"


def test_killed_operators_call_nothing_more(cloud):
    alive = [True]

    def kill(name):
        alive.clear()
        raise Killed

    with OutsideCalls(["cloud"], kill, lambda: bool(alive)).recorded():
        with pytest.raises(Killed):
            cloud.create(1)
        with pytest.raises(Killed):
            cloud.create(2)
    assert cloud.servers == {0: 1}


def test_modules_of_observing_functions_are_found():
    def observe():
        import json

        return json

    assert find_modules(lambda: sys.modules) == [sys]
    assert find_modules(lambda: [asyncio.run, types]) == [asyncio, types]
    assert find_modules(observe)[0].__name__ == "json"
    assert find_modules(len) == []
