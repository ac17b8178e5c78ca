"""An operator beside another asyncio application, in the same event loop: a web page of what the operator knows.

Usage: python examples/12-embedded/beside_app.py [NAMESPACE...]
"""

import asyncio
import os
import sys

from aiohttp import web

import kopf

PORT = int(os.environ.get("PORT", "8000"))

known: dict[str, str] = {}  # one loop, one thread: nothing to be locked


@kopf.on.event("kopfexamples")
async def remember(event, name, namespace, spec, **_):
    if event["type"] == "DELETED":
        known.pop(f"{namespace}/{name}", None)
    else:
        known[f"{namespace}/{name}"] = spec.get("field", "")


async def show(request: web.Request) -> web.Response:
    return web.json_response(known)


async def main(namespaces: list[str]) -> None:
    app = web.Application()
    app.add_routes([web.get("/", show)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", PORT).start()
        print(f"The page is at http://127.0.0.1:{PORT}/", flush=True)
        # The operator touches only its own tasks, never those of others. In the main thread, it returns after Ctrl-C or
        # SIGTERM; otherwise, cancel it, or raise its stop_flag.
        await kopf.operator(namespaces=namespaces, clusterwide=not namespaces)
    finally:
        await runner.cleanup()
    print("Both have stopped.", flush=True)


if __name__ == "__main__":
    kopf.configure(log_prefix=True)
    asyncio.run(main(sys.argv[1:]))
