"""Planted: a toggle is not undone. When the web app is not public any more, its service is still there."""

import kopf


@kopf.on.reconcile("webapps")
def reconcile(name, spec, **_):
    if spec["public"]:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        }
        kopf.adopt(service)
        kopf.apply(service)
