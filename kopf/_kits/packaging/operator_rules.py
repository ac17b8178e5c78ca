"""
The permissions that an operator needs for its handlers: `list_rules`.

Handlers name resources in many ways, but roles need API groups and plural names. The command works without a cluster,
so it finds these names in the built-in resources of Kubernetes, the declared kinds, and the given CRDs.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.references import Resource, Selector
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.intents.role_rules import (
    Rule,
    list_general_rules,
    list_handler_rules,
    list_reference_rules,
    merge_rules,
)
from kopf._kits.definitions.crd_conversions import list_resources


class UnknownResourceError(ExplainedError):
    """Raised when a handler names a resource that is neither built into Kubernetes nor defined by a CRD."""


def list_rules(
    registry: OperatorRegistry,
    crds: Collection[Mapping[str, Any]] = (),
    *,
    clusterwide: bool = True,
    elected: bool = False,
    sharded: bool = False,
    lease: str | None = None,
    peering: str | None = None,
    scanning: bool = True,
) -> list[Rule]:
    """
    Return the permissions that the framework needs for the handlers, without those for the handlers' own requests.

    Args:
        registry: the handlers.
        crds: the CRDs of the resources that are not built in, including the CRDs of declared kinds.
        clusterwide: whether the operator serves the whole cluster, instead of some namespaces.
        elected: whether replicas elect a leader.
        sharded: whether replicas share the objects.
        lease: the name of the Lease of the leader.
        peering: the name of the peering object, if the operator has one.
        scanning: whether the operator notices new resources and namespaces.

    Raises:
        UnknownResourceError: if a handler names a resource that is not known.
    """
    known = [*_list_builtins(), *list_resources(crds)]

    def select(selector: Selector, where: str) -> Collection[Resource]:
        return _select(selector, known, where)

    rules = list(
        list_general_rules(
            clusterwide=clusterwide,
            elected=elected,
            sharded=sharded,
            lease=lease,
            peering=peering,
            scanning=scanning,
        )
    )
    for handler in registry.iter_resource_handlers():
        rules += list_handler_rules(handler, select)
        rules += list_reference_rules(handler, select)
    return merge_rules(rules)


def _select(selector: Selector, known: Collection[Resource], where: str) -> Collection[Resource]:
    found = selector.select(known)
    if not found and selector.is_specific:
        # A group and a plural name are all that a role needs.
        if selector.group is not None and (plural := selector.plural or selector.any_name):
            return [Resource(selector.group, selector.version or 'v1', str(plural), subresources=frozenset({'status'}))]
        raise UnknownResourceError(
            f"{where}: the API group of the resource is not known: {selector!r}. Name the group, as in "
            f"('example.com', 'webapps'), or give the CRD by --crd, or declare the kind as a class."
        )
    if not selector.is_specific and selector.any_name is not None:
        raise UnknownResourceError(
            f"{where}: kopf.EVERYTHING would need all permissions. Name the resources, or write the role by hand."
        )
    # Roles have no versions.
    return sorted(
        {(each.group, each.plural): each for each in found}.values(), key=lambda each: (each.group, each.plural)
    )


def _list_builtins() -> Iterator[Resource]:
    # The sandbox has the list of built-in kinds. It is imported here, because only commands need it.
    from kopf._kits.testing.kinds.kinds import builtin_kinds

    for kind in builtin_kinds(lambda group, plural: None):
        yield kind.as_resource()
