"""
From a client's request to an object that can be stored: types, names, metadata, schema.

The functions depend only on their arguments: they get a body, the kind, and the old object, and either change the body
or refuse it. The callers make the decisions that depend on other objects or on webhooks.
"""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.kinds import metadata
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.merging import managers
from kopf._kits.testing.objects import builtins, transitions
from kopf._kits.testing.resources import crds
from kopf._kits.testing.schemas import decoding, registered, replicas, schemas, strictness
from kopf._kits.testing.wire import clientjson, names, statuses, timestamps
from kopf._kits.testing.wire.json_patches import json_type
from kopf._kits.testing.wire.statuses import Cause

PLAIN = frozenset(
    {
        ('', 'events'),
        ('apiextensions.k8s.io', crds.PLURAL),
        ('coordination.k8s.io', 'leases'),
        ('policy', 'poddisruptionbudgets'),
        ('admissionregistration.k8s.io', 'mutatingwebhookconfigurations'),
        ('admissionregistration.k8s.io', 'validatingwebhookconfigurations'),
    }
)
"""The kinds whose finalizers can have any name."""
_ALPHABET = 'bcdfghjklmnpqrstvwxz2456789'


def decode(
    body: Any,
    kind: Kind,
    text: bytes,
    mistakes: list[str] | None = None,
    *,
    lenient: bool = False,
) -> Body:
    """
    Check that a decoded request is an object of this kind, and return it with its API version and kind.

    Args:
        body: The decoded request.
        kind: The kind of the URL.
        text: The request as it was sent.
        mistakes: The list for errors of strict decoding, for built-in kinds.
        lenient: The client has requested ``fieldValidation=Ignore``; some messages of refusals differ then.

    Raises:
        Refusal: It is not an object of this kind (400).
    """
    if body is None:
        body = {}
    api_version, name = _read_type(body, kind, text)
    if kind.custom:
        _check_custom(api_version, name, kind, body, text, lenient=lenient)
    elif name not in ('', kind.name) or api_version not in ('', kind.api_version):
        name, api_version = name or kind.name, api_version or kind.api_version
        raise statuses.bad_request(
            f'{name} in version "{api_version.rpartition("/")[2]}" cannot be handled as a {kind.name}: '
            f'{registered.complaint(api_version, name, kind)}'
        )
    meta = {} if body.get('metadata') is None else body['metadata']
    try:
        if not kind.custom:
            return structure(body, kind, text, mistakes)
        metadata.check_types(meta, kind)
    except TypeError as error:
        raise statuses.bad_request(
            f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {error}'
        ) from None
    rest = {key: value for key, value in body.items() if key not in ('apiVersion', 'kind', 'metadata')}
    return {'apiVersion': kind.api_version, 'kind': kind.name, 'metadata': dict(meta), **rest}


def _read_type(body: Any, kind: Kind, text: bytes) -> tuple[str, str]:
    """Return the API version and the kind in the body of the request; empty strings if they are absent."""
    if not isinstance(body, dict):
        raise _unrecognized(kind, no_kind(body), text)
    for key in ('apiVersion', 'kind'):
        if not isinstance(value := body.get(key), (str, type(None))):
            why = (
                f'couldn\'t get version/kind; json parse error: json: cannot unmarshal {json_type(value)} into Go '
                f'struct field .{key} of type string'
            )
            raise _unrecognized(kind, why, text)
    api_version, name = (body.get('apiVersion') or '').removeprefix('/'), body.get('kind') or ''
    if api_version.count('/') > 1:
        raise _unrecognized(kind, f'unexpected GroupVersion string: {api_version}', text)
    return api_version, name


def _unrecognized(kind: Kind, why: str, text: bytes) -> statuses.Refusal:
    return statuses.bad_request(
        f'the object provided is unrecognized (must be of type {kind.name}): {why} ({clientjson.excerpt(text)})'
    )


def no_kind(value: Any) -> str:
    """Return the message about a value that is not an object."""
    return (
        f'couldn\'t get version/kind; json parse error: json: cannot unmarshal {json_type(value)} into Go value of '
        'type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
        '"json:\\"kind,omitempty\\"" }'
    )


def structure(
    body: Mapping[str, Any],
    kind: Kind,
    text: bytes,
    mistakes: list[str] | None = None,
    complain: decoding.Complain = decoding.in_json,
) -> Body:
    """
    Return a built-in object as a real server decodes it.

    Raises:
        TypeError: It cannot be decoded; the message is Go's.
    """
    decoder = decoding.Decoder(complain)
    decoded = decoder.decode(body, kind.shape)
    if mistakes is not None:
        if text.startswith(b'{') and (repeated := decoding.duplicates(text, decoder.count)):
            mistakes += [f'duplicate field "{path}"' for path in repeated]
            decoded = decoding.Decoder(complain).decode(decoding.merged(text), kind.shape)
        mistakes += [f'unknown field "{path}"' for path in decoder.unknown]
    return {**decoded, 'apiVersion': kind.api_version, 'kind': kind.name}


