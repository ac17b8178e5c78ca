"""
The conversions in generated CRDs: `add_conversions`, `find_gaps`.

A CRD whose versions are converted by an operator has a webhook in ``spec.conversion`` from the beginning. Without it,
the API server would drop the fields that the versions do not share until the operator has written its address.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.structs.references import Resource
from kopf._core.engines.conversion_reviews import ConversionError, Routes
from kopf._core.engines.conversion_strategies import (
    NONE,
    is_placeholder,
    is_same,
    make_placeholder,
    make_service_strategy,
)
from kopf._core.intents.handlers import ConversionHandler
from kopf._core.intents.registries import OperatorRegistry


class Service(NamedTuple):
    """The Service by which the API server calls the operator."""

    namespace: str
    name: str


def add_conversions(
    crds: Iterable[Mapping[str, Any]], registry: OperatorRegistry, *, service: Service | None = None
) -> list[dict[str, Any]]:
    """
    Return the CRDs with webhooks for the versions that the handlers convert.

    CRDs with another strategy, with only one version, or without handlers are returned unchanged.

    Args:
        crds: the CRDs.
        registry: the handlers.
        service: the Service of the operator; by default, its address is not known yet.
    """
    return [_add_conversion(crd, registry, service) for crd in crds]


def _add_conversion(crd: Mapping[str, Any], registry: OperatorRegistry, service: Service | None) -> dict[str, Any]:
    spec, name = crd['spec'], crd['metadata']['name']
    is_given = not is_same(spec.get('conversion') or NONE, NONE)
    if is_given or len(spec['versions']) < 2 or not _list_handlers(crd, registry):
        return dict(crd)
    if service is None:
        strategy = make_placeholder(name)
    else:
        strategy = make_service_strategy(name, service=service.name, namespace=service.namespace)
    return {**crd, 'spec': {**spec, 'conversion': strategy}}


def waits_for_conversion(crd: Mapping[str, Any], registry: OperatorRegistry) -> bool:
    """Check whether the operator converts the versions of the CRD, but has not written its address there yet."""
    strategy, versions = crd['spec'].get('conversion') or NONE, crd['spec']['versions']
    is_pending = strategy['strategy'] != 'Webhook' or is_placeholder(strategy)
    return is_pending and len(versions) > 1 and bool(_list_handlers(crd, registry))


def find_gaps(crds: Iterable[Mapping[str, Any]], registry: OperatorRegistry) -> Iterator[str]:
    """Yield a message for each CRD with versions that differ, but are not converted."""
    for crd in crds:
        versions: Sequence[Mapping[str, Any]] = crd['spec']['versions']
        if handlers := _list_handlers(crd, registry):
            routes = Routes(next(list_resources([crd])), handlers)
            pairs = itertools.permutations([version['name'] for version in versions], 2)
            missing = [f'{start} to {end}' for start, end in pairs if not _is_converted(routes, start, end)]
            if missing:
                yield (
                    f"{crd['metadata']['name']}: no @kopf.on.convert converts from {', from '.join(missing)}; "
                    f"the API server refuses such requests."
                )
        elif any(version['schema'] != versions[0]['schema'] for version in versions):
            yield (
                f"{crd['metadata']['name']}: the schemas of its versions differ, but there is no @kopf.on.convert "
                f"between them; the API server drops the fields that only some of them have."
            )


def list_resources(crds: Iterable[Mapping[str, Any]]) -> Iterator[Resource]:
    """Yield the resources that the CRDs define, in all their versions."""
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


def _list_handlers(crd: Mapping[str, Any], registry: OperatorRegistry) -> list[ConversionHandler]:
    resources = list(list_resources([crd]))
    return [
        handler
        for handler in registry.conversions
        if handler.selector is not None and any(handler.selector.check(resource) for resource in resources)
    ]


def _is_converted(routes: Routes, start: str, end: str) -> bool:
    try:
        routes.find(start, end)
    except ConversionError:
        return False
    return True
