"""Correct: a password is made once and kept in its secret; afterwards, it is read from there."""

import base64
import secrets

import kopf


@kopf.on.reconcile("databases", owns=["secrets"])
def reconcile(name, spec, children, **_):
    present = children["secrets"].get(f"{name}-login")
    password = secrets.token_urlsafe(16).encode()
    if present is not None and "password" in present.get("data", {}):
        password = base64.b64decode(present["data"]["password"])
    data = {
        "url": base64.b64encode(f"{spec['engine']}://{name}".encode()).decode(),
        "password": base64.b64encode(password).decode(),
    }
    children.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-login"}, "data": data})
