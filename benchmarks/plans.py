"""
Which cases are measured at which scale.
"""

from collections.abc import Callable, Iterator
from typing import Any

from cases import (
    case_children,
    case_churn,
    case_create,
    case_daemons,
    case_idle,
    case_import,
    case_ingest,
    case_kinds,
    case_latency,
    case_namespaces,
    case_ready,
    case_reconcile,
    case_webhook,
)
from member_cases import case_members
from observed_cases import case_observed
from results import Metrics

SLOW = ["index:N=10000", "index:N=30000"]  # quadratic in kopf 1.45: minutes, and half an hour


OURS = ("reconcile", "children", "members", "observed")
"""What upstream cannot do: these cases are measured in environments with this package, and beside the anchors."""


SCALES: dict[str, dict[str, Any]] = {
    "small": dict(
        ingest=[1000, 10000],
        index=[1000],
        kinds=[],
        namespaces=[100],
        settle=6,
        create=[300],
        variants=["finalizer"],
        latency=50,
        churn=5,
        daemons=500,
        levels=[300],
        members=dict(total=300, rounds=2, works={0: [1, 4], 900_000: [1, 2]}, rest=4),
        observed=dict(rounds=3),
        window=6,
        sync=100,
        webhook=4,
        idle=10,
    ),
    "full": dict(
        ingest=[1000, 10000, 30000],
        index=[1000, 3000, 10000, 30000],
        kinds=[1, 20],
        namespaces=[75, 300, 1000],
        settle=6,
        create=[500, 2000],
        variants=["noposting", "logposting", "finalizer", "handlers=5", "handlers=10"],
        latency=100,
        churn=15,
        daemons=2000,
        levels=[1000],
        members=dict(total=1000, rounds=5, works={0: [1, 2, 4], 900_000: [1, 2, 4]}, rest=20),
        observed=dict(rounds=30),
        window=20,
        sync=200,
        webhook=10,
        idle=30,
    ),
}


def plan(scale: dict[str, Any]) -> Iterator[tuple[str, str, Callable[..., Metrics], dict[str, Any], bool | str]]:
    """All measurements as (case, variant, function, its arguments, whether the anchors take part, or which kind)."""
    yield "import", "", case_import, {}, False
    yield "ready", "", case_ready, {}, True
    for total in scale["ingest"]:
        yield "ingest", f"N={total}", case_ingest, dict(total=total), True
    for kinds in scale["kinds"]:
        yield "kinds", f"K={kinds}", case_kinds, dict(kinds=kinds), False
    for total in scale["namespaces"]:
        yield "namespaces", f"N={total}", case_namespaces, dict(total=total), False
    for total in scale["index"]:
        yield "index", f"N={total}", case_ingest, dict(total=total, operator="index"), False
    for total in scale["create"]:
        yield "create", f"N={total}", case_create, dict(total=total), True
    for options in scale["variants"]:
        yield (
            "create",
            f"{options} N={scale['create'][0]}",
            case_create,
            dict(total=scale["create"][0], options=options),
            False,
        )
    yield "latency", "", case_latency, {}, True
    yield "churn", "on.event", case_churn, dict(operator="event"), True
    yield "churn", "on.update", case_churn, dict(operator="update"), True
    yield "daemons", "daemon", case_daemons, dict(operator="daemon"), False
    yield "daemons", "timer", case_daemons, dict(operator="timer"), False
    for total in scale["levels"]:
        yield "reconcile", f"N={total}", case_reconcile, dict(total=total), "go"
        yield "children", f"N={total}", case_children, dict(total=total), "go"
    for work, counts in scale["members"]["works"].items():
        for operator in ("on.update", "reconcile"):
            for processes in counts:
                # If the handlers compute, the help of the server hardly matters.
                for is_helped in (False, True) if processes > 1 and not work else (False,):
                    variant = f"{operator}{' computing' * bool(work)} P={processes}{' helped' * is_helped}"
                    arguments = dict(operator=operator, work=work, processes=processes, is_helped=is_helped)
                    yield "members", variant, case_members, arguments, False
    yield "observed", "on.event", case_observed, dict(operator="event"), False
    yield "observed", "on.update", case_observed, dict(operator="update"), False
    yield "sync", f"N={scale['sync']}", case_create, dict(total=scale["sync"], options="sync"), False
    yield "webhook", "", case_webhook, {}, False
    yield "idle", "", case_idle, {}, True
