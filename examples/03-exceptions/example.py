"""What handlers may raise, and what comes of it: try again later, give up, or as the decorator says."""

import kopf


@kopf.on.create("kopfexamples")
def not_yet(retry, **_):
    """Tell the framework when to come again: the first two attempts are too early."""
    if retry < 2:
        raise kopf.TemporaryError("The database is not ready yet.", delay=0.5)


@kopf.on.create("kopfexamples")
def never(**_):
    """Tell the framework that there is no point in coming again."""
    raise kopf.PermanentError("There is nothing that could be done about it.")


@kopf.on.create("kopfexamples", retries=3, backoff=0.5)
def flaky(retry, **_):
    """Any other exception is tried again too: as often as `retries` says, with `backoff` seconds in between."""
    if retry < 1:
        raise ConnectionError("The network has had a hiccup.")


@kopf.on.create("kopfexamples", errors=kopf.ErrorsMode.PERMANENT)
def strict(**_):
    """... unless all errors are declared to be final."""
    raise ValueError("The specification makes no sense.")


@kopf.on.create("kopfexamples", errors=kopf.ErrorsMode.IGNORED)
def nice_to_have(**_):
    """... or to be of no importance."""
    raise RuntimeError("It is of no importance.")


@kopf.on.create("kopfexamples", retries=2)
def hopeless(retry, **_):
    """A limit holds for errors that ask for another attempt, too."""
    raise kopf.TemporaryError(f"Attempt {retry + 1} has failed.", delay=0.5)
