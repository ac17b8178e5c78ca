"""
The case of an operator in several processes, which share the objects: ``kopf run --shards auto --processes N``.
"""

import collections
import contextlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cases import landed
from clusters import Cluster
from operators_under_test import Operator, Runner
from results import Metrics
from writers import finish_objects

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LABEL = "kopf.dev/shards"
ANNOTATION = "kopf.dev/shard"

BUCKETS = 256
RENEWAL = 2
"""A member makes at most one request for its Lease in so many seconds, besides hand-overs."""

IDLE = 0.1
"""How much of a processor's time the processes may take at rest."""

LONGEST_FREEZE = 30
"""After more seconds, members could lose their Leases: then the case does not measure what it should."""


def case_members(
    cluster: Cluster,
    runner: Runner,
    scale: dict[str, Any],
    operator: str,
    work: int,
    processes: int,
    is_helped: bool,
) -> Metrics:
    """
    Changes of each object, handled by one or more processes.

    The processes are frozen while the changes are written, so that the writers do not share the processor with them.
    One process is a plain operator, without shards. If it is helped, the API server sends each member only its own
    objects. If the handlers do nothing, the CPU of a member is measured while the other members are frozen.
    """
    total, rest = scale["members"]["total"], scale["members"]["rest"]
    rounds = 1 if work else scale["members"]["rounds"]  # what computes takes long enough
    plural, total, version = cluster.reset(f"work{total}")
    options = f"work={work}{',reconcile' * (operator == 'reconcile')}{',helped' * is_helped}"
    shared = ["--shards", "auto", "--processes", str(processes)] if processes > 1 else []
    arguments = ["--all-namespaces", *shared]
    with lease_group(cluster) as group:
        env = {"BENCH_SHARDS": group, "BENCH_PROCESSES": str(processes)}
        with Operator(cluster, runner, "members", plural, total, options, arguments=arguments, **env) as process:
            if processes > 1:
                await_balance(cluster, group, processes)
            if operator == "on.update":
                landed(cluster, plural, version, total)
            time.sleep(1)  # for what a new holder of buckets has to list and to look at
            begin = time.time_ns()
            time.sleep(rest if processes > 1 else 0)
            end = time.time_ns()
            memory = measure_memory(process)
            changes = handle_changes(cluster, process, plural, total, rounds)
            if processes > 1 and not work:
                turns = handle_in_turns(cluster, process, plural, total, rounds)
                changes |= turns | {"calls/change": max(changes["calls/change"], turns["calls/change"])}
    if operator == "on.update" and changes["calls/change"] > 1:
        raise RuntimeError(f"some changes were handled twice: {changes['calls/change']} calls a change")
    return changes | memory | (count_leases(process, begin, end, processes) if processes > 1 else {})


def measure_memory(process: Operator) -> Metrics:
    """Measure the memory of all processes, and of one member: the supervisor is none."""
    supervisor, members = process.memory()["pss"], [process.memory(pid)["pss"] for pid in process.children()]
    return {
        "pss MB": sum([supervisor, *members]),
        "pss MB/member": statistics.mean(members or [supervisor]),
    }


def handle_changes(cluster: Cluster, process: Operator, plural: str, total: int, rounds: int) -> Metrics:
    """Change each object once a round while the processes are frozen, and measure how they handle these changes."""
    seconds, cpu, own, calls = 0.0, 0.0, 0.0, list[Any]()
    for mark in range(-rounds, 0):
        before, own_before = process.cpu(), measure_members(process)
        with process.frozen():
            write_changes(cluster, plural, total, mark)
        begin = time.time_ns()
        handled = await_calls(process, total)
        await_rest(process)
        cpu, own = cpu + process.cpu() - before, own + measure_members(process) - own_before
        seconds += (find_end(handled) - begin) / 1e9
        calls += handled
    members, changes = len(process.children()) or 1, total * rounds
    return {
        "changes/s ↑": changes / seconds,
        "cpu ms/change": cpu / changes * 1e3,
        "cpu ms/change of a member": own / members / changes * 1e3,
        "calls/change": len(calls) / changes,
        "least share of a member %": min(count_shares(calls, members)) / len(calls) * 100,
    }


