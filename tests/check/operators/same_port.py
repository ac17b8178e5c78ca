"""Planted: each web app takes the first port that no other one has; two of them at once take the same."""

import kopf


@kopf.index("webapps")
def ports(name, status, **_):
    return {status["port"]: name} if "port" in status else {}


@kopf.on.create("webapps")
async def choose(ports: kopf.Index, name, body, patch, **_):
    port = next(number for number in range(8000, 9000) if number not in ports)
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"port": str(port)}}
    kopf.adopt(child, owner=body)
    await kopf.apply(child)
    patch.status["port"] = port
