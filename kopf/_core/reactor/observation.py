"""
Which resources are served, and in which namespaces: what the handlers ask for, matched with what the cluster has.

It is found out at the start, and again whenever a CRD changes. Nothing is assumed about resources that are not there:
they are named once in the logs, and are served as soon as they appear.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kopf._cogs.structs.references import Resource, Selector
from kopf._core.intents.handlers import ConversionHandler, WebhookHandler
from kopf._core.intents.registries import HandlerTable, OperatorRegistry

logger = logging.getLogger(__name__)

CONFIRMATION_TIME = 1.0
"""For how long a resource without a CRD must be missing in the discovery before it is gone (in seconds)."""

Versions = dict[str, frozenset[str]]
"""The served versions of a resource, with their subresources."""


class Complaints(NamedTuple):
    """What can't be served as asked for; said once, and again only if it changes."""

    unresolved: frozenset[Selector] = frozenset()
    ambiguous: Mapping[Selector, frozenset[Resource]] = MappingProxyType({})
    unwatchable: frozenset[Resource] = frozenset()
    unpatchable: frozenset[Resource] = frozenset()
    failed_groups: frozenset[str] = frozenset()
    unselected: frozenset[Resource] = frozenset()
    """Those whose handlers have different label selectors."""
    similar: Mapping[Selector, str] = MappingProxyType({})
    """What there is instead of what is unresolved, if its name is nearly the same."""

    def about_groups(self, failed: Collection[str], hidden: Collection[Resource]) -> 'Complaints':
        """Give the same, and the groups that are down: those where something is missing because of that."""
        missing = {selector.group for selector in self.unresolved}
        wanted = {group for group in failed if missing & {group, None}} | {resource.group for resource in hidden}
        return self._replace(failed_groups=frozenset(wanted))

    def log(self, previous: 'Complaints') -> None:
        if self.unresolved and self.unresolved != previous.unresolved:
            logger.warning(
                "Unresolved resources cannot be served (try creating their CRDs): %s%s",
                ', '.join(sorted(map(repr, self.unresolved))),
                ''.join(f". Did you mean {name!r}?" for name in sorted({*self.similar.values()})),
            )
        if self.failed_groups and self.failed_groups != previous.failed_groups:
            logger.warning(
                "These API groups cannot be discovered now, and are looked at again until they can be: %s",
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
                "objects, use the same selector in all of them.",
                _names(self.unselected),
            )


def resolve_tables(
    registry: OperatorRegistry,
    resources: Collection[Resource],
) -> tuple[dict[Resource, HandlerTable], Complaints]:
    """Give the handlers of each resource to be served, and what can't be."""
    chosen, complaints = _resolve_selectors(registry.iter_selectors(), resources)
    served: dict[Resource, set[Selector]] = {}
    for selector, found in chosen.items():
        for resource in found:
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
    return tables, complaints._replace(
        unwatchable=frozenset(unwatchable),
        unpatchable=frozenset(unpatchable),
        unselected=frozenset(resource for resource, table in tables.items() if table.has_different_selectors),
    )


def resolve_webhooks(
    registry: OperatorRegistry,
    resources: Collection[Resource],
) -> tuple[dict[WebhookHandler, frozenset[Resource]], dict[ConversionHandler, frozenset[Resource]], Complaints]:
    """Give the resources of admission handlers, those of conversions, and what can't be served. None is watched."""
    chosen, complaints = _resolve_selectors(registry.iter_selectors(watched=False), resources)
    webhooks = {
        handler: chosen.get(handler.selector, frozenset())
        for handler in registry.webhooks
        if handler.selector is not None
    }
    conversions = {
        handler: chosen.get(handler.selector, frozenset())
        for handler in registry.conversions
        if handler.selector is not None
    }
    return webhooks, conversions, complaints


def _resolve_selectors(
    selectors: Iterable[Selector],
    resources: Collection[Resource],
) -> tuple[dict[Selector, frozenset[Resource]], Complaints]:
    found = {selector: selector.select(resources) for selector in dict.fromkeys(selectors)}
    ambiguous = {
        selector: chosen
        for selector, chosen in found.items()
        if selector.is_specific and len({resource.group for resource in chosen}) > 1
    }
    served = {selector: chosen for selector, chosen in found.items() if chosen and selector not in ambiguous}
    unresolved = frozenset(selector for selector, chosen in found.items() if not chosen)
    similar = {selector: name for selector in unresolved if (name := _find_similar(selector, resources)) is not None}
    return served, Complaints(unresolved=unresolved, ambiguous=ambiguous, similar=similar)


def _find_similar(selector: Selector, resources: Collection[Resource]) -> str | None:
    import difflib  # only for what is misspelt

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


class Definitions:
    """
    The CRDs that are known, to tell whether what is discovered reflects them yet.

    The API server needs a while for that, and does not tell when it is done.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], Versions] = {}  # by group and plural

    def note(self, name: str, raw: Mapping[str, Any]) -> None:
        """Take the newest state of the CRD; an empty one if it is gone."""
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
            self._versions[group, plural] = versions
        else:
            self._versions.pop((group, plural), None)  # it is not clear whether it is to be served

    def tell_if_served(self, resource: Resource) -> bool | None:
        """Check whether the CRD of the resource serves it in this version; ``None`` if no such CRD is known."""
        versions = self._versions.get((resource.group, resource.plural))
        return None if versions is None else resource.version in versions

    def compare(self, resources: Iterable[Resource], groups: Collection[str] | None) -> bool:
        """
        Return whether the resources are those of the CRDs, in these groups; in all of them if ``None``.

        CRDs that serve nothing any more are forgotten when the resources are gone, too.
        """
        found: dict[tuple[str, str], Versions] = {}
        for resource in resources:
            found.setdefault((resource.group, resource.plural), {})[resource.version] = resource.subresources
        missing = [
            key
            for key, versions in self._versions.items()
            if found.get(key, {}) != versions and (groups is None or key[0] in groups)
        ]
        for key in [key for key, versions in self._versions.items() if not versions and key not in missing]:
            del self._versions[key]
        return not missing


class Absences:
    """
    What was discovered before, and is missing now: to be served until it is certain that it is gone.

    One of several API servers can be behind the others, or just be starting: it does not tell of some kinds for a
    while. If that was believed, their daemons would be stopped. CRDs know better; where there is none (of aggregated
    APIs), the kinds must be missing for a while.
    """

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._since: dict[Resource, float] = {}  # for all that is missing, since when (by the monotonic clock)

    def __bool__(self) -> bool:
        return bool(self._since)

    def fill(self, found: Collection[Resource], known: Collection[Resource]) -> frozenset[Resource]:
        """Return what is found, and what is missing, but not certainly gone; with all versions as they were known."""
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
        served = self._definitions.tell_if_served(resource)
        return seconds < CONFIRMATION_TIME if served is None else served


def get_groups(registry: OperatorRegistry) -> set[str] | None:
    """Give the API groups that the handlers name; ``None`` if some of them name none, so that all must be looked at."""
    groups = {selector.group for watched in (True, False) for selector in registry.iter_selectors(watched=watched)}
    return None if None in groups else {group for group in groups if group is not None}


def _names(resources: Iterable[Resource]) -> str:
    return ', '.join(sorted(map(repr, resources)))
