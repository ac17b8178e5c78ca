"""Hooks of the operator itself: before it starts, after it ends, when it logs in, and when it is asked how it is."""

import asyncio
import datetime

import kopf


@kopf.on.login(retries=3, backoff=5)
def login(**kwargs):
    # Without any login handler, this is tried by default. Return a kopf.ConnectionInfo for credentials from elsewhere;
    # it is called again when they have expired, or are refused.
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_):
    # Nothing has been sent to the cluster yet: the time for settings.
    settings.posting.enabled = False
    settings.execution.max_workers = 5


@kopf.on.startup(retries=5)
async def open_queue(memo, retry, logger, **_):
    # Whatever belongs to the event loop is made here, not when the file is imported: there is no loop then.
    if retry < 1:
        raise kopf.TemporaryError("Not the first time!", delay=0.1)
    memo.queue = asyncio.Queue()  # memos of objects are made from this one
    memo.worker = asyncio.create_task(work(memo.queue, logger), name="worker")


@kopf.on.cleanup()
async def close_queue(memo, logger, **_):
    # Everything else has ended by now: this is all that is left to do.
    await memo.queue.join()
    memo.worker.cancel()
    await asyncio.wait([memo.worker])
    logger.info("All jobs are done: nothing is left behind.")


@kopf.on.create("kopfexamples")
async def create_fn(name, memo, **_):
    await memo.queue.put(name)


async def work(queue: asyncio.Queue[str], logger) -> None:
    while True:
        name = await queue.get()
        logger.info(f"The worker has got a job: {name}")
        queue.task_done()


@kopf.on.probe(id="now")
def get_time(**_):
    return datetime.datetime.now(datetime.UTC).isoformat()


@kopf.on.probe(id="jobs")
async def count_jobs(memo, **_):
    return memo.queue.qsize()
