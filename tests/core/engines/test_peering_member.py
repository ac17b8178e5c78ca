"""One operator in a peering, in virtual time: when it pauses, takes over, and renews its record."""

import asyncio
import contextlib
import datetime
import random

import pytest

from kopf._cogs.clients import errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.engines import peering_member
from kopf._core.engines.peering_member import (
    REFUSAL_DELAYS,
    REQUEST_TIMEOUT,
    RETRY_DELAY,
    TAKEOVER_TIMEOUT,
    PeeringMember,
)

pytestmark = pytest.mark.looptime(start=1000)


class Clock:
    """The monotonic clock: that of the loop, and the time of suspensions, of which the loop does not know."""

    suspended = 0.0

    def read(self):
        return asyncio.get_running_loop().time() + self.suspended


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(peering_member, 'read_time', clock.read)
    return clock


def record(priority=0, lifetime=60, age=0.0):
    lastseen = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    return {'priority': priority, 'lifetime': lifetime, 'lastseen': lastseen.isoformat()}


@pytest.fixture
def settings():
    settings = OperatorSettings()
    settings.peering.priority = 10
    return settings


@pytest.fixture
def join(peering_api, peering_resource, settings):
    """Become a member, and let everything happen that happens without waiting."""

    @contextlib.asynccontextmanager
    async def join():
        def changed():
            member.changes.append((member.known, member.paused))
            member.verdicts.append((asyncio.get_running_loop().time(), member.paused))

        member = PeeringMember(
            peering_api, settings, resource=peering_resource, namespace='ns1', identity='me', changed=changed
        )
        member.changes, member.verdicts = [], []
        peering_api.observers.append(member.see)
        task = asyncio.create_task(member.run())
        member.see(peering_api.body if peering_api.exists else None)
        await passed(0)
        try:
            yield member
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    return join


async def passed(seconds):
    await asyncio.sleep(seconds)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nothing_is_known_before_anything_is_seen(peering_api, peering_resource, settings):
    member = PeeringMember(
        peering_api, settings, resource=peering_resource, namespace='ns1', identity='me', changed=lambda: None
    )
    task = asyncio.create_task(member.run())
    await passed(100)
    assert not member.known
    assert not peering_api.patches
    task.cancel()


async def test_the_own_record_is_written_at_the_start(peering_api, join):
    async with join() as member:
        assert peering_api.status['me'].keys() == {'priority', 'lifetime', 'lastseen'}
        assert peering_api.status['me']['priority'] == 10
        assert member.changes == [(True, False)]


async def test_the_record_is_renewed_a_bit_before_its_end(peering_api, join):
    times = []
    peering_api.observers.append(lambda body: times.append(asyncio.get_running_loop().time()))
    async with join():
        await passed(500)
    intervals = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert len(intervals) >= 9
    assert 50 <= min(intervals) < max(intervals) <= 55.001


async def test_short_lifetimes_are_renewed_in_time(peering_api, join, settings):
    settings.peering.lifetime = 4
    async with join() as member:
        await passed(41)
        assert 15 <= len(peering_api.patches) <= 22
        assert member.changes == [(True, False)]


async def test_record_is_removed_in_the_end(peering_api, join):
    async with join() as member:
        await member.leave()
    assert not peering_api.status


async def test_nothing_is_removed_if_nothing_was_announced(peering_api, join):
    peering_api.exists = False
    async with join() as member:
        await member.leave()
    assert not peering_api.patches


async def test_failed_removal_is_only_reported(peering_api, join, caplog):
    async with join() as member:
        peering_api.error = errors.APIServerError('oops', status=500)
        await member.leave()
    assert "could not be removed" in caplog.text


