"""
The OpenAPI schemas of built-in kinds, recorded from a real control plane by ``scripts/record_openapi.py``.

The recording of each version of Kubernetes is one packed file, without descriptions. It is loaded for the first write
or explanation of a built-in kind. Why not at the start? It takes some milliseconds, and many tests use only custom
resources.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.data import FOLDER, unpack

Schema = Mapping[str, Any]

PREFIX = '#/components/schemas/'


class Recording:
    """The schemas of one version of Kubernetes by their names in OpenAPI."""

    def __init__(self, name: str) -> None:
        content = unpack(name)
        self.schemas: Mapping[str, Schema] = content['schemas']
        self.go: Mapping[str, Mapping[str, tuple[str, str, str]]] = content['go']
        """The Go type, the path, and the Go structure of each field whose type does not follow from the schema."""
        self.kept: Mapping[str, list[str]] = content['kept']
        """The fields that a server keeps even if they are empty, by schema. Not all schemas were recorded."""
        self._names: dict[tuple[str, str, str], str] = {}
        for name, schema in self.schemas.items():
            for gvk in schema.get('x-kubernetes-group-version-kind', ()):
                self._names.setdefault((gvk['group'], gvk['version'], gvk['kind']), name)
        self._versions = {(group, version) for group, version, _ in self._names}

    def name_of(self, group: str, version: str, kind: str) -> str | None:
        """Return the name of the schema of a kind; None if there is none."""
        return self._names.get((group, version, kind))

    def has_version(self, group: str, version: str) -> bool:
        """Check whether the group has any kind in this version."""
        return (group, version) in self._versions

    def reachable(self, name: str, found: dict[str, Schema]) -> None:
        """Add the schema and all schemas that it refers to to ``found``."""
        if name not in found:
            found[name] = schema = self.schemas[name]
            for other in _references(schema):
                self.reachable(other, found)


@functools.cache
def newest() -> Recording:
    """Return the recording of the newest version of Kubernetes."""
    names = (path.name for path in FOLDER.glob('kubernetes-*.json.gz'))
    # Compare numbers: as texts, 1.9 would be newer than 1.36.
    return Recording(max(names, key=lambda name: [int(number) for number in re.findall(r'\d+', name)]))


def target_of(schema: Schema) -> str | None:
    """Return the name of the schema that this one refers to; None if it is not a reference."""
    reference = schema.get('$ref')
    if reference is None and len(parts := schema.get('allOf') or []) == 1:
        reference = parts[0].get('$ref')
    return None if reference is None else str(reference).removeprefix(PREFIX)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, Mapping):
        if isinstance(reference := schema.get('$ref'), str):
            yield reference.removeprefix(PREFIX)
        for item in schema.values():
            yield from _references(item)
