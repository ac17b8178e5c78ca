"""
The permissions that the framework needs for the handlers: the source of generated roles, and of the reviews at start.

The rules of the handlers depend on their resources. A running operator has discovered these, but a command has no
cluster to ask. So each caller passes a function that selects the resources. The requests that handlers make with other
clients are unknown here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from kopf._cogs.structs.references import Resource, Selector
from kopf._core.intents.handlers import ResourceHandler

READ = ('get', 'list', 'watch')
CHILD = ('get', 'list', 'watch', 'create', 'patch', 'delete')

VERBS = ('get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection')
"""The verbs of the API, in their usual order in roles."""

Select = Callable[[Selector, str], Collection[Resource]]
"""A function that returns the resources of a selector; its second argument names the selector's place in messages."""


class Rule(NamedTuple):
    """A permission: the verbs for a resource."""

    group: str
    resource: str
    """The plural name, with the subresource after a slash."""
    verbs: tuple[str, ...]
    clusterwide: bool = False
    """Whether only a cluster role can grant the permission."""
    names: tuple[str, ...] = ()
    """The names of the objects to which the permission is restricted; empty for all objects."""

    def as_role_rule(self) -> dict[str, Any]:
        """Return the rule in the format of roles."""
        names = {'resourceNames': list(self.names)} if self.names else {}
        return {'apiGroups': [self.group], 'resources': [self.resource], **names, 'verbs': list(self.verbs)}


def list_general_rules(
    *,
    clusterwide: bool,
    elected: bool = False,
    sharded: bool = False,
    lease: str | None = None,
    peering: str | None = None,
    posting: bool = True,
    scanning: bool = True,
) -> Iterator[Rule]:
    """
    Yield the permissions that do not depend on the handlers.

    Args:
        clusterwide: whether the operator serves the whole cluster; otherwise, it watches the namespaces.
        elected: whether replicas elect a leader.
        sharded: whether members share the objects.
        lease: the name of the Lease of the leader, if it is known: the permissions are only for this one.
        peering: the name of the peering object, if the operator has one.
        posting: whether the operator posts Kubernetes Events.
        scanning: whether the operator notices new resources and namespaces.
    """
    if posting:
        yield Rule('', 'events', ('create', 'patch'))
    if scanning:
        yield Rule('apiextensions.k8s.io', 'customresourcedefinitions', ('list', 'watch'), clusterwide=True)
    if scanning and not clusterwide:
        yield Rule('', 'namespaces', ('list', 'watch'), clusterwide=True)
    if elected or sharded:
        verbs = ('get', 'list', 'watch', 'update')
        if elected and lease is not None and not sharded:
            yield Rule('coordination.k8s.io', 'leases', ('create',))  # new objects have no names for the authorization
            yield Rule('coordination.k8s.io', 'leases', verbs, names=(lease,))
        else:
            # Members delete the Leases of ended members, while replicas share one Lease.
            yield Rule('coordination.k8s.io', 'leases', ('create', *verbs, *(('delete',) if sharded else ())))
    if peering is not None:
        plural = 'clusterkopfpeerings' if clusterwide else 'kopfpeerings'
        yield Rule('kopf.dev', plural, ('list', 'watch'), clusterwide=clusterwide)
        yield Rule('kopf.dev', plural, ('patch',), clusterwide=clusterwide, names=(peering,))


def list_handler_rules(handler: ResourceHandler, select: Select) -> Iterator[Rule]:
    """Yield the permissions that the framework needs for the handler; some resources can occur repeatedly."""
    if handler.selector is None:
        return
    resources = select(handler.selector, f"{handler}")
    for name, verbs in handler.configures.items():
        yield from _list_configuration_rules(name, tuple(verbs), resources)
    for resource in resources if handler.watches else ():
        yield _make_rule(resource, (*READ, 'patch') if handler.may_patch else READ)
        if handler.may_patch and 'status' in resource.subresources:
            yield _make_rule(resource, ('patch',), subresource='status')
    for source in handler.sources:
        needed = CHILD if source.fn is None else READ
        for resource in select(source.selector, f"{handler}, in owns= or watches="):
            yield _make_rule(resource, needed)


def list_reference_rules(handler: ResourceHandler, select: Select) -> Iterator[Rule]:
    """
    Yield the permissions for the owner references of the children that the handler applies.

    These permissions are for generated roles only. Only the admission plugin OwnerReferencesPermissionEnforcement needs
    them, which is on by default in OpenShift. An operator cannot find out whether it is on, so it does not miss them.
    """
    if handler.selector is not None and any(source.fn is None for source in handler.sources):
        for resource in select(handler.selector, f"{handler}"):
            yield _make_rule(resource, ('update',), subresource='finalizers')


def _list_configuration_rules(name: str, verbs: tuple[str, ...], resources: Iterable[Resource]) -> Iterator[Rule]:
    plural, _, group = name.partition('.')
    if plural != 'customresourcedefinitions':
        yield Rule(group, plural, verbs, clusterwide=True)
        return
    for resource in resources:
        yield Rule(group, plural, verbs, clusterwide=True, names=(f'{resource.plural}.{resource.group}',))


def _make_rule(resource: Resource, verbs: tuple[str, ...], *, subresource: str = '') -> Rule:
    name = f'{resource.plural}/{subresource}' if subresource else resource.plural
    return Rule(resource.group, name, verbs, clusterwide=resource.namespaced is False)


def merge_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return one rule for each resource, in the order of their first rules."""
    merged: dict[tuple[str, str, tuple[str, ...]], Rule] = {}
    for rule in rules:
        key = rule.group, rule.resource, rule.names
        known = merged.get(key)
        verbs = {*rule.verbs, *(known.verbs if known else ())}
        merged[key] = rule._replace(
            verbs=tuple(verb for verb in VERBS if verb in verbs),
            clusterwide=rule.clusterwide or (known is not None and known.clusterwide),
        )
    return list(merged.values())