def _check_custom(
    api_version: str,
    name: str,
    kind: Kind,
    body: Mapping[str, Any],
    text: bytes,
    *,
    lenient: bool,
) -> None:
    if not name:
        why = f'Object \'Kind\' is missing in \'{text.decode(errors="replace")}\''
        if lenient:
            raise statuses.bad_request(
                f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {why}'
            )
        raise _unrecognized(kind, why, text)
    if body.get('apiVersion', '') is None:
        raise statuses.bad_request(
            f'{name} in version "" cannot be handled as a {kind.name}: .apiVersion accessor '
            'error: <nil> is of the type <nil>, expected string'
        )
    if api_version != kind.api_version:
        raise statuses.bad_request(
            f'the API version in the data ({api_version}) does not match the expected API version ({kind.api_version})'
        )
    if name != kind.name:
        meta = body.get('metadata')
        subject = meta.get('name', '') if isinstance(meta, Mapping) else ''
        raise statuses.invalid(
            kind.group, name, subject, [statuses.value_invalid('kind', f'"{name}"', f'must be {kind.name}')]
        )


def tidy(body: Body, kind: Kind, *, nulls: bool = False) -> list[str]:
    """
    Prune unknown and empty fields, apply defaults, and return the paths of unknown fields.

    With ``nulls``, nulls of fields without a default are kept.
    """
    meta = body['metadata']
    unknown = [f'metadata.{key}' for key in meta if key not in schemas.META_FIELDS]
    if kind.custom:
        unknown += strictness.prune_metadata(meta)
    body['metadata'] = {
        key: value
        for key, value in meta.items()
        if key in schemas.META_FIELDS and key not in ('managedFields', 'selfLink') and value not in (None, '', [], {})
    }
    if not kind.namespaced:
        body['metadata'].pop('namespace', None)
    if kind.schema is not None:
        unknown += schemas.prune(body, kind.schema)
        schemas.fill(body, kind.schema, nulls=nulls)
    else:
        builtins.apply(body, kind)
    return unknown


def is_name_generated(body: Body) -> bool:
    """Check whether a new object gets its name from the server."""
    meta = body['metadata']
    return bool(meta.get('generateName')) and not meta.get('name')


def prepare_new(body: Body, kind: Kind, uid: str) -> int:
    """Set the identity of a new object; return the resource version that the client has set, or 0."""
    meta = body['metadata']
    version = str(meta.pop('resourceVersion', ''))
    for key in ('uid', 'creationTimestamp', 'deletionTimestamp', 'deletionGracePeriodSeconds'):
        meta.pop(key, None)
    if kind.counted or kind.custom or not meta.get('generation'):
        meta.pop('generation', None)
    meta['uid'] = uid
    meta['creationTimestamp'] = timestamps.now()
    if kind.counted:
        meta['generation'] = 1
    if is_name_generated(body):
        meta['name'] = meta['generateName'][:58] + ''.join(secrets.choice(_ALPHABET) for _ in range(5))
    if 'status' in kind.subresources and kind.plural != 'nodes':
        body.pop('status', None)
    builtins.begin(body, kind)
    return int(version) if version.isascii() and version.isdigit() else 0


def prepare_changed(body: Body, old: Body, kind: Kind, subresource: str) -> None:
    """Restore the fields that an update may not change, and count the generation."""
    meta, before = body['metadata'], old['metadata']
    if subresource == 'status':
        _keep_but_status(body, old, kind)
        meta = body['metadata']
    elif 'status' in kind.subresources and subresource != 'binding':
        _restore(body, old, 'status')
        if kind.plural == crds.PLURAL:
            crds.note_storage(body)
    if kind.plural == 'namespaces' and not subresource:
        _restore(body, old, 'spec')
    _restore(meta, before, 'generation')
    _restore(meta, before, 'creationTimestamp')
    for key in ('uid', 'deletionTimestamp', 'deletionGracePeriodSeconds', 'resourceVersion', 'namespace'):
        if key in before:
            meta.setdefault(key, before[key])
    if not kind.custom:
        transitions.apply(body, old, kind.plural, subresource)
    if kind.counted and subresource not in ('status', 'binding') and _counts(body, kind) != _counts(old, kind):
        meta['generation'] = before.get('generation', 0) + 1


def own(body: Body, owners: Any) -> None:
    """Set the managed fields that result from a server-side apply."""
    body['metadata'].pop('managedFields', None)
    if owners:
        body['metadata']['managedFields'] = owners


def _keep_but_status(body: Body, old: Body, kind: Kind) -> None:
    status, meta = body.get('status'), body['metadata']
    before = old['metadata']
    body.clear()
    body.update(old)
    body['metadata'] = dict(before)
    if not kind.custom and kind.plural != crds.PLURAL:
        for key in ('annotations', 'finalizers', *(('labels',) if kind.plural != 'deployments' else ())):
            _restore(body['metadata'], meta, key)
    for key in ('uid', 'resourceVersion'):
        if key in meta:
            body['metadata'][key] = meta[key]
    body.pop('status', None)
    if status is not None:
        body['status'] = status


