#!/usr/bin/env python3
"""Side-by-side benchmarks of operator frameworks with the API of kopf. See README.md."""

import argparse
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection

import results as reporting
from clusters import HERE, Cluster
from operators_under_test import Runner
from plans import OURS, SCALES, SLOW, plan


def build_anchor() -> str:
    binary = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "kubelab/goanchor"
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "."],
        cwd=HERE / "goanchor",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return str(binary)


def prepare(args: argparse.Namespace) -> tuple[list[Runner], Cluster]:
    """The runners that are asked for, with the first one as the base, and the cluster."""
    runners = [Runner.parse("kopf", text) for text in args.venv]
    if args.go:
        runners.append(Runner("go", "go", build_anchor()))
    runners += [Runner.parse("limit", text) for text in args.limit]
    return runners, Cluster(args.dir, args.port)


def measure(
    cluster: Cluster,
    runners: list[Runner],
    scale: str,
    *,
    only: Collection[str] = (),
    repeat: int = 1,
    slow: bool = False,
    minutes: float = float('inf'),
    done: Callable[[list[reporting.Result]], object] = lambda results: None,
) -> tuple[list[reporting.Result], int]:
    """Measure the cases, all runners in turns; return the results and the number of failures."""
    results: list[reporting.Result] = []
    failures = 0
    took: dict[tuple[str, str], float] = {}
    end = time.monotonic() + minutes * 60
    for repetition in range(repeat):
        for case, variant, function, arguments, anchors in plan(SCALES[scale]):
            label = f"{case}:{variant}"
            for runner in runners:
                if (
                    only
                    and label not in only
                    and case not in only
                    or runner.kind != "kopf"
                    and anchors not in (True, runner.kind)
                    or runner.kind == "kopf"
                    and case in OURS
                    and not runner.is_ours
                ):
                    continue
                if label in SLOW and runner is runners[0] and not slow:
                    continue
                begin = time.monotonic()
                if repetition and begin + took.get((label, runner.name), 0) > end:
                    continue
                try:
                    metrics = function(cluster, runner, SCALES[scale], **arguments)
                except (RuntimeError, OSError, queue.Empty, ValueError) as error:
                    print(f"{case} {variant} {runner.name}: FAILED: {error!s:.2000}", file=sys.stderr)
                    failures += 1
                    continue
                took[label, runner.name] = time.monotonic() - begin
                results.append(dict(case=case, variant=variant, runner=runner.name, repeat=repetition, metrics=metrics))
                shown = ", ".join(f"{name} {reporting.number(value)}" for name, value in metrics.items())
                print(
                    f"{case} {variant} {runner.name}: {shown} [load {os.getloadavg()[0]:.1f}]",
                    file=sys.stderr,
                    flush=True,
                )
                done(results)
    return results, failures


def run(args: argparse.Namespace) -> None:
    runners, cluster = prepare(args)
    names = [runner.name for runner in runners]
    output = pathlib.Path(args.json or f"{cluster.directory}-results/{time.strftime('%m%d-%H%M%S')}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    results, failures = measure(
        cluster,
        runners,
        args.scale,
        only=args.only,
        repeat=args.repeat,
        slow=args.slow,
        minutes=args.minutes,
        done=lambda results: output.write_text(json.dumps(dict(runners=names, results=results))),
    )
    reporting.print_table(results, names)
    print(f"\nJSON: {output}")
    cluster.pool.terminate()
    sys.exit(f"{failures} measurements failed" if failures else 0)


def check(args: argparse.Namespace) -> None:
    """Compare with the recorded ratios; what seems to be worse is measured again, together with the base."""
    recorded = {}  # (measurement, metric): (ratio, how much worse it may be: in %)
    for label, metrics in json.loads(args.recorded.read_text()).items():
        for metric, value in metrics.items():
            if not args.only or label in args.only or label.partition(":")[0] in args.only:
                recorded[label, metric] = value if isinstance(value, list) else (value, args.tolerance)
    limits = {key: ratio * (1 + tolerance / 100) for key, (ratio, tolerance) in recorded.items()}
    runners, cluster = prepare(args)
    base, other = (runner.name for runner in runners)
    results, worse, found = [], list(recorded), {}
    for attempt in range(args.attempts):
        labels = sorted({label for label, _ in worse})
        if attempt:
            print(f"Once more: {', '.join(labels)}", file=sys.stderr, flush=True)
        results += measure(cluster, runners, "small", only=labels, repeat=args.repeat)[0]
        found = reporting.ratios(results, base, other)
        worse = [key for key in recorded if found.get(key, float("inf")) > limits[key]]
        if not worse:
            break
    cluster.pool.terminate()
    print("| case | metric | recorded | now | at most | |\n|---|---|---:|---:|---:|---|")
    for label, metric in recorded:
        ratios = recorded[label, metric][0], found.get((label, metric), float("nan")), limits[label, metric]
        texts = [f"×{reporting.number(ratio)}" for ratio in ratios] + ["WORSE" if (label, metric) in worse else ""]
        print(f"| {label} | {metric} |", " | ".join(texts), "|")
    sys.exit(f"{len(worse)} of {len(recorded)} ratios are worse than they may be" if worse else 0)


def show(args: argparse.Namespace) -> None:
    """The table of one or more earlier runs."""
    results, runners = reporting.load(args.file)
    (reporting.print_page if args.csv else reporting.print_table)(results, runners)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--venv", action="append", default=[], metavar="NAME=PATH/bin/python[+OPTION,…]")
    shared.add_argument("--limit", action="append", default=[], metavar="NAME=PATH/bin/python[+OPTION,…]")
    shared.add_argument("--go", action="store_true", help="also the client-go anchor")
    shared.add_argument("--repeat", type=int, default=1)
    shared.add_argument(
        "--dir", default=os.path.join(tempfile.gettempdir(), "kubelab", "bench"), help="the cluster; it is left running"
    )
    shared.add_argument("--port", type=int, default=int(os.environ.get("CLUSTER_PORT") or 18443))
    command = commands.add_parser("run", parents=[shared], help="measure and compare")
    command.set_defaults(function=run)
    command.add_argument("--only", nargs="+", default=[], metavar="CASE[:VARIANT]")
    command.add_argument("--scale", choices=SCALES, default="small")
    command.add_argument("--json", help="where to write the results")
    command.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no more repetitions that would end later; everything is measured once at least",
    )
    command.add_argument(
        "--slow",
        action="store_true",
        help=f"measure {' and '.join(SLOW)} also in the base, where they can take half an hour",
    )
    command = commands.add_parser("check", parents=[shared], help="compare two environments with the recorded ratios")
    command.set_defaults(function=check)
    command.add_argument("--recorded", type=pathlib.Path, default=HERE / "ratios.json")
    command.add_argument("--only", nargs="+", default=[], metavar="CASE[:VARIANT]")
    command.add_argument(
        "--tolerance",
        type=float,
        default=20,
        help="how much worse the ratios may be where nothing is recorded: %% (default: %(default)g)",
    )
    command.add_argument("--attempts", type=int, default=5, help="how often to measure what seems to be worse")
    command = commands.add_parser("show", help="print the table of earlier runs")
    command.set_defaults(function=show)
    command.add_argument("file", nargs="+")
    command.add_argument("--csv", action="store_true", help="print the rows of docs/performance.csv")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the operator is stopped too
    args.function(args)


if __name__ == "__main__":
    main()
