"""
Objects that come and go: what stays of them in the memory?

    python tests/faults/leaks.py --events 200000 --objects 1000

Each object is created, handled, edited, handled, deleted with a handler, and created anew: about eight events a life.
The memory of the operator is measured after each tenth of the events. The last line is the verdict. The exit code is 1
if the memory grows by 2 % or more in the second half, or if there are more blocks in use (as Python's allocator counts
them) or more containers (as the garbage collector does) at the end than in the middle. As long as the two counts stay,
a growing memory means only that it has holes.
"""

import argparse
import time
from typing import Any

from underload import Load, conclude

ROUND = 200
"""How many objects are changed before the operator is waited for."""


async def live(load: Load, names: list[str]) -> None:
    """Let the objects live a life."""
    for name in names:
        await load.create(name)
    await load.settle(60)
    for name in names:
        await load.edit(name)
    await load.settle(60)
    for name in names:
        await load.delete(name)
    await load.settle(60)


async def run(events: int, objects: int) -> list[str]:
    """Do it all; give the problems, and print the figures."""
    measured: list[dict[str, Any]] = []
    async with Load.open() as load:
        load.start()
        await load.measure()
        for number in range(objects):  # these stay, so that there is something to be compared with
            await load.create(f'old{number}')
        await load.settle(60)
        kind = load.sandbox.aio
        first = int((await kind.get('kopfexamples', 'old0'))['metadata']['resourceVersion'])
        began, turn, count = time.monotonic(), 0, 0
        while count < events:
            names = [f'obj{turn * ROUND % objects + number}' for number in range(min(ROUND, objects))]
            await live(load, names)
            turn += 1
            await load.edit('old0')
            count = int((await kind.get('kopfexamples', 'old0'))['metadata']['resourceVersion']) - first
            if count >= events * (len(measured) + 1) / 10:
                await load.settle(60)
                measured.append({**await load.measure(), 'events': count})
                print(
                    f"{count} events, {time.monotonic() - began:.0f} s: {measured[-1]['memory'] / 1024:.1f} MB, "
                    f"{measured[-1]['blocks']} blocks, {measured[-1]['containers']} containers",
                    flush=True,
                )
        problems = load.judge()
        code = load.stop()
    middle, last = measured[len(measured) // 2 - 1], measured[-1]
    growth, blocks = (last[what] / middle[what] - 1 for what in ('memory', 'blocks'))
    print(
        f"memory: {growth:+.2%} in the second half; blocks: {blocks:+.2%}; "
        f"containers: {last['containers'] - middle['containers']:+d}"
    )
    if growth >= (0.02 if events >= 50_000 else 0.05):  # short runs are still warming up
        problems.append(f"the memory grows by {growth:.2%}")
    if blocks > 0.01:
        problems.append(f"there are {blocks:.2%} more blocks")
    if last['containers'] > middle['containers'] * 1.01:
        problems.append("there are more and more containers")
    if last['indexed'] != objects:
        problems.append(f"there are {last['indexed']} objects in the index instead of {objects}")
    if code:
        problems.append(f"the operator has ended with the code {code}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--events', type=int, default=200_000)
    parser.add_argument('--objects', type=int, default=1000)
    options = parser.parse_args()
    conclude(run(options.events, options.objects), "nothing stays")


if __name__ == '__main__':
    main()
