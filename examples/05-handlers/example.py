"""One handler of every kind that looks at changes: what each is called for and what it gets."""

import kopf


@kopf.on.startup()
async def startup_fn(logger, **_):
    logger.info("The operator starts: a good time for settings and connections.")


@kopf.on.cleanup()
async def cleanup_fn(logger, **_):
    logger.info("The operator stops: a good time to close what was opened.")


@kopf.on.resume("kopfexamples")
def resume_fn(name, logger, **_):
    logger.info(f"Resumed: {name} was there before this operator.")


@kopf.on.create("kopfexamples")
def create_fn(spec, logger, **_):
    logger.info(f"Created: spec={dict(spec)}")


@kopf.on.update("kopfexamples")
def update_fn(diff, logger, **_):
    for operation, field, before, after in diff:
        logger.info(f"Updated: {operation} {'.'.join(field)}: {before} -> {after}")


@kopf.on.field("kopfexamples", field="spec.field")
def field_fn(old, new, logger, **_):
    logger.info(f"Field: {old} -> {new}")


@kopf.on.delete("kopfexamples")
def delete_fn(name, logger, **_):
    logger.info(f"Deleted: {name} waits for this handler, then it goes.")


@kopf.on.event("kopfexamples")
def event_fn(event, name, logger, **_):
    # Everything that is heard of the object, remembered nowhere; the type is None in the first listing.
    logger.info(f"Event: {event['type']} {name}")
