"""
The forms that objects are sent in: as they are, as metadata only, or as rows of a table; as JSON or as YAML.

The form is negotiated by the ``Accept`` header. Plain JSON is the hot path: bytes as they are stored.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing import statuses, tables
from kopf._kits.testing.kinds import Kind
from kopf._kits.testing.storage import Record

KINDS = ('Table', 'PartialObjectMetadata', 'PartialObjectMetadataList')


class Form:
    """Objects as they are."""
    name = ''

    def object(self, kind: Kind, record: Record) -> bytes:
        """One object."""
        return kind.raw(record)

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """The same for an object that is JSON already, such as the answer to a write."""
        return raw

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """A list of objects."""
        if kind.custom:
            items = b','.join([kind.raw(record) for record in records])
            meta = {'continue': '', **meta}
        elif kind.outward is not None:
            items = b','.join([orjson.dumps(kind.outward(record.body())) for record in records])
        else:
            items = b','.join([b'{' + record.rest for record in records])
        head = orjson.dumps({'kind': kind.list_kind, 'apiVersion': kind.api_version, 'metadata': meta})
        return head[:-1] + b',"items":[' + items + b']}'


class Metadata(Form):
    """Objects without their bodies."""
    name = 'metadata'

    def __init__(self, of_list: bool) -> None:
        self._of_list = of_list

    def object(self, kind: Kind, record: Record) -> bytes:
        """One object."""
        return self.raw(kind, kind.raw(record))

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """The same for an object that is JSON already."""
        if self._of_list:
            raise statuses.internal('content is not a list')
        return orjson.dumps(_partial(orjson.loads(raw)))

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """A list of objects."""
        if not self._of_list:
            raise statuses.not_acceptable('you requested PartialObjectMetadata, but the requested object is a list '
                                          '(*unstructured.UnstructuredList)')
        return orjson.dumps({
            'kind': 'PartialObjectMetadataList', 'apiVersion': 'meta.k8s.io/v1', 'metadata': meta,
            'items': [_partial(kind.body(record)) for record in records],
        })


class TableForm(Form):
    """Objects as rows; ``include`` says what comes with each row: ``Metadata``, ``Object`` or ``None``."""
    name = 'table'

    def __init__(self, include: str) -> None:
        self._include = include or 'Metadata'
        self.name = f'table/{self._include}'

    def object(self, kind: Kind, record: Record) -> bytes:
        """One object."""
        return self._table(kind, [kind.body(record)], {'resourceVersion': str(record.version)})

    def raw(self, kind: Kind, raw: bytes) -> bytes:
        """The same for an object that is JSON already."""
        body = orjson.loads(raw)
        return self._table(kind, [body], {'resourceVersion': body['metadata'].get('resourceVersion', '')})

    def list(self, kind: Kind, records: Sequence[Record], meta: Mapping[str, Any]) -> bytes:
        """A list of objects."""
        return self._table(kind, [kind.body(record) for record in records], meta)

    def _table(self, kind: Kind, bodies: Iterable[dict[str, Any]], meta: Mapping[str, Any]) -> bytes:
        columns = tables.columns(kind)
        rows = [{'cells': [column.cell(body) for column in columns], 'object': self._included(body)}
                for body in bodies]
        return orjson.dumps({
            'kind': 'Table', 'apiVersion': 'meta.k8s.io/v1', 'metadata': meta,
            'columnDefinitions': [column.definition for column in columns], 'rows': rows,
        })

    def _included(self, body: dict[str, Any]) -> dict[str, Any] | None:
        match self._include:
            case 'None':
                return None
            case 'Object':
                return body
        return _partial(body)


PLAIN = Form()


def negotiate(accept: str, params: Mapping[str, str]) -> tuple[Form, str]:
    """The form and the media type (``json`` or ``yaml``) for an ``Accept`` header; 406 if there is none."""
    if not accept or accept in ('application/json', '*/*'):
        return PLAIN, 'json'
    for clause in accept.split(','):
        media, *rest = [part.strip() for part in clause.split(';')]
        arguments = dict(part.split('=', 1) for part in rest if '=' in part)
        if media in ('application/yaml', 'application/json', 'application/*', '*/*'):
            kind = arguments.get('as', '')
            if kind and (kind not in KINDS or arguments.get('g') != 'meta.k8s.io' or arguments.get('v') != 'v1'):
                continue
            syntax = 'yaml' if media.endswith('yaml') else 'json'
            if kind == 'Table':
                return TableForm(params.get('includeObject', '')), syntax
            return (Metadata(kind.endswith('List')) if kind else PLAIN), syntax
    raise statuses.not_acceptable()


def _partial(body: Mapping[str, Any]) -> dict[str, Any]:
    return {'kind': 'PartialObjectMetadata', 'apiVersion': 'meta.k8s.io/v1', 'metadata': body['metadata']}
