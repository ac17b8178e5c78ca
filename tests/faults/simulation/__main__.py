"""
Whole operators and the API of the sandbox in one loop of virtual time: is anything lost, done twice, or stuck?

    python -m tests.faults.simulation --seeds 100 --start 1
    python -m tests.faults.simulation --start 17 --log /tmp/17.log --set peering= --set slowness=1
    python -m tests.faults.simulation --seeds 100 --set electing=election --set peering= --set clocks=false

Each run follows from its seed: the options, what others do to the cluster, how the API and the network fail, what the
handlers do, and when. Then all faults end, and everything must come to rest. A line per run has the digest of its log,
so that two runs of a seed can be compared; below it is what is wrong. The exit code is 1 if anything is.
"""

import argparse
import ctypes
import dataclasses
import hashlib
import json
import logging
import os
import sys
import time

ADDR_NO_RANDOMIZE = 0x0040000
TIMEOUT = 300
"""How long a run may take in real time (in seconds)."""


def make_deterministic():
    """Start the program anew if the order of sets depends on random hashes, or on random addresses."""
    if os.environ.get('PYTHONHASHSEED') != '0':
        ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
        arguments = [sys.executable, '-m', 'tests.faults.simulation', *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, 'PYTHONHASHSEED': '0'})


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=1, help='how many runs')
    parser.add_argument('--start', type=int, default=1, help='the first seed')
    parser.add_argument('--steps', type=int, default=60, help='how much happens in a run')
    parser.add_argument('--log', help='the file for the log of the last run that fails, or of the only one')
    parser.add_argument('--verbose', action='store_true', help='whether the log has the messages for debugging')
    parser.add_argument('--set', action='append', default=[], metavar='OPTION=JSON', help='an option of all runs')
    return parser.parse_args()


def run(seed, args):
    """Run one seed in this process; print the outcome; return whether nothing is wrong."""
    from tests.faults.simulation.simulation import Simulation

    overrides = {}
    for text in args.set:
        name, _, value = text.partition('=')
        try:
            overrides[name] = json.loads(value)
        except ValueError:
            overrides[name] = value
    since = time.perf_counter()
    simulation = Simulation(seed, overrides, level=logging.DEBUG if args.verbose else logging.INFO)
    problems = simulation.run(args.steps)
    digest = hashlib.md5('\n'.join(simulation.ledger.lines).encode()).hexdigest()[:8]
    verdict, seconds = 'FAILED' if problems else 'ok', time.perf_counter() - since
    calls = simulation.ledger.calls
    print(f'{seed} {digest} {verdict}: {calls} calls, {simulation.clock.now:.0f} s in {seconds:.1f} s', flush=True)
    if problems:
        print(f'    {dataclasses.asdict(simulation.options)}')
    for problem in problems[:6]:
        print(f'    {problem[:400]}', flush=True)
    if args.log and (problems or args.seeds == 1):
        with open(args.log, 'w') as file:
            file.write('\n'.join([repr(simulation.options), *simulation.ledger.lines]))
    return not problems


def main():
    make_deterministic()
    args = parse()
    from tests.faults.simulation import simulation  # once, for all the processes below

    assert simulation
    failed = []
    for seed in range(args.start, args.start + args.seeds):
        # In a process of its own, as it must not depend on what the runs before it have left.
        pid = os.fork()
        if not pid:
            import signal

            signal.alarm(TIMEOUT)
            fine = run(seed, args)
            sys.stdout.flush()
            os._exit(not fine)
        _, status = os.waitpid(pid, 0)
        if status:
            failed.append(seed)
    print(f'{args.seeds - len(failed)} of {args.seeds} runs: nothing lost, nothing done twice, nothing stuck')
    if failed:
        print(f'failed: {failed}')
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
