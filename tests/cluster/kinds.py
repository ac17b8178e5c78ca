"""Kinds and objects that tests need just to have some: without a schema unless there is one."""

from typing import Any

Object = dict[str, Any]

ANYTHING: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PARTS: Object = {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}
"""The schema of objects with any spec and any status, which must be objects."""


def define(
    plural: str,
    kind: str,
    *,
    group: str = "example.dev",
    schema: Object | None = None,
    short: str | None = None,
    subresources: Object | None = None,
    version: str = "v1",
) -> Object:
    """Return the definition of a namespaced kind in one version."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **({"shortNames": [short]} if short else {})},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema or ANYTHING},
                    **({"subresources": subresources} if subresources else {}),
                }
            ],
        },
    }


NOTES = define("notes", "Note", short="nt")


def note(name: str, **meta: Any) -> Object:
    return {"apiVersion": "example.dev/v1", "kind": "Note", "metadata": {"name": name, **meta}, "text": "a"}


def config(name: str, **meta: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}}
