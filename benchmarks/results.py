"""What comes of the measurements: the medians, the ratios to the first environment, and tables of them."""

import collections
import csv
import itertools
import json
import pathlib
import statistics
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

Metrics: TypeAlias = dict[str, float]
Result: TypeAlias = dict[str, Any]
Rows: TypeAlias = collections.defaultdict[tuple[str, str], collections.defaultdict[str, list[float]]]

# The rows of docs/explanation/performance.rst: what, the measurement (of --scale full), its metric, the unit.
PAGE = [
    ("``import kopf``: time", "import:", "import ms", "ms"),
    ("the same: memory", "import:", "import rss MB", "MB"),
    ("the same: modules", "import:", "modules", ""),
    ("Ready: from the start of the process to the first call of a handler", "ready:", "ready s", "s"),
    ("CPU until then", "ready:", "cpu s", "s"),
    ("Memory then", "ready:", "rss MB", "MB"),
    ("Requests until then", "ready:", "api requests", ""),
    ("10,000 objects with ``@kopf.on.event``: CPU an object", "ingest:N=10000", "cpu us/object", "µs"),
    ("30,000 of them: CPU an object", "ingest:N=30000", "cpu us/object", "µs"),
    ("the same: memory in the end", "ingest:N=30000", "settled rss MB", "MB"),
    ("each of these objects more: memory", "ingest:growth 10000–30000", "settled rss KB/object", "KB"),
    ("3,000 objects with ``@kopf.index``: until all are indexed", "index:N=3000", "wall s", "s"),
    ("10,000 of them: until all are indexed", "index:N=10000", "wall s", "s"),
    ("30,000 of them: until all are indexed", "index:N=30000", "wall s", "s"),
    ("the same: CPU an object", "index:N=30000", "cpu us/object", "µs"),
    ("2,000 objects created, with ``@kopf.on.create``: CPU an object", "create:N=2000", "cpu ms/object", "ms"),
    ("500 of them, with a finalizer", "create:finalizer N=500", "cpu ms/object", "ms"),
    ("500 of them, without Events", "create:noposting N=500", "cpu ms/object", "ms"),
    ("500 of them, with Events of what is logged", "create:logposting N=500", "cpu ms/object", "ms"),
    ("500 of them, with 10 handlers each", "create:handlers=10 N=500", "cpu ms/object", "ms"),
    ("One change at a time: until its handler runs (median)", "latency:", "handler p50 ms", "ms"),
    ("the same (99 %)", "latency:", "handler p99 ms", "ms"),
    ("the same: until the patch is seen by others (median)", "latency:", "patched p50 ms", "ms"),
    ("the same (99 %)", "latency:", "patched p99 ms", "ms"),
    ("As many changes as possible, ``@kopf.on.event``: CPU a change", "churn:on.event", "cpu us/write", "µs"),
    ("As many changes as possible, ``@kopf.on.update``: CPU a change", "churn:on.update", "cpu us/write", "µs"),
    ("2,000 daemons, idle: memory of each", "daemons:daemon", "rss KB/object", "KB"),
    ("the same: CPU", "daemons:daemon", "steady cpu %", "%"),
    ("2,000 timers of 1 s: CPU", "daemons:timer", "steady cpu %", "%"),
    ("the same: CPU a tick", "daemons:timer", "cpu us/tick", "µs"),
    ("the same: ticks missed", "daemons:timer", "missed ticks %", "%"),
    ("200 objects created, with a ``def`` handler of 50 ms: all in", "sync:N=200", "wall s", "s"),
    ("the same: CPU an object", "sync:N=200", "cpu ms/object", "ms"),
    ("Validating webhooks: requests a second", "webhook:", "requests/s ↑", ""),
    ("the same: the time of one (median)", "webhook:", "p50 ms", "ms"),
    ("the same (99 %)", "webhook:", "p99 ms", "ms"),
    ("the same: CPU a request", "webhook:", "cpu us/request", "µs"),
    ("1,000 objects, nothing happens: CPU a minute", "idle:", "cpu ms/min", "ms"),
    ("the same: memory", "idle:", "rss MB", "MB"),
]


def load(files: Iterable[str]) -> tuple[list[Result], list[str]]:
    """Read the results of one or more runs; give them, and the names of the environments."""
    runs = [json.loads(pathlib.Path(file).read_text()) for file in files]
    runners = list(dict.fromkeys(name for run in runs for name in run["runners"]))
    return [result for run in runs for result in run["results"]], runners