async def test_an_operator_pauses_while_there_are_higher_priorities(peering_api, join, caplog):
    caplog.set_level('INFO')
    async with join() as member:
        peering_api.put(boss=record(priority=100))
        assert member.paused
        peering_api.put(boss=None)
        assert not member.paused
        assert member.changes == [(True, False), (True, True), (True, False)]
    assert "Pausing operations in favour of [<Peer boss: priority=100, lifetime=60, lastseen='" in caplog.text
    assert "Resuming operations after the pause." in caplog.text


async def test_reasons_are_not_repeated(peering_api, join, caplog):
    caplog.set_level('INFO')
    async with join():
        for _ in range(3):
            peering_api.put(boss=record(priority=100))
        await passed(0)
    assert caplog.text.count("Pausing operations in favour") == 1


async def test_an_operator_does_not_pause_for_lower_priorities(peering_api, join):
    async with join() as member:
        peering_api.put(intern=record(priority=1))
        await passed(1)
        assert not member.paused


async def test_operators_with_lower_priorities_get_time_to_pause(peering_api, join):
    peering_api.put(intern=record(priority=1))
    async with join() as member:
        assert 'me' in peering_api.status
        await passed(TAKEOVER_TIMEOUT - 0.1)
        assert not member.known
        await passed(0.1)
        assert member.changes == [(True, False)]


@pytest.mark.parametrize(
    'news',
    [
        {'intern': {**record(priority=1), 'paused': True}},
        {'intern': None},
        {'intern': record(lifetime=0)},
    ],
    ids=['stopped', 'gone', 'dead'],
)
async def test_the_takeover_begins_as_soon_as_the_lower_operator_has_paused_or_gone(peering_api, join, news):
    peering_api.put(intern=record(priority=1))
    async with join() as member:
        assert not member.known
        peering_api.put(**news)
        await passed(0)
        assert member.changes == [(True, False)]


async def test_a_paused_operator_reports_it_to_the_one_that_waits(peering_api, join):
    async with join() as member:
        peering_api.put(boss=record(priority=100))
        member.halt(True)
        await passed(0)
        assert 'paused' not in peering_api.status['me']
        peering_api.put(boss={**record(priority=100), 'waiting': True})
        await passed(0)
        assert peering_api.status['me']['paused'] is True
        peering_api.put(boss=record(priority=100))
        await passed(0)
        assert peering_api.status['me']['paused'] is None


async def test_an_operator_that_takes_over_reports_that_it_waits(peering_api, join):
    peering_api.put(intern=record(priority=1))
    async with join():
        assert peering_api.status['me']['waiting'] is True
        peering_api.put(intern={**record(priority=1), 'paused': True})
        await passed(0)
        assert peering_api.status['me']['waiting'] is None


async def test_running_handlers_of_the_lower_operator_are_waited_for_however_long_they_run(peering_api, join, caplog):
    peering_api.put(intern=record(priority=1))
    async with join() as member:
        for _ in range(20):
            peering_api.put(intern={**record(priority=1), 'pausing': True})
            await passed(50)
            assert member.paused
            assert peering_api.status['me']['waiting'] is True
        assert member.joined  # it watches meanwhile
        peering_api.put(intern={**record(priority=1), 'paused': True})
        await passed(0)
        assert member.changes == [(True, True), (True, False)]
    assert caplog.text.count("Pausing operations until the running handlers of other operators have ended") == 1


@pytest.mark.parametrize('end', [None, 'dead'])
async def test_operators_that_die_with_running_handlers_are_waited_for_only_as_long_as_their_records_live(
    peering_api, join, end
):
    peering_api.put(intern={**record(priority=1), 'pausing': True})
    async with join() as member:
        await passed(59.9)
        assert member.paused
        if end is None:
            peering_api.put(intern=None)
        await passed(0 if end is None else 0.2)
        assert member.known and not member.paused


async def test_running_handlers_of_the_lower_operator_are_waited_for_after_the_higher_one_has_gone(peering_api, join):
    peering_api.put(boss=record(priority=100))
    async with join() as member:
        peering_api.put(intern={**record(priority=1), 'pausing': True}, boss=None)
        await passed(0)
        assert member.paused
        assert peering_api.status['me']['waiting'] is True
        peering_api.put(intern={**record(priority=1), 'paused': True})
        await passed(0)
        assert not member.paused


