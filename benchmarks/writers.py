"""
The writers: each in a process of its own, with a connection of its own.
"""

import json
import signal
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

from clients import Client
from objects import API, body, path

writer: Client
"""The connection of this process; `connect` makes it."""


def connect(access: dict[str, str]) -> None:
    global writer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer = Client(**access)


def patch(plural: str, number: int, change: Any) -> tuple[int, bytes]:
    return writer.request("PATCH", path(plural, number), change, "application/merge-patch+json")


def create_objects(plural: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        writer.request("POST", path(plural, number).rpartition("/")[0], body(plural, number), fine=[409])


def create_namespaces(plural: str, numbers: Sequence[int], prefix: str) -> None:
    for number in numbers:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{prefix}-{number:04}"}}
        writer.request("POST", "/api/v1/namespaces", namespace, fine=[409])
        target = f"{API}/namespaces/{prefix}-{number:04}/{plural}"
        writer.request("POST", target, body(plural, number), fine=[409])


def label_namespaces(plural: str, numbers: Sequence[int], prefix: str, value: int) -> None:
    for number in numbers:
        writer.request(
            "PATCH",
            f"/api/v1/namespaces/{prefix}-{number:04}",
            {"metadata": {"labels": {"bench": str(value)}}},
            "application/merge-patch+json",
        )


def clean_objects(plural: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        annotations = json.loads(writer.request("GET", path(plural, number))[1])["metadata"]["annotations"]
        patch(
            plural,
            number,
            {
                "spec": {"round": 0},
                "metadata": {"finalizers": None, "annotations": {key: None for key in annotations if "kopf" in key}},
            },
        )


def churn_objects(plural: str, numbers: Sequence[int], seconds: float) -> int:
    """Change the objects as fast as possible, then mark each as final; return how many changes were made."""
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
        for number in numbers:
            patch(plural, number, {"spec": {"round": rounds}})
    for number in numbers:
        patch(plural, number, {"spec": {"round": -1}})
    return (rounds + 1) * len(numbers)


def finish_objects(plural: str, numbers: Sequence[int], mark: int = -1) -> None:
    """Mark each object as final: it is its only change with this mark."""
    for number in numbers:
        patch(plural, number, {"spec": {"round": mark}})


def child_path(plural: str, number: int, child: int) -> str:
    namespace = path(plural, number).partition("/namespaces/")[2].partition("/")[0]
    return f"/api/v1/namespaces/{namespace}/configmaps/obj-{number:05}-{child}"


def delete_children(plural: str, numbers: Sequence[int], count: int) -> None:
    """Delete the first children of each object."""
    for number in numbers:
        for child in range(count):
            writer.request("DELETE", child_path(plural, number, child), fine=[404])


def await_children(plural: str, numbers: Sequence[int]) -> None:
    """Wait until each object has its first child."""
    for number in numbers:
        while writer.request("GET", child_path(plural, number, 0), fine=[404])[0] == 404:
            time.sleep(0.01)


def post_reviews(url: str, cafile: str, data: bytes, seconds: float) -> list[float]:
    """Post the same admission review over one connection; return the latencies."""
    client, target = Client(url, cafile), urllib.parse.urlsplit(url).path
    latencies: list[float] = []
    answer = b"{}"
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        _, answer = client.request("POST", target, data)
        latencies.append(time.perf_counter() - begin)
    assert json.loads(answer)["response"]["allowed"] is True
    return latencies
