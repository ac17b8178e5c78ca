"""Corner: children in other namespaces, of other kinds, replaced if they cannot be changed, and waited for."""

import kopf


@kopf.on.reconcile("webapps", owns=["configmaps", "services", "databases"], conditions=True, backoff=(2, 60))
async def reconcile(name, spec, children, **_):
    data = {"image": spec["image"]}
    metadata = {"name": name, "namespace": "kube-public"}
    await children.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    metadata = {"name": f"{name}-fixed"}
    fixed = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "immutable": True}
    await children.apply(fixed, replace=True)
    database = {"apiVersion": "example.com/v1", "kind": "Database", "metadata": {"name": name}, "spec": {"size": 1}}
    await children.apply(database, ready=lambda body: body.get("status", {}).get("size") == 1)
    if spec["public"]:
        ports = [{"port": 80 + number} for number in range(spec["replicas"])] or [{"port": 443}]
        for port in ports:
            port["name"] = f"port-{port['port']}"
        service = {"selector": {"app": name}, "ports": ports}
        await children.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service})


@kopf.on.create("databases")
@kopf.on.update("databases", field="spec.size")
def measure(spec, patch, **_):
    patch.status["size"] = spec["size"]
