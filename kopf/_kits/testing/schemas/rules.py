"""
The evaluation of rules of CRDs in CEL: ``x-kubernetes-validations`` at any place of a schema.

The library ``cel-expr-python`` evaluates them if it is installed; otherwise, they are skipped with one warning. A rule
can compare a value with the old value, except in lists without keys, where old values cannot be identified. A rule that
the old value violates, too, does not prevent changes of other fields.
"""

import functools
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from kopf._kits.definitions.schema_extensions import RULES
from kopf._kits.testing.schemas import schemas
from kopf._kits.testing.schemas.schemas import ABSENT, Schema
from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.statuses import Cause

logger = logging.getLogger(__name__)

BLOCKING = frozenset(
    {'FieldValueNotSupported', 'FieldValueRequired', 'FieldValueTooLong', 'FieldValueTooMany', 'FieldValueTypeInvalid'}
)
"""The errors that prevent the evaluation of rules."""
UNCHECKED = Cause(
    '<nil>',
    'FieldValueInvalid',
    'Invalid value: null: some validation rules were not checked because '
    'the object was invalid; correct the existing errors to complete validation',
)


def has_rules(schema: Schema) -> bool:
    """Check whether the schema has any rules."""
    return bool(schema.get(RULES)) or any(has_rules(sub) for sub, _ in _parts(schema))


@functools.cache
def is_possible() -> bool:
    """Check whether rules can be evaluated; otherwise, log a warning once."""
    try:
        import cel_expr_python  # noqa: F401
    except ImportError:
        logger.warning(
            'The validation rules of custom resources (x-kubernetes-validations) are not checked: install '
            "the library that evaluates them by `pip install 'kopf[cel]>=1.46'`."
        )
        return False
    return True


def problems(
    body: Any,
    schema: Schema,
    old: Any,
    causes: list[Cause],
    warnings: list[str] | None = None,
) -> Iterator[Cause]:
    """
    Yield all violations of rules in an object.

    Args:
        body: The object.
        schema: The schema of the object.
        old: The object as it was before, or None.
        causes: The other errors of the object: some of them prevent the evaluation of rules.
        warnings: The list for violations in unchanged values, which are accepted.
    """
    if not _has_rules(schema) or not is_possible():
        return
    if any(cause.reason in BLOCKING for cause in causes):
        yield UNCHECKED
        return
    for found in _walk(_bare(body), schema, _bare(old) if old is not None else ABSENT, ''):
        if not found.kept:
            yield found.cause
        elif warnings is not None:
            warnings.append(f'{found.cause.field}: {found.cause.message}')


class Finding(NamedTuple):
    """A violation of a rule; ``kept`` says whether the old value violates it, too."""

    cause: Cause
    kept: bool = False


def _walk(value: Any, schema: Schema, old: Any, path: str) -> Iterator[Finding]:
    if value is None:
        return
    if declared := schema.get(RULES):
        yield from _check(value, schema, declared, old, path)
    if isinstance(value, dict):
        properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
        before = old if isinstance(old, dict) else {}
        for key, item in value.items():
            if key in properties:
                yield from _walk(item, properties[key], before.get(key, ABSENT), f'{path}.{key}' if path else key)
            elif isinstance(others, Mapping):
                yield from _walk(item, others, before.get(key, ABSENT), f'{path}[{key}]')
    elif isinstance(value, list) and isinstance(items := schema.get('items'), Mapping):
        known = schemas.by_keys(old, schema) if isinstance(old, list) else {}
        same = schemas.is_same(value, old)
        for index, item in enumerate(value):
            before = known.get(schemas.keys_of(item, schema), ABSENT)
            for found in _walk(item, items, before, f'{path}[{index}]'):
                yield found._replace(kept=True) if same and before is ABSENT else found


