"""
Server-side apply: an object is changed by the configuration that a client has sent.

This module checks the configuration, calls `kopf._kits.testing.merging.managers`, and refuses conflicts with the
messages of a real server. It also migrates objects of client-side ``kubectl apply``: it updates their annotation with
the last configuration.
"""

import functools
from collections.abc import Mapping

import orjson

from kopf._kits.testing.kinds.kinds import Body, Catalog, Kind
from kopf._kits.testing.kinds.shapes import Shape
from kopf._kits.testing.merging import fieldsets, managers, typed
from kopf._kits.testing.merging.fieldsets import EMPTY, FieldSet
from kopf._kits.testing.merging.managers import Writer
from kopf._kits.testing.wire import clientjson, clientyaml, json_patches, statuses

LAST_APPLIED = 'kubectl.kubernetes.io/last-applied-configuration'
KUBECTL = 'kubectl'


def decode(text: bytes) -> Body:
    """Return the configuration, decoded from YAML; raise a 400 if it is invalid."""
    try:
        config = clientyaml.load(text) if not text.startswith(b'{') else clientjson.loads(text)
    except clientyaml.YamlError as error:
        raise statuses.bad_request(f'error decoding YAML: error converting YAML to JSON: {error}') from None
    except ValueError as error:
        raise statuses.bad_request(f'error decoding YAML: {error}') from None
    if not isinstance(config, dict):
        raise statuses.bad_request(
            'error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot '
            f'unmarshal {json_patches.json_type(config)} into Go value of type map[string]interface '
            '{}'
        )
    return config


def check(config: Body, kind: Kind, namespace: str, name: str, *, present: bool) -> None:
    """Refuse a configuration of another object or kind, or without a name if the request has none, either."""
    api_version, word = (text if isinstance(text := config.get(key), str) else '' for key in ('apiVersion', 'kind'))
    if api_version.count('/') > 1:
        api_version = word = ''
    group, _, version = api_version.rpartition('/')
    if (api_version, word) != (kind.api_version, kind.name):
        raise statuses.bad_request(f'invalid object type: {group}/{version}, Kind={word}')
    meta = config.get('metadata')
    if isinstance(meta, Mapping) and meta.get('managedFields') is not None:
        raise statuses.bad_request('metadata.managedFields must be nil')
    given = meta if isinstance(meta, Mapping) else {}
    if found := list(typed.problems(config, kind.shape)):
        place = f'{given.get("namespace") or ""}/{given.get("name") or ""}'
        text = found[0] if len(found) == 1 else '\n  '.join(['errors:', *found])
        raise statuses.internal(
            f'failed to create typed patch object ({place}; {group}/{version}, Kind={kind.name}): {text}'
        )
    if not given.get('name') and not (present and 'name' not in given):
        raise statuses.bad_request(
            f'the name of the object ({name} based on URL) was undeterminable: name must be provided'
        )
    if given.get('name', name) != name:
        raise statuses.bad_request(
            f'the name of the object ({given["name"]}) does not match the name on the URL ({name})'
        )
    if kind.namespaced and (given.get('namespace') or namespace) != namespace:
        raise statuses.wrong_namespace()


def apply(live: Body | None, config: Body, writer: Writer, force: bool) -> Body:
    """Return the object with the configuration applied to it; raise a 409 if other managers own some of its fields."""
    try:
        result = managers.applied(live, config, writer, force)
    except managers.Conflicted as error:
        left = error.conflicts
        if live is not None and writer.manager == KUBECTL:
            allowed = _applied_before(live, writer.shape)
            left = [(record, rest) for record, fields in left if (rest := fieldsets.difference(fields, allowed))]
        if left:
            raise managers.conflict(left) from None
        result = managers.applied(live, config, writer, True)
    if writer.manager == KUBECTL and not writer.subresource:
        _remember(result, config)
    return result


@functools.lru_cache(maxsize=256)
def writer_of(kind: Kind, catalog: Catalog, manager: str, subresource: str) -> Writer:
    """Return the writer of objects of this kind."""
    return Writer(
        manager,
        kind.api_version,
        kind.shape,
        lambda api_version: _shape(catalog, kind, api_version),
        subresource,
        _ignored(kind, subresource),
    )


def _shape(catalog: Catalog, kind: Kind, api_version: str) -> Shape | None:
    group, _, version = api_version.rpartition('/')
    if group != kind.group:
        return None
    try:
        return catalog.find(group, version, kind.plural).shape
    except statuses.Refusal:
        return None


def _ignored(kind: Kind, subresource: str) -> FieldSet:
    """Return the fields that cannot be written through this endpoint."""
    if subresource == 'status':
        return {'f:spec': EMPTY, 'f:metadata': EMPTY} if kind.custom else {'f:spec': EMPTY}
    return {'f:status': EMPTY} if 'status' in kind.subresources and not subresource else EMPTY


def _applied_before(live: Body, shape: Shape) -> FieldSet:
    """Return the fields that still have the values of the last client-side ``kubectl apply``."""
    try:
        config = orjson.loads((live['metadata'].get('annotations') or {})[LAST_APPLIED])
        fields = typed.fields_of(config, shape)
        return fieldsets.difference(fields, typed.Comparison(live, config, shape).changed)
    except (KeyError, ValueError, AttributeError, TypeError):
        return EMPTY


def _remember(body: Body, config: Body) -> None:
    if LAST_APPLIED in (annotations := body['metadata'].get('annotations') or {}):
        text = orjson.dumps(config, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE).decode()
        body['metadata']['annotations'] = {**annotations, LAST_APPLIED: text}
