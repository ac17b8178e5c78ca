"""
The metadata of objects: their types as Go decodes them, and their validation.

On a real server, two libraries produce the messages: the decoder (400) and the validation (422). For built-in kinds,
the decoder's messages contain the path of the field; for custom kinds, only its name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Kind
from kopf._kits.testing.wire import names, statuses
from kopf._kits.testing.wire.json_patches import json_type
from kopf._kits.testing.wire.statuses import Cause, text

_TEXTS = {
    'name': 'string',
    'generateName': 'string',
    'namespace': 'string',
    'selfLink': 'string',
    'uid': 'types.UID',
    'resourceVersion': 'string',
    'creationTimestamp': 'string',
    'deletionTimestamp': 'string',
}
"""The fields that are strings or numbers, and the names of their types in Go."""
_NUMBERS = ('generation', 'deletionGracePeriodSeconds')
_TIMES = ('creationTimestamp', 'deletionTimestamp')
_TIME = re.compile(r'\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)')
_STANDARD = ('kubernetes', 'orphan', 'foregroundDeletion')
_LARGEST = 256 * 1024
_LAYOUT = '2006-01-02T15:04:05Z07:00'


def check_types(meta: Any, kind: Kind) -> None:
    """
    Check the types as Go's decoder does.

    Nulls in place of strings become empty strings, as in Go.

    Raises:
        TypeError: A field has a wrong type; the message is Go's.
    """
    if not isinstance(meta, dict):
        place = 'Go value' if kind.custom else f'Go struct field {kind.name}.metadata'
        raise TypeError(f'json: cannot unmarshal {json_type(meta)} into {place} of type v1.ObjectMeta')
    path = '' if kind.custom else 'metadata.'
    for key, value in meta.items():
        if value is None:
            continue
        if key in _TEXTS:
            _check(value, str, f'{path}{key}', _TEXTS[key])
            if key in _TIMES:
                _check_time(value)
        elif key in _NUMBERS:
            if isinstance(value, float):
                raise TypeError(
                    f'json: cannot unmarshal number {value!r} into Go struct field ObjectMeta.{path}{key} of type int64'
                )
            _check(value, int, f'{path}{key}', 'int64')
        elif key in ('labels', 'annotations'):
            _check(value, dict, f'{path}{key}', 'map[string]string')
            for name, item in value.items():
                if item is None:
                    value[name] = ''
                else:
                    _check(item, str, f'{path}{key}', 'string')
        elif key == 'finalizers':
            _check(value, list, f'{path}{key}', '[]string')
            value[:] = ['' if item is None else item for item in value]
            for item in value:
                _check(item, str, f'{path}{key}', 'string')
        elif key == 'ownerReferences':
            _check(value, list, f'{path}{key}', '[]v1.OwnerReference')
            value[:] = [{} if item is None else item for item in value]
            for item in value:
                _check(item, dict, f'{path}{key}', 'v1.OwnerReference')
        elif key == 'managedFields':
            _check(value, list, f'{path}{key}', '[]v1.ManagedFieldsEntry')


def _check(value: Any, type: type, field: str, name: str) -> None:
    if not isinstance(value, type) or type is int and isinstance(value, bool):
        raise TypeError(
            f'json: cannot unmarshal {json_type(value)} into Go struct field ObjectMeta.{field} of type {name}'
        )


def _check_time(value: str) -> None:
    if _TIME.fullmatch(value) is None:
        raise TypeError(f'parsing time {text(value)} as "{_LAYOUT}": cannot parse {text(value)} as "2006"')


def repeated_problems(meta: Mapping[str, Any]) -> list[Cause]:
    """Return the errors that a real server reports twice on updates, because it runs some checks twice."""
    return [*_label_problems(meta), *_annotation_problems(meta), *_owner_problems(meta.get('ownerReferences') or ())]


def problems(meta: Mapping[str, Any], *, custom: bool) -> Iterator[Cause]:
    """Yield all errors of the metadata, except those of the name."""
    if isinstance(generation := meta.get('generation'), int) and generation < 0:
        yield statuses.value_invalid('metadata.generation', text(generation), 'must be greater than or equal to 0')
    yield from _label_problems(meta)
    yield from _annotation_problems(meta)
    yield from _owner_problems(meta.get('ownerReferences') or ())
    finalizers = meta.get('finalizers') or ()
    for finalizer in finalizers:
        for problem in names.label_key_problems(finalizer):
            yield statuses.value_invalid('metadata.finalizers', text(finalizer), problem)
    if 'orphan' in finalizers and 'foregroundDeletion' in finalizers:
        yield statuses.value_invalid(
            'metadata.finalizers', text(finalizers), 'finalizer orphan and foregroundDeletion cannot be both set'
        )
    for index, finalizer in enumerate(finalizers if not custom else ()):
        if '/' not in finalizer and finalizer not in _STANDARD:
            yield statuses.value_invalid(
                f'metadata.finalizers[{index}]',
                text(finalizer),
                'name is neither a standard finalizer name nor is it fully qualified',
            )


def _label_problems(meta: Mapping[str, Any]) -> Iterator[Cause]:
    for key, value in sorted((meta.get('labels') or {}).items()):
        for problem in names.label_key_problems(key):
            yield statuses.value_invalid('metadata.labels', text(key), problem)
        for problem in names.label_value_problems(value):
            yield statuses.value_invalid('metadata.labels', text(value), problem)


def _annotation_problems(meta: Mapping[str, Any]) -> Iterator[Cause]:
    annotations = meta.get('annotations') or {}
    for key in annotations:
        for problem in names.label_key_problems(key.lower()):
            yield statuses.value_invalid('metadata.annotations', text(key), problem)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _LARGEST:
        yield Cause('metadata.annotations', 'FieldValueTooLong', f'Too long: may not be more than {_LARGEST} bytes')


def _owner_problems(owners: Any) -> Iterator[Cause]:
    for owner in owners:
        version = owner.get('apiVersion') or ''
        if not version or version.count('/') > 1 or version.endswith('/'):
            yield statuses.value_invalid(
                'metadata.ownerReferences.apiVersion', text(version), 'version must not be empty'
            )
        if not owner.get('kind'):
            yield statuses.value_invalid('metadata.ownerReferences.kind', '""', 'must not be empty')
        if not owner.get('name'):
            yield statuses.value_invalid('metadata.ownerReferences.name', '""', 'must not be empty')
        if not owner.get('uid'):
            yield statuses.value_invalid('metadata.ownerReferences.uid', '""', 'must not be empty')
        if (version, owner.get('kind')) == ('v1', 'Event'):
            yield statuses.value_invalid(
                'metadata.ownerReferences', text(_in_order(owner)), '/v1, Kind=Event is disallowed from being an owner'
            )
    controllers = [f'{owner.get("kind", "")}/{owner.get("name", "")}' for owner in owners if owner.get('controller')]
    if len(controllers) > 1:
        yield statuses.value_invalid(
            'metadata.ownerReferences',
            text([_in_order(owner) for owner in owners]),
            'Only one reference can have '
            f'Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}',
        )


def _in_order(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return an owner reference with its fields in the order of Go's structure."""
    first = {key: owner.get(key, '') for key in ('apiVersion', 'kind', 'name', 'uid')}
    return first | {key: owner[key] for key in ('controller', 'blockOwnerDeletion') if key in owner}
