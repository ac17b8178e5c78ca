"""Correct: handlers in threads make a service by a blocking client, and look at it from time to time."""

import json
import urllib.error
import urllib.request

import kopf

SERVICES = "/api/v1/namespaces/{}/services"


@kopf.on.startup()
def connect(memo, **kwargs):
    memo.cluster = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def call(cluster, method, path, body=None):
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = {**cluster.as_http_headers(), "Content-Type": kind}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(cluster.server + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, context=cluster.as_ssl_context(), timeout=20) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code in (404, 409):
            return None
        raise


@kopf.on.create("webapps")
@kopf.on.update("webapps")
@kopf.on.resume("webapps")
def serve(name, namespace, spec, body, memo, **_):
    path = SERVICES.format(namespace)
    if spec["public"]:
        wanted = {"selector": {"app": name}, "ports": [{"port": 80 + spec["replicas"]}]}
        child = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": wanted}
        kopf.adopt(child, owner=body)
        if call(memo.cluster, "POST", path, child) is None:
            found = call(memo.cluster, "GET", f"{path}/{name}")
            if found is None or body["metadata"]["uid"] not in [
                owner["uid"] for owner in found["metadata"].get("ownerReferences", [])
            ]:
                raise kopf.TemporaryError("There is another service of this name.", delay=10)
            call(memo.cluster, "PATCH", f"{path}/{name}", {"spec": wanted})
    else:
        call(memo.cluster, "DELETE", f"{path}/{name}")


@kopf.timer("webapps", interval=60)
def look(name, namespace, status, memo, patch, **_):
    is_there = call(memo.cluster, "GET", f"{SERVICES.format(namespace)}/{name}") is not None
    if status.get("served") is not is_there:
        patch.status["served"] = is_there
