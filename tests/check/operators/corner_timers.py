"""Corner: timers of all kinds, which write only what has changed."""

import kopf


@kopf.timer("webapps", interval=30, sharp=True, initial_delay=3)
def sharp(spec, status, patch, **_):
    if status.get("image") != spec["image"]:
        patch.status["image"] = spec["image"]


@kopf.timer("webapps", idle=20, interval=60)
async def idle(name, spec, status, patch, **_):
    if status.get("pages") != len(spec.get("pages", [])):
        patch.status["pages"] = len(spec.get("pages", []))


@kopf.timer("webapps", interval=40, field="spec.public", value=True, backoff=5)
async def public_only(retry, **_):
    if retry < 2:
        raise ConnectionError("Once more.")


@kopf.timer("webapps", interval=1)
async def never_again(**_):
    raise kopf.PermanentError("It makes no sense.")


@kopf.on.update("webapps", field="spec.host")
async def update(old, new, logger, **_):
    logger.info(f"The host: {old} -> {new}")
