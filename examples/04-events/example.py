"""Kubernetes Events about an object: what `kubectl describe` shows at its end.

They are sent in the background: a handler neither waits for them nor fails with them.
"""

import kopf


@kopf.on.create("kopfexamples")
def create_fn(body, logger, **_):
    # The usual kinds: Normal, Warning, and a Warning's stronger sister for exceptions.
    kopf.info(body, reason="Started", message="The work on the object has begun.")
    kopf.warn(body, reason="Doubtful", message="Something looks odd.")
    try:
        raise RuntimeError("Something went wrong.")
    except RuntimeError:
        kopf.exception(body, reason="Oops", message="It is taken care of:")

    # Any type and reason of one's own.
    kopf.event(body, type="SomeType", reason="SomeReason", message="Some message.")

    # What a handler logs about its object may become an Event as well: see settings.posting.
    logger.info("And here we are! The events are on their way.")
