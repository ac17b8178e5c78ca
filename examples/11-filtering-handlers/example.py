"""Filters: which objects, and which of their changes, a handler is for.

All filters of a handler must match. What matches none of the handlers is left alone as if there were no operator.
"""

import kopf

# --- By labels and annotations ---------------------------------------------------------------------------------------


@kopf.on.create("kopfexamples", labels={"somelabel": "somevalue"}, annotations={"someannotation": "somevalue"})
def with_values(logger, **_):
    logger.info("Both the label and the annotation have these values.")


@kopf.on.create("kopfexamples", labels={"somelabel": kopf.PRESENT, "otherlabel": kopf.ABSENT})
def with_presence(logger, **_):
    logger.info("There is one label, whatever its value, and there is not the other one.")


@kopf.on.create("kopfexamples", labels={"somelabel": "othervalue"})
def never_called(logger, **_):
    logger.info("This object has another value of the label.")


# --- By functions: of the value (it comes first), or of everything that a handler gets --------------------------------


def is_long(value, **_):
    return value is not None and len(value) > 5


def is_first(name, **_):
    return name.endswith("-1")


def is_item(spec, **_):
    return spec.get("field") in spec.get("items", [])


@kopf.on.create("kopfexamples", labels={"somelabel": is_long})
def with_value_callback(logger, **_):
    logger.info("The label's value is long enough.")


@kopf.on.create("kopfexamples", when=lambda spec, **_: len(spec.get("items", [])) == 2)
def with_callback(logger, **_):
    logger.info("There are two items.")


@kopf.on.create("kopfexamples", when=kopf.all_([is_first, kopf.not_(is_item)]))
def with_combined_callbacks(logger, **_):
    logger.info("It is the first one, and its field is none of its items.")


# --- By fields: their presence, or their value ------------------------------------------------------------------------


@kopf.on.create("kopfexamples", field="spec.field")
def with_field(logger, **_):
    logger.info("There is the field.")


@kopf.on.create("kopfexamples", field="spec.other", value=kopf.ABSENT)
def without_field(logger, **_):
    logger.info("There is not the other field.")


@kopf.on.create("kopfexamples", field="spec.field", value=is_long)
def never_called_either(logger, **_):
    logger.info("The field's value is long enough.")


# --- By changes: for updates, the field before and after --------------------------------------------------------------


@kopf.on.update("kopfexamples", field="spec.field")
def affected(old, new, logger, **_):
    logger.info(f"Affected in any way: {old} -> {new}")


@kopf.on.update("kopfexamples", field="spec.field", value="value")
def touched(old, new, logger, **_):
    logger.info(f"It was 'value', or it is now: {old} -> {new}")


@kopf.on.update("kopfexamples", field="spec.field", old="value", new="other")
def switched(logger, **_):
    logger.info("From the one to the other.")


@kopf.on.update("kopfexamples", field="spec.field", new=kopf.ABSENT)
def removed(old, logger, **_):
    logger.info(f"It is gone; it was {old}.")


# --- While they match -------------------------------------------------------------------------------------------------


@kopf.daemon("kopfexamples", labels={"watched": "yes"})
async def watch_over(stopped, logger, **_):
    logger.info("The label is there: watching.")
    await stopped.wait()
    logger.info("The label is gone, or the object is, or the operator: no longer watching.")