async def test_a_working_operator_does_not_stop_for_operators_with_lower_priorities_that_pause(peering_api, join):
    async with join() as member:
        peering_api.put(intern={**record(priority=1), 'pausing': True})
        await passed(100)
        assert member.changes == [(True, False)]


async def test_a_pausing_operator_reports_its_running_handlers_until_they_have_ended(peering_api, join):
    async with join() as member:
        peering_api.put(boss=record(priority=100))
        await passed(0)
        assert 'pausing' not in peering_api.status['me']
        peering_api.put(boss={**record(priority=100), 'waiting': True})
        await passed(0)
        assert peering_api.status['me']['pausing'] is True
        peering_api.put(boss=None, other=record(priority=50))
        await passed(0)
        assert peering_api.status['me']['pausing'] is True
        peering_api.put(other={**record(priority=50), 'waiting': True})
        member.halt(True)
        await passed(0)
        assert peering_api.status['me']['paused'] is True
        assert peering_api.status['me']['pausing'] is None


async def test_the_flags_of_a_killed_operator_of_the_same_identity_are_removed(peering_api, join):
    flags = {'waiting': True, 'pausing': True, 'paused': True}
    peering_api.put(me={**record(priority=10), **flags})
    async with join():
        assert {name: peering_api.status['me'][name] for name in flags} == dict.fromkeys(flags)


async def test_flags_that_a_request_without_a_response_has_written_are_removed(peering_api, join):
    async with join():
        written = peering_api.status['me']
        peering_api.put(me={**written, 'pausing': True})
        await passed(0)
        assert peering_api.status['me']['pausing'] is None


async def test_operators_that_took_over_meanwhile_get_time_to_pause(peering_api, join, monkeypatch):
    monkeypatch.setattr(peering_member.random, 'uniform', lambda *_: 7.5)  # the attempts are 52.5, 57.5, 62.5 s later
    async with join() as member:
        peering_api.error = errors.APIServerError('oops', status=500)
        await passed(61)
        assert member.paused
        peering_api.put(intern=record(priority=1))
        peering_api.error = None
        await passed(RETRY_DELAY + 0.1)
        assert member.paused
        peering_api.put(intern={**record(priority=1), 'paused': True})
        await passed(0)
        assert not member.paused


async def test_an_operator_pauses_at_the_start_if_there_are_higher_priorities(peering_api, join):
    peering_api.put(boss=record(priority=100))
    async with join() as member:
        assert member.changes == [(True, True)]


async def test_equals_pause_each_other(peering_api, join, caplog):
    async with join() as member:
        peering_api.put(twin=record(priority=10))
        assert member.paused
        peering_api.put(twin=None)
        assert not member.paused
    assert "Possibly conflicting operators with the same priority: [<Peer twin: priority=10," in caplog.text
    assert "Pausing all operators, including self: [<Peer me: priority=10," in caplog.text


async def test_equals_of_different_shards_do_not_conflict(peering_api, join, settings):
    settings.watching.shard_selectors['pods'] = 'x'
    async with join() as member:
        peering_api.put(twin=record(priority=10))
        assert not member.paused


async def test_own_record_is_no_conflict(peering_api, join):
    peering_api.put(me=record(priority=100))
    async with join() as member:
        assert not member.paused


async def test_the_dead_are_removed_at_the_start(peering_api, join):
    peering_api.put(boss=record(priority=100, age=100))
    async with join() as member:
        assert 'boss' not in peering_api.status
        assert member.changes == [(True, False)]


async def test_operators_take_over_from_dead_ones(peering_api, join):
    peering_api.put(boss=record(priority=100))
    async with join() as member:
        await passed(59.9)
        assert member.paused
        await passed(0.2)
        assert not member.paused
        assert 'boss' not in peering_api.status


