"""Planted: a finalizer that is never removed. After the deletion of the database, its secret waits for ever."""

import kopf


@kopf.on.create("databases")
@kopf.on.update("databases")
def protect_password(name, spec, **_):
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-login", "finalizers": ["example.com/in-use"]},
        "stringData": {"url": f"{spec['engine']}://{name}"},
    }
    kopf.adopt(secret)
    kopf.apply(secret)
