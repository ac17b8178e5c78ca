"""
Rules of CRDs in CEL: ``x-kubernetes-validations``, wherever they are in a schema.

They are evaluated by the library ``cel-expr-python`` if it is installed; otherwise, a warning says once that they are
not. A rule can compare a value with what it was before, if it is known which value that was: not so in lists without
keys. A rule that was broken before is not held against changes of something else.
"""
import functools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.testing.schemas import extensions
from kopf._kits.testing.schemas.schemas import Schema
from kopf._kits.testing.serving import statuses
from kopf._kits.testing.serving.statuses import Cause

logger = logging.getLogger(__name__)

RULES = 'x-kubernetes-validations'
REASONS = ('FieldValueDuplicate', 'FieldValueForbidden', 'FieldValueInvalid', 'FieldValueRequired')
#: What has to be right before the rules are looked at.
BLOCKING = frozenset({'FieldValueNotSupported', 'FieldValueRequired', 'FieldValueTooLong', 'FieldValueTooMany',
                      'FieldValueTypeInvalid'})
UNCHECKED = Cause('<nil>', 'FieldValueInvalid', 'Invalid value: null: some validation rules were not checked because '
                  'the object was invalid; correct the existing errors to complete validation')
_ABSENT: Any = object()


def has_rules(schema: Schema) -> bool:
    """Whether there are any rules in the schema."""
    return bool(schema.get(RULES)) or any(has_rules(sub) for sub, _ in _parts(schema))


@functools.cache
def is_possible() -> bool:
    """Whether rules can be evaluated; if not, tells so, once."""
    try:
        import cel_expr_python  # noqa: F401
    except ImportError:
        logger.warning('The validation rules of custom resources (x-kubernetes-validations) are not checked: install '
                       'what evaluates them by `pip install kopf[cel]`.')
        return False
    return True


def problems(body: Any, schema: Schema, old: Any, causes: list[Cause]) -> Iterator[Cause]:
    """
    Everything in an object that breaks a rule; ``old`` is what it was before, or None.

    ``causes`` is what else is wrong with it: some of that makes it impossible to look at the rules.
    """
    if not _has_rules(schema) or not is_possible():
        return
    if any(cause.reason in BLOCKING for cause in causes):
        yield UNCHECKED
        return
    yield from _walk(_bare(body), schema, _bare(old) if old is not None else _ABSENT, '')


def _walk(value: Any, schema: Schema, old: Any, path: str) -> Iterator[Cause]:
    if value is None:
        return
    if declared := schema.get(RULES):
        yield from _check(value, schema, declared, old, path)
    if isinstance(value, dict):
        properties, others = schema.get('properties') or {}, schema.get('additionalProperties')
        before = old if isinstance(old, dict) else {}
        for key, item in value.items():
            if key in properties:
                yield from _walk(item, properties[key], before.get(key, _ABSENT), f'{path}.{key}' if path else key)
            elif isinstance(others, Mapping):
                yield from _walk(item, others, before.get(key, _ABSENT), f'{path}[{key}]')
    elif isinstance(value, list) and isinstance(items := schema.get('items'), Mapping):
        known = _by_keys(old, schema) if isinstance(old, list) else {}
        for index, item in enumerate(value):
            yield from _walk(item, items, known.get(_keys(item, schema), _ABSENT), f'{path}[{index}]')


def _check(value: Any, schema: Schema, declared: list[Any], old: Any, path: str) -> Iterator[Cause]:
    from kopf._kits.testing.schemas import cels
    seen = cels.seen(value, schema)
    before = cels.seen(old, schema) if old is not _ABSENT and old is not None else _ABSENT
    unchanged = before is not _ABSENT and old == value
    for rule in declared:
        program = cels.compiled(rule['rule'], bool(rule.get('optionalOldSelf')))
        if program.uses_old:
            if before is _ABSENT and not rule.get('optionalOldSelf'):
                continue
        elif unchanged:
            continue
        variables = {'self': seen} if before is _ABSENT else {'self': seen, 'oldSelf': before}
        try:
            if program.run(variables) is True:
                continue
        except cels.CelError as error:
            text = rule.get('message') or re.sub(r'\s*\n\s*', ' ', rule['rule']).strip()
            shown = _shown(value) or ('"array"' if isinstance(value, list) else '"object"')
            yield statuses.value_invalid(path or '<nil>', shown, f'{error} evaluating rule: {text}')
            continue
        yield _broken(rule, variables, value, path)


def _broken(rule: Mapping[str, Any], variables: Mapping[str, Any], value: Any, path: str) -> Cause:
    from kopf._kits.testing.schemas import cels
    message = ''
    if expression := rule.get('messageExpression'):
        try:
            made = cels.compiled(expression, bool(rule.get('optionalOldSelf'))).run(variables)
            message = made.strip() if isinstance(made, str) and '\n' not in made else ''
        except cels.CelError:
            message = ''
    message = message or rule.get('message') or f'failed rule: {re.sub(chr(10), " ", rule["rule"]).strip()}'
    place = (path + rule.get('fieldPath', '')).lstrip('.') or '<nil>'
    shown = _shown(value)
    match rule.get('reason') or 'FieldValueInvalid':
        case 'FieldValueRequired':
            return statuses.value_required(place, message)
        case 'FieldValueForbidden':
            return statuses.value_forbidden(place, message)
        case 'FieldValueDuplicate':
            return Cause(place, 'FieldValueDuplicate', f'Duplicate value: {shown}' if shown else 'Duplicate value')
    return Cause(place, 'FieldValueInvalid', f'Invalid value: {f"{shown}: " if shown else ""}{message}')


