"""Correct: a thread for each web app, which restores a config map when the index does not have it as it should be."""

import kopf


@kopf.index("configmaps", labels={"webapp": kopf.PRESENT})
def settings_of(namespace, body, labels, **_):
    return {(namespace, labels["webapp"]): dict(body.get("data", {}))}


@kopf.daemon("webapps", cancellation_timeout=10)
def keep_settings(body, name, namespace, spec, settings_of: kopf.Index, stopped, logger, **_):
    while not stopped:
        data = {"image": spec["image"]}
        if list(settings_of.get((namespace, name), [])) != [data]:
            metadata = {"name": name, "labels": {"webapp": name}}
            settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            kopf.adopt(settings, owner=body)
            try:
                kopf.apply(settings)
            except Exception as error:
                logger.warning(f"Once more in a while: {error}")
        stopped.wait(20)
