"""Watches and conditions: a page shows the text of a config map, and says whether it can.

The handler looks at the page and at the text, whichever of them has changed. It raises an error if something is wrong;
the conditions are kept by the framework, so that other clients can wait for them.
"""

import kopf

TEXTS = {"page": kopf.PRESENT}


@kopf.index("configmaps", labels=TEXTS)
def texts(namespace, labels, body, **_):
    return {(namespace, labels["page"]): body.get("data", {}).get("text", "")}


def pages_of(namespace, labels, **_):
    # Which pages are to be looked at again when a config map has changed, or is gone.
    return [(namespace, labels["page"])] if "page" in labels else []


@kopf.on.reconcile("kopfpages", watches={"configmaps": pages_of}, conditions=True)
def show(namespace, name, spec, texts: kopf.Index[tuple[str, str], str], conditions, patch, logger, **_):
    found = texts.get((namespace, name), [])
    if not found:
        patch.status["text"] = None
        # It is called as soon as there is a text; the delay is only for what nobody would tell.
        raise kopf.TemporaryError("There is no text yet.", delay=600)
    [text] = found
    # Conditions of one's own, beside those of the framework, are set by their types.
    conditions["Polite"] = kopf.Condition("Welcome" in text, "Checked", f"The text is: {text}")
    if len(text) > spec["limit"]:
        raise kopf.PermanentError(f"The text has {len(text)} characters, but the limit is {spec['limit']}.")
    patch.status["text"] = text
    logger.info(f"The page shows: {text}")