def declaration_problems(schema: Schema, place: str) -> Iterator[Cause]:
    """Everything that is wrong with the rules of one node of a schema."""
    for index, rule in enumerate(schema.get(RULES) or ()):
        yield from _declaration_problems(rule, schema, f'{place}.{RULES}[{index}]')


def _declaration_problems(rule: Mapping[str, Any], schema: Schema, place: str) -> Iterator[Cause]:
    text, message = rule.get('rule') or '', rule.get('message') or ''
    if not text.strip():
        yield statuses.value_required(f'{place}.rule', 'rule is not specified')
        return
    if message and not message.strip():
        yield statuses.value_invalid(f'{place}.message', _quoted(message), 'must be non-empty if specified')
    elif '\n' in message.strip():
        yield statuses.value_invalid(f'{place}.message', _quoted(message), 'must not contain line breaks')
    elif '\n' in text.strip() and not message:
        yield statuses.value_required(f'{place}.message', 'message must be specified if rule contains line breaks')
    if (reason := rule.get('reason')) and reason not in REASONS:
        yield statuses.value_unsupported(f'{place}.reason', _quoted(reason), map(_quoted, REASONS))
    if (path := rule.get('fieldPath')) and not _leads(path, schema):
        yield statuses.value_invalid(f'{place}.fieldPath', _quoted(path), 'must be a valid path')
    if is_possible():
        yield from _compilation_problems(rule, place)


def _compilation_problems(rule: Mapping[str, Any], place: str) -> Iterator[Cause]:
    from kopf._kits.testing.schemas import cels
    optional = bool(rule.get('optionalOldSelf'))
    try:
        program = cels.compiled(rule['rule'], optional)
        if program.result not in ('BOOL', 'DYN'):
            yield statuses.value_invalid(f'{place}.rule', _as_go(rule), 'cel expression must evaluate to a bool')
        elif rule.get('optionalOldSelf') is not None and not program.uses_old:
            yield statuses.value_invalid(f'{place}.optionalOldSelf', orjson.dumps(rule['optionalOldSelf']).decode(),
                                         'may not be set if oldSelf is not used in rule')
    except cels.CelError as error:
        yield statuses.value_invalid(f'{place}.rule', _as_go(rule), f'compilation failed: {error}')
    try:
        if (expression := rule.get('messageExpression')) and cels.compiled(expression, optional).result not in (
                'STRING', 'DYN'):
            yield statuses.value_invalid(f'{place}.messageExpression', _as_go(rule),
                                         'messageExpression must evaluate to a string')
    except cels.CelError as error:
        yield statuses.value_invalid(f'{place}.messageExpression', _as_go(rule),
                                     f'messageExpression compilation failed: {error}')


def _leads(path: str, schema: Schema) -> bool:
    node: Any = schema
    rest = path
    while rest:
        match = re.match(r"\.([A-Za-z_][\w-]*)|\['([^']+)'\]", rest)
        if match is None or not isinstance(node, Mapping):
            return False
        node = (node.get('properties') or {}).get(match[1] or match[2]) or node.get('additionalProperties')
        rest = rest[match.end():]
    return isinstance(node, Mapping)


def _parts(schema: Schema) -> Iterator[tuple[Schema, str]]:
    for key, sub in (schema.get('properties') or {}).items():
        yield sub, key
    for key in ('items', 'additionalProperties'):
        if isinstance(sub := schema.get(key), Mapping):
            yield sub, ''


_KNOWN: dict[int, tuple[Schema, bool]] = {}


def _has_rules(schema: Schema) -> bool:
    """The same as `has_rules`, but this is asked at every write, and schemas are large."""
    found = _KNOWN.get(id(schema))
    if found is None or found[0] is not schema:
        if len(_KNOWN) > 1000:
            _KNOWN.clear()
        found = _KNOWN[id(schema)] = schema, has_rules(schema)
    return found[1]


def _bare(body: Mapping[str, Any]) -> dict[str, Any]:
    """What rules can see: of the metadata, the names only."""
    meta = body.get('metadata') or {}
    return {**body, 'metadata': {key: meta[key] for key in ('name', 'generateName') if key in meta}}


def _keys(item: Any, schema: Schema) -> Any:
    if schema.get(extensions.LIST_TYPE) != 'map' or not isinstance(item, dict):
        return None
    return orjson.dumps([item.get(key) for key in schema.get(extensions.LIST_KEYS, ())])


def _by_keys(items: list[Any], schema: Schema) -> dict[Any, Any]:
    known = {_keys(item, schema): item for item in items}
    known.pop(None, None)
    return known


def _shown(value: Any) -> str:
    return '' if isinstance(value, (dict, list)) else orjson.dumps(value).decode()


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _as_go(rule: Mapping[str, Any]) -> str:
    """A rule as Go prints it."""
    fields = {'Rule': rule.get('rule', ''), 'Message': rule.get('message', ''),
              'MessageExpression': rule.get('messageExpression', ''), 'Reason': rule.get('reason'),
              'FieldPath': rule.get('fieldPath', ''), 'OptionalOldSelf': rule.get('optionalOldSelf')}
    text = json.dumps(fields, separators=(',', ':'), ensure_ascii=False)
    return text.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
