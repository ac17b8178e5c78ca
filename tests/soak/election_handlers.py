"""
The operator of the soaks of elections and shards: each handler writes down its beginning and its end.

Each call becomes two lines of JSON in the file that $SOAK_LEDGER names: it can be killed in between. What handlers
write into the status carries the term of the leader, which grows with each election: the clock is that of the machine.
With shards, it is the time when the handler has begun.
"""

import asyncio
import datetime
import json
import os
import random
import time
from typing import Any

import kopf
from kopf._cogs.helpers import clocks

LEDGER = os.open(os.environ['SOAK_LEDGER'], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
REPLICA = os.environ['SOAK_REPLICA']
DURATION = float(os.environ['SOAK_DURATION'])
SKEW = datetime.timedelta(seconds=float(os.environ['SOAK_SKEW']))
chances = random.Random(f'{REPLICA} {os.environ["SOAK_SEED"]}')
terms: list[float] = [0.0]

# The clocks of the replicas are minutes apart.
_read = clocks.read_wall_clock
clocks.read_wall_clock = lambda: _read() + SKEW
clocks.restart()


def note(event: str, name: str = '', **details: Any) -> None:
    line = {'replica': REPLICA, 'pid': os.getpid(), 'event': event, 'name': name, 'time': time.monotonic()}
    os.write(LEDGER, json.dumps(line | details).encode() + b'\n')


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.leadership.name = 'soak'
    settings.leadership.namespace = os.environ['SOAK_NAMESPACE']
    settings.leadership.duration = DURATION
    settings.leadership.renew_deadline = DURATION * 2 / 3
    settings.leadership.retry_period = DURATION * 2 / 15
    settings.sharding.name = 'soak'
    settings.sharding.namespace = os.environ['SOAK_NAMESPACE']
    settings.sharding.buckets = 64
    settings.sharding.duration = settings.leadership.duration
    settings.sharding.renew_deadline = settings.leadership.renew_deadline
    settings.sharding.retry_period = settings.leadership.retry_period
    settings.posting.enabled = False
    settings.networking.request_timeout = 5.0
    settings.queueing.error_delays = [1]


def find_term() -> float:
    """Return the term of the leader; with shards, the time, as the writes are in the order of the handlers."""
    return terms[-1] or time.monotonic()


@kopf.on.leading()
async def leading(**_: Any) -> None:
    terms.append(time.monotonic())
    note('leading')


@kopf.on.yielding()
async def yielding(**_: Any) -> None:
    note('yielding')


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
async def handle(name: str, spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
    term, value = find_term(), spec.get('value')
    note('begin', name, handler='async', value=value)
    try:
        is_long = chances.random() < 0.01  # longer than a replica without the Lease may work
        await asyncio.sleep(DURATION if is_long else chances.choice([0.02, 0.05, 0.1, 0.3]))
        patch.status['term'], patch.status['seen'] = term, value
    finally:
        note('end', name, handler='async')


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec')
def threaded(name: str, **_: Any) -> None:
    note('begin', name, handler='thread')
    try:
        time.sleep(chances.choice([0.02, 0.05, 0.1]))
    finally:
        note('end', name, handler='thread')


@kopf.daemon('kopfexamples', labels={'daemon': 'yes'})
async def daemon(name: str, stopped: kopf.AsyncDaemonStopperChecker, **_: Any) -> None:
    note('begin', name, handler='daemon')
    try:
        await stopped.wait()
    finally:
        note('end', name, handler='daemon')


@kopf.timer('kopfexamples', interval=1.0, labels={'daemon': 'yes'})
async def timer(name: str, patch: kopf.Patch, **_: Any) -> None:
    note('begin', name, handler='timer')
    patch.status['timer'] = find_term()
    note('end', name, handler='timer')