def _check(value: Any, schema: Schema, declared: list[Any], old: Any, path: str) -> Iterator[Finding]:
    from kopf._kits.testing.schemas import cels

    seen = cels.seen(value, schema)
    before = cels.seen(old, schema) if old is not ABSENT and old is not None else ABSENT
    unchanged = before is not ABSENT and schemas.is_same(old, value)
    for rule in declared:
        try:
            program = cels.compiled(rule['rule'], bool(rule.get('optionalOldSelf')))
        except cels.NotEmulatedError:  # The error was reported when the rule was declared.
            continue
        except cels.CelError as error:  # Reported with the CRD, too, but only after the defaults.
            yield Finding(
                statuses.value_invalid(
                    path or '<nil>', f'"{schema.get("type")}"', f'rule compile error: compilation failed: {error}'
                )
            )
            continue
        if program.uses_old and before is ABSENT and not rule.get('optionalOldSelf'):
            continue
        kept = unchanged and not program.uses_old
        variables = {'self': seen} if before is ABSENT else {'self': seen, 'oldSelf': before}
        try:
            if program.run(variables) is True:
                continue
        except cels.NotEmulatedError:
            continue
        except cels.CelError as error:
            text = rule.get('message') or re.sub(r'\s*\n\s*', ' ', rule['rule']).strip()
            shown = _shown(value) or ('"array"' if isinstance(value, list) else '"object"')
            cause = statuses.value_invalid(path or '<nil>', shown, f'{error} evaluating rule: {text}')
        else:
            cause = _broken(rule, variables, value, schema, path)
        yield Finding(cause, kept)


def _broken(
    rule: Mapping[str, Any],
    variables: Mapping[str, Any],
    value: Any,
    schema: Schema,
    path: str,
) -> Cause:
    from kopf._kits.testing.schemas import cels

    message = ''
    if expression := rule.get('messageExpression'):
        try:
            made = cels.compiled(expression, bool(rule.get('optionalOldSelf'))).run(variables)
            message = made.strip() if isinstance(made, str) and '\n' not in made else ''
        except cels.CelError:
            message = ''
    message = message or rule.get('message') or f'failed rule: {re.sub(chr(10), " ", rule["rule"]).strip()}'
    place = (path + _as_field(rule.get('fieldPath') or '', schema)).lstrip('.') or '<nil>'
    shown = _shown(value)
    match rule.get('reason') or 'FieldValueInvalid':
        case 'FieldValueRequired':
            return statuses.value_required(place, message)
        case 'FieldValueForbidden':
            return statuses.value_forbidden(place, message)
        case 'FieldValueDuplicate':
            return Cause(place, 'FieldValueDuplicate', f'Duplicate value: {shown}' if shown else 'Duplicate value')
    return Cause(place, 'FieldValueInvalid', f'Invalid value: {f"{shown}: " if shown else ""}{message}')


def default_problems(schema: Schema) -> Iterator[Cause]:
    """Yield the violations of the rules of a schema by its own default."""
    if has_rules(schema) and is_possible():
        yield from (found.cause for found in _walk(schema['default'], schema, ABSENT, ''))


def steps(path: str) -> list[str] | None:
    """Return the names in the path of a field: ``.a['b']``; None if it is not a path."""
    steps, rest = [], path
    while rest:
        match = re.match(r"\.([A-Za-z_][\w-]*)|\['([^']+)'\]", rest)
        if match is None:
            return None
        steps.append(match[1] or match[2])
        rest = rest[match.end() :]
    return steps


def _as_field(path: str, schema: Schema) -> str:
    """Return the ``fieldPath`` of a rule as messages contain it: with keys of maps in brackets."""
    node, text = schema, ''
    for step in steps(path) or ():
        inner = (node.get('properties') or {}).get(step)
        text += f'.{step}' if inner is not None else f'[{step}]'
        node = inner if inner is not None else node.get('additionalProperties') or {}
    return text


def _parts(schema: Schema) -> Iterator[tuple[Schema, str]]:
    for key, sub in (schema.get('properties') or {}).items():
        yield sub, key
    for key in ('items', 'additionalProperties'):
        if isinstance(sub := schema.get(key), Mapping):
            yield sub, ''


_KNOWN: dict[int, tuple[Schema, bool]] = {}


def _has_rules(schema: Schema) -> bool:
    """Return the result of `has_rules`. It is cached, because every write needs it, and schemas are large."""
    found = _KNOWN.get(id(schema))
    if found is None or found[0] is not schema:
        if len(_KNOWN) > 1000:
            _KNOWN.clear()
        found = _KNOWN[id(schema)] = schema, has_rules(schema)
    return found[1]


def _bare(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object for the evaluation of rules: with only the names in its metadata."""
    meta = body.get('metadata') or {}
    return {**body, 'metadata': {key: meta[key] for key in ('name', 'generateName') if key in meta}}


def _shown(value: Any) -> str:
    return '' if isinstance(value, (dict, list)) else orjson.dumps(value).decode()
