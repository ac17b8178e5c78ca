"""
Validation of the rules in CRDs: their syntax, references, and types.

A real server compiles the rules when a CRD is written, and so does this module, if the library is installed.
"""

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from kopf._kits.definitions.schema_extensions import RULES
from kopf._kits.testing.schemas.rules import is_possible, steps
from kopf._kits.testing.schemas.schemas import Schema
from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.statuses import Cause

logger = logging.getLogger(__name__)

REASONS = ('FieldValueDuplicate', 'FieldValueForbidden', 'FieldValueInvalid', 'FieldValueRequired')


@dataclasses.dataclass(frozen=True)
class Place:
    """
    The place of a schema in a CRD: its path, and whether it is the schema of whole objects.

    ``unmatched`` is the path of the enclosing list whose items cannot be matched with their old values, if any.
    ``inside_metadata`` is whether it is in the schema of the metadata of an object, which also has fields of its own.
    """

    path: str
    root: bool = False
    unmatched: str = ''
    inside_metadata: bool = False


def problems(schema: Schema, place: Place, *, is_valid: bool) -> Iterator[Cause]:
    """
    Yield all errors of the rules at one node of a schema.

    References are checked only if the schema has no other errors (``is_valid``).
    """
    for index, rule in enumerate(schema.get(RULES) or ()):
        where = f'{place.path}.{RULES}[{index}]'
        yield from _text_problems(rule, schema, where)
        if is_valid and (rule.get('rule') or '').strip() and is_possible():
            yield from _compilation_problems(rule, schema, place, where)


def _text_problems(rule: Mapping[str, Any], schema: Schema, place: str) -> Iterator[Cause]:
    text, message = rule.get('rule') or '', rule.get('message') or ''
    if not text.strip():
        yield statuses.value_required(f'{place}.rule', 'rule is not specified')
    elif message and not message.strip():
        yield statuses.value_invalid(f'{place}.message', _quoted(message), 'must be non-empty if specified')
    elif '\n' in message.strip():
        yield statuses.value_invalid(f'{place}.message', _quoted(message), 'must not contain line breaks')
    elif '\n' in text.strip() and not message:
        yield statuses.value_required(f'{place}.message', 'message must be specified if rule contains line breaks')
    if (expression := rule.get('messageExpression')) and not expression.strip():
        yield statuses.value_required(f'{place}.messageExpression', 'messageExpression must be non-empty if specified')
    if (reason := rule.get('reason')) and reason not in REASONS:
        yield statuses.value_unsupported(f'{place}.reason', _quoted(reason), map(_quoted, REASONS))
    path = rule.get('fieldPath') or ''
    if path and not path.strip():
        yield statuses.value_invalid(f'{place}.fieldPath', _quoted(path), 'must be non-empty if specified')
    if '\n' in path:
        yield statuses.value_invalid(f'{place}.fieldPath', _quoted(path), 'must not contain line breaks')
    if path and not _leads(path, schema):
        yield statuses.value_invalid(f'{place}.fieldPath', _quoted(path), 'must be a valid path')


def _compilation_problems(
    rule: Mapping[str, Any],
    schema: Schema,
    place: Place,
    where: str,
) -> Iterator[Cause]:
    from kopf._kits.testing.schemas import cels

    optional, uses_old = bool(rule.get('optionalOldSelf')), False
    try:
        result = cels.result_type(rule['rule'], optional, schema, place.root)
        if result not in ('BOOL', 'DYN'):
            yield statuses.value_invalid(f'{where}.rule', _as_go(rule), 'cel expression must evaluate to a bool')
        else:
            uses_old = cels.compiled(rule['rule'], optional).uses_old
    except TypeError as error:
        yield Cause(
            where.rpartition('[')[0],
            'InternalError',
            f'Internal error: internal error: failed to construct type information for {RULES} rules: {error}',
        )
        return
    except cels.NotEmulatedError as error:
        logger.warning('A rule of %s is not checked, because the sandbox has no %s: %s', where, error, rule['rule'])
        return
    except cels.CelError as error:
        yield statuses.value_invalid(f'{where}.rule', _as_go(rule), f'compilation failed: {error}')
    if uses_old and place.unmatched:
        yield statuses.value_invalid(
            f'{where}.rule',
            _quoted(rule['rule']),
            f'oldSelf cannot be used on the uncorrelatable portion of the schema within {place.unmatched}',
        )
    if not uses_old and rule.get('optionalOldSelf') is not None:
        yield statuses.value_invalid(
            f'{where}.optionalOldSelf',
            orjson.dumps(rule['optionalOldSelf']).decode(),
            'may not be set if oldSelf is not used in rule',
        )
    yield from _message_problems(rule, schema, place, where)


def _message_problems(rule: Mapping[str, Any], schema: Schema, place: Place, where: str) -> Iterator[Cause]:
    from kopf._kits.testing.schemas import cels

    if not (expression := rule.get('messageExpression') or '').strip():
        return
    try:
        if cels.result_type(expression, bool(rule.get('optionalOldSelf')), schema, place.root) not in ('STRING', 'DYN'):
            yield statuses.value_invalid(
                f'{where}.messageExpression', _as_go(rule), 'messageExpression must evaluate to a string'
            )
    except cels.NotEmulatedError:
        pass
    except cels.CelError as error:
        yield statuses.value_invalid(
            f'{where}.messageExpression', _as_go(rule), f'messageExpression compilation failed: {error}'
        )


def _leads(path: str, schema: Schema) -> bool:
    node: Any = schema
    if (names := steps(path)) is None:
        return False
    for name in names:
        node = (node.get('properties') or {}).get(name) or node.get('additionalProperties')
        if not isinstance(node, Mapping):
            return False
    return True


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _as_go(rule: Mapping[str, Any]) -> str:
    """Return a rule as Go prints it."""
    fields = {
        'Rule': rule.get('rule', ''),
        'Message': rule.get('message', ''),
        'MessageExpression': rule.get('messageExpression', ''),
        'Reason': rule.get('reason'),
        'FieldPath': rule.get('fieldPath', ''),
        'OptionalOldSelf': rule.get('optionalOldSelf'),
    }
    text = json.dumps(fields, separators=(',', ':'), ensure_ascii=False)
    return text.replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
