"""The operator of the soak: it writes down who has handled what, and when.

Each call becomes a line of JSON in the file that $SOAK_LEDGER names; `verdict.py` reads them all in the end. Handlers
fail now and then, as those of real operators do: only the calls that have succeeded count.
"""

import asyncio
import json
import os
import random
import time
from typing import Any

import kopf

LEDGER = os.open(os.environ['SOAK_LEDGER'], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
OPERATOR = os.environ['SOAK_OPERATOR']
chances = random.Random(f'{OPERATOR} {os.environ["SOAK_SEED"]}')


def note(event: str, began: float, uid: str, name: str, **details: Any) -> None:
    """Write it down. The clock is the same for all the processes of the machine."""
    line = {'operator': OPERATOR, 'event': event, 'uid': uid, 'name': name, 'began': began, 'ended': time.monotonic()}
    os.write(LEDGER, json.dumps(line | details).encode() + b'\n')


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.peering.name = 'soak'
    settings.peering.lifetime = 10
    settings.peering.priority = int(os.environ['SOAK_PRIORITY'])
    settings.watching.server_timeout = 15  # new streams often enough to meet the credentials of the day
    settings.queueing.exit_timeout = 20  # what is cancelled is done again by the next one; machines can be slow
    settings.posting.enabled = False


@kopf.on.login()
def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_kubeconfig(**kwargs)


@kopf.on.create(category='soaks')
@kopf.on.update(category='soaks')
async def slow(uid: str, name: str, spec: kopf.Spec, reason: str, retry: int, **_: Any) -> None:
    began, value = time.monotonic(), spec.get('value')
    await asyncio.sleep(chances.uniform(0, 0.2))
    if not retry and chances.random() < 0.05:
        raise kopf.TemporaryError("Not this time.", delay=chances.uniform(0, 1))
    note(f'slow/{reason}', began, uid, name, value=value)


@kopf.on.create(category='soaks')
@kopf.on.update(category='soaks')
def threaded(uid: str, name: str, spec: kopf.Spec, reason: str, **_: Any) -> None:
    began, value = time.monotonic(), spec.get('value')
    time.sleep(chances.uniform(0, 0.05))
    note(f'threaded/{reason}', began, uid, name, value=value)


@kopf.on.delete(category='soaks')
async def gone(uid: str, name: str, **_: Any) -> None:
    note('gone', time.monotonic(), uid, name)


@kopf.daemon(category='soaks', labels={'daemon': 'yes'})
async def daemon(uid: str, name: str, stopped: kopf.AsyncDaemonStopperChecker, **_: Any) -> None:
    began = time.monotonic()
    try:
        await stopped.wait()
    finally:
        note('daemon', began, uid, name)
