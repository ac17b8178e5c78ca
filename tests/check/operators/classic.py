"""Correct: one handler for all changes, which applies the whole child; it is the same however often it runs."""

import kopf


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
def apply_service(name, spec, patch, **_):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80 if spec["public"] else 8080}]},
    }
    kopf.adopt(service)
    kopf.apply(service)
    patch.status["address"] = f"{name}.example.com"
