"""An operator in a thread of a program that knows nothing of asyncio.

Usage: python examples/12-embedded/in_thread.py [NAMESPACE...]
"""

import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import kopf

handled: queue.Queue[str | None] = queue.Queue()


@kopf.on.create("kopfexamples")
def create_fn(name, logger, **_):
    logger.info(f"Handled: {name}")
    handled.put(name)


def main(namespaces: list[str]) -> None:
    ready, stop = threading.Event(), threading.Event()

    def wake_up(_) -> None:  # an operator that fails, or never starts, must not be waited for
        ready.set()
        handled.put(None)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="operator") as pool:
        operator = pool.submit(
            kopf.run,
            namespaces=namespaces,
            clusterwide=not namespaces,
            # Flags of threads do as well as those of asyncio. Signals come to the main thread only: Ctrl-C is
            # the program's, and the operator is stopped by its flag.
            ready_flag=ready,
            stop_flag=stop,
        )
        operator.add_done_callback(wake_up)
        try:
            ready.wait()
            if operator.running():
                print("The operator is ready.", flush=True)
                print(f"The program has got: {handled.get()}", flush=True)
        finally:
            stop.set()
        operator.result()  # waits for its end, and raises what it has failed with
    print("The operator has stopped.", flush=True)


if __name__ == "__main__":
    kopf.configure(log_prefix=True)
    main(sys.argv[1:])
