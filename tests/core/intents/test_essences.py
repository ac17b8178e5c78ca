"""Essences of the objects of one resource: they are cached for one state, and Secrets are stored as digests."""

import json

import pytest

import kopf
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.handler_states import digest_essence
from kopf._core.intents.essences import Essences
from kopf._core.intents.registries import HandlerTable, OperatorRegistry
from kopf._core.intents.storage_errors import StorageError

KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample')
SECRETS = Resource('', 'v1', 'secrets', kind='Secret')


class Storage(kopf.AnnotationsDiffBaseStorage):
    """A storage that counts how often it is asked, or fails."""

    def __init__(self):
        super().__init__()
        self.fetched = 0
        self.error = None

    def build(self, **kwargs):
        if self.error is not None:
            raise self.error
        return super().build(**kwargs)

    def fetch(self, **kwargs):
        self.fetched += 1
        if self.error is not None:
            raise self.error
        return super().fetch(**kwargs)


@pytest.fixture
def settings():
    return OperatorSettings()


@pytest.fixture
def make(settings):
    def make(resource=KEX):
        table = HandlerTable.build(OperatorRegistry(), resource, set())
        return Essences(table, settings.persistence)

    return make


def make_body(version='1', **fields):
    return kopf.Body({'metadata': {'name': 'obj', 'resourceVersion': version}, **fields})


def store(essences, body):
    """Return the object after its essence was stored as the last handled one."""
    patch = Patch()
    essences.store_last(body, essences.of(body), patch)
    return kopf.Body(patch.applied_to(body))


def test_an_essence_has_neither_the_status_nor_the_version(make):
    assert make().of(make_body(spec={'a': 1}, status={'b': 2})) == {'spec': {'a': 1}}


def test_an_essence_is_built_once_for_a_state(make):
    essences, body = make(), make_body(spec={'a': 1})
    assert essences.of(body) is essences.of(body)
    assert essences.of(make_body(spec={'a': 1})) == {'spec': {'a': 1}}


def test_a_stored_essence_is_the_last_one_until_the_object_changes(make):
    essences = make()
    body = store(essences, make_body(spec={'a': 1}))
    assert essences.fetch_last(body, essences.of(body)) == {'spec': {'a': 1}}
    assert essences.is_last(body, essences.of(body))
    other = kopf.Body({**body, 'spec': {'a': 2}})
    assert not essences.is_last(other, essences.of(other))
    assert essences.fetch_last(other, essences.of(other)) == {'spec': {'a': 1}}


def test_without_a_stored_essence_there_is_no_last_one(make):
    essences, body = make(), make_body(spec={'a': 1})
    assert essences.fetch_last(body, essences.of(body)) is None
    assert not essences.is_last(body, essences.of(body))


def test_an_essence_that_could_not_be_stored_is_known_by_its_digest(make):
    essences, body = make(), make_body(spec={'a': 1})
    essence = essences.of(body)
    assert essences.fetch_last(body, essence, digest_essence(essence)) is essence


def test_values_of_secrets_are_stored_as_digests_and_revealed_if_unchanged(make):
    essences = make(SECRETS)
    body = store(essences, make_body(data={'kept': 'c2VjcmV0', 'changed': 'c2VjcmV0'}))
    assert 'c2VjcmV0' not in json.dumps(dict(body['metadata']['annotations']))
    edited = kopf.Body({**body, 'data': {'kept': 'c2VjcmV0', 'changed': 'b3RoZXI='}})
    last = essences.fetch_last(edited, essences.of(edited))
    assert last['data']['kept'] == 'c2VjcmV0'
    assert last['data']['changed'] not in ('c2VjcmV0', 'b3RoZXI=')


def test_values_of_secrets_are_stored_if_so_configured(make, settings):
    settings.persistence.store_secrets = True
    body = store(make(SECRETS), make_body(data={'key': 'c2VjcmV0'}))
    assert 'c2VjcmV0' in json.dumps(dict(body['metadata']['annotations']))


def test_storages_of_users_are_asked_each_time(make, settings):
    settings.persistence.diffbase_storage = storage = Storage()
    essences = make()
    assert essences.is_external
    body = store(essences, make_body(spec={'a': 1}))
    essence = essences.of(body)
    for _ in range(2):
        assert essences.fetch_last(body, essence, again=True) == {'spec': {'a': 1}}
    assert storage.fetched == 2


@pytest.mark.parametrize('step', ['build', 'fetch'])
def test_errors_of_storages_are_told_from_those_of_the_framework(make, settings, step):
    settings.persistence.diffbase_storage = storage = Storage()
    essences, body = make(), make_body(spec={'a': 1})
    if step == 'fetch':
        essences.of(body)
    storage.error = ZeroDivisionError('boo')
    with pytest.raises(StorageError, match='boo'):
        essences.of(body) if step == 'build' else essences.fetch_last(body, {})


def test_a_predicted_essence_is_that_after_the_patch(make):
    essences, body = make(), make_body(spec={'a': 1})
    assert essences.predict(body, Patch({'spec': {'b': 2}, 'status': {'c': 3}})) == {'spec': {'a': 1, 'b': 2}}
    assert essences.predict(body, Patch(fns=[lambda body: 1 / 0])) == {'spec': {'a': 1}}


def test_packed_essences_are_unpacked_the_same(make):
    essences, body = make(), make_body(spec={'a': 1})
    essence = essences.of(body)
    assert essences.unpack(essences.pack(essence, body), essence, body) == essence
    assert essences.unpack(None, essence, body) == {}