def handle_in_turns(cluster: Cluster, process: Operator, plural: str, total: int, rounds: int) -> Metrics:
    """Change each object once a round, and let one member after the other handle its part, as on machines of their own.

    On one machine, the members and the API server would also take the caches and the time slices from each other:
    that is the price of the machine, not of the shards.
    """
    members, own, calls = process.children(), 0.0, 0
    for mark in range(-2 * rounds, -rounds):
        before = measure_members(process)
        with process.frozen():
            write_changes(cluster, plural, total, mark)
            frozen = time.monotonic()
            for member in members:
                with process.thawed(member):
                    await_rest(process)
            if time.monotonic() - frozen > LONGEST_FREEZE:
                raise RuntimeError(f"{total} changes were not handled in {LONGEST_FREEZE} s: the machine is too busy")
        calls += len(await_calls(process, total))
        await_rest(process)
        own += measure_members(process) - before
    changes = total * rounds
    return {"cpu ms/change of a member": own / len(members) / changes * 1e3, "calls/change": calls / changes}


def write_changes(cluster: Cluster, plural: str, total: int, mark: int) -> None:
    """Change each object; fail if that takes so long that members lose their Leases meanwhile."""
    begin = time.monotonic()
    cluster.spread(finish_objects, plural, range(total), mark)
    if time.monotonic() - begin > LONGEST_FREEZE:
        raise RuntimeError(f"{total} changes were not written in {LONGEST_FREEZE} s: the machine is too busy")


def measure_members(process: Operator) -> float:
    """Measure the CPU seconds of the members, without their supervisor."""
    return sum(process.cpu_of(pid) for pid in process.children() or [process.process.pid])


def count_leases(process: Operator, since: int, until: int, processes: int) -> Metrics:
    """Count the requests for Leases at rest; fail if there are too many, but for one that is at the edge."""
    seconds = (until - since) / 1e9
    counts = process.requests(since, until)
    requests = sum(count for key, count in counts.items() if key.endswith(" leases"))
    if requests > processes * (seconds / RENEWAL + 1):
        raise RuntimeError(f"{processes} members at rest made {requests} requests for Leases in {seconds:.1f} s")
    return {"lease requests/s/member": requests / seconds / processes}


def await_calls(process: Operator, total: int) -> list[Any]:
    """Wait until the changes of all objects were handled, and for what is handled twice; return the calls."""
    calls: list[Any] = []
    while len({call["name"] for call in calls}) < total:
        calls.append(process.wait("handled", timeout=60))
    return [*calls, *(report for report in process.drain(0.5) if report["event"] == "handled")]


def await_rest(process: Operator, quiet: float = 0.2) -> None:
    """Wait until nothing more is to be done: all patches were sent, and their echoes were seen."""
    before = -math.inf
    while process.cpu() - before > IDLE * quiet:
        before = process.cpu()
        time.sleep(quiet)


def find_end(calls: Sequence[Any]) -> int:
    """Return when the last object was handled for the first time."""
    firsts: dict[str, int] = {}
    for call in calls:
        firsts[call["name"]] = min(call["time"], firsts.get(call["name"], call["time"]))
    return max(firsts.values())


def count_shares(calls: Sequence[Any], processes: int) -> list[int]:
    """Return how many calls each of the members has made."""
    counts = collections.Counter(call["member"] for call in calls)
    return [*counts.values(), *[0] * (processes - len(counts))]


@contextlib.contextmanager
def lease_group(cluster: Cluster) -> Iterator[str]:
    """A name for the members' group that no earlier one has; its Leases are deleted in the end."""
    name = f"bench-{time.time_ns():x}"
    try:
        yield name
    finally:
        cluster.admin.request("DELETE", f"{LEASES}?labelSelector={LABEL}%3D{name}")


def await_balance(cluster: Cluster, group: str, processes: int, timeout: float = 60) -> None:
    """Wait until each member holds its part of the buckets, and none of them is handed over."""
    end, shares = time.monotonic() + timeout, list[int]()
    while time.monotonic() < end:
        leases = cluster.admin.get(f"{LEASES}?labelSelector={LABEL}%3D{group}")["items"]
        members = [json.loads(note) for lease in leases if (note := lease["metadata"]["annotations"].get(ANNOTATION))]
        shares = [count_buckets(member["holds"]) for member in members]
        if len(shares) == processes and sum(shares) == BUCKETS and min(shares) >= BUCKETS // processes:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{processes} members hold {shares} buckets after {timeout} s")


def count_buckets(ranges: str) -> int:
    """Return how many buckets there are in ranges such as ``0-63,70``."""
    pairs = (part.partition("-") for part in ranges.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)