@pytest.mark.parametrize('delay', [0, 1, 9])
async def test_the_takeover_begins_when_the_api_confirms_the_end_of_the_lifetime(peering_api, join, settings, delay):
    settings.peering.lifetime = 1000
    async with join() as member:
        await passed(12.3)
        peering_api.put(boss=record(priority=100))
        peering_api.delay = delay
        await passed(60.1 + delay)
    assert member.verdicts == [(1000, False), (1012.3, True), (pytest.approx(1072.3 + delay, abs=1e-5), False)]


async def test_there_is_no_takeover_while_the_api_does_not_respond(peering_api, join, settings):
    settings.peering.lifetime = 1000
    async with join() as member:
        peering_api.put(boss=record(priority=100))
        peering_api.error = errors.APIServerError('unavailable', status=503)
        await passed(200)
        assert member.paused
        peering_api.error = None
        await passed(5.1)
        assert not member.paused


async def test_an_operator_pauses_exactly_at_the_end_of_its_own_lifetime(peering_api, join):
    async with join() as member:
        peering_api.delay = 100
        await passed(60.1)
    assert member.verdicts == [(1000, False), (pytest.approx(1060, abs=1e-5), True)]


@pytest.mark.parametrize('skew', [-10000, -61, 61, 10000])
async def test_clocks_of_others_do_not_matter(peering_api, join, skew):
    async with join() as member:
        peering_api.put(boss=record(priority=100, age=skew))
        for _ in range(3):
            await passed(50)
            assert member.paused
            assert 'boss' in peering_api.status
            peering_api.put(boss=record(priority=100, age=skew - 1))
        await passed(60.1)
        assert not member.paused
        assert 'boss' not in peering_api.status


async def test_revived_records_are_not_removed(peering_api, join):
    async with join() as member:
        peering_api.put(boss=record(priority=100, lifetime=5))
        peering_api.observers.clear()  # the stream is behind
        peering_api.put(boss=record(priority=101))
        await passed(5.1)
        assert [patch['status'] for _, patch in peering_api.patches[-2:-1]] == [{'boss': None}]
        assert peering_api.status['boss']['priority'] == 101
        assert member.verdicts == [(1000, False), (1000, True)]  # it has never worked beside the other one


async def test_operators_that_may_not_write_take_over_at_the_end_of_the_lifetime(peering_api, join, settings):
    settings.peering.mandatory = False
    peering_api.put(boss=record(priority=100, lifetime=5))
    peering_api.error = errors.APIForbiddenError('forbidden', status=403)
    async with join() as member:
        await passed(1)
        assert member.paused
        await passed(4.1)
        assert not member.paused


async def test_removed_record_is_restored(peering_api, join):
    async with join() as member:
        await passed(20)
        peering_api.put(me=None)
        await passed(0)
        assert 'me' in peering_api.status
        assert not member.paused


async def test_the_own_record_is_restored_at_a_limited_rate(peering_api, join):
    async with join():
        for _ in range(100):
            peering_api.put(me=None)
            await passed(0)
        assert len(peering_api.patches) == 1
        await passed(RETRY_DELAY)
        assert len(peering_api.patches) == 2


async def test_an_operator_that_cannot_renew_its_record_pauses(peering_api, join, caplog):
    async with join() as member:
        peering_api.error = errors.APIServerError('oops', status=500)
        await passed(59.9)
        assert not member.paused
        await passed(0.2)
        assert member.paused
        peering_api.error = None
        await passed(RETRY_DELAY)
        assert not member.paused
    assert "could not be renewed in time" in caplog.text
    assert "Keep-alive in 'default' in 'ns1' has failed" in caplog.text


async def test_outdated_states_are_ignored(peering_api, join):
    async with join() as member:
        old = {**peering_api.body, 'status': {'boss': record(priority=100)}}
        peering_api.put(boss=None)
        member.see(old)
        assert not member.paused