def collect(results: list[Result]) -> Rows:
    """All values by measurement (its case and variant), metric, and environment."""
    rows: Rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for result in [*results, *growth(results), *speedups(results)]:
        for metric, value in result["metrics"].items():
            rows[f"{result['case']}:{result['variant']}", metric][result["runner"]].append(value)
    return rows


def growth(results: list[Result]) -> Iterator[Result]:
    """Derive how much memory one more object takes, from the same case with different numbers of objects."""
    points: dict[tuple[str, str], dict[int, list[Metrics]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for result in results:
        if result["case"] in ("ingest", "index") and result["variant"].startswith("N="):
            points[result["case"], result["runner"]][int(result["variant"][2:])].append(result["metrics"])
    derived = {
        "peak rss KB/object": ("peak rss MB", 1024),
        "settled rss KB/object": ("settled rss MB", 1024),
        "cpu us/object": ("cpu settled s", 1e6),
    }
    for (case, runner), sizes in points.items():
        for small, large in itertools.pairwise(sorted(sizes)):
            metrics = {}
            for name, (key, unit) in derived.items():
                low, high = (statistics.median(each[key] for each in sizes[size]) for size in (small, large))
                metrics[name] = (high - low) * unit / (large - small)
            yield {
                "case": case,
                "variant": f"growth {small}–{large}",
                "runner": runner,
                "repeat": 0,
                "metrics": metrics,
            }


def speedups(results: list[Result]) -> Iterator[Result]:
    """Derive how much more several processes do in a second than one, and how much CPU each of them takes for that."""
    derived = {"times one process ↑": "changes/s ↑", "cpu of a member, times one process": "cpu ms/change of a member"}
    rates: dict[tuple[str, str], dict[str, list[Metrics]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for result in results:
        if result["case"] == "members":
            what, _, processes = result["variant"].rpartition(" P=")
            rates[what, result["runner"]][processes].append(result["metrics"])
    for (what, runner), values in rates.items():
        for processes in sorted(values):
            if processes != "1" and "1" in values:
                metrics = {}
                for name, key in derived.items():
                    several, one = (statistics.median(each[key] for each in values[p]) for p in (processes, "1"))
                    metrics[name] = several / one
                yield {
                    "case": "members",
                    "variant": f"{what} P={processes}",
                    "runner": runner,
                    "repeat": 0,
                    "metrics": metrics,
                }


def ratios(results: list[Result], base: str, other: str) -> dict[tuple[str, str], float]:
    """The ratios of the medians of all metrics, where both environments were measured."""
    return {
        key: statistics.median(values[other]) / median
        for key, values in collect(results).items()
        if values[base] and values[other] and (median := statistics.median(values[base]))
    }


def number(value: float) -> str:
    return (
        f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 0.1 or not value
        else f"{value:.4f}"
    )


def print_table(results: list[Result], runners: list[str]) -> None:
    """Markdown: the median, the range if repeated, and the ratio to the first environment."""
    order = list(dict.fromkeys(result["case"] for result in results))
    print("| case | metric |", " | ".join(runners), "|")
    print("|---|---|" + "---:|" * len(runners))
    rows = sorted(collect(results).items(), key=lambda row: order.index(row[0][0].partition(":")[0]))
    for (label, metric), values in rows:
        cells = []
        base = statistics.median(values[runners[0]]) if values[runners[0]] else 0
        for runner in runners:
            if not values[runner]:
                cells.append("not measured")
                continue
            median = statistics.median(values[runner])
            cell = number(median)
            if len(values[runner]) > 1:
                cell += f" ({number(min(values[runner]))}–{number(max(values[runner]))})"
            if runner != runners[0] and base:
                cell += f" ×{number(median / base)}"
            cells.append(cell)
        print(f"| {label.replace(':', ' ')} | {metric} |", " | ".join(cells), "|")


def print_page(results: list[Result], runners: list[str]) -> None:
    """CSV: the rows of docs/explanation/performance.rst, of the first two environments."""
    rows, writer = collect(results), csv.writer(sys.stdout, lineterminator="\n")
    for title, label, metric, unit in PAGE:
        measured = [rows[label, metric][runner] for runner in runners[:2]]
        medians = [statistics.median(values) if values else None for values in measured]
        if not any(medians):
            continue
        texts = ["–" if median is None else f"{number(median)} {unit}".strip() for median in medians]
        base, ours = medians
        writer.writerow([title, *texts, f"{ours / base:.2f}" if base and ours is not None else "–"])
