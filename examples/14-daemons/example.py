"""Daemons: one for each object, running as long as the object does, or as the operator."""

import asyncio
import time

import kopf


@kopf.daemon("kopfexamples")
async def watch_field(spec, stopped, logger, **_):
    """An asynchronous daemon: cheap, there can be thousands of them."""
    last = None
    # The arguments are views of the object as it is now: read them when needed, do not copy them to variables.
    while not stopped:
        if (field := spec.get("field")) != last:
            logger.info(f"The field is {field} now.")
            last = field
        await stopped.wait(0.1)  # seconds; ends at once when the daemon is to stop
    logger.info(f"Stopping, as {reasons(stopped)}.")


@kopf.daemon("kopfexamples", labels={"threaded": "yes"})
def watch_in_thread(stopped, logger, **_):
    """A synchronous daemon has a thread of its own; only `stopped` can tell it to end."""
    logger.info(f"A thread is started at {time.strftime('%X')}.")
    while not stopped.wait(10):
        logger.info("Ten seconds have passed.")
    logger.info("The thread ends.")


@kopf.daemon("kopfexamples", cancellation_backoff=0.2, cancellation_timeout=1)
async def ignorant(logger, **_):
    """It does not look at `stopped`: so it is cancelled, 0.2 s after it was asked; 1 s later it would be abandoned."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        logger.info("Cancelled.")
        raise


@kopf.daemon("kopfexamples", retries=5, backoff=0.2)
async def do_once(retry, name, logger, **_):
    """A daemon may end: it has succeeded, its result is stored, it does not run again until the next restart."""
    if retry == 0:
        raise kopf.TemporaryError("Not ready yet.", delay=0.1)  # as in all handlers: this is how to begin again
    if retry == 1:
        raise ConnectionError("Not there yet.")
    logger.info(f"Done for {name} at last.")
    return {"attempts": retry + 1}


def reasons(stopped) -> str:
    if kopf.DaemonStoppingReason.RESOURCE_DELETED in stopped.reason:
        return "the object is being deleted"
    if kopf.DaemonStoppingReason.OPERATOR_EXITING in stopped.reason:
        return "the operator exits"
    return "it is not needed any more"
