"""An EphemeralVolumeClaim makes a PersistentVolumeClaim, which follows its changes, and goes with it."""

import pathlib
from typing import Any

import aiohttp
import yaml

import kopf

TEMPLATE = pathlib.Path(__file__).with_name("pvc.yaml")


@kopf.on.create("ephemeralvolumeclaims")
async def create_fn(spec, name, namespace, uid, memo, logger, **_):
    size = spec.get("size")
    if not size:
        raise kopf.PermanentError(f"Size must be set. Got {size!r}.")

    claim = yaml.safe_load(TEMPLATE.read_text().format(name=name, size=size))
    # The namespace, the labels, and the owner: when the owner is deleted, Kubernetes deletes what it owns.
    kopf.adopt(claim)
    status, answer = await request(memo, "POST", f"{namespace}/persistentvolumeclaims", claim)
    if status == 409:
        # Made by an attempt that could not note its success, or by a former object of this name, with which it will go.
        _, answer = await request(memo, "GET", f"{namespace}/persistentvolumeclaims/{name}")
        if uid not in [owner["uid"] for owner in answer["metadata"].get("ownerReferences", [])]:
            raise kopf.TemporaryError(f"There is another claim of this name: {name}", delay=10)
        logger.info(f"The claim was there already: {name}")
    else:
        logger.info(f"The claim is created: {name}")

    return {"pvc-name": name}  # stored as status.create_fn: other handlers, and users, see it there


@kopf.on.update("ephemeralvolumeclaims", field="spec.size")
async def update_fn(new, status, namespace, memo, logger, **_):
    if not new:
        raise kopf.PermanentError(f"Size must be set. Got {new!r}.")
    name = name_of_claim(status)
    await request(
        memo,
        "PATCH",
        f"{namespace}/persistentvolumeclaims/{name}",
        {"spec": {"resources": {"requests": {"storage": new}}}},
    )
    logger.info(f"The claim is resized: {name} to {new}")


@kopf.on.update("ephemeralvolumeclaims", field="metadata.labels")
async def relabel(diff, status, namespace, memo, logger, **_):
    # Only what has changed: labels that others have put on the claim are not ours. The new value of a label that is
    # removed is None, and this is also how a patch removes it. Without any fields, all the labels have come or gone.
    labels: dict[str, Any] = {}
    for _operation, field, old, new in diff:
        labels.update({field[0]: new} if field else {**dict.fromkeys(old or {}), **(new or {})})
    name = name_of_claim(status)
    await request(memo, "PATCH", f"{namespace}/persistentvolumeclaims/{name}", {"metadata": {"labels": labels}})
    logger.info(f"The claim is relabelled: {name} with {labels}")


def name_of_claim(status):
    try:
        return status["create_fn"]["pvc-name"]
    except KeyError:
        raise kopf.PermanentError("There is no claim to change: it could not be created.") from None


# --- The connection to the cluster: bring any client that you like; this one is there anyway --------------------------


@kopf.on.startup()
async def connect(memo, **kwargs):
    connection = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
    if connection is None:
        raise kopf.PermanentError("There is no cluster to be found: neither a service account nor a kubeconfig.")
    memo.server = connection.server
    memo.session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=connection.as_ssl_context()),
        headers=connection.as_http_headers(),
        timeout=aiohttp.ClientTimeout(total=30),
    )


@kopf.on.cleanup()
async def disconnect(memo, **_):
    if "session" in memo:
        await memo.session.close()


async def request(memo, method, path, body=None):
    """Return the status and the answer; that the object is there already is left to the caller."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    async with memo.session.request(
        method,
        f"{memo.server}/api/v1/namespaces/{path}",
        json=body,
        headers={"Content-Type": kind},
    ) as response:
        answer = await response.json()
        if response.status >= 400 and response.status != 409:
            # Any error would be tried again; with its own class, it says so in a line instead of a traceback.
            raise kopf.TemporaryError(f"The cluster has refused: {answer['message']}", delay=10)
        return response.status, answer
