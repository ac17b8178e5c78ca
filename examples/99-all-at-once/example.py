"""All kinds of handlers in one operator.

For each item of a KopfExample there is a ConfigMap; the status tells how many of them are really there.
"""

import os

import aiohttp

import kopf

RESOURCE = "kopf.dev/v1", "kopfexamples"
PARENT = "examples.kopf.dev/parent"

# --- The operator: startup, cleanup, login, probe ---------------------------------------------------------------------


@kopf.on.login(retries=3)
def login(**kwargs):
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_):
    settings.admission.server = kopf.WebhookAutoServer(addr=os.environ.get("WEBHOOK_ADDR"))
    settings.admission.managed = "all-at-once.examples.kopf.dev"


@kopf.on.startup(id="connect")
async def open_session(memo, logger, **kwargs):
    connection = login(**kwargs)  # for our own requests, besides those of the framework
    memo.server = connection.server
    memo.session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=connection.as_ssl_context()), headers=connection.as_http_headers()
    )
    logger.info("The operator starts.")


@kopf.on.cleanup()
async def close_session(memo, logger, **_):
    await memo.session.close()
    logger.info("The operator stops.")


@kopf.on.probe(id="children")
def count_children(children: kopf.Index, **_):
    return sum(len(names) for names in children.values())


# --- Before an object is stored: mutate, validate ---------------------------------------------------------------------


@kopf.on.mutate(*RESOURCE, operation="CREATE", field="spec.duration", value=kopf.ABSENT)
def set_duration(patch, **_):
    patch.spec["duration"] = "5m"


@kopf.on.validate(*RESOURCE, operations=["CREATE", "UPDATE"], annotations={"unchecked": kopf.ABSENT})
def check_items(spec, old, new, warnings, **_):
    # Kubernetes also asks about the operator's own patches. What is stored already must be accepted.
    if old is not None and old.get("spec", {}).get("items") == new.get("spec", {}).get("items"):
        return
    items = spec.get("items") or []
    if len(set(items)) < len(items):
        raise kopf.AdmissionError("The items must not repeat.", code=422)
    if not items:
        warnings.append("There are no items: there will be no children.")


# --- What is in memory: index, event ----------------------------------------------------------------------------------


@kopf.index("v1", "configmaps", labels={PARENT: kopf.PRESENT})
def children(namespace, name, labels, **_):
    return {(namespace, labels[PARENT]): name}


@kopf.on.event(*RESOURCE)
def count_events(memo, **_):
    memo.events = memo.get("events", 0) + 1


# --- What happens to an object: create, update, field, resume, delete -------------------------------------------------


@kopf.on.create(*RESOURCE)
async def create_children(spec, **_):
    for item in spec.get("items") or []:
        kopf.register(add_child, id=item, param=item, retries=5, backoff=0.5)


@kopf.on.create(*RESOURCE, errors=kopf.ErrorsMode.PERMANENT, labels={"demanding": "yes"})
def fail(**_):
    raise RuntimeError("This cannot be done, however often it is tried.")


@kopf.on.create(*RESOURCE, retries=3)
async def prepare(retry, body, memo, **_):
    if retry < 1:
        raise kopf.TemporaryError("Something is not ready yet.", delay=0.2)
    kopf.info(body, reason="Prepared", message=f"It took {retry + 1} attempts.")
    return {"attempts": retry + 1}  # to be seen as status.prepare


@kopf.on.update(*RESOURCE)
def update(diff, logger, **_):
    for operation, field, old, new in diff:
        logger.info(f"Updated: {operation} {'.'.join(field)}: {old} -> {new}")


@kopf.on.field(*RESOURCE, field="spec.items", old=kopf.PRESENT)
async def update_children(old, new, **_):
    before, after = set(old or ()), set(new or ())
    for item in sorted(after - before):
        kopf.register(add_child, id=f"add-{item}", param=item)
    for item in sorted(before - after):
        kopf.register(remove_child, id=f"remove-{item}", param=item)


@kopf.on.resume(*RESOURCE)
def resume(children, namespace, name, logger, **_):
    logger.info(f"Resumed, with {len(children.get((namespace, name), []))} children.")


@kopf.on.delete(*RESOURCE)
def delete(memo, logger, **_):
    logger.info(f"Deleted, after {'some' if memo.get('events') else 'no'} events. The children follow by themselves.")


# --- As long as an object lives: timer, daemon ------------------------------------------------------------------------


@kopf.timer(*RESOURCE, interval=0.5)
def count(children, namespace, name, status, patch, **_):
    found = len(children.get((namespace, name), []))
    if found != status.get("children"):
        patch.status["children"] = found


@kopf.daemon(*RESOURCE, labels={"watched": "yes"}, cancellation_timeout=1)
async def watch_over(stopped, spec, logger, **_):
    logger.info(f"Watching, for {spec.get('duration')} at most.")
    await stopped.wait()
    logger.info("No longer watching.")


# --- The children -----------------------------------------------------------------------------------------------------


async def add_child(param, name, namespace, uid, memo, logger, **_):
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-{param}", "labels": {PARENT: name}},
        "data": {"item": param},
    }
    kopf.adopt(child)  # the namespace, the labels, and the owner, with whom the child will go
    status, answer = await request(memo, "POST", f"{namespace}/configmaps", child)
    if status == 409:
        _, answer = await request(memo, "GET", f"{namespace}/configmaps/{name}-{param}")
        if uid not in [owner["uid"] for owner in answer.get("metadata", {}).get("ownerReferences", [])]:
            raise kopf.TemporaryError(f"The child {param} is that of a former object, and will go with it.", delay=5)
    logger.info(f"The child {param} is {'created' if status != 409 else 'there already'}.")


async def remove_child(param, name, namespace, memo, logger, **_):
    await request(memo, "DELETE", f"{namespace}/configmaps/{name}-{param}")
    logger.info(f"The child {param} is removed.")


async def request(memo, method, path, body=None):
    """Make a request; return the status and the answer. That an object is there, or not any more, is no error."""
    url = f"{memo.server}/api/v1/namespaces/{path}"
    async with memo.session.request(method, url, json=body) as response:
        if response.status not in {404, 409}:
            response.raise_for_status()
        return response.status, await response.json()
