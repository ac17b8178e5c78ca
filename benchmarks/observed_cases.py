"""
The case of an operator that is observed: by metrics, and by traces.

Differences of a few per cent are smaller than what a busy machine does to a measurement. So the same operator runs
several times at once, each time with objects of its own. The writers change the objects of one of them for a moment,
then those of the next one, for many rounds. Each measurement is compared with that of the plain operator in the same
round.
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
from operators_under_test import Operator, Runner
from results import Metrics
from writers import churn_objects

TOTAL = 300
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
    """As the churn, with the operators side by side."""
    settings = scale["observed"]
    rounds: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        subjects = {name: stack.enter_context(Subject(cluster, runner, operator, name)) for name in VARIANTS}
        time.sleep(2)
        for number in range(settings["rounds"] + 1):
            order = list(subjects)
            random.Random(number).shuffle(order)
            costs = {name: subjects[name].churn(settings["seconds"]) for name in order}
            if number:  # the first round is for the caches
                rounds.append(costs)
    ratios = {name: [costs[name] / costs["off"] for costs in rounds] for name in VARIANTS}
    return {
        "cpu us/call": statistics.median(costs["off"] for costs in rounds) * 1e6,
        "cpu ×, the same again": statistics.median(ratios["still"]),
        "cpu ×, metrics": statistics.median(ratios["metrics"]),
        "cpu ×, traces of 1 %": statistics.median(ratios["tracing"]),
    }


class Subject:
    """One of the operators, with objects of its own."""

    def __init__(self, cluster: Cluster, runner: Runner, operator: str, name: str) -> None:
        self.cluster = cluster
        self.plural, _, version = cluster.reset(f"{name}{TOTAL}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/metrics" if name == "metrics" else None
        env = {"BENCH_METRICS": self.url or "", **SAMPLING}
        self.process = Operator(cluster, runner, operator, self.plural, TOTAL, VARIANTS[name], **env)
        if operator == "event":
            self.process.wait("seen")
        else:
            landed(cluster, self.plural, version, TOTAL)
        self.count = TOTAL if operator == "event" else 0

    def __enter__(self) -> 'Subject':
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def churn(self, seconds: float) -> float:
        """Change its objects for so long; return the CPU time (in seconds) for each call of the handler."""
        cpu = self.process.cpu()
        self.cluster.spread(churn_objects, self.plural, range(TOTAL), seconds)
        count: int = self.process.wait("final")["count"]
        if self.url is not None:
            urllib.request.urlopen(self.url).read()
        time.sleep(0.5)  # for the last patches
        calls, self.count = count - self.count, count
        return (self.process.cpu() - cpu) / calls
