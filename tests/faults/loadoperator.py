"""
The operator of `load.py` and `leaks.py`: it notes each call of a handler as a line of JSON in the file $KOPF_NOTES.

For a ConfigMap of the name "measure-…", it notes its own memory instead.
"""

import gc
import json
import logging
import os
import sys
from typing import Any, TextIO

import kopf


def open_notes() -> TextIO:
    return open(os.environ['KOPF_NOTES'], 'a', buffering=1)


notes = open_notes()


def note(id: str, body: kopf.Body, **more: Any) -> None:
    notes.write(
        json.dumps(
            {'id': id, 'name': body.metadata.name, 'uid': body.metadata['uid'], 'field': body.spec.get('field'), **more}
        )
        + '\n'
    )


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False
    settings.watching.inactivity_timeout = 5  # so that frozen streams are noticed within minutes, not hours
    settings.networking.request_timeout = 10
    settings.queueing.error_delays = [0.5, 1, 2]
    logging.getLogger('kopf.objects').setLevel(logging.WARNING)


@kopf.index('kopfexamples', id='fields')
async def index(name: str, spec: kopf.Spec, **_: Any) -> dict[str, int]:
    return {name: spec['field']}


@kopf.on.create('kopfexamples')
async def create(body: kopf.Body, **_: Any) -> None:
    note('create', body)


@kopf.on.update('kopfexamples', field='spec')
async def update(body: kopf.Body, **_: Any) -> None:
    note('update', body)


@kopf.on.delete('kopfexamples')
async def delete(body: kopf.Body, **_: Any) -> None:
    note('delete', body)


@kopf.on.event('configmaps', when=lambda name, **_: name.startswith('measure-'))
async def measure(event: kopf.RawEvent, body: kopf.Body, fields: kopf.Index[str, int], **_: Any) -> None:
    if event['type'] == 'DELETED':
        return
    gc.collect()
    with open('/proc/self/status') as status:
        memory = next(int(line.split()[1]) for line in status if line.startswith('VmRSS:'))
    notes.write(
        json.dumps(
            {
                'id': 'measure',
                'name': body.metadata.name,
                'memory': memory,
                'containers': len(gc.get_objects()),
                'blocks': sys.getallocatedblocks(),
                'indexed': len(fields),
            }
        )
        + '\n'
    )
