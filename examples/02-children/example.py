"""A parent and its child: every KopfExample gets a ConfigMap, which follows its changes and goes with it.

The framework watches and patches the objects that it handles; for all others bring any Kubernetes client.
Here it is the standard library with the framework's credentials, so that nothing else has to be installed.
"""

import json
import urllib.error
import urllib.request

import kopf

connection: kopf.ConnectionInfo


@kopf.on.startup()
def connect(**kwargs):
    """Find the cluster as the framework does by itself, for our own requests."""
    global connection
    found = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
    if found is None:
        raise kopf.PermanentError("There is no cluster to be found: neither a service account nor a kubeconfig.")
    connection = found


@kopf.on.create("kopfexamples")
def create_child(body, uid, name, namespace, spec, logger, **_):
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-child",
            # Kubernetes deletes what has an owner when the owner is gone: no deletion handler is needed.
            "ownerReferences": [kopf.build_owner_reference(body)],
        },
        "data": {"field": str(spec.get("field"))},
    }
    try:
        call_api("POST", f"/api/v1/namespaces/{namespace}/configmaps", child)
    except urllib.error.HTTPError as error:
        # A handler can be called again if the operator was stopped before it could note the success.
        if error.code != 409:
            raise
        found = call_api("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}-child")
        if uid not in [owner["uid"] for owner in found["metadata"].get("ownerReferences", [])]:
            raise kopf.TemporaryError("The child of a former object is not gone yet.", delay=5) from None
    logger.info(f"The child is created: {name}-child")
    return {"child": f"{name}-child"}


@kopf.on.update("kopfexamples", field="spec.field")
def update_child(old, new, name, namespace, logger, **_):
    call_api("PATCH", f"/api/v1/namespaces/{namespace}/configmaps/{name}-child", {"data": {"field": str(new)}})
    logger.info(f"The child is updated: {old} -> {new}")


def call_api(method, path, payload=None):
    """One request to the Kubernetes API. It blocks, which is fine in `def` handlers: they run in threads."""
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(
        f"{connection.server}{path}",
        method=method,
        data=None if payload is None else json.dumps(payload).encode(),
        headers={**connection.as_http_headers(), "Content-Type": content_type},
    )
    with urllib.request.urlopen(request, context=connection.as_ssl_context(), timeout=30) as response:
        return json.load(response)