def _counts(body: Body, kind: Kind) -> bytes:
    """Return the content whose changes increase the generation."""
    if not kind.custom:
        watched = {key: body.get(key) for key in ('spec', 'webhooks', 'template', 'endpoints', 'value')}
        if kind.plural == 'deployments':
            watched['annotations'] = body['metadata'].get('annotations')
        if kind.plural == 'endpointslices':
            watched |= {'labels': body['metadata'].get('labels'), 'ports': body.get('ports')}
    else:
        ignored = ('metadata', 'status') if 'status' in kind.subresources else ('metadata',)
        watched = {key: value for key, value in body.items() if key not in ignored}
    return orjson.dumps(watched, option=orjson.OPT_SORT_KEYS)


def problems(body: Body, kind: Kind, subresource: str = '', old: Body | None = None) -> Iterator[Cause]:
    """
    Yield all errors of an object, limited to the part that the subresource changes.

    Invalid values are accepted if they are the same in the ``old`` object.
    """
    meta = body['metadata']
    if prefix := meta.get('generateName'):
        for problem in _name_problems(prefix[:-1] + 'a' if prefix.endswith('-') else prefix, kind):
            yield statuses.value_invalid('metadata.generateName', _text(prefix), problem)
    if not (name := meta.get('name')):
        yield statuses.value_required('metadata.name', 'name or generateName is required')
    for problem in _name_problems(name, kind) if name else ():
        yield statuses.value_invalid('metadata.name', _text(name), problem)
    yield from metadata.problems(meta, custom=kind.custom or (kind.group, kind.plural) in PLAIN)
    if kind.schema is not None:
        status = subresource == 'status'
        before = schemas.ABSENT if old is None else old
        yield from (
            schemas.validate_status(body, kind.schema, before)
            if status
            else schemas.validate(body, kind.schema, old=before)
        )
        if 'scale' in kind.subresources:
            yield from replicas.problems(body, kind.scale, status=status)
    elif kind.plural == crds.PLURAL:
        yield from crds.problems(body, old)
    else:
        yield from builtins.problems(body, kind, old)


def _name_problems(name: str, kind: Kind) -> list[str]:
    if (kind.group, kind.plural) in (('', 'namespaces'), ('', 'services'), ('apps', 'statefulsets')):
        return names.label_problems(name)
    if kind.group == 'rbac.authorization.k8s.io':
        return names.path_problems(name)
    return names.subdomain_problems(name)


def change_problems(body: Body, old: Body) -> Iterator[Cause]:
    """Yield all errors of the change of an object."""
    meta, before = body['metadata'], old['metadata']
    causes = []
    for key in ('name', 'namespace', 'uid', 'deletionTimestamp', 'deletionGracePeriodSeconds'):
        if meta.get(key) != before.get(key):
            causes.append(statuses.value_invalid(f'metadata.{key}', _text(meta.get(key)), 'field is immutable'))
    if 'deletionTimestamp' in before:
        old_finalizers = before.get('finalizers') or ()
        if added := [item for item in meta.get('finalizers') or () if item not in old_finalizers]:
            listed = ', '.join(f'"{item}"' for item in added)
            causes.append(
                statuses.value_forbidden(
                    'metadata.finalizers',
                    'no new finalizers can be added if the object is being deleted, found new '
                    f'finalizers []string{{{listed}}}',
                )
            )
    causes += metadata.repeated_problems(meta)
    if body['kind'] == 'CustomResourceDefinition':
        yield from crds.change_problems(body, old)
    yield from causes
    if (body['apiVersion'], body['kind']) not in (('v1', 'Event'), ('policy/v1', 'PodDisruptionBudget')):
        yield from causes  # A real server checks this twice, and reports it twice.


def sorted_text(body: Any) -> str:
    """Return the object as JSON in the form in which messages quote it."""
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()


def unchanged(body: Body, old: Body) -> bool:
    """Check whether a new version is the same as the old one, except for the times in its managed fields."""
    owners, given = (each['metadata'].get('managedFields') for each in (old, body))
    if given is not owners and not (given and owners and managers.same_but_times(given, owners)):
        return False
    if owners is None:
        return same(body, old)
    body, old = ({**each, 'metadata': {**each['metadata'], 'managedFields': None}} for each in (body, old))
    return same(body, old)


def same(one: Body, another: Body) -> bool:
    """Check whether both are the same; true and 1 are not, unlike in Python."""
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(another, option=orjson.OPT_SORT_KEYS)


def _restore(target: dict[str, Any], source: Mapping[str, Any], key: str) -> None:
    target.pop(key, None)
    if key in source:
        target[key] = source[key]


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
