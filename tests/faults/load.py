"""
Thousands of objects, and an API that fails all the time: is anything lost, is anything done twice?

    python tests/faults/load.py --objects 20000 --seconds 300 --seed 1

Objects are created, edited and deleted while the API fails at random: streams that break, freeze and expire, refusals
of all kinds, slow answers, lost answers, servers that restart. Then all faults end, and everything must come to rest.
Each value of each object is unique, so that each call of a handler tells what it has seen. The last line is the
verdict. The exit code is 1 if anything is lost or done twice, if the memory grows, or if there are more requests than
can be explained.
"""

import argparse
import asyncio
import collections
import random
import time

from underload import Load, conclude

RATE = 150
"""How many objects are changed per second."""


def disturb(load: Load, rng: random.Random) -> str:
    """Let something go wrong; give a name to it."""
    faults = load.sandbox.faults
    if len(faults.pending()) > 10:
        faults.clear()  # those of streams would pile up while the operator backs off
    times = rng.randint(1, 20)
    name, act = rng.choice(
        [
            ('500 in streams', lambda: faults.fail_watches(500, times=2)),
            ('410 in streams', lambda: faults.expire_watches(times=2)),
            ('history lost', lambda: (faults.forget_history(), faults.drop_watches())),
            ('streams end', lambda: faults.end_watches(times=2)),
            ('streams reset', lambda: faults.drop_watches()),
            ('lines cut', lambda: faults.cut_watches(times=2)),
            ('streams freeze', lambda: faults.freeze_watches(rng.uniform(0.5, 8), times=1)),
            ('nonsense', lambda: faults.say('{"type":"ADDED","object":{"metadata":null}}', times=2)),
            ('429', lambda: faults.error(429, retry_after=1, times=1)),
            ('429 to patches', lambda: faults.error(429, retry_after=1, times=2, verb='patch')),
            ('500', lambda: faults.error(500, times=times)),
            ('503 to patches', lambda: faults.error(503, times=times, verb='patch')),
            ('409 to patches', lambda: faults.error(409, times=times, verb='patch')),
            ('422 to streamed lists', lambda: faults.error(422, times=1, query='sendInitialEvents')),
            ('slow', lambda: faults.delay(rng.uniform(0.1, 2), times=times)),
            ('slow streams', lambda: faults.delay(rng.uniform(0.1, 3), times=2, verb='watch')),
            ('connections dropped', lambda: faults.drop(times=times)),
            ('answers lost', lambda: faults.lose(times=times)),
            ('answers to patches lost', lambda: faults.lose(times=times, verb='patch')),
            ('restart', lambda: faults.refuse_connections(rng.uniform(0.1, 2))),
        ]
    )
    act()
    return name


async def change(load: Load, rng: random.Random, limit: int, count: int) -> None:
    """Create, edit, and delete some objects; more are created until there are enough."""
    for _ in range(count):
        name = f'obj{rng.randrange(limit)}'
        if name not in load.objects:
            if not await load.exists(name):  # its predecessor can be held by the operator
                await load.create(name)
        elif rng.random() < 0.1:
            await load.delete(name)
        else:
            await load.edit(name)


async def run(objects: int, seconds: float, seed: int) -> list[str]:
    """Do it all; give the problems, and print the figures."""
    rng, chance = random.Random(seed), random.Random(seed + 1)  # what is changed depends on the time, faults do not
    faults: collections.Counter[str] = collections.Counter()
    async with Load.open() as load:
        for number in range(objects // 2):  # some are there before the operator
            await load.create(f'obj{number}')
        load.start()
        await load.measure()
        for number in range(objects // 2, objects):
            await load.create(f'obj{number}')
        began, half = time.monotonic(), None
        while (elapsed := time.monotonic() - began) < seconds:
            faults[disturb(load, rng)] += 1
            end = time.monotonic() + rng.uniform(0.2, 1)
            while time.monotonic() < end:
                await change(load, chance, objects, RATE // 20)
                load.count_requests()
                await asyncio.sleep(0.05)
            load.check_alive()
            if half is None and elapsed > seconds / 2:
                load.sandbox.faults.clear()
                half = await load.measure()
        load.sandbox.faults.clear()
        began = time.monotonic()
        await load.settle(120)
        settling = time.monotonic() - began
        last = await load.measure()
        problems = load.judge()
        code = load.stop()
    calls = collections.Counter(entry['id'] for entry in load.noted if entry['id'] != 'measure')
    limit = 3 * calls.total() + 50 * faults.total() + 200
    growth = last['memory'] / half['memory'] - 1 if half else 0
    print(f"faults: {faults.total()}: {dict(faults.most_common())}")
    print(f"handlers called: {dict(calls)}; at rest {settling:.1f} s after the last fault")
    print(f"requests: {sum(load.requests.values())} (limit {limit}): {load.requests}")
    print(f"memory: {last['memory'] // 1024} MB, {growth:+.1%} since the half; objects now: {len(load.objects)}")
    if sum(load.requests.values()) > limit:
        problems.append(f"too many requests: {sum(load.requests.values())} instead of {limit} at most")
    if objects >= 5000 and growth > 0.05:
        problems.append(f"the memory grows by {growth:.1%}")
    if code:
        problems.append(f"the operator has ended with the code {code}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--objects', type=int, default=20000)
    parser.add_argument('--seconds', type=float, default=300)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    conclude(run(options.objects, options.seconds, options.seed), "nothing lost, nothing done twice")


if __name__ == '__main__':
    main()
