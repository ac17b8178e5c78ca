"""The meaning of URLs: the kind, the namespace, the name, the subresource, and the verb."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from kopf._kits.testing.access.permissions import Attributes
from kopf._kits.testing.kinds.kinds import Catalog, Kind
from kopf._kits.testing.serving.discovery_documents import SUBRESOURCES
from kopf._kits.testing.wire import statuses

ONE = {'GET': 'get', 'HEAD': 'get', 'PUT': 'update', 'PATCH': 'patch', 'DELETE': 'delete'}
ALL = {'GET': 'list', 'HEAD': 'list', 'POST': 'create', 'DELETE': 'deletecollection'}


@dataclasses.dataclass(slots=True)
class Place:
    """The parts of a URL below ``/api`` and ``/apis``; without a plural, it names a group or a version."""

    group: str = ''
    version: str = ''
    plural: str = ''
    namespace: str = ''
    name: str = ''
    subresource: str = ''
    verb: str = ''
    extra: bool = False


def locate(method: str, path: str, query: Mapping[str, str]) -> Place:
    """Return the parts of a path below ``/api/`` or ``/apis/``, even if nothing with these names exists."""
    parts: Sequence[str] = [unquote(part) for part in path.strip('/').split('/')]
    place = Place()
    if parts[0] == 'api':
        place.version, rest = parts[1] if len(parts) > 1 else '', parts[2:]
    else:
        place.group = parts[1] if len(parts) > 1 else ''
        place.version, rest = parts[2] if len(parts) > 2 else '', parts[3:]
    watch = query.get('watch', 'false').lower() not in ('0', 'false')
    if rest and rest[0] == 'watch':
        watch, rest = True, rest[1:]
    namespaced = len(rest) >= 3 and rest[0] == 'namespaces'
    if namespaced and not (place.group == '' and rest[2] in ('status', 'finalize')):
        place.namespace, rest = rest[1], rest[2:]
    place.plural, place.name, place.subresource = [*rest[:3], '', '', ''][:3]
    place.extra = len(rest) > 3
    place.verb = (ONE if place.name else ALL).get(method, '')
    if place.subresource and method == 'POST':
        place.verb = 'create'
    if place.verb == 'list' and watch:
        place.verb = 'watch'
    return place


def attributes(place: Place | None, method: str, path: str, query: Mapping[str, str]) -> Attributes:
    """Return the attributes of a request for authorization, before its resource is looked up."""
    if place is None or not place.plural:
        return Attributes(method.lower(), path=path)
    verb, name = place.verb or {'POST': 'create'}.get(method, ONE.get(method, method.lower())), place.name
    namespace = place.namespace or (place.name if place.plural == 'namespaces' else '')
    if verb in ('list', 'watch', 'deletecollection'):
        names = re.findall(r'(?:^|,)metadata\.name==?([^,]+)', query.get('fieldSelector', ''))
        name = names[0] if len(names) == 1 else name
    return Attributes(verb, place.group, place.plural, place.subresource, namespace, name)


def resolve(catalog: Catalog, place: Place, method: str) -> Kind:
    """Return the kind of a request; refuse unknown kinds, wrong scopes, and verbs that the kind does not have."""
    kind = catalog.find(place.group, place.version, place.plural)
    nowhere = statuses.UnknownPath() if kind.custom else statuses.no_resource()
    if method == 'HEAD' and not kind.custom:
        raise statuses.no_method()
    if place.extra and not kind.custom or bool(place.namespace) > kind.namespaced:
        raise nowhere
    if kind.namespaced and not place.namespace and kind.table is not None:
        if place.name:
            raise nowhere
        if place.verb not in ('list', 'watch'):
            raise statuses.UnknownPath() if kind.custom else statuses.no_method()
    # As on a real server, the name is ignored.
    if kind.custom and method == 'POST' and place.name and not place.subresource:
        place.name, place.verb = '', 'create'
    if place.subresource:
        _check_subresource(kind, place)
    elif not place.verb or place.verb not in kind.verbs:
        # The patch is refused later, after the check of its type.
        if kind.custom and method == 'PATCH' and not place.name:
            place.verb = 'patch'
            return kind
        if kind.custom and method == 'PUT' and not place.name:
            raise statuses.bad_request('name must be provided')
        if kind.custom and not place.verb:
            raise _not_supported(kind, '')
        raise statuses.no_method()
    return kind


def _check_subresource(kind: Kind, place: Place) -> None:
    if place.subresource not in kind.subresources:
        if kind.custom:
            raise statuses.not_found(kind.group, kind.plural, place.name)
        raise statuses.no_resource()
    verbs, _ = SUBRESOURCES[place.subresource]
    if place.verb not in verbs:
        if not kind.custom:
            raise statuses.no_method()
        raise _not_supported(kind, place.verb)


def _not_supported(kind: Kind, verb: str) -> statuses.Refusal:
    word = statuses.qualified(kind.group, kind.plural)
    return statuses.Refusal(
        405,
        'MethodNotAllowed',
        f'{verb} is not supported on resources of kind "{word}"',
        statuses.about(kind.group, kind.plural),
    )
