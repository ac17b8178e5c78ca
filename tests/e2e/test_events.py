"""Kubernetes Events that happen again: one object with a count, for the readers of both APIs and in `kubectl`."""

import os
import re
import shutil
import subprocess

from kubeapi import wait

ERROR = "the database is down"
HANDLERS = f"""
import kopf

@kopf.on.create('kopfexamples')
def create_fn(retry, **_):
    if retry < 5:
        raise kopf.TemporaryError("{ERROR}", delay=0.2)
"""


def test_an_error_that_is_repeated_is_one_event_with_a_count(cluster, kubeapi, namespace, run_operator, tmp_path):
    path = tmp_path / "handlers.py"
    path.write_text(HANDLERS)
    run_operator("--standalone", path)
    kubeapi.apply({"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": {"name": "obj"}}, namespace)

    def find(group, text):
        found = kubeapi.request("GET", f"{group}/namespaces/{namespace}/events")["items"]
        return [each for each in found if ERROR in each[text]]

    wait(lambda: [each.get("count") for each in find("/api/v1", "message")] == [5], "the count of the event")
    (core,), (newer,) = find("/api/v1", "message"), find("/apis/events.k8s.io/v1", "note")
    assert core["series"] == newer["series"] and newer["series"]["count"] == newer["deprecatedCount"] == 5
    assert newer["eventTime"] < newer["series"]["lastObservedTime"]
    if shutil.which("kubectl") is not None:
        command = ["kubectl", "-n", namespace, "describe", "kopfexample", "obj"]
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment).stdout
        assert re.search(rf"\(x5 over .*{ERROR}", shown), shown
