"""
The kind and the objects that the operators handle.
"""

from typing import Any

GROUP = "bench.kopf.dev"


API = f"/apis/{GROUP}/v1"


WRITERS = 4


def definition(plural: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.title()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def body(plural: str, number: int) -> dict[str, Any]:
    """An object of about 1.5 KB together with what the server adds."""
    name = f"obj-{number:05}"
    env = [{"name": f"SETTING_{i}", "value": f"value-{number}-{i}"} for i in range(3)]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": plural.title(),
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "bench",
                "app.kubernetes.io/instance": name,
                "app.kubernetes.io/managed-by": "bench",
                "team": f"team-{number % 7}",
            },
            "annotations": {
                "example.com/owner": f"owner-{number}@example.com",
                "example.com/revision": f"{number:040x}",
            },
        },
        "spec": {
            "round": 0,
            "replicas": number % 5,
            "image": f"registry.example.com/team/app:{number}",
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "env": env,
            "schedule": "*/5 * * * *",
            "suspend": False,
        },
    }


def path(plural: str, number: int) -> str:
    return f"{API}/namespaces/bench-{number % WRITERS}/{plural}/obj-{number:05}"
