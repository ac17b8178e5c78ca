"""
Label and field selectors: they are parsed once per request, and then matched with every object.

The grammar and the messages are those of a real server: it refuses the same selectors.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kopf._kits.testing.kinds.storage import Record
from kopf._kits.testing.wire import names, statuses


class UnknownField(statuses.Refusal):
    """Raised when objects of this kind cannot be selected by that field."""

    def __init__(self, field: str) -> None:
        super().__init__(400, 'BadRequest', f'field label not supported: {field}')
        self.field = field


class Requirement(NamedTuple):
    """One condition of a label selector."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Check whether the labels meet the condition."""
        value = labels.get(self.key)
        match self.operator:
            case 'in':
                return value in self.values
            case 'notin':
                return value not in self.values
            case 'exists':
                return value is not None
            case 'absent':
                return value is None
        (bound,) = self.values  # the operators `gt` and `lt`: labels that are not integers never match
        if value is None or not re.fullmatch(r'-?\d+', value):
            return False
        return int(value) > int(bound) if self.operator == 'gt' else int(value) < int(bound)


class Selector:
    """
    Both selectors of a request; ``metadata.name`` and ``metadata.namespace`` are known for all kinds.

    The fields are checked at once. If ``known`` is None, the caller checks them later by `check_fields`.
    """

    def __init__(self, labels: str = '', fields: str = '', *, known: frozenset[str] | None = frozenset()) -> None:
        self._labels = parse_labels(labels)
        self._fields = list(parse_fields(fields))
        if known is not None:
            self.check_fields(known)

    def check_fields(self, known: frozenset[str]) -> None:
        """Refuse unknown fields. Drop conditions without a name and a value (``=``), which match every object."""
        for field, _, value in self._fields:
            if field not in ('metadata.name', 'metadata.namespace') and field not in known and (field or value):
                raise UnknownField(field)
        self._fields = [item for item in self._fields if item[0] or item[2]]

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields in the selector."""
        return frozenset(field for field, _, _ in self._fields)

    def __bool__(self) -> bool:
        return bool(self._labels or self._fields)

    @property
    def name(self) -> str | None:
        """The only name that can match; None if the selector does not determine the name."""
        for field, equal, value in self._fields:
            if field == 'metadata.name' and equal:
                return value
        return None

    def matches(self, record: Record) -> bool:
        """Check whether the object is selected."""
        if not all(requirement.matches(record.labels) for requirement in self._labels):
            return False
        for field, equal, value in self._fields:
            if (_field(record, field) == value) is not equal:
                return False
        return True


def parse_labels(text: str) -> list[Requirement]:
    """Return the conditions of a label selector; raise a 400 with the reason if it is invalid."""
    return list(_Parser(text).requirements()) if text else []


def parse_fields(text: str) -> Iterator[tuple[str, bool, str]]:
    """Yield the conditions of a field selector in alphabetical order: field, whether it must be equal, value."""
    for term in sorted(filter(None, re.split(r'(?<!\\),', text))):
        if (match := re.fullmatch(r'(.*?)(!=|==|=)(.*)', term)) is None:
            raise statuses.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        field, operator, value = match.groups()
        yield field, operator != '!=', re.sub(r'\\(.)', r'\1', value)


def label_selector(selector: Mapping[str, object] | None) -> Callable[[Mapping[str, str]], bool]:
    """Return a function that matches labels with a selector of an object (``matchLabels``, ``matchExpressions``)."""
    requirements = []
    selector = selector or {}
    labels = selector.get('matchLabels')
    for key, value in (labels if isinstance(labels, Mapping) else {}).items():
        requirements.append(Requirement(key, 'in', frozenset([value])))
    expressions = selector.get('matchExpressions')
    for expression in expressions if isinstance(expressions, list) else []:
        operator = {'In': 'in', 'NotIn': 'notin', 'Exists': 'exists', 'DoesNotExist': 'absent'}[expression['operator']]
        requirements.append(Requirement(expression['key'], operator, frozenset(expression.get('values') or ())))
    return lambda labels: all(requirement.matches(labels) for requirement in requirements)


class _Parser:
    """A parser of label selectors with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = re.findall(r'[^\s!=<>(),]+|==|!=|[!=<>(),]', text)
        self._position = 0

    def requirements(self) -> Iterator[Requirement]:
        while True:
            yield self._requirement()
            if not (token := self._next()):
                return
            if token != ',':
                raise statuses.bad_request(f"found '{token}', expected: ',' or 'end of string'")
            if self._peek() in ('', ','):
                raise statuses.bad_request(f"found '{self._peek()}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        token = self._next()
        if absent := token == '!':
            token = self._next()
        if not token or not re.match(r'[^\s!=<>(),]', token):
            if absent:
                raise statuses.bad_request(f"unable to parse requirement: found '{token}', expected: identifier")
            raise statuses.bad_request(f"found '{token}', expected: !, identifier, or 'end of string'")
        self._check(names.label_key_problems(token), token)
        if absent:
            return Requirement(token, 'absent', frozenset())
        if self._peek() in ('', ','):
            return Requirement(token, 'exists', frozenset())
        operator = self._next()
        match operator:
            case 'in' | 'notin':
                return Requirement(token, operator, self._values(token))
            case '=' | '==' | '!=':
                return Requirement(token, 'notin' if operator == '!=' else 'in', frozenset([self._value(token)]))
            case '<' | '>':
                return Requirement(token, 'gt' if operator == '>' else 'lt', frozenset([self._number()]))
        expected = 'in, notin, =, ==, !=, gt, lt'
        raise statuses.bad_request(f"unable to parse requirement: found '{operator}', expected: {expected}")

    def _value(self, key: str) -> str:
        if self._peek() in ('', ','):
            return ''
        token = self._next()
        if not re.match(r'[^\s!=<>(),]', token):
            raise statuses.bad_request(f"unable to parse requirement: found '{token}', expected: identifier")
        self._check(names.label_value_problems(token), token, f'values[0][{key}]')
        return token

    def _number(self) -> str:
        token = self._next()
        if not re.match(r'[^\s!=<>(),]', token):
            raise statuses.bad_request(f"unable to parse requirement: found '{token}', expected: identifier")
        if not re.fullmatch(r'-?\d+', token):
            raise statuses.bad_request(
                'unable to parse requirement: values[0]: Invalid value: '
                f'"{token}": for \'Gt\', \'Lt\' operators, the value must be an integer'
            )
        return token

    def _values(self, key: str) -> frozenset[str]:
        if (token := self._next()) != '(':
            raise statuses.bad_request(f"unable to parse requirement: found '{token}' expected: '('")
        if not self._peek():
            raise statuses.bad_request("unable to parse requirement: found '', expected: ',', ')' or identifier")
        values, token = [], ','
        while token == ',':
            if self._peek() in (',', ')'):
                values.append('')
            else:
                values.append(self._value(key))
            token = self._next()
        if token != ')':
            raise statuses.bad_request(f"unable to parse requirement: found '{token}', expected: ',' or ')'")
        return frozenset(values)

    def _check(self, problems: list[str], value: str, place: str = '<nil>') -> None:
        if problems:
            raise statuses.bad_request(
                f'unable to parse requirement: {place}: Invalid value: "{value}": {"; ".join(problems)}'
            )

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ''

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token


def _field(record: Record, field: str) -> str:
    if field == 'metadata.name':
        return record.name
    if field == 'metadata.namespace':
        return record.namespace
    return record.fields.get(field, '')
