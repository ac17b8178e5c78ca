"""
The permissions of an operator, as its handlers need them: `list_rules`.

The handlers name resources in many ways, and roles need API groups and plural names. There is no cluster to ask, so the
resources are those that clusters have by themselves, those of declared kinds, and those of given CRDs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.references import Resource, Selector
from kopf._core.intents.handlers import ReconcilingHandler, ResourceHandler
from kopf._core.intents.registries import OperatorRegistry

READ = ('get', 'list', 'watch')
CHILD = ('get', 'list', 'watch', 'create', 'patch', 'delete')

VERBS = ('get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection')
"""The verbs of the API, in the order in which roles list them."""


class UnknownResourceError(ExplainedError):
    """A handler names a resource that no cluster has by itself, and no CRD defines."""


class Rule(NamedTuple):
    """A permission: what may be done with a resource."""

    group: str
    resource: str
    """The plural name, with the subresource after a slash."""
    verbs: tuple[str, ...]
    clusterwide: bool = False
    """Whether it can only be granted for the whole cluster."""
    names: tuple[str, ...] = ()
    """The names of the only objects that it is for; empty for all."""

    def as_role_rule(self) -> dict[str, Any]:
        """Return the rule as roles have it."""
        names = {'resourceNames': list(self.names)} if self.names else {}
        return {'apiGroups': [self.group], 'resources': [self.resource], **names, 'verbs': list(self.verbs)}


def list_rules(
    registry: OperatorRegistry,
    crds: Collection[Mapping[str, Any]] = (),
    *,
    clusterwide: bool = True,
    elected: bool = False,
) -> list[Rule]:
    """
    Return the permissions that the framework needs for the handlers, without what the handlers do themselves.

    Args:
        registry: the handlers.
        crds: the CRDs of the resources that are not known by themselves; those of declared kinds are included.
        clusterwide: whether the operator serves the whole cluster, so that it notices new namespaces.
        elected: whether replicas elect a leader.

    Raises:
        UnknownResourceError: if a handler names a resource that is not known.
    """
    known = [*_list_builtins(), *_list_resources(crds)]
    rules = [Rule('', 'events', ('create', 'patch'))]
    rules.append(Rule('apiextensions.k8s.io', 'customresourcedefinitions', ('list', 'watch'), clusterwide=True))
    if clusterwide:
        rules.append(Rule('', 'namespaces', ('list', 'watch'), clusterwide=True))
    if elected:
        rules.append(Rule('coordination.k8s.io', 'leases', ('get', 'list', 'watch', 'create', 'update')))
    for handler in registry.iter_resource_handlers():
        rules += _list_rules_of(handler, known)
    return _merge(rules)


def _list_rules_of(handler: ResourceHandler, known: Collection[Resource]) -> Iterator[Rule]:
    if handler.selector is None:
        return
    resources = _select(handler.selector, known, f"{handler}")
    if handler.slot == 'webhooks':
        for kind in ('validating', 'mutating'):
            yield Rule(
                'admissionregistration.k8s.io', f'{kind}webhookconfigurations', ('create', 'patch'), clusterwide=True
            )
        return
    for resource in resources:
        cluster = resource.namespaced is False
        if handler.slot == 'conversions':
            name = f'{resource.plural}.{resource.group}'
            yield Rule(
                'apiextensions.k8s.io', 'customresourcedefinitions', ('get', 'patch'), clusterwide=True, names=(name,)
            )
            continue
        writes = handler.modifies or isinstance(handler, ReconcilingHandler)
        verbs = (*READ, 'patch') if writes else READ
        yield Rule(resource.group, resource.plural, verbs, clusterwide=cluster)
        if writes and 'status' in resource.subresources:
            yield Rule(resource.group, f'{resource.plural}/status', ('patch',), clusterwide=cluster)
    for source in handler.sources:
        needed = CHILD if source.fn is None else READ
        for resource in _select(source.selector, known, f"{handler}, in owns= or watches="):
            cluster = resource.namespaced is False
            yield Rule(resource.group, resource.plural, needed, clusterwide=cluster)


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
    # The versions do not matter for roles.
    return sorted(
        {(each.group, each.plural): each for each in found}.values(), key=lambda each: (each.group, each.plural)
    )


def _merge(rules: Iterable[Rule]) -> list[Rule]:
    """Return one rule for each resource, in a fixed order: those of the framework first."""
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


def _list_builtins() -> Iterator[Resource]:
    # The sandbox has the list of the kinds of clusters. It is needed only by commands, so it is imported here.
    from kopf._kits.testing.kinds.kinds import builtin_kinds

    for kind in builtin_kinds(lambda group, plural: None):
        yield kind.as_resource()


def _list_resources(crds: Iterable[Mapping[str, Any]]) -> Iterator[Resource]:
    for crd in crds:
        spec, names = crd['spec'], crd['spec']['names']
        for version in spec['versions']:
            yield Resource(
                spec['group'],
                version['name'],
                names['plural'],
                kind=names['kind'],
                singular=names.get('singular') or names['kind'].lower(),
                shortcuts=frozenset(names.get('shortNames') or ()),
                categories=frozenset(names.get('categories') or ()),
                subresources=frozenset(version.get('subresources') or ()),
                namespaced=spec.get('scope') != 'Cluster',
            )