async def test_without_the_object_the_operator_works_standalone(peering_api, join):
    peering_api.exists = False
    async with join() as member:
        assert member.changes == [(True, False)]
        await passed(1000)
        assert not peering_api.patches


async def test_without_the_object_the_operator_pauses_if_the_peering_is_mandatory(peering_api, join, settings, caplog):
    settings.peering.mandatory = True
    peering_api.exists = False
    async with join() as member:
        assert member.changes == [(True, True)]
        peering_api.exists = True
        peering_api.put()
        await passed(0)
        assert not member.paused
        assert 'me' in peering_api.status
        peering_api.exists = False
        member.see(None)
        assert member.paused
    assert "is not found; pausing until it is there. Create this object, or name one that exists." in caplog.text


async def test_an_operator_stays_paused_if_the_object_is_gone_before_its_namespace_is_known_to_be_deleted(
    peering_api, join
):
    peering_api.put(boss=record(priority=100, lifetime=600))
    async with join() as member:
        peering_api.exists = False
        member.see(None)
        await passed(10)
        member.note_ending(True)
        await passed(580)
        assert member.changes == [(True, True)]
        await passed(20)
        assert member.changes == [(True, True), (True, False)]


@pytest.mark.parametrize('lifetime', [60, 3600])
async def test_without_the_object_the_known_operators_count_for_one_lifetime(peering_api, join, lifetime, caplog):
    peering_api.put(boss=record(priority=100, lifetime=lifetime))
    async with join() as member:
        peering_api.exists = False
        member.see(None)
        await passed(59)
        assert member.paused
        await passed(1.1)
        assert not member.paused


async def test_the_operators_of_a_former_object_count_until_they_have_joined_the_new_one(peering_api, join):
    peering_api.put(boss=record(priority=100))
    async with join() as member:
        member.see(None)
        peering_api.put(boss=None)  # created anew, and the boss has not seen that yet
        await passed(10)
        assert member.paused
        peering_api.put(boss=record(priority=100))
        await passed(10)
        peering_api.put(boss=None)  # it has ended
        await passed(0)
        assert member.changes == [(True, True), (True, False)]


@pytest.mark.parametrize('mandatory', [True, False])
async def test_a_peering_that_vanishes_at_once_pauses_only_if_it_is_mandatory(peering_api, join, settings, mandatory):
    settings.peering.mandatory = mandatory
    async with join() as member:
        peering_api.exists = False
        await passed(60)
        assert member.paused is mandatory


async def test_an_api_server_that_does_not_serve_the_kind_yet_does_not_make_the_object_absent(
    peering_api, join, settings
):
    settings.peering.mandatory = True
    async with join() as member:
        peering_api.error = errors.APINotFoundError('404 page not found', status=404)
        await passed(55)
        peering_api.error = None
        await passed(100)
        assert member.changes == [(True, False)]
        assert len(peering_api.patches) >= 3


async def test_an_object_that_was_created_during_a_request_is_not_absent(peering_api, join, settings):
    settings.peering.mandatory = True
    async with join() as member:
        await passed(49)
        peering_api.exists, peering_api.delay = False, 2
        while len(peering_api.patches) < 2:  # it comes when there is no object
            await passed(0.1)
        member.see(None)
        peering_api.exists = True
        peering_api.put(me=None)
        peering_api.exists = False
        await passed(2)
        peering_api.exists, peering_api.delay = True, 0
        await passed(10)
        assert not member.paused
        assert 'me' in peering_api.status


@pytest.mark.parametrize('mandatory, hint', [(True, 'pausing until'), (False, 'standalone')])
async def test_an_inaccessible_object_counts_as_absent(
    peering_api, peering_resource, settings, caplog, mandatory, hint
):
    settings.peering.mandatory = mandatory
    member = PeeringMember(
        peering_api, settings, resource=peering_resource, namespace='ns1', identity='me', changed=lambda: None
    )
    task = asyncio.create_task(member.run())
    member.give_up(errors.APIForbiddenError('no way', status=403))
    await passed(0)
    assert member.known
    assert member.paused is mandatory
    assert hint in caplog.text
    task.cancel()


