"""The records of peers, the identities, and the commands that write and remove records."""

import dataclasses
import datetime
import re

import pytest

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.references import Resource
from kopf._core.engines.peering import Peer, PeeringCommand, PeeringError, detect_own_id, touch

CLUSTER_RESOURCE = Resource('kopf.dev', 'v1', 'clusterkopfpeerings', kind='ClusterKopfPeering', namespaced=False)
NOW = datetime.datetime(2020, 1, 1, 0, 1, 0, tzinfo=datetime.UTC)


@pytest.fixture
def settings():
    settings = OperatorSettings()
    settings.peering.name = 'mine'
    return settings


def test_peers_are_stored_as_records_and_read_again():
    peer = Peer('id', priority=5, lifetime=60, lastseen='2020-01-01T00:00:00')
    assert peer.as_record() == {'priority': 5, 'lifetime': 60, 'lastseen': '2020-01-01T00:00:00'}
    assert Peer.parse('id', peer.as_record()) == peer
    assert repr(peer) == "<Peer id: priority=5, lifetime=60, lastseen='2020-01-01T00:00:00'>"


def test_missing_fields_of_records_have_defaults():
    assert Peer.parse('id', {}) == Peer('id', priority=0, lifetime=60, lastseen='')


@pytest.mark.parametrize('record', [None, 'text', [], {'priority': 'high'}, {'lifetime': {}}])
def test_malformed_records_are_no_peers(record):
    assert Peer.parse('id', record) is None


@pytest.mark.parametrize(
    'lastseen, dead',
    [
        ('2020-01-01T00:00:00+00:00', True),
        ('2020-01-01T00:00:00', True),
        ('2020-01-01T01:00:00+01:00', True),
        ('2020-01-01T00:00:00.000001Z', False),
        ('2025-01-01T00:00:00', False),
        ('', False),
        ('some day', False),
    ],
)
def test_records_past_their_lifetime_seem_dead(lastseen, dead):
    assert Peer('id', lifetime=60, lastseen=lastseen).seems_dead(NOW) == dead


def test_the_identity_in_a_pod_is_the_id_of_the_pod(monkeypatch):
    monkeypatch.setenv('POD_ID', 'pod1')
    assert detect_own_id(manual=False) == detect_own_id(manual=True) == 'pod1'


def test_identities_of_operators_are_unique_for_each_run(monkeypatch):
    monkeypatch.delenv('POD_ID', raising=False)
    identities = {detect_own_id(manual=False) for _ in range(10)}
    assert all(re.fullmatch(r'[^@/]+@[^@/]+/\d{14}/[a-z0-9]{3}', identity) for identity in identities)
    assert len(identities) > 1


def test_identities_of_people_are_the_same_each_time(monkeypatch):
    monkeypatch.delenv('POD_ID', raising=False)
    assert detect_own_id(manual=True) == detect_own_id(manual=True)
    assert re.fullmatch(r'[^@/]+@[^@/]+', detect_own_id(manual=True))


def test_users_without_names_are_identified_by_their_numbers(monkeypatch):
    def fail():
        raise KeyError('uid not found')

    monkeypatch.delenv('POD_ID', raising=False)
    monkeypatch.setattr('getpass.getuser', fail)
    assert re.fullmatch(r'\d+@[^@/]+', detect_own_id(manual=True))


@pytest.fixture
def split_resource(peering_resource):
    return dataclasses.replace(peering_resource, subresources=frozenset({'status'}))


async def test_records_are_written_and_removed_by_patches(peering_api, peering_resource):
    body = await touch(peering_api, peering_resource, 'ns1', 'mine', {'me': {'priority': 1}, 'you': None})
    assert body['status'] == {'me': {'priority': 1}}
    assert peering_api.patches == [
        ('/apis/kopf.dev/v1/namespaces/ns1/kopfpeerings/mine', {'status': {'me': {'priority': 1}, 'you': None}})
    ]


async def test_records_are_written_to_the_status_subresource_if_there_is_one(peering_api, split_resource):
    await touch(peering_api, split_resource, 'ns1', 'mine', {'me': None})
    assert peering_api.patches[0][0] == '/apis/kopf.dev/v1/namespaces/ns1/kopfpeerings/mine/status'


async def test_records_are_written_to_the_object_if_it_has_lost_the_status_subresource(peering_api, split_resource):
    peering_api.has_status = False
    body = await touch(peering_api, split_resource, 'ns1', 'mine', {'me': {'priority': 1}})
    assert body['status'] == {'me': {'priority': 1}}


async def test_records_that_are_ignored_are_an_error(peering_api, split_resource):
    """The API servers disagree on the status subresource: that is not the absence of the peering object."""
    peering_api.has_status, peering_api.is_split = False, True
    with pytest.raises(errors.APIServerError):
        await touch(peering_api, split_resource, 'ns1', 'mine', {'me': {'priority': 1}})


async def test_writing_to_the_status_of_an_absent_object_returns_nothing(peering_api, split_resource):
    peering_api.exists = False
    assert await touch(peering_api, split_resource, 'ns1', 'mine', {'me': None}) is None


