"""Reconciles all objects: each of them has 5 config maps as its children, or as many as BENCH_CHILDREN says."""

import os

from common import RESOURCE, Tally

import kopf

CHILDREN = int(os.environ.get("BENCH_CHILDREN", "5"))

tally = Tally()


@kopf.on.reconcile(*RESOURCE, owns=["v1/configmaps"], concurrency=16)
async def reconcile(name, spec, children, **_):
    for number in range(CHILDREN):
        await children.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"{name}-{number}", "labels": {"bench": "child"}},
                "data": {f"SETTING_{key}": f"value-{name}-{number}-{key}" for key in range(10)},
            }
        )
    tally.add(name, spec)
