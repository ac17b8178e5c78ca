"""Handles changes of the objects in one or more processes, and reports each call. Options: reconcile (otherwise
changes), work=N (compute that many squares in each call: 900000 take some 30 ms), helped (the API server sends each
process only its own objects)."""

import os

from common import OPTIONS, RESOURCE, report

import kopf

WORK = max(int(option.partition("work=")[2] or 0) for option in OPTIONS)

decorate = kopf.on.reconcile(*RESOURCE, concurrency=16) if "reconcile" in OPTIONS else kopf.on.update(*RESOURCE)


@kopf.on.startup()
async def configure(settings, **_):
    settings.sharding.name = os.environ["BENCH_SHARDS"]
    settings.sharding.duration, settings.sharding.renew_deadline = 60, 45  # it is frozen while changes are written
    settings.sharding.server_side = "helped" in OPTIONS


@decorate
async def handle(name, spec, **_):
    if spec.get("round", 0) < 0:
        sum(number * number for number in range(WORK))
        report("handled", name=name, member=os.getpid())
