"""Operators that agree by Leases: replicas with one leader, and members that share the objects."""

import asyncio
import types

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.actions.invocation import ThreadCalls
from kopf._core.engines.buckets import find_bucket
from kopf._core.reactor import election_coordinator
from kopf._core.reactor.election_coordinator import ElectionCoordinator
from kopf._core.reactor.sharding_coordinator import ShardingCoordinator
from tests.faults.simulation import processes, threads


def take_over():
    """Let the processes know their coordinators, and let only the process end that must not go on."""
    start = ElectionCoordinator.__init__

    def init(self, *args, **kwargs):
        processes.current.get().coordinator = self
        start(self, *args, **kwargs)

    lose = ElectionCoordinator._lose

    def note_loss(self):
        process = processes.current.get()
        process.ledger.note_loss(process)
        lose(self)

    surrender = ShardingCoordinator._give_up

    def note_surrender(self, ownership, buckets):
        process = processes.current.get()
        process.surrenders.append((process.ledger.now, buckets))
        surrender(self, ownership, buckets)

    ElectionCoordinator.__init__, ElectionCoordinator._lose = init, note_loss
    ShardingCoordinator._give_up = note_surrender
    election_coordinator.end_process = _end_process
    # Functions in virtual threads return at once, so they are not in the list of running calls.
    ThreadCalls.find = lambda self: threads.find_running(processes.current.get())


def _end_process(running):
    process = processes.current.get()
    process.ended_for = list(running)
    process.die()
    raise asyncio.CancelledError


def find_boss(simulation, body=None):
    """Return the process that handles the object, or that leads; ``None`` if it is unknown for now."""
    mode = simulation.options.electing
    if not mode:
        return max(simulation.processes, key=lambda process: process.priority)
    for process in simulation.processes:
        coordinator = process.coordinator
        if coordinator is None or coordinator.paused:
            continue
        if mode == 'election' or body is None:
            return process
        meta = body['metadata']
        if coordinator.owns(types.SimpleNamespace(uid=meta['uid'], namespace=meta.get('namespace'))):
            return process
    return None


def has_surrendered(process, uid, *, since):
    """Check whether the process has given up the bucket of this object since then: later, it is handled anew."""
    # The key of the shards is the uid, and the number of buckets is that of the default settings.
    bucket = find_bucket(uid, OperatorSettings().sharding.buckets)
    return any(at >= since and bucket in buckets for at, buckets in process.surrenders)


def configure(settings, mode):
    """Configure the operator to agree with others in this way."""
    settings.leadership.enabled, settings.sharding.enabled = mode == 'election', mode == 'shards'
    settings.leadership.namespace = settings.sharding.namespace = 'ns-leases'
