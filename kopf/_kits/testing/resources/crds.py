"""CRDs: their defaults, validation and conditions, and the kinds that they define."""

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import VERBS, Body, ConversionFactory, Kind, Schemas, Service, priority
from kopf._kits.testing.kinds.storage import Table
from kopf._kits.testing.resources import clientconfigs
from kopf._kits.testing.schemas import structural
from kopf._kits.testing.storing import selectables
from kopf._kits.testing.wire import names, statuses, timestamps
from kopf._kits.testing.wire.statuses import Cause

GROUP, PLURAL = 'apiextensions.k8s.io', 'customresourcedefinitions'
FINALIZER = 'customresourcecleanup.apiextensions.k8s.io'
APPROVAL = 'api-approved.kubernetes.io'
"""The annotation that definitions in the groups of Kubernetes must have."""

_POLICY = 'https://github.com/kubernetes/enhancements/pull/1111'
SIMPLE = 'must be a simple json path starting with .'


def complete(body: Body) -> None:
    """Fill in the omitted fields of a CRD: the other names, the conversion, and the stored versions."""
    spec = _mapping(body, 'spec')
    wanted = _mapping(spec, 'names')
    if kind := wanted.get('kind'):
        wanted.setdefault('singular', kind.lower())
        wanted.setdefault('listKind', f'{kind}List')
    clientconfigs.complete(spec)
    status = body.setdefault('status', {})
    status.setdefault('conditions', None)
    status.setdefault('acceptedNames', {'plural': '', 'kind': ''})
    if not status.get('storedVersions'):
        status['storedVersions'] = []
        note_storage(body)


def note_storage(body: Body) -> None:
    """Add the storage version to the ``storedVersions``."""
    stored = body['status']['storedVersions']
    for version in _versions(body['spec']):
        if version.get('storage'):
            if version.get('name') not in stored:
                stored.append(version['name'])
            return


def problems(body: Body, old: Body | None = None) -> list[Cause]:
    """Return all errors of a CRD with its defaults; with the former state, also the changes that are not possible."""
    return [*(() if old is None else _change_problems(body, old)), *_problems(body, is_new=old is None)]


def _change_problems(body: Body, old: Body) -> Iterator[Cause]:
    fixed: list[tuple[str, ...]] = [('group',), ('names', 'plural')]
    if is_established(old):
        fixed[:0] = [('scope',), ('names', 'kind')]
    for path in fixed:
        value, before = (_look_up(each.get('spec') or {}, path) for each in (body, old))
        if value and value != before:
            yield statuses.value_invalid('.'.join(('spec', *path)), statuses.text(value), 'field is immutable')


