"""
Query parameters of requests and options of deletions: decoded and checked as a real server does.

A malformed number is a bad request (400) with Go's message. A value that is not allowed in this place is invalid (422);
all invalid values are reported together.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.json_patches import json_type
from kopf._kits.testing.wire.statuses import Cause

OPTIONS = {'create': 'CreateOptions', 'update': 'UpdateOptions', 'patch': 'PatchOptions'}
POLICIES = ('Foreground', 'Background', 'Orphan')
LONGEST_MANAGER = 128
_DURATION = re.compile(r'[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)')
_INT64 = 2**63


def check_timeout(params: Mapping[str, str]) -> None:
    """Refuse an invalid ``timeout`` parameter."""
    text = params.get('timeout', '')
    if text in ('', '0') or not text:
        return
    rest = text
    while rest:
        if (match := _DURATION.match(rest)) is None:
            missing = re.fullmatch(r'[+-]?(\d+(\.\d*)?|\.\d+)', rest) is not None
            unit = re.fullmatch(r'[+-]?(?:\d+(?:\.\d*)?|\.\d+)([^\d.]+).*', rest)
            what = 'missing unit in duration' if missing else 'invalid duration'
            if unit is not None and not missing:
                what = f'unknown unit "{unit[1]}" in duration'
            raise statuses.bad_request(f'invalid timeout specified in the request URL - time: {what} "{text}"')
        rest = rest[match.end() :]


def check_write(verb: str, params: Mapping[str, str], *, applies: bool = False) -> None:
    """Refuse invalid parameters of a create, update, or patch request; ``applies`` means a server-side apply."""
    causes = list(_apply_causes(params, applies)) if verb == 'patch' else []
    if causes := [*causes, *_write_causes(params)]:
        raise statuses.invalid_options(OPTIONS[verb], *causes)


def _apply_causes(params: Mapping[str, str], applies: bool) -> Iterator[Cause]:
    if applies and not params.get('fieldManager'):
        yield statuses.value_required('fieldManager', 'is required for apply patch')
    if not applies and 'force' in params:
        yield statuses.value_forbidden('force', 'may not be specified for non-apply patch')


def _write_causes(params: Mapping[str, str]) -> Iterator[Cause]:
    manager = params.get('fieldManager', '')
    if len(manager) > LONGEST_MANAGER:
        yield Cause('fieldManager', 'FieldValueTooLong', f'Too long: may not be more than {LONGEST_MANAGER} bytes')
    for index, character in enumerate(manager):
        if not character.isprintable():
            yield statuses.value_invalid(
                'fieldManager',
                statuses.text(manager),
                f'invalid character U+{ord(character):04X} (at position {index})',
            )
    yield from dry_run_causes([params['dryRun']] if 'dryRun' in params else [])
    if (validation := params.get('fieldValidation', '')) not in ('', 'Ignore', 'Strict', 'Warn'):
        yield statuses.value_unsupported(
            'fieldValidation', statuses.text(validation), ['""', '"Ignore"', '"Strict"', '"Warn"']
        )


def dry_run_causes(values: list[str]) -> Iterator[Cause]:
    """Yield the errors of the ``dryRun`` parameters."""
    if any(value != 'All' for value in values):
        yield statuses.value_unsupported('dryRun', statuses.text(values), ['"All"'])


class Deletion:
    """The options of a deletion: from the body, or from the query if there is no body."""

    def __init__(self, body: Any, params: Mapping[str, str]) -> None:
        given = _decoded(body) if body is not None else _queried(params)
        self.propagation: str | None = given.get('propagationPolicy')
        self.orphan: bool | None = given.get('orphanDependents')
        self.dry_run: list[str] = given.get('dryRun') or []
        self.grace: int | None = given.get('gracePeriodSeconds')
        preconditions = given.get('preconditions') or {} if body is not None else params
        self.uid: str = preconditions.get('uid') or ''
        self.version: str = preconditions.get('resourceVersion') or ''
        if causes := list(self._causes()):
            raise statuses.invalid_options('DeleteOptions', *causes)

    def _causes(self) -> Iterator[Cause]:
        if self.propagation is not None:
            if self.orphan is not None:
                yield statuses.value_invalid(
                    'propagationPolicy',
                    statuses.text(self.propagation),
                    'orphanDependents and deletionPropagation cannot be both set',
                )
            if self.propagation not in POLICIES:
                yield statuses.value_unsupported(
                    'propagationPolicy',
                    statuses.text(self.propagation),
                    ['"Foreground"', '"Background"', '"Orphan"', '"nil"'],
                )
        yield from dry_run_causes(self.dry_run)


def integer(params: Mapping[str, str], name: str) -> int:
    """Return a number of the query; refuse anything else (400)."""
    text = params.get(name)
    if text is None:
        return 0
    if not re.fullmatch(r'[+-]?\d+', text):
        raise statuses.bad_request(f'strconv.ParseInt: parsing {statuses.text(text)}: invalid syntax')
    if not -_INT64 <= int(text) < _INT64:
        raise statuses.bad_request(f'strconv.ParseInt: parsing {statuses.text(text)}: value out of range')
    return int(text)


def boolean(params: Mapping[str, str], name: str) -> bool | None:
    """Return a boolean of the query: all values but ``0`` and ``false`` are true; None if it is absent."""
    text = params.get(name)
    return None if text is None else text.lower() not in ('0', 'false')


def _queried(params: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if 'gracePeriodSeconds' in params:
        given['gracePeriodSeconds'] = integer(params, 'gracePeriodSeconds')
    if 'orphanDependents' in params:
        given['orphanDependents'] = boolean(params, 'orphanDependents')
    if 'propagationPolicy' in params:
        given['propagationPolicy'] = params['propagationPolicy']
    if 'dryRun' in params:
        given['dryRun'] = [params['dryRun']]
    return given


_FIELDS: Mapping[str, tuple[type, str]] = {
    'gracePeriodSeconds': (int, 'int64'),
    'preconditions': (dict, 'v1.Preconditions'),
    'orphanDependents': (bool, 'bool'),
    'propagationPolicy': (str, 'v1.DeletionPropagation'),
    'dryRun': (list, '[]string'),
    'ignoreStoreReadErrorWithClusterBreakingPotential': (bool, 'bool'),
}
"""The fields of ``DeleteOptions``: their JSON types, and what Go calls these types."""


def _decoded(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise statuses.bad_request(
            f'couldn\'t get version/kind; json parse error: json: cannot unmarshal {json_type(body)} into Go value of '
            'type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
            '"json:\\"kind,omitempty\\"" }'
        )
    for key, (type, name) in _FIELDS.items():
        value = body.get(key)
        if value is not None and (not isinstance(value, type) or type is int and isinstance(value, bool)):
            raise statuses.bad_request(
                f'json: cannot unmarshal {json_type(value)} into Go struct field DeleteOptions.{key} of type {name}'
            )
    for key in ('uid', 'resourceVersion'):
        value = (body.get('preconditions') or {}).get(key)
        if value is not None and not isinstance(value, str):
            name = 'types.UID' if key == 'uid' else 'string'
            raise statuses.bad_request(
                f'json: cannot unmarshal {json_type(value)} into Go struct field '
                f'Preconditions.preconditions.{key} of type {name}'
            )
    return body
