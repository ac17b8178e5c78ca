"""Objects without a cluster, for tests with virtual time, where there can be no network; and whole operators."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from operatorworld import World, new_world

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.ephemera import Memo
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import PermanentError
from kopf._core.engines.spawning import OperatorDaemons, Spawner
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.decisions import Decider
from kopf._core.intents.registries import HandlerTable, OperatorRegistry
from kopf._core.reactor.object_records import ObjectRecord

RESOURCE = Resource('kopf.dev', 'v1', 'kopfpeerings', kind='KopfPeering', namespaced=True)


class PeeringApi:
    """The API with one peering object: the only request that is known is a merge patch of it."""

    def __init__(self):
        self.status = {}
        self.version = 1
        self.exists = True
        self.has_status = True  # whether there is the status endpoint
        self.is_split = False  # whether the status in the object itself is ignored
        self.error = None
        self.delay = 0
        self.patches = []
        self.observers = []
        self.namespaces = []

    @property
    def body(self):
        return {'metadata': {'name': 'default', 'resourceVersion': str(self.version)}, 'status': dict(self.status)}

    def put(self, **records):
        """Change the records as another operator."""
        self.version += 1
        self.status = {key: value for key, value in {**self.status, **records}.items() if value is not None}
        for observer in self.observers:
            observer(self.body)

    async def request(self, method, path, *, payload=None, content_type=None, retry=True, **_):
        assert (method, content_type) == ('PATCH', 'application/merge-patch+json')
        patch = json.loads(payload)
        self.patches.append((path, patch))
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        is_for_status = path.endswith('/status')
        if not self.exists or (is_for_status and not self.has_status):
            raise errors.APINotFoundError('not found', status=404, code=404)
        if patch.get('metadata', {}).get('resourceVersion') not in (None, str(self.version)):
            raise errors.APIConflictError('conflict', status=409)
        if is_for_status or not self.is_split:
            self.put(**patch['status'])
        return json.dumps(self.body).encode()

    async def get_json(self, path, params=None, *, logger=None):
        assert path == '/api/v1/namespaces'
        return {'items': [{'metadata': {'name': name}} for name in self.namespaces]}


@pytest.fixture
def registry() -> OperatorRegistry:
    return OperatorRegistry()


@pytest.fixture
def known() -> dict[Any, Memo]:
    """Return the memos of the known objects, by whatever the test identifies them with."""
    return {}


@pytest.fixture
def peering_api():
    return PeeringApi()


@pytest.fixture
def peering_resource():
    return RESOURCE


class DaemonsHost:
    """An object in a cluster, and the host of its spawner."""

    def __init__(self, settings):
        self.settings = settings
        self.registry = OperatorRegistry()
        self.record = ObjectRecord('uid', 'ns', 'obj', initial=False)
        self.raw = {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfExample',
            'metadata': {
                'name': 'obj',
                'namespace': 'ns',
                'uid': 'uid',
                'resourceVersion': '1',
                'finalizers': [settings.persistence.finalizer],
            },
            'spec': {'field': 'value'},
        }
        self.memo = Memo()
        self.patches = []
        self.failures = []  # what sending fails with, one after another
        self.latency = 0  # how long sending takes, in seconds
        self.failed = None
        self.wakeups = 0
        self._spawner = None

    # The methods of a host.

    def get_memo(self, record):
        return self.memo

    async def send(self, record, patch):
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append(dict(patch))
        self.raw = patch.applied_to(self.raw)
        self._advance()
        if record.daemons is not None:
            record.daemons.update(self.raw, patch)

    def wake(self, record):
        self.wakeups += 1

    def fail(self, error):
        self.failed = error

    # The methods for tests.

    @property
    def spawner(self):
        if self._spawner is None:
            resource = Resource('kopf.dev', 'v1', 'kopfexamples')
            table = HandlerTable.build(self.registry, resource, set(self.registry.iter_selectors()))
            self.background = OperatorDaemons(self.settings)
            self._spawner = Spawner(
                self,
                Decider(table, self.settings.persistence),
                self.background,
                OperatorContext(settings=self.settings),
            )
        return self._spawner

    @property
    def holding(self):
        return self.record.daemons is not None and self.record.daemons.holding

    async def look(self):
        """Process the object as it is; return whether its finalizer must stay."""
        if self.record.daemons is not None:
            self.record.daemons.update(self.raw)
        return await self.spawner.adjust(self.record, self.raw)

    async def edit(self, metadata=(), **fields):
        """Change the object as another client, and process it."""
        self.raw = {**self.raw, **fields, 'metadata': {**self.raw['metadata'], **dict(metadata)}}
        self._advance()
        return await self.look()

    async def delete(self):
        return await self.edit(metadata={'deletionTimestamp': '2030-01-01T00:00:00Z'})

    def _advance(self):
        version = str(int(self.raw['metadata']['resourceVersion']) + 1)
        self.raw = {**self.raw, 'metadata': {**self.raw['metadata'], 'resourceVersion': version}}


@pytest.fixture
def host():
    return DaemonsHost(OperatorSettings())


class FleetingError(PermanentError):
    """An error that is logged without its traceback: otherwise, the captured logs would keep it."""


class Failing:
    """A handler that fails, and remembers its errors weakly."""

    def __init__(self):
        self.errors = []

    async def fn(self, **_):
        error = FleetingError("boo")
        self.errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    @property
    def remaining(self):
        """The errors that are still referred to, be it by a reference cycle."""
        return [error() for error in self.errors if error() is not None]


@pytest.fixture
def failing():
    gc.disable()
    yield Failing()
    gc.enable()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a sandbox, and operators with handlers of the test in its own loop."""
    with new_world(virtual_time=hasattr(request.function, 'in_virtual_time')) as world:
        yield world
