"""
Roles of what operators have really requested: for ``pytest --kopf-rbac=role.yaml``.

Sandboxes remember the requests that come over the network: from operators, with all of their clients. What tests
request through the sandbox itself does not come over the network, so it is not included.
"""

import pathlib
from collections.abc import Iterable
from typing import Any, Protocol

from kopf._core.intents.role_rules import VERBS

_OPEN = frozenset({'selfsubjectaccessreviews', 'selfsubjectrulesreviews', 'selfsubjectreviews'})
"""The resources that every user may create."""

_READING = ('list', 'watch')

Needed = tuple[str, str, str]
"""An API group, a resource with its subresource, and a verb."""


class Request(Protocol):
    """A request that a sandbox has seen."""

    group: str
    resource: str
    subresource: str
    verb: str
    status: int


def find_needed(requests: Iterable[Request]) -> set[Needed]:
    """Return what these requests need; the discovery needs nothing."""
    needed: set[Needed] = set()
    for request in requests:
        if not request.resource or request.resource in _OPEN:
            continue
        resource = f'{request.resource}/{request.subresource}' if request.subresource else request.resource
        needed.add((request.group, resource, request.verb))
        # Reading begins with a list or with a watch that lists, depending on the server and on what was before.
        if request.verb in _READING:
            needed |= {(request.group, resource, verb) for verb in _READING}
        # A server-side apply that creates the object needs this permission, too.
        if request.verb == 'patch' and request.status == 201:
            needed.add((request.group, resource, 'create'))
    return needed


def make_role(needed: Iterable[Needed], name: str) -> dict[str, Any]:
    """Return a cluster role of what is needed; the same requests give the same role."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for group, resource, verb in needed:
        verbs.setdefault((group, resource), set()).add(verb)
    # Resources of one group with the same verbs share a rule, as people write roles.
    rules: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), found in sorted(verbs.items()):
        ordered = tuple(sorted(found, key=lambda verb: (VERBS.index(verb) if verb in VERBS else len(VERBS), verb)))
        rules.setdefault((group, ordered), []).append(resource)
    return {
        'apiVersion': 'rbac.authorization.k8s.io/v1',
        'kind': 'ClusterRole',
        'metadata': {'name': name},
        'rules': [
            {'apiGroups': [group], 'resources': resources, 'verbs': list(ordered)}
            for (group, ordered), resources in rules.items()
        ],
    }


def write_role(path: pathlib.Path, needed: Iterable[Needed]) -> None:
    """
    Write the role into the file; its name is that of the file.

    Raises:
        OSError: if the file cannot be written.
    """
    from kopf._kits.definitions.crd_commands import dump_yaml

    head = "# The role that the tests have really needed, made by `pytest --kopf-rbac`.\n"
    path.write_text(head + dump_yaml([make_role(needed, path.stem)]))
