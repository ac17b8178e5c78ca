"""Corner: daemons in the loop and in threads, with retries and results, beside a deletion handler and filters."""

import asyncio

import kopf


@kopf.daemon("webapps", initial_delay=5, backoff=10)
async def follow(name, spec, stopped, retry, **_):
    if retry < 1:
        raise ConnectionError("Once more.")
    image = None
    while not stopped:
        if image != spec["image"]:
            child = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name},
                "data": {"image": spec["image"]},
            }
            kopf.adopt(child)
            await kopf.apply(child)
            image = child["data"]["image"]
        await stopped.wait(7)


@kopf.daemon("webapps", field="spec.public", value=True, cancellation_timeout=5)
def follow_in_thread(stopped, **_):
    while not stopped.wait(11):
        pass


@kopf.daemon("webapps", cancellation_backoff=1, cancellation_timeout=1)
async def ignorant(**_):
    await asyncio.Event().wait()


@kopf.daemon("webapps")
async def do_once(name, **_):
    return {"done": name}


@kopf.on.delete("webapps")
async def delete(retry, **_):
    if retry < 1:
        raise kopf.TemporaryError("Once more.", delay=3)
