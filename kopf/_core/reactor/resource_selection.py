"""
Selecting the resources to serve: the selectors of the handlers are resolved to the discovered resources.

They are resolved at the start, and whenever a CRD changes. Missing resources are logged once, and are served as soon
as they appear.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from kopf._cogs.configs.selector_mappings import SelectorMapping
from kopf._cogs.structs.references import Resource, Selector, is_for_coordination
from kopf._core.intents.handlers import ConversionHandler, ReconcilingHandler, WebhookHandler
from kopf._core.intents.registries import HandlerTable, OperatorRegistry

logger = logging.getLogger(__name__)

CONFIRMATION_TIME = 1.0
"""How long a resource without a CRD must be missing in the discovery until it counts as removed (in seconds)."""

Versions = dict[str, frozenset[str]]
"""The served versions of a resource, with their subresources."""


class ResourceProblems(NamedTuple):
    """The selectors and resources that cannot be served. They are logged once, and again when they change."""

    unresolved: frozenset[Selector] = frozenset()
    ambiguous: Mapping[Selector, frozenset[Resource]] = MappingProxyType({})
    unwatchable: frozenset[Resource] = frozenset()
    unpatchable: frozenset[Resource] = frozenset()
    failed_groups: frozenset[str] = frozenset()
    unselected: frozenset[Resource] = frozenset()
    """The resources whose handlers have different label selectors."""
    similar: Mapping[Selector, str] = MappingProxyType({})
    """The closest existing names, suggested for unresolved selectors."""

    def with_failed_groups(
        self, failed: Collection[str], hidden: Collection[Resource], selectors: Iterable[Selector]
    ) -> 'ResourceProblems':
        """Return these problems with the undiscovered groups that can be the reason why resources are missing."""
        # Those that select several resources can lack some, although they have found others.
        missing = {selector.group for selector in selectors if selector in self.unresolved or not selector.is_specific}
        wanted = {group for group in failed if missing & {group, None}} | {resource.group for resource in hidden}
        return self._replace(failed_groups=frozenset(wanted))

    def with_selectors(self, selectors: SelectorMapping[str]) -> 'ResourceProblems':
        """Return these problems without the resources whose objects the server selects by the settings."""
        unselected = (resource for resource in self.unselected if not selectors.collect(resource))
        return self._replace(unselected=frozenset(unselected))

    def log(self, previous: 'ResourceProblems') -> None:
        """Log what has changed since the previous problems."""
        if self.unresolved and self.unresolved != previous.unresolved:
            logger.warning(
                "Unresolved resources cannot be served (try creating their CRDs): %s%s",
                ', '.join(sorted(map(repr, self.unresolved))),
                ''.join(f". Did you mean {name!r}?" for name in sorted({*self.similar.values()})),
            )
        if self.failed_groups and self.failed_groups != previous.failed_groups:
            logger.warning(
                "These API groups cannot be discovered now; the operator retries until they can be discovered: %s",
                ', '.join(sorted(repr(group) for group in self.failed_groups)),
            )
        for selector, resources in self.ambiguous.items():
            if previous.ambiguous.get(selector) != resources:
                logger.warning(
                    "Ambiguous resources will not be served (try specifying API groups): %r => {%s}",
                    selector,
                    _names(resources),
                )
        if self.unwatchable and self.unwatchable != previous.unwatchable:
            logger.warning("Non-watchable resources will not be served: {%s}", _names(self.unwatchable))
        if self.unpatchable and self.unpatchable != previous.unpatchable:
            logger.warning("Non-patchable resources will not be served: {%s}", _names(self.unpatchable))
        if self.unselected and self.unselected != previous.unselected:
            logger.warning(
                "The handlers of {%s} do not have the same label_selector=, so all the objects are watched, "
                "and each handler is called for those that it selects. To let the server select the "
                "objects, use the same selector in all of them. owns= and watches= have no selector: if they name one "
                "of these resources, set %s instead.",
                _names(self.unselected),
                ', '.join(
                    f"settings.watching.label_selectors[{name!r}]"
                    for name in sorted({resource.plural for resource in self.unselected})
                ),
            )


def resolve_tables(
    registry: OperatorRegistry,
    resources: Collection[Resource],
) -> tuple[dict[Resource, HandlerTable], ResourceProblems]:
    """Return the handler tables of the resources to be served, and the problems of the others."""
    chosen, problems = _resolve_selectors(registry.iter_selectors(), resources)
    served: dict[Resource, set[Selector]] = {}
    for selector, found in chosen.items():
        for resource in sorted(found, key=lambda resource: (resource.group, resource.version, resource.plural)):
            served.setdefault(resource, set()).add(selector)

    patching = set(registry.iter_selectors(patched=True))
    unwatchable = {resource for resource in served if not {'list', 'watch'} <= resource.verbs}
    unpatchable = {
        resource for resource, selectors in served.items() if selectors & patching and 'patch' not in resource.verbs
    }
    tables = {
        resource: HandlerTable.build(registry, resource, selectors)
        for resource, selectors in served.items()
        if resource not in unwatchable | unpatchable
    }
    managed = {(resource.group, resource.plural) for resource, table in tables.items() if table.managing}
    reconciled = {
        (resource.group, resource.plural) for resource, table in tables.items() if table.of(ReconcilingHandler)
    }
    for resource, table in tables.items():
        # The same objects are served in another version, and its handlers decide on the finalizers.
        key = resource.group, resource.plural
        tables[resource] = table._replace(
            releasing=table.releasing and key not in managed,
            is_reconciled_elsewhere=key in reconciled and not table.of(ReconcilingHandler),
        )
    return tables, problems._replace(
        unwatchable=frozenset(unwatchable),
        unpatchable=frozenset(unpatchable),
        unselected=frozenset(resource for resource, table in tables.items() if table.has_different_selectors),
    )


def resolve_webhooks(
    registry: OperatorRegistry,
    resources: Collection[Resource],
) -> tuple[dict[WebhookHandler, frozenset[Resource]], dict[ConversionHandler, frozenset[Resource]], ResourceProblems]:
    """
    Return the resources of admission handlers and of conversion handlers, and the problems of the others.

    Admission handlers that name no resource, such as those of `kopf.EVERYTHING`, are not for Leases and peerings.
    Otherwise, an operator whose handlers wait for its indices could not write its own record, for which the indices
    wait. And the webhooks of a killed operator would block the Leases of its successor and of all nodes.
    """
    chosen, problems = _resolve_selectors(registry.iter_selectors(watched=False), resources)
    webhooks = {
        handler: _select_reviewed(handler.selector, chosen.get(handler.selector, frozenset()))
        for handler in registry.webhooks
        if handler.selector is not None
    }
    conversions = {
        handler: chosen.get(handler.selector, frozenset())
        for handler in registry.conversions
        if handler.selector is not None
    }
    return webhooks, conversions, problems


def _select_reviewed(selector: Selector, chosen: frozenset[Resource]) -> frozenset[Resource]:
    if selector.is_specific:
        return chosen
    return frozenset(resource for resource in chosen if not is_for_coordination(resource))


def _resolve_selectors(
    selectors: Iterable[Selector],
    resources: Collection[Resource],
) -> tuple[dict[Selector, frozenset[Resource]], ResourceProblems]:
    found = {selector: selector.select(resources) for selector in dict.fromkeys(selectors)}
    ambiguous = {
        selector: chosen
        for selector, chosen in found.items()
        # Selectors such as `kopf.EVERYTHING` match several groups on purpose. If a name matches several groups, none is
        # served, because it would be worse to serve the wrong resource.
        if selector.is_specific and len({resource.group for resource in chosen}) > 1
    }
    served = {selector: chosen for selector, chosen in found.items() if chosen and selector not in ambiguous}
    unresolved = frozenset(selector for selector, chosen in found.items() if not chosen)
    similar = {selector: name for selector in unresolved if (name := _find_similar(selector, resources)) is not None}
    return served, ResourceProblems(unresolved=unresolved, ambiguous=ambiguous, similar=similar)


def _find_similar(selector: Selector, resources: Collection[Resource]) -> str | None:
    import difflib  # imported only if needed: most operators have no misspelt names

    wanted = next(
        (
            name
            for name in (selector.any_name, selector.plural, selector.singular, selector.kind)
            if isinstance(name, str)
        ),
        '',
    )
    for resource in resources:
        if wanted and wanted in (resource.plural, resource.singular, resource.kind):  # of another group or version
            return '.'.join(filter(None, [resource.plural, resource.version, resource.group]))
    names = {
        name.lower(): name
        for resource in resources
        for name in (resource.singular, resource.kind, resource.plural)
        if name and selector.group in (None, resource.group)
    }
    found = difflib.get_close_matches(wanted.lower(), names, n=1, cutoff=0.8)
    return names[found[0]] if found else None


class SchemaCheck(Protocol):
    """A check of the schemas in CRDs, for handlers that depend on them."""

    def note(self, name: str, raw: Mapping[str, Any]) -> None:
        """Check the newest state of the CRD; an empty mapping if it is deleted."""

    def report(self, tables: Mapping[Resource, HandlerTable]) -> None:
        """Warn once about mistakes in the schemas for the handlers of these resources."""


class Definitions:
    """
    The known CRDs, in order to check whether the discovery reflects them already.

    The API server updates its discovery some time after a CRD has changed, and does not report when that is done.
    """

    def __init__(self, checks: Iterable[SchemaCheck] = ()) -> None:
        self._checks = tuple(checks)
        self._versions: dict[tuple[str, str], Versions] = {}  # by group and plural

    def note(self, name: str, raw: Mapping[str, Any]) -> None:
        """Remember the newest state of the CRD; an empty mapping if it is deleted."""
        for check in self._checks:
            check.note(name, raw)
        plural, _, group = name.partition('.')
        try:
            established = any(
                condition['type'] == 'Established' and condition['status'] == 'True'
                for condition in raw['status']['conditions']
            )
            versions = {
                version['name']: frozenset(version.get('subresources') or ())
                for version in raw['spec']['versions']
                if version['served']
            }
        except (KeyError, TypeError):
            established, versions = not raw, {}
        if established:
            # Only established CRDs are expected in the discovery: the API server does not serve the others.
            self._versions[group, plural] = versions
        else:
            self._versions.pop((group, plural), None)  # not established, or malformed

    def is_served(self, resource: Resource) -> bool | None:
        """Check whether the CRD of the resource serves it in this version; ``None`` if no such CRD is known."""
        versions = self._versions.get((resource.group, resource.plural))
        return None if versions is None else resource.version in versions

    def compare(self, resources: Iterable[Resource], groups: Collection[str] | None) -> bool:
        """
        Return whether the discovered resources match the CRDs in these groups; in all groups if ``None``.

        A CRD without served versions is removed here when its resources are not discovered any more.
        """
        found: dict[tuple[str, str], Versions] = {}
        for resource in resources:
            found.setdefault((resource.group, resource.plural), {})[resource.version] = resource.subresources
        missing = [
            key
            for key, versions in self._versions.items()
            # Other groups are not discovered at all, so their CRDs would never match.
            if found.get(key, {}) != versions and (groups is None or key[0] in groups)
        ]
        for key in [key for key, versions in self._versions.items() if not versions and key not in missing]:
            del self._versions[key]
        return not missing


class Absences:
    """
    The resources that were discovered before, but are missing now; they are served until they are certainly removed.

    One of several API servers can lag behind the others, or just be starting, so that it does not list some resources.
    If the operator stopped serving these at once, it would stop their daemons. So, it checks their CRDs first.
    Resources without CRDs (of aggregated APIs) must be missing for some time.
    """

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._since: dict[Resource, float] = {}  # the time when they were found missing (by the monotonic clock)

    def __bool__(self) -> bool:
        return bool(self._since)

    def fill(self, found: Collection[Resource], known: Collection[Resource]) -> frozenset[Resource]:
        """
        Return the resources to serve: the found ones, and the missing ones that can still exist.

        If one version of a resource is missing, all its versions are returned as they were known before.
        """
        now, before = time.monotonic(), self._since
        missing = {resource: before.get(resource, now) for resource in set(known).difference(found)}
        self._since = {
            resource: since for resource, since in missing.items() if self._is_doubtful(resource, now - since)
        }
        if self._since.keys() - before.keys():
            logger.warning(
                "These resources are missing in the discovery now; they are served until it is certain that "
                "they are gone: %s",
                _names(self._since),
            )
        kept = {(resource.group, resource.plural) for resource in self._since}
        return frozenset(
            resource
            for resources, keeping in [(found, False), (known, True)]
            for resource in resources
            if ((resource.group, resource.plural) in kept) is keeping
        )

    def _is_doubtful(self, resource: Resource, seconds: float) -> bool:
        served = self._definitions.is_served(resource)
        return seconds < CONFIRMATION_TIME if served is None else served


def get_groups(registry: OperatorRegistry) -> set[str] | None:
    """Return the API groups that the handlers name; ``None`` (all groups) if some handlers name none."""
    groups = {selector.group for watched in (True, False) for selector in registry.iter_selectors(watched=watched)}
    return None if None in groups else {group for group in groups if group is not None}


def _names(resources: Iterable[Resource]) -> str:
    return ', '.join(sorted(map(repr, resources)))
