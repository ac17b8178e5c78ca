"""An operator in a program of one's own: the program starts it, waits until it is ready, and stops it.

Usage: python examples/12-embedded/example.py [NAMESPACE...]
"""

import asyncio
import sys

import kopf

# A registry of its own: several operators in one process do not get each other's handlers. Without it, there is a
# common one, as for `kopf run`.
registry = kopf.OperatorRegistry()


@kopf.on.create("kopfexamples", registry=registry)
async def create_fn(name, memo, logger, **_):
    # Objects' memos are copies of the operator's one: what is shared must be an object of its own, such as a queue.
    logger.info(f"Handled: {name}")
    await memo.handled.put(name)


async def main(namespaces: list[str]) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()
    ready, stop = asyncio.Event(), asyncio.Event()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False

    # A task of a group: whatever happens to the one, the other does not go on as if nothing had happened.
    async with asyncio.TaskGroup() as group:
        group.create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                memo=kopf.Memo(handled=handled),
                namespaces=namespaces,
                clusterwide=not namespaces,
                ready_flag=ready,
                stop_flag=stop,
            )
        )
        await ready.wait()
        print("The operator is ready.", flush=True)

        print(f"The program has got: {await handled.get()}", flush=True)
        stop.set()
    print("The operator has stopped.", flush=True)


if __name__ == "__main__":
    # Logging belongs to the program. This is how `kopf run` does it; anything else of `logging` is as good.
    kopf.configure(log_prefix=True)
    asyncio.run(main(sys.argv[1:]))
