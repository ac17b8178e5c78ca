"""
The forms of objects in responses: whole objects, only their metadata, or rows of a table; in JSON or YAML.

The ``Accept`` header determines the form. The fast path is JSON of whole objects, which is sent as it is stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing.kinds import tables
from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.kinds.storage import Record
from kopf._kits.testing.wire import statuses

GROUP, VERSIONS = 'meta.k8s.io', ('v1', 'v1beta1')
MEDIA = ('application/json', 'application/yaml', 'application/vnd.kubernetes.protobuf')
HIDDEN = 'deprecated.daemonset.template.generation'
"""The annotation that is removed from the metadata if these are sent without the whole object."""
KINDS = ('Table', 'PartialObjectMetadata', 'PartialObjectMetadataList')


class Form:
    """The form of whole objects."""

    name = ''

    def object(self, kind: Kind, record: Record) -> bytes:
        """Return one object."""
        return kind.raw(record)

    def continued(self) -> 'Form':
        """Return the form for the further events of a watch, after the first one."""
        return self

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """Return one object that is JSON already, such as the result of a write."""
        return raw

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """Return a list of objects."""
        # Why not decode the objects and encode the list? This would be the slowest part for thousands of objects.
        if kind.custom:
            items = b','.join([kind.raw(record) for record in records])
            meta = {'continue': '', **meta}
        elif kind.to_served is not None:
            items = b','.join([orjson.dumps(kind.to_served(record.body())) for record in records])
        else:
            # In lists of built-in kinds, the items have neither `apiVersion` nor `kind`.
            items = b','.join([b'{' + record.rest for record in records])
        head = orjson.dumps({'kind': kind.list_kind, 'apiVersion': kind.api_version, 'metadata': meta})
        return head[:-1] + b',"items":[' + items + b']}'


class Metadata(Form):
    """The form of objects without their bodies (``PartialObjectMetadata``)."""

    name = 'metadata'

    def __init__(self, of_list: bool, version: str) -> None:
        self._of_list = of_list
        self._version = version
        self.name = f'metadata/{version}'

    def object(self, kind: Kind, record: Record) -> bytes:
        """Return one object."""
        return self.raw(kind, kind.raw(record))

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """Return one object that is JSON already."""
        if self._of_list:
            raise statuses.internal('content is not a list')
        return orjson.dumps(_partial(orjson.loads(raw), self._version))

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """Return a list of objects."""
        if not self._of_list:
            raise statuses.not_acceptable(
                message=f'you requested PartialObjectMetadata, but the requested object is a list ({_type_name(kind)})'
            )
        return orjson.dumps(
            {
                'kind': 'PartialObjectMetadataList',
                'apiVersion': self._version,
                'metadata': meta,
                'items': [_partial(kind.body(record), self._version) for record in records] or None,
            }
        )


class TableForm(Form):
    """The form of rows; ``include`` is the part of the object in each row: ``Metadata``, ``Object`` or ``None``."""

    name = 'table'

    def __init__(self, include: str, version: str, *, headless: bool = False) -> None:
        self._include = include or 'Metadata'
        self._version = version
        self._headless = headless
        self.name = f'table/{self._include}/{version}{"/headless" if headless else ""}'

    def continued(self) -> Form:
        """Return the form without the definitions of the columns, which are sent only once."""
        return self if self._headless else TableForm(self._include, self._version, headless=True)

    def object(self, kind: Kind, record: Record) -> bytes:
        """Return one object."""
        return self._table(kind, [kind.body(record)], {'resourceVersion': str(record.version)})

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """Return one object that is JSON already."""
        body = orjson.loads(raw)
        return self._table(kind, [body], {'resourceVersion': body['metadata'].get('resourceVersion', '')})

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """Return a list of objects."""
        return self._table(kind, [kind.body(record) for record in records], meta)

    def _table(self, kind: Kind, bodies: Iterable[dict[str, Any]], meta: Mapping[str, Any]) -> bytes:
        if self._include not in ('None', 'Metadata', 'Object'):
            raise statuses.bad_request(
                'Unable to convert to Table as requested: includeObject: Invalid value: '
                f'{statuses.text(self._include)}: must be \'Metadata\', \'Object\', \'None\', or empty'
            )
        columns = tables.columns(kind)
        rows = [{'cells': [column.cell(body) for column in columns], 'object': self._included(body)} for body in bodies]
        return orjson.dumps(
            {
                'kind': 'Table',
                'apiVersion': self._version,
                'metadata': meta,
                'columnDefinitions': None if self._headless else [column.definition for column in columns],
                'rows': rows,
            }
        )

    def _included(self, body: dict[str, Any]) -> dict[str, Any] | None:
        match self._include:
            case 'None':
                return None
            case 'Object':
                return body
        return _partial(body, self._version)


PLAIN = Form()


def _type_name(kind: Kind) -> str:
    """Return the name of a list of these objects in messages."""
    if kind.custom:
        return '*unstructured.UnstructuredList'
    return f'*{kind.package}.{kind.name}List'


def negotiate(accept: str, params: Mapping[str, str], kind: Kind | None = None, verb: str = '') -> tuple[Form, str]:
    """Return the form and the syntax (``json`` or ``yaml``) for an ``Accept`` header; raise a 406 if there is none."""
    if not accept or accept in ('application/json', '*/*'):
        return PLAIN, 'json'
    if kind is not None and not kind.custom:
        _check_known(accept, streamed=verb in ('list', 'watch'))
    for clause in accept.split(','):
        media, *rest = [part.strip() for part in clause.split(';')]
        arguments = dict(part.split('=', 1) for part in rest if '=' in part)
        if media in ('application/yaml', 'application/json', 'application/*', '*/*'):
            name, version = arguments.get('as', ''), arguments.get('v', '')
            if name and (name not in KINDS or arguments.get('g') != GROUP or version not in VERSIONS):
                continue
            syntax = 'yaml' if media.endswith('yaml') else 'json'
            if syntax == 'yaml' and verb == 'watch':
                raise statuses.not_acceptable([f'{known};stream=watch' for known in MEDIA if known != media])
            if name == 'Table':
                return TableForm(params.get('includeObject', ''), f'{GROUP}/{version}'), syntax
            return (Metadata(name.endswith('List'), f'{GROUP}/{version}') if name else PLAIN), syntax
    raise statuses.not_acceptable(MEDIA)


def accepts(accept: str, media: str) -> bool:
    """Check whether the media type is among those that a client accepts."""
    known = {clause.partition(';')[0].strip() for clause in accept.split(',')}
    return not accept or not known.isdisjoint({media, f'{media.partition("/")[0]}/*', '*/*'})


def of_document(accept: str, *, fixed: bool, path: str) -> str:
    """Return the syntax (``json`` or ``yaml``) of a discovery document; raise a 406 if the client accepts neither."""
    if not accept or accept == '*/*':
        return 'json'
    medias = MEDIA if path != '/version' else MEDIA[:1]
    if not any(accepts(accept, media) for media in medias):
        known = f'406: Not Acceptable\n\nAvailable representations: {", ".join(medias)}'
        raise statuses.Refusal(406, 'NotAcceptable', known, {}) if fixed else statuses.not_acceptable(MEDIA)
    for clause in accept.split(','):
        media, *rest = [part.strip() for part in clause.split(';')]
        aggregated = any(part.startswith('as=') for part in rest)
        if media in medias[:2] or media in ('*/*', 'application/*'):
            if not aggregated or path in ('/api', '/apis', '/version'):
                return 'yaml' if media.endswith('yaml') else 'json'
    raise statuses.not_acceptable(MEDIA)


def prefers_yaml(accept: str) -> bool:
    """Check whether the client prefers YAML for refusals, which have no other forms than JSON and YAML."""
    for clause in accept.split(','):
        media, *rest = [part.strip() for part in clause.split(';')]
        if media in ('application/yaml', 'application/json', 'application/*', '*/*') and not any(
            part.startswith('as=') for part in rest
        ):
            return media == 'application/yaml'
    return False


def _check_known(accept: str, *, streamed: bool) -> None:
    """Refuse a header without any known media type; a real server checks this earlier, with another message."""
    if not {clause.partition(';')[0].strip() for clause in accept.split(',')} & {*MEDIA, '*/*'}:
        known = [*MEDIA, *(f'{media};stream=watch' for media in MEDIA if streamed and media != 'application/yaml')]
        message = f'406: Not Acceptable\n\nAvailable representations: {", ".join(known)}'
        raise statuses.Refusal(406, 'NotAcceptable', message, {})


def _partial(body: Mapping[str, Any], version: str) -> dict[str, Any]:
    meta = body['metadata']
    if HIDDEN in (annotations := meta.get('annotations') or {}):
        shown = {key: value for key, value in annotations.items() if key != HIDDEN}
        meta = {key: value for key, value in {**meta, 'annotations': shown}.items() if value != {}}
    return {'kind': 'PartialObjectMetadata', 'apiVersion': version, 'metadata': meta}