def _look_up(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _problems(body: Body, *, is_new: bool) -> Iterator[Cause]:
    spec = body.get('spec') or {}
    wanted = spec.get('names') or {}
    for key in ('generateName', 'name') if is_new else ():
        given = body['metadata'].get(key)
        if given and (not wanted.get('plural') or given != f'{wanted["plural"]}.{spec.get("group")}'):
            yield statuses.value_invalid(f'metadata.{key}', f'"{given}"', 'must be spec.names.plural+"."+spec.group')
    if not (group := spec.get('group')):
        yield statuses.value_required('spec.group')
    elif problems := names.subdomain_problems(group):
        yield statuses.value_invalid('spec.group', f'"{group}"', problems[0])
    elif '.' not in group:
        yield statuses.value_invalid('spec.group', f'"{group}"', 'should be a domain with at least one dot')
    elif is_new and re.search(r'(^|\.)(k8s|kubernetes)\.io$', group):
        yield from _approval_problems(body['metadata'].get('annotations') or {})
    if not (scope := spec.get('scope')):
        yield statuses.value_required('spec.scope')
    elif scope not in ('Cluster', 'Namespaced'):
        yield statuses.value_unsupported('spec.scope', f'"{scope}"', ['"Cluster"', '"Namespaced"'])
    yield from _version_problems(spec)
    for key in ('plural', 'singular', 'kind', 'listKind'):
        if not (word := wanted.get(key)):
            yield statuses.value_required(f'spec.names.{key}')
        elif problems := names.word_problems(word if key in ('plural', 'singular') else word.lower()):
            mixed = '' if key in ('plural', 'singular') else 'may have mixed case, but should otherwise match: '
            yield statuses.value_invalid(f'spec.names.{key}', f'"{word}"', f'{mixed}{"; ".join(problems)}')
    for key in ('shortNames', 'categories'):
        for index, word in enumerate(wanted.get(key) or ()):
            for problem in names.word_problems(word):
                yield statuses.value_invalid(f'spec.names.{key}[{index}]', statuses.text(word), problem)
    if wanted.get('kind') and wanted.get('kind') == wanted.get('listKind'):
        yield statuses.value_invalid(
            'spec.names.listKind', statuses.text(wanted['listKind']), 'kind and listKind may not be the same'
        )
    if spec.get('preserveUnknownFields'):
        yield statuses.value_invalid(
            'spec.preserveUnknownFields',
            'true',
            'cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead',
        )
    yield from clientconfigs.problems(spec.get('conversion') or {})
    if not body['status']['storedVersions']:
        yield statuses.value_invalid('status.storedVersions', 'null', 'must have at least one stored version')
    elif (storage := [each.get('name') for each in _versions(spec) if each.get('storage')]) and (
        storage[-1] not in body['status']['storedVersions']
    ):
        yield statuses.value_invalid(
            'status.storedVersions',
            statuses.text(body['status']['storedVersions']),
            f'must have the storage version {storage[-1]}',
        )


def _approval_problems(annotations: Mapping[str, str]) -> Iterator[Cause]:
    """Yield the error of a group of Kubernetes itself that has not been approved."""
    field, value = f'metadata.annotations[{APPROVAL}]', annotations.get(APPROVAL) or ''
    why, see = f'protected groups must have approval annotation "{APPROVAL}"', f'see {_POLICY}'
    if not value:
        yield statuses.value_required(field, f'{why}, {see}')
    elif not value.startswith('unapproved') and not all(urllib.parse.urlsplit(value)[:2]):
        reason = f'{why} with either a URL or a reason starting with "unapproved", {see}'
        yield statuses.value_invalid(field, statuses.text(value), reason)


def change_problems(body: Body, old: Body) -> Iterator[Cause]:
    """Yield all errors of the change of a CRD."""
    declared = {version.get('name') for version in _versions(body['spec'])}
    if body['spec'] == old['spec']:
        return
    for index, version in enumerate(body['status']['storedVersions'] or ()):
        if version not in declared:
            yield statuses.value_invalid(
                f'status.storedVersions[{index}]',
                f'"{version}"',
                f'missing from spec.versions; {version} was '
                f'previously a storage version, and must remain in spec.versions until a storage migration ensures no '
                f'data remains persisted in {version} and removes {version} from status.storedVersions',
            )


def _version_problems(spec: Mapping[str, Any]) -> Iterator[Cause]:
    versions = _versions(spec)
    if sum(bool(version.get('storage')) for version in versions) != 1:
        quoted = _described(versions) if spec.get('versions') is not None else 'null'
        yield statuses.value_invalid('spec.versions', quoted, 'must have exactly one version marked as storage version')
    seen: set[str] = set()
    for index, version in enumerate(versions):
        place, name = f'spec.versions[{index}]', version.get('name')
        if problems := names.word_problems(name or ''):
            yield statuses.value_invalid(f'{place}.name', f'"{name or ""}"', '; '.join(problems))
            # In the internal form of a real server, CRDs still have the field `spec.version` of v1beta1, whose errors
            # are reported, too.
            if name and len(versions) == 1:
                yield statuses.value_invalid('spec.version', f'"{name}"', '; '.join(problems))
        elif name in seen:
            yield statuses.value_invalid('spec.versions', _described(versions), 'must contain unique version names')
        seen.add(name or '')
        if version.get('deprecationWarning') and not version.get('deprecated'):
            yield statuses.value_invalid(
                f'{place}.deprecationWarning',
                statuses.text(version['deprecationWarning']),
                'can only be set for deprecated versions',
            )
        schema = (version.get('schema') or {}).get('openAPIV3Schema')
        if not isinstance(schema, Mapping):
            yield statuses.value_required(f'{place}.schema.openAPIV3Schema')
            continue
        common = all(other.get('schema') == version['schema'] for other in versions)
        if common and index:
            continue
        base = 'spec.validation' if common else f'{place}.schema'
        yield from selectables.problems(version, f'{place if len(versions) > 1 else "spec"}.selectableFields')
        yield from _column_problems(version, place if len(versions) > 1 else 'spec')
        yield from _scale_problems(version, place if len(versions) > 1 else 'spec')
        yield from structural.problems(schema, f'{base}.openAPIV3Schema')


FORMATS = ('byte', 'date', 'date-time', 'double', 'float', 'int32', 'int64', 'password')
"""The types and formats of columns."""


def _column_problems(version: Mapping[str, Any], place: str) -> Iterator[Cause]:
    known = 'boolean,date,integer,number,string'
    for index, column in enumerate(version.get('additionalPrinterColumns') or ()):
        where, type, path = f'{place}.additionalPrinterColumns[{index}]', column.get('type'), column.get('jsonPath')
        if not column.get('name'):
            yield statuses.value_required(f'{where}.name')
        if not type:
            yield statuses.value_required(f'{where}.type', f'must be one of {known}')
        elif type not in known.split(','):
            yield statuses.value_invalid(f'{where}.type', statuses.text(type), f'must be one of {known}')
        if (format := column.get('format')) and format not in FORMATS:
            yield statuses.value_invalid(
                f'{where}.format', statuses.text(format), f'must be one of {",".join(FORMATS)}'
            )
        if not path:
            yield statuses.value_required(f'{where}.JSONPath')
        elif not path.startswith('.'):
            yield statuses.value_invalid(f'{where}.JSONPath', statuses.text(path), SIMPLE)


def _scale_problems(version: Mapping[str, Any], place: str) -> Iterator[Cause]:
    if (scale := (version.get('subresources') or {}).get('scale')) is None:
        return
    for key, roots, where in (
        ('specReplicasPath', ('.spec.',), '.spec'),
        ('statusReplicasPath', ('.status.',), '.status'),
        ('labelSelectorPath', ('.spec.', '.status.'), 'either .spec or .status'),
    ):
        if not (path := scale.get(key)):
            if key != 'labelSelectorPath':
                yield statuses.value_required(f'{place}.subresources.scale.{key}')
        elif not path.startswith(roots):
            why = f'should be a json path under {where}' if path.startswith('.') else SIMPLE
            yield statuses.value_invalid(f'{place}.subresources.scale.{key}', statuses.text(path), why)


def _described(versions: list[dict[str, Any]]) -> str:
    """Return the versions in the form of messages: without fields that are the same in all versions."""
    return statuses.text(
        [
            {
                'Name': version.get('name', ''),
                'Served': bool(version.get('served')),
                'Storage': bool(version.get('storage')),
                'Deprecated': bool(version.get('deprecated')),
                'DeprecationWarning': version.get('deprecationWarning'),
                'Schema': None,
                'Subresources': None,
                'AdditionalPrinterColumns': None,
                'SelectableFields': None,
            }
            for version in versions
        ]
    )


def accept(body: Body, taken: Mapping[str, str]) -> None:
    """Set the conditions of a CRD; ``taken`` are the names that other resources of its group already use."""
    wanted, status = body['spec']['names'], body['status']
    accepted: dict[str, Any] = dict(status.get('acceptedNames') or {})
    clashes = []
    for key in ('plural', 'singular', 'kind', 'listKind'):
        if (word := wanted[key]) in taken:
            clashes.append((f'{key[:1].upper()}{key[1:]}Conflict', f'"{word}" is already in use'))
        else:
            accepted[key] = word
    if any(word in taken for word in wanted.get('shortNames') or ()):
        used = next(word for word in wanted['shortNames'] if word in taken)
        clashes.append(('ShortNamesConflict', f'"{used}" is already in use'))
    else:
        _copy(wanted, accepted, 'shortNames')
    _copy(wanted, accepted, 'categories')
    status['acceptedNames'] = accepted
    reason, message = clashes[0] if clashes else ('NoConflicts', 'no conflicts found')
    _condition(status, 'NamesAccepted', not clashes, reason, message)
    if not clashes:
        _condition(status, 'Established', True, 'InitialNamesAccepted', 'the initial names have been accepted')
    elif not is_established(body):
        _condition(status, 'Established', False, 'NotAccepted', 'not all names are accepted')


def terminate(body: Body) -> None:
    """Set the condition that the objects of a CRD are being deleted."""
    _condition(
        body['status'],
        'Terminating',
        True,
        'InstanceDeletionPending',
        'CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon',
    )


def is_established(body: Mapping[str, Any]) -> bool:
    """Check whether the objects of a CRD can be served."""
    conditions = body['status'].get('conditions') or ()
    return any(item['type'] == 'Established' and item['status'] == 'True' for item in conditions)


def schemas_of(body: Mapping[str, Any]) -> Schemas:
    """Return the schemas of all versions of a CRD, by their API versions."""
    group, versions = body['spec']['group'], body['spec']['versions']
    return {f'{group}/{version["name"]}': version['schema']['openAPIV3Schema'] for version in versions}


def kinds_of(body: Body, table: Table, converting: ConversionFactory) -> Iterator[Kind]:
    """Yield the kinds that an established CRD defines, one for each of its served versions."""
    spec, accepted = body['spec'], body['status']['acceptedNames']
    versions, service, all_schemas = spec['versions'], Service(), schemas_of(body)
    stored = next(version['name'] for version in versions if version.get('storage'))
    preferred = min((version['name'] for version in versions if version.get('served')), key=priority, default='')
    for version in versions:
        if not version.get('served'):
            continue
        name, subresources = version['name'], version.get('subresources') or {}
        api_version = f'{spec["group"]}/{name}'
        schema = all_schemas[api_version]
        ready = all(record.stored == api_version for record in table.records())
        warning = ''
        if version.get('deprecated'):
            replacement = f'; use {spec["group"]}/{preferred} {accepted["kind"]}' if preferred != name else ''
            warning = (
                version.get('deprecationWarning')
                or f'{spec["group"]}/{name} {accepted["kind"]} is deprecated{replacement}'
            )
        yield Kind(
            group=spec['group'],
            version=name,
            plural=accepted['plural'],
            singular=accepted['singular'],
            name=accepted['kind'],
            list_name=accepted['listKind'],
            namespaced=spec['scope'] == 'Namespaced',
            short_names=tuple(accepted.get('shortNames') or ()),
            categories=tuple(accepted.get('categories') or ()),
            verbs=VERBS,
            subresources=frozenset(subresources),
            counted=True,
            table=table,
            custom=True,
            schema=schema,
            columns=version.get('additionalPrinterColumns') or (),
            warning=warning,
            stored_version=stored,
            scale=_scale(subresources.get('scale') or {}),
            service=service,
            conversion=converting(body, api_version, all_schemas, ready) if len(versions) > 1 else None,
            selectable=selectables.paths(version),
        )


def _scale(declared: Mapping[str, str]) -> dict[str, str]:
    return {
        'spec': declared.get('specReplicasPath', ''),
        'status': declared.get('statusReplicasPath', ''),
        'selector': declared.get('labelSelectorPath', ''),
    }


def _condition(status: dict[str, Any], type: str, value: bool, reason: str, message: str) -> None:
    conditions: list[dict[str, Any]] = list(status.get('conditions') or ())
    status['conditions'] = conditions
    text = str(value)
    old = next((item for item in conditions if item['type'] == type), None)
    since = old['lastTransitionTime'] if old is not None and old['status'] == text else timestamps.now()
    new = {'type': type, 'status': text, 'lastTransitionTime': since, 'reason': reason, 'message': message}
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new


def _copy(source: Mapping[str, Any], target: dict[str, Any], key: str) -> None:
    target.pop(key, None)
    if source.get(key):
        target[key] = source[key]


def _mapping(body: Body, key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        value = body[key] = {}
    return value


def _versions(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    versions = spec.get('versions')
    return [version for version in versions if isinstance(version, dict)] if isinstance(versions, list) else []
