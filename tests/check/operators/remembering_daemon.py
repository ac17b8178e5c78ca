"""Correct: a daemon keeps what it has seen in the memo, looks again from time to time, and cleans up when it ends."""

import kopf


@kopf.daemon("webapps", cancellation_timeout=5, initial_delay=2)
async def follow(stopped, spec, name, namespace, body, memo, patch, **_):
    memo.seen = None
    while not stopped:
        wanted = {"image": spec["image"]}  # the spec can change while the child is applied
        if memo.seen != wanted:
            child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": wanted}
            kopf.adopt(child, owner=body)
            await kopf.apply(child)
            memo.seen = wanted
        await stopped.wait(15)


@kopf.timer("webapps", interval=40, idle=20)
def summarise(spec, status, patch, **_):
    summary = f"{spec['image']} x{spec['replicas']}"
    if status.get("summary") != summary:
        patch.status["summary"] = summary
