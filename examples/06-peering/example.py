"""One of several: operators that know of each other, of which only the one with the highest priority works."""

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    # The same as `--peering=examples`. The name "default" is the one that needs not be mentioned.
    settings.peering.name = "examples"
    settings.peering.mandatory = True  # if there is no such object, wait for it rather than work alone


@kopf.on.create("kopfexamples")
@kopf.on.update("kopfexamples")
def handle(spec, logger, **_):
    # Nothing here has to know of the others: this is not called while the operator is paused.
    logger.info(f"Handled here: field={spec.get('field')}")


@kopf.daemon("kopfexamples")
async def be_on_duty(stopped, logger, **_):
    # A daemon is stopped for the time of a pause, and starts again after it.
    logger.info("On duty.")
    await stopped.wait()
    paused = kopf.DaemonStoppingReason.OPERATOR_PAUSING in stopped.reason
    logger.info("Off duty: somebody else takes over." if paused else "Off duty.")