async def test_an_overloaded_api_is_no_reason_to_begin_unannounced(peering_api, join):
    peering_api.error = errors.APITooManyRequestsError('storage is (re)initializing', status=429)
    async with join() as member:
        await passed(20)
        assert not member.known or member.paused
        peering_api.error = None
        await passed(RETRY_DELAY)
        assert not member.paused
        assert 'me' in peering_api.status


async def test_there_is_no_takeover_while_the_api_is_overloaded(peering_api, join, settings):
    settings.peering.lifetime = 70
    async with join() as member:
        peering_api.put(boss=record(priority=100))
        peering_api.error = errors.APITooManyRequestsError('overloaded', status=429)
        await passed(69)
        assert member.paused


@pytest.mark.parametrize('mandatory', [True, False])
async def test_a_forbidden_record_pauses_only_if_the_peering_is_mandatory(peering_api, join, settings, mandatory):
    settings.peering.mandatory = mandatory
    peering_api.error = errors.APIForbiddenError('no way', status=403)
    async with join() as member:
        await passed(sum(REFUSAL_DELAYS) + 0.1)
        assert member.paused is mandatory
        assert len(peering_api.patches) == len(REFUSAL_DELAYS) + 1


@pytest.mark.parametrize('refusals', range(1, len(REFUSAL_DELAYS) + 1))
async def test_a_record_that_is_refused_for_a_moment_is_written_before_the_operator_begins(peering_api, join, refusals):
    peering_api.put(worker=record(priority=1))
    peering_api.error = errors.APIForbiddenError('not yet', status=403)
    async with join() as member:
        while len(peering_api.patches) < refusals:
            await passed(0.1)
        assert not member.known or member.paused
        peering_api.error = None
        await passed(REFUSAL_DELAYS[-1])
        assert peering_api.status['me']['waiting']
        assert not member.known or member.paused


async def test_keepalive_is_logged(join, caplog):
    caplog.set_level('DEBUG')
    async with join():
        assert "Keep-alive in 'default' in 'ns1': ok." in caplog.text


async def test_keepalive_is_not_logged_in_the_stealth_mode(join, settings, caplog):
    caplog.set_level('DEBUG')
    settings.peering.stealth = True
    async with join():
        assert "Keep-alive" not in caplog.text


async def test_broken_records_are_ignored(peering_api, join):
    peering_api.put(broken='text', worse={'priority': 'highest'})
    async with join() as member:
        assert not member.paused


async def test_after_a_suspension_the_operator_is_overdue_until_its_record_is_renewed(peering_api, join, clock):
    async with join() as member:
        assert not member.is_overdue
        clock.suspended = 100.0
        assert member.is_overdue and not member.paused
        peering_api.error = errors.APIServerError('oops', status=500)
        member.pause_if_overdue()
        assert member.paused and not member.is_overdue
        await passed(RETRY_DELAY)
        assert member.paused
        peering_api.error = None
        await passed(RETRY_DELAY)
        assert not member.paused and not member.is_overdue


async def test_an_operator_that_took_over_during_a_suspension_is_waited_for(peering_api, join, clock):
    peering_api.put(worker=record(priority=1, lifetime=600))
    async with join() as member:
        await passed(TAKEOVER_TIMEOUT)
        clock.suspended = 100.0
        member.pause_if_overdue()
        await passed(0)
        assert peering_api.status['me']['waiting'] is True
        assert not member.known
        peering_api.put(worker={**record(priority=1, lifetime=600), 'paused': True})
        await passed(0)
        assert member.known and not member.paused


