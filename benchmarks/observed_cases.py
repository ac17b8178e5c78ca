"""
The case of an operator that is observed: by metrics, and by traces.

Differences of a few per cent are smaller than what a busy machine does to a measurement. So the same operator runs
several times, each time with objects of its own, and each round measures all of them, in another order. They are
frozen while their objects are changed: then the writers do not share the processor with them, and each handles the same
number of changes at once. Each measurement is compared with that of the plain operator in the same round.
"""

import contextlib
import random
import socket
import statistics
import time
import urllib.request
from typing import Any

from cases import landed
from clusters import Cluster
from member_cases import await_rest
from operators_under_test import Operator, Runner
from results import Metrics
from writers import finish_objects

TOTAL = 1000
VARIANTS = {
    "off": "",
    "still": "",  # nothing else than "off": its ratio shows how exact the others are
    "metrics": "metrics",
    "tracing": "tracing",
}
SAMPLING = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.01",
    "OTEL_TRACES_EXPORTER": "console",
}


def case_observed(cluster: Cluster, runner: Runner, scale: dict[str, Any], operator: str) -> Metrics:
    """Changes of all objects of one operator after the other: plain, with metrics, with traces."""
    rounds: list[dict[str, float]] = []
    scrapes: list[float] = []
    with contextlib.ExitStack() as stack:
        subjects = {name: stack.enter_context(Subject(cluster, runner, operator, name)) for name in VARIANTS}
        time.sleep(2)
        for number in range(scale["observed"]["rounds"] + 1):
            order = list(subjects)
            random.Random(number).shuffle(order)
            costs = {name: subjects[name].handle_changes(number + 1) for name in order}
            scrapes.append(subjects["metrics"].scrape())
            if number:  # the first round is for the caches
                rounds.append(costs)
    ratios = {name: [costs[name] / costs["off"] for costs in rounds] for name in VARIANTS}
    return {
        "cpu us/call": statistics.median(costs["off"] for costs in rounds) * 1e6,
        "cpu ×, the same again": statistics.median(ratios["still"]),
        "cpu ×, metrics": statistics.median(ratios["metrics"]),
        "cpu ×, traces of 1 %": statistics.median(ratios["tracing"]),
        "cpu ms/scrape": statistics.median(scrapes) * 1e3,
    }


class Subject:
    """One of the operators, with objects of its own."""

    def __init__(self, cluster: Cluster, runner: Runner, operator: str, name: str) -> None:
        self.cluster = cluster
        self.plural, _, version = cluster.reset(f"{name}{TOTAL}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/metrics"
        env = {"BENCH_METRICS": self.url, **SAMPLING}
        self.process = Operator(cluster, runner, operator, self.plural, TOTAL, VARIANTS[name], **env)
        if operator == "event":
            self.process.wait("seen")
        else:
            landed(cluster, self.plural, version, TOTAL)

    def __enter__(self) -> 'Subject':
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def handle_changes(self, number: int) -> float:
        """Change each object twice, one change after the other; return the CPU time (in seconds) for each change."""
        await_rest(self.process)
        cpu = self.process.cpu()
        for mark in (number, -1):
            with self.process.frozen():
                self.cluster.spread(finish_objects, self.plural, range(TOTAL), mark)
            if mark == -1:
                self.process.wait("final")
            await_rest(self.process)
        return (self.process.cpu() - cpu) / (2 * TOTAL)

    def scrape(self) -> float:
        """Scrape the metrics; return the CPU time (in seconds) that this takes the operator."""
        cpu = self.process.cpu()
        with urllib.request.urlopen(self.url) as response:
            response.read()
        return self.process.cpu() - cpu
