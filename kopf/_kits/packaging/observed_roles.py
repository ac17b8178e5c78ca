"""
Roles with exactly the permissions that operators have used in tests: for ``pytest --kopf-rbac=role.yaml``.

Sandboxes record all requests that come over the network: from operators, and from the clients of their handlers. Tests
call the methods of the sandbox directly, so their own requests are not included.
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
    """Return the permissions that these requests need; discovery requests need none."""
    needed: set[Needed] = set()
    for request in requests:
        if not request.resource or request.resource in _OPEN:
            continue
        resource = f'{request.resource}/{request.subresource}' if request.subresource else request.resource
        needed.add((request.group, resource, request.verb))
        # Grant list and watch together: it depends on the server whether an operator lists or only watches.
        if request.verb in _READING:
            needed |= {(request.group, resource, verb) for verb in _READING}
        # A server-side apply that creates the object needs this permission, too.
        if request.verb == 'patch' and request.status == 201:
            needed.add((request.group, resource, 'create'))
    return needed


def make_role(needed: Iterable[Needed], name: str) -> dict[str, Any]:
    """Return a cluster role with these permissions; the result is equal for equal permissions."""
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
    from kopf._kits.yaml_texts import dump_yaml

    head = "# The permissions that the tests have used; made by `pytest --kopf-rbac`.\n"
    path.write_text(head + dump_yaml([make_role(needed, path.stem)]))
