"""
The control plane with the objects, and its audit log.
"""

import collections
import datetime
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from clients import Client
from objects import API, GROUP, WRITERS, definition
from writers import clean_objects, connect, create_namespaces, create_objects

HERE = pathlib.Path(__file__).resolve().parent


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Cluster:
    def __init__(self, directory: str | pathlib.Path, port: int) -> None:
        self.directory = pathlib.Path(directory)
        # Sharded lists and watches are only for members that ask for them.
        arguments = "--audit-log-maxsize=16384 --feature-gates=ShardedListAndWatch=true"
        env = {**os.environ, "CLUSTER_PORT": str(port), "APISERVER_ARGS": arguments}
        subprocess.run(
            [HERE.parent / "tests/cluster/cluster", "up", directory],
            env=env,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        config = json.loads((self.directory / "kubeconfig").read_text())
        self.access = dict(
            base=config["clusters"][0]["cluster"]["server"],
            cafile=config["clusters"][0]["cluster"]["certificate-authority"],
            token="admin",
        )
        self.admin = Client(**self.access)
        self.pool = multiprocessing.Pool(WRITERS, initializer=connect, initargs=[self.access])

    def spread(self, function: Callable[..., Any], plural: str, numbers: Sequence[int], *args: Any) -> list[Any]:
        """Call the function in all writers at once, each with its own part of the objects."""
        parts = [(plural, numbers[i::WRITERS], *args) for i in range(WRITERS)]
        return self.pool.starmap(function, parts, chunksize=1)

    def ensure(self, plural: str) -> tuple[str, int]:
        """Make sure that the resource exists and is full: its name ends with the number of its objects."""
        total = int(re.findall(r"\d+$", plural)[0])
        if self.admin.request("GET", f"{CRDS}/{plural}.{GROUP}", fine=[404])[0] == 404:
            for number in range(WRITERS):
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"bench-{number}"}}
                self.admin.request("POST", "/api/v1/namespaces", namespace, fine=[409])
            self.admin.request("POST", CRDS, definition(plural))
            while self.admin.request("GET", f"{API}/{plural}?limit=1", fine=[404])[0] == 404:
                time.sleep(0.1)
            time.sleep(1)
        page = self.admin.get(f"{API}/{plural}?limit=1")
        if len(page["items"]) + page["metadata"].get("remainingItemCount", 0) < total:
            self.spread(create_objects, plural, range(total))
        return plural, total

    def ensure_spread(self, total: int) -> str:
        """Make sure that there are so many namespaces, with an object in each; return the resource."""
        plural = "spread1"
        self.ensure(plural)
        self.spread(create_namespaces, plural, range(total), f"spread-{total}")
        return plural

    def reset(self, plural: str) -> tuple[str, int, str]:
        """As ensure(), and undo what operators and writers changed; also return the resource version."""
        plural, total = self.ensure(plural)
        dirty = [
            int(item["metadata"]["name"][4:])
            for item in self.admin.get(f"{API}/{plural}")["items"]
            if any("kopf" in key for key in [*item["metadata"]["annotations"], *item.get("status", {})])
            or item["metadata"].get("finalizers")
            or item["spec"]["round"]
        ]
        self.spread(clean_objects, plural, dirty)
        return plural, total, self.admin.get(f"{API}/{plural}?limit=1")["metadata"]["resourceVersion"]

    def requests(self, offset: int, since: int, until: int) -> collections.Counter[str]:
        """Count the operator's API requests in a period, by verb and resource, from the audit log."""
        stamps = [datetime.datetime.fromtimestamp(t / 1e9, datetime.UTC).strftime("%FT%T.%fZ") for t in (since, until)]
        counts: collections.Counter[str] = collections.Counter()
        with open(self.directory / "audit.log", "rb") as file:
            file.seek(offset)
            for line in file:
                if b'"username":"operator"' in line:
                    entry = json.loads(line)
                    if stamps[0] <= entry["requestReceivedTimestamp"] <= stamps[1]:
                        counts[f"{entry['verb']} {entry.get('objectRef', {}).get('resource', '-')}"] += 1
        return counts

    def audit_size(self) -> int:
        path = self.directory / "audit.log"
        return path.stat().st_size if path.exists() else 0
