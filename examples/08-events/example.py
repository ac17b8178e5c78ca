"""Watch-events: everything that is heard of the objects, with nothing written to them.

This is the lowest level: there is no notion of what has changed, of what has been handled, or of trying again.
It fits for looking at objects that belong to somebody else.
"""

import kopf


@kopf.on.event("kopfexamples")
def seen(event, name, memo, logger, **_):
    # None is for what was there when the operator started; then ADDED, MODIFIED, DELETED.
    memo.count = memo.get("count", 0) + 1  # an object's memo lives in memory, as long as the object and the operator
    logger.info(f"Event #{memo.count}: {event['type']} {name}")


@kopf.on.event("kopfexamples", field="spec.field", value="broken")
def stumble(**_):
    # Errors are logged and that is all: there will be another event, or there will be none.
    raise ValueError("This field is broken.")


@kopf.on.event("kopfexamples", labels={"audited": kopf.PRESENT})
async def audit(event, status, patch, **_):
    # Even here the object can be changed. That causes the next event: without the condition, it would never end.
    if event["type"] != "DELETED" and not status.get("audited"):
        patch.status["audited"] = True
