"""The operator that the tests of the inspector look at: one with retries, failures, timers, and a thread in a lock."""

import asyncio
import os
import threading
import time

import kopf

LOCK = threading.Lock()
LOCK.acquire()


@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = True
    settings.posting.loggers = False
    settings.inspecting.port = int(os.environ.get('INSPECTOR_PORT', '0'))
    settings.inspecting.token = os.environ.get('INSPECTOR_TOKEN')


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
async def provision_database(body, spec, retry, patch, logger, **_):
    if spec.get('size'):
        logger.info("Asking for a database of %s GB.", spec['size'])
        await asyncio.sleep(0.3 + 0.2 * retry)
        if retry < spec.get('attempts', 1) - 1:
            error = spec.get('error', "the database is not ready: 503 from db.internal")
            raise kopf.TemporaryError(error, delay=spec.get('delay', 0.5))
        patch.status['database'] = 'ready'
        kopf.event(body, type='Normal', reason='Provisioned', message=f"The database has {spec['size']} GB.")


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
async def scale_out(spec, logger, **_):
    if spec.get('replicas', 0) > 5:
        raise kopf.PermanentError("spec.replicas must not be larger than 5")
    if spec.get('replicas') == 1:
        logger.warning("There is only one replica: nothing stays if it fails.")


@kopf.on.reconcile('kopfexamples', labels={'kind': 'parent'})
async def wait_for_shop(spec, **_):
    if not spec.get('ready'):
        raise kopf.NotReadyError("deployments.v1.apps default/shop is not ready yet")


@kopf.on.create('kopfexamples', labels={'kind': 'tunnel'})
def open_tunnel(**_):
    with LOCK:
        pass


@kopf.on.create('kopfexamples', labels={'kind': 'blocker'})
async def block_loop(**_):
    time.sleep(3)


@kopf.timer('kopfexamples', interval=30, initial_delay=20, labels={'kind': 'backup'})
async def check_backups(**_):
    await asyncio.sleep(0.1)
