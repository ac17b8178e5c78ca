"""
Check the result of a patch: the object must still have the same kind and the same name.

The error messages differ from those of other requests: a real server decodes the patched object again, and its error
quotes the object or the patch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import orjson

from kopf._kits.testing.access.write_options import Options, report
from kopf._kits.testing.kinds import metadata
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.objects import objects
from kopf._kits.testing.schemas import decoding
from kopf._kits.testing.wire import gotext, json_patches, statuses


@dataclasses.dataclass(frozen=True, slots=True)
class Patched:
    """The parts of a patch request that errors need: the document to quote, the text of the patch, and the options."""

    document: Any
    strategic: bool
    text: bytes
    options: Options

    def refuse(self, why: str) -> statuses.Refusal:
        """Return a 422: the result of the patch cannot be decoded."""
        return unreadable(self.document, why, strategic=self.strategic)


def check(new: Any, kind: Kind, namespace: str, name: str, source: Patched) -> Body:
    """Return the result as an object of this kind with this name; raise a 400, 422 or 500 if it is invalid."""
    body: Body = new if isinstance(new, dict) else {}
    given, version, meta = body.get('kind'), body.get('apiVersion'), body.get('metadata')
    nameless = statuses.bad_request(
        f'the name of the object ({name} based on URL) was undeterminable: name must be provided'
    )
    for key, part in (('apiVersion', version), ('kind', given)):
        if not isinstance(part, (str, type(None))):
            raise unreadable(
                new,
                f'couldn\'t get version/kind; json parse error: json: cannot unmarshal '
                f'{json_patches.json_type(part)} into Go struct field .{key} of type string',
            )
    if kind.custom and not given:
        raise unreadable(new, f'Object \'Kind\' is missing in \'{objects.sorted_text(new)}\'')
    if not kind.custom and body and not version:
        raise nameless
    if not kind.custom and body and (given or kind.name, version) != (kind.name, kind.api_version):
        raise unreadable(
            new,
            f'no kind "{given or kind.name}" is registered for version "{version}" in scheme '
            '"pkg/runtime/scheme.go:111"',
        )
    if meta is None:
        raise nameless
    mistakes: list[str] = []
    try:
        if kind.custom:
            metadata.check_types(meta, kind)
        else:
            complain = decoding.in_patch if source.strategic else decoding.in_json
            body = objects.structure(body, kind, b'', mistakes, complain)
            meta = body['metadata']
            mistakes[:0] = [
                f'duplicate field "{path}"'
                for path in decoding.duplicates(source.text, decoding.count(orjson.loads(source.text or b'null')))
            ]
    except TypeError as error:
        raise source.refuse(str(error)) from None
    report(mistakes, source.options, source.refuse)
    if kind.custom and source.options.field_validation == 'Strict':
        source.options.patched = orjson.loads(orjson.dumps(new))
    if not version:
        why = 'Object \'apiVersion\' is missing in \'object has no apiVersion field\''
        raise statuses.Refusal(500, 'InternalError', f'Internal error occurred: {why}', {'causes': [{'message': why}]})
    check_name(meta.get('name') or '', name)
    if kind.namespaced and (meta.get('namespace') or namespace) != namespace:
        raise statuses.wrong_namespace()
    group, _, _ = str(version).rpartition('/')
    for field, value, expected in (('kind', given, kind.name), ('apiVersion', version, kind.api_version)):
        if value != expected and kind.custom:
            raise statuses.invalid(
                group, str(given), name, [statuses.value_invalid(field, f'"{value}"', f'must be {expected}')]
            )
    if kind.custom and meta.get('resourceVersion') in (None, '', '0'):
        raise unversioned(kind, name)
    return {**body, 'kind': kind.name, 'apiVersion': kind.api_version}


def check_words(patch: Mapping[str, Any], kind: Kind) -> None:
    """Refuse (422) a strategic merge patch whose kind or version is not a string; any string is accepted."""
    for key in ('apiVersion', 'kind'):
        if not isinstance(value := patch.get(key), (str, type(None))):
            spot = decoding.Spot(kind.name, key, 'string')
            raise unreadable(patch, decoding.in_patch(value, kind.shape.fields[key], spot), strategic=True)


def unversioned(kind: Kind, name: str) -> statuses.Refusal:
    """Return a 422: updates of custom objects require a resource version."""
    return statuses.invalid(
        kind.group,
        kind.plural,
        name,
        [statuses.value_invalid('metadata.resourceVersion', '0', 'must be specified for an update')],
    )


def unreadable(body: Any, why: str, *, strategic: bool = False) -> statuses.Refusal:
    """Return a 422: the body, or the strategic merge patch, cannot be decoded."""
    if strategic:
        text = statuses.text(gotext.plain(body))
    else:
        text = statuses.text(objects.sorted_text(body))
    return statuses.invalid('', '', '', [statuses.value_invalid('patch', text, why)])


def unhandled(kind: Kind, why: str) -> statuses.Refusal:
    """Return a 400: the object cannot be decoded."""
    return statuses.bad_request(f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: {why}')


def check_name(given: str, name: str) -> None:
    """Refuse (400) an object without a name, or with another name than that of the URL."""
    if not given:
        raise statuses.bad_request(
            f'the name of the object ({name} based on URL) was undeterminable: name must be provided'
        )
    if given != name:
        raise statuses.bad_request(f'the name of the object ({given}) does not match the name on the URL ({name})')
