"""Sub-handlers: handlers that are known only when the object is seen, such as one for each item of a list.

Each of them is retried, remembered and reported on its own: what has succeeded is not done again.
"""

import functools

import kopf


@kopf.on.create("kopfexamples")
def create_items(spec, **_):
    # Called again and again until all of its sub-handlers are done: it declares them, and does nothing else.
    for item in spec.get("items", []):

        @kopf.subhandler(id=item)
        def create_item(retry, logger, item=item, **_):  # `item=item`: the one of this round of the loop
            if item == "item2" and retry == 0:
                raise kopf.TemporaryError(f"{item} is not available yet.", delay=0.5)
            logger.info(f"Created: {item}")
            return {"size": len(item)}


@kopf.on.update("kopfexamples", field="spec.items")
async def update_items(old, new, **_):
    # The same with functions by their ids, for asynchronous handlers.
    before, after = set(old or []), set(new or [])
    await kopf.execute(
        fns={
            **{item: functools.partial(add_item, item=item) for item in sorted(after - before)},
            **{item: functools.partial(remove_item, item=item) for item in sorted(before - after)},
        }
    )


async def add_item(*, item, logger, **_):
    logger.info(f"Added: {item}")


async def remove_item(*, item, logger, **_):
    logger.info(f"Removed: {item}")
