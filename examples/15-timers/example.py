"""Timers: handlers that are called by the clock, for each object, whether it changes or not."""

import kopf


@kopf.timer("kopfexamples", interval=0.5)
def tick(memo, patch, logger, **_):
    memo.ticks = memo.get("ticks", 0) + 1
    logger.info(f"Tick #{memo.ticks}.")
    if memo.ticks == 2:
        patch.status["ticks"] = memo.ticks


@kopf.timer("kopfexamples", interval=60, initial_delay=0.3)
async def later(logger, **_):
    # The first time is not at once; for a delay that depends on the object, give a function of `**kwargs`.
    logger.info("The delay is over.")
    return {"delayed": True}  # in the status, under the name of the handler


@kopf.timer("kopfexamples", idle=0.5, field="spec.field")
async def when_quiet(spec, logger, **_):
    # Only when the object has not changed for half a second: every change begins that anew. Without an interval, it is
    # called once after each of the changes.
    logger.info(f"Quiet at last: {spec['field']}")


@kopf.timer("kopfexamples", interval=60, backoff=0.2)
async def with_errors(retry, logger, **_):
    # After an error, the next call is after the error's delay; after a success, after the interval.
    if retry == 0:
        raise kopf.TemporaryError("Come again soon.", delay=0.1)
    if retry == 1:
        raise ConnectionError("And again.")
    logger.info("Now it is well.")


@kopf.timer("kopfexamples", interval=0.1)
async def never_again(**_):
    raise kopf.PermanentError("It makes no sense.")  # for this object, this timer is over