async def test_the_record_is_renewed_after_requests_that_time_out_one_after_another(peering_api, join):
    peering_api.put(intern={**record(priority=1, lifetime=50), 'paused': True})
    async with join() as member:
        await passed(45)
        peering_api.delay = 2 * REQUEST_TIMEOUT  # both for the renewal and for the removal of the dead peer
        await passed(50)
        assert member.paused
        peering_api.delay = 0
        await passed(REQUEST_TIMEOUT + RETRY_DELAY)
        assert not member.paused
        assert peering_api.status.keys() == {'me'}


async def test_failed_removals_of_dead_records_are_not_repeated_at_once(peering_api, join, settings):
    settings.peering.lifetime = 1000
    async with join():
        peering_api.put(intern=record(priority=1, lifetime=1))
        peering_api.delay = 2 * REQUEST_TIMEOUT
        await passed(3 * (REQUEST_TIMEOUT + RETRY_DELAY))
        assert [patch['status'] for _, patch in peering_api.patches[1:]] == [{'intern': None}] * 3


async def test_a_record_whose_renewal_is_due_during_the_takeover_is_renewed_after_it(
    peering_api, join, settings, monkeypatch
):
    monkeypatch.setattr(peering_member.random, 'uniform', lambda *_: 7.5)
    settings.peering.lifetime = 8
    peering_api.delay = 0.1
    async with join() as member:
        peering_api.put(intern=record(priority=1))  # it does not report that it pauses, as in other frameworks
        await passed(100)
        assert member.changes == [(True, False)]


@pytest.mark.parametrize('mandatory', [True, False])
@pytest.mark.parametrize('seed', range(10))
async def test_whatever_has_happened_the_record_is_renewed_when_the_api_is_well_again(
    peering_api, join, settings, monkeypatch, seed, mandatory
):
    chance = random.Random(seed)
    monkeypatch.setattr(peering_member.random, 'uniform', chance.uniform)
    settings.peering.mandatory = mandatory
    settings.peering.lifetime = lifetime = chance.choice([4, 8, 20, 60])
    failures = [
        errors.APIServerError('oops', status=500),
        errors.APIForbiddenError('no way', status=403),
        errors.APIConflictError('conflict', status=409),
    ]

    def act(member):
        peering_api.delay = chance.choice([0, 0.1, 3, 9, 2 * REQUEST_TIMEOUT, 2 * REQUEST_TIMEOUT])
        peering_api.error = chance.choice([None, None, None, *failures])
        match chance.choice(['peer', 'peer', 'end', 'removal', 'halt', 'absence', 'nothing']):
            case 'peer':
                flags = {chance.choice(['waiting', 'pausing', 'paused']): True} if chance.random() < 0.5 else {}
                peer = record(priority=chance.choice([1, 100]), lifetime=chance.choice([1, 15, 30]))
                peering_api.put(**{chance.choice(['intern', 'boss']): {**peer, **flags}})
            case 'end':
                peering_api.put(intern=None, boss=None)
            case 'removal':
                peering_api.put(me=None)
            case 'halt':
                member.halt(member.paused)
            case 'absence':
                peering_api.exists, peering_api.status = not peering_api.exists, {}
                member.see(peering_api.body if peering_api.exists else None)

    async with join() as member:
        for _ in range(20):
            for _ in range(chance.randint(1, 4)):
                act(member)
                await passed(chance.choice([0, 0.5, 3, RETRY_DELAY, 8, REQUEST_TIMEOUT, 30]))
            peering_api.delay, peering_api.error = 0.1, None
            if not peering_api.exists:
                peering_api.exists = True
                peering_api.put()
            # Then, the peers are dead, a request in progress has timed out, and the operator has taken over.
            await passed(max(lifetime, 30) + REQUEST_TIMEOUT + TAKEOVER_TIMEOUT + 2 * RETRY_DELAY)
            written = peering_api.status['me']['lastseen']
            assert peering_api.status.keys() == {'me'}
            assert member.known and not member.paused
            await passed(lifetime)
            assert peering_api.status['me']['lastseen'] != written
