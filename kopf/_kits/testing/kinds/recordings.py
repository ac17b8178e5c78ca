"""
What a real control plane says of its built-in kinds: their OpenAPI schemas, recorded by ``scripts/record_openapi.py``.

The recording of each version of Kubernetes is one packed file, without descriptions. It is read when a built-in kind
is first written or explained, which takes some milliseconds; who uses custom resources only never pays for it.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.data import FOLDER, unpack

Schema = Mapping[str, Any]

PREFIX = '#/components/schemas/'


class Recording:
    """The schemas of one version of Kubernetes by their names, as OpenAPI calls them."""

    def __init__(self, name: str) -> None:
        content = unpack(name)
        self.schemas: Mapping[str, Schema] = content['schemas']
        #: Of fields of schemas: what Go calls the type, how it gets there, and the structure; where it is not obvious.
        self.go: Mapping[str, Mapping[str, tuple[str, str, str]]] = content['go']
        #: The fields of schemas that are kept even if they are empty; nothing is known of schemas that are not here.
        self.kept: Mapping[str, list[str]] = content['kept']
        self._names: dict[tuple[str, str, str], str] = {}
        for name, schema in self.schemas.items():
            for gvk in schema.get('x-kubernetes-group-version-kind', ()):
                self._names.setdefault((gvk['group'], gvk['version'], gvk['kind']), name)
        self._versions = {(group, version) for group, version, _ in self._names}

    def name_of(self, group: str, version: str, kind: str) -> str | None:
        """What the schema of a kind is called; None if there is none."""
        return self._names.get((group, version, kind))

    def has_version(self, group: str, version: str) -> bool:
        """Whether there is any kind in this version of the group."""
        return (group, version) in self._versions

    def reachable(self, name: str, found: dict[str, Schema]) -> None:
        """Add to ``found`` the schema and all those that it refers to."""
        if name not in found:
            found[name] = schema = self.schemas[name]
            for other in _references(schema):
                self.reachable(other, found)


@functools.cache
def newest() -> Recording:
    """The recording of the newest version of Kubernetes."""
    names = (path.name for path in FOLDER.glob('kubernetes-*.json.gz'))
    return Recording(max(names, key=lambda name: [int(number) for number in re.findall(r'\d+', name)]))


def target_of(schema: Schema) -> str | None:
    """The name of the schema that this one refers to, alone or with some additions; None if it is one by itself."""
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
