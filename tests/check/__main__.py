"""
Measure `kopf check` by the corpus: what it finds, how fast, and whether it raises false alarms.

    python -m tests.check                          # everything: half an hour on two cores
    python -m tests.check --budget 20 'random_*'   # some of it, with less time for each
    python -m tests.check correct example          # groups: planted, correct, example, corner

It fails if fewer than eleven of twelve planted bugs are found, or if anything is found in the others.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.check import rates


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__.partition("\n\n")[0])
    parser.add_argument("patterns", nargs="*", metavar="NAME|GROUP", help="which operators; by default, all of them")
    parser.add_argument("--budget", type=float, default=60.0, help="the seconds for each of them (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all courses (default: 1)")
    parser.add_argument("--jobs", type=int, default=None, help="how many courses at the same time (default: cores)")
    parser.add_argument("--verbose", action="store_true", help="show the whole reports")
    options = parser.parse_args(arguments)
    results = []
    for subject in rates.select(options.patterns):
        result = rates.measure(subject, budget=options.budget, seed=options.seed, jobs=options.jobs)
        results.append(result)
        print(rates.format_row(result), flush=True)
        if options.verbose or result.is_wrong:
            print(result.text, flush=True)
    print(rates.format_summary(results))
    return 0 if rates.is_good(results, rates.LEAST) else 1


sys.exit(main(sys.argv[1:]))