async def test_records_are_written_only_to_the_given_version_of_the_object(peering_api, peering_resource):
    with pytest.raises(errors.APIConflictError):
        await touch(peering_api, peering_resource, 'ns1', 'mine', {'me': None}, version='0')


async def test_writing_to_an_absent_object_returns_nothing(peering_api, peering_resource):
    peering_api.exists = False
    assert await touch(peering_api, peering_resource, 'ns1', 'mine', {'me': None}) is None


async def test_a_resource_that_is_not_served_is_an_error(peering_api, peering_resource):
    peering_api.error = errors.APINotFoundError('404 page not found', status=404)
    with pytest.raises(errors.APINotFoundError):
        await touch(peering_api, peering_resource, 'ns1', 'mine', {'me': None})


async def test_the_command_to_pause_writes_a_record(peering_api, peering_resource, settings, caplog):
    caplog.set_level('INFO')
    command = PeeringCommand(identity='me', priority=50, lifetime=60, message='a reason')
    await command(peering_api, settings, [peering_resource], ['ns1'])
    lastseen = datetime.datetime.fromisoformat(peering_api.status['me'].pop('lastseen'))
    assert lastseen.tzinfo is not None
    assert peering_api.status == {'me': {'priority': 50, 'lifetime': 60}}
    assert "for 60 seconds by <Peer me: priority=50" in caplog.text
    assert "a reason" in caplog.text


async def test_the_command_to_resume_removes_the_record(peering_api, peering_resource, settings):
    peering_api.status = {'me': {'priority': 50}, 'you': {'priority': 0}}
    await PeeringCommand(identity='me')(peering_api, settings, [peering_resource], ['ns1'])
    assert peering_api.status == {'you': {'priority': 0}}


@pytest.mark.parametrize(
    'lifetime, done', [(60, "so none is paused"), (0, "so none is resumed")], ids=['freeze', 'resume']
)
async def test_commands_that_reach_no_operator_say_so(peering_api, peering_resource, settings, caplog, lifetime, done):
    caplog.set_level('INFO')
    peering_api.status = {'dead': {'priority': 0, 'lifetime': 60, 'lastseen': '2020-01-01T00:00:00'}, 'bad': 'text'}
    command = PeeringCommand(identity='me', priority=50, lifetime=lifetime)
    await command(peering_api, settings, [peering_resource], ['ns1'])
    [record] = [record for record in caplog.records if record.levelname == 'WARNING']
    assert f"No operator has a live record in the peering 'mine', {done}" in record.getMessage()
    assert "--standalone" in record.getMessage() and "--peering=mine" in record.getMessage()


async def test_commands_tell_how_many_operators_they_reach(peering_api, peering_resource, settings, caplog):
    caplog.set_level('INFO')
    lastseen = datetime.datetime.now(datetime.UTC).isoformat()
    peering_api.status = {'a': {'lastseen': lastseen}, 'b': {'priority': 50, 'lastseen': lastseen}}
    await PeeringCommand(identity='me', priority=50, lifetime=60)(peering_api, settings, [peering_resource], ['ns1'])
    assert (
        "2 operators have a live record in this peering; not paused, as their priority is not below 50: 1."
        in caplog.text
    )
    peering_api.put(b=None)
    await PeeringCommand(identity='me')(peering_api, settings, [peering_resource], ['ns1'])
    assert "1 operator has a live record in this peering." in caplog.text
    assert 'WARNING' not in caplog.text


async def test_commands_can_be_for_the_whole_cluster(peering_api, peering_resource, settings):
    settings.peering.clusterwide = True
    await PeeringCommand(identity='me')(peering_api, settings, [peering_resource, CLUSTER_RESOURCE], [])
    assert [path for path, _ in peering_api.patches] == ['/apis/kopf.dev/v1/clusterkopfpeerings/mine']


async def test_commands_can_be_for_patterns_of_namespaces(peering_api, peering_resource, settings):
    peering_api.namespaces = ['abc', 'abd', 'xyz']
    await PeeringCommand(identity='me')(peering_api, settings, [peering_resource], ['ab*', 'name'])
    assert [path.split('/')[5] for path, _ in peering_api.patches] == ['abc', 'abd', 'name']


async def test_commands_without_any_peering_object_are_errors(peering_api, peering_resource, settings, caplog):
    peering_api.exists = False
    with pytest.raises(PeeringError, match=r"no KopfPeering 'mine'"):
        await PeeringCommand(identity='me')(peering_api, settings, [peering_resource], ['ns1'])
    assert "The peering 'mine' in 'ns1' is not found." in caplog.text


@pytest.mark.parametrize('clusterwide, kind', [(True, 'ClusterKopfPeering'), (False, 'KopfPeering')])
async def test_commands_fail_in_clusters_without_peerings(peering_api, settings, clusterwide, kind):
    settings.peering.clusterwide = clusterwide
    with pytest.raises(PeeringError, match=rf"The cluster has no {kind}\b"):
        await PeeringCommand(identity='me')(peering_api, settings, [], ['ns1'])
    assert not peering_api.patches


async def test_commands_need_the_name_of_a_peering(peering_api, peering_resource, settings):
    settings.peering.name = ''
    with pytest.raises(PeeringError, match="is empty"):
        await PeeringCommand(identity='me')(peering_api, settings, [peering_resource], ['ns1'])
