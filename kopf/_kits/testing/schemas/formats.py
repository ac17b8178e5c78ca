"""
The formats of strings that a real server checks in custom resources. Other formats are not checked.

The checks are as lenient and as strict as those of the real server. For example, it accepts the duration ``2 hours``,
which is not in ISO 8601, and refuses some valid host names.
"""

import base64
import binascii
import datetime
import ipaddress
import re
import unicodedata
import uuid
from collections.abc import Callable, Mapping

from kopf._kits.testing.wire import names

_GO_AMOUNT = r'(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)'
_GO_DURATION = re.compile(rf'[-+]?({_GO_AMOUNT})+|[-+]?0')
_AMOUNT = re.compile(r'(?:-\s?)?\d+\s*([A-Za-zµ]+)')
_UNITS = (
    ('ns', 'nano'),
    ('us', 'µs', 'micro'),
    ('ms', 'milli'),
    ('s', 'sec'),
    ('m', 'min'),
    ('h', 'hr', 'hour'),
    ('d', 'day'),
    ('w', 'wk', 'week'),
)
"""The names of units of time, one line each. Words that begin with the last name of a line are also accepted."""
_MOMENT = re.compile(r'\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)')
_HOST = re.compile(r'[a0-9=](-?[a0-9=]{0,62})?|([a0-9=]([a0-9=-]{0,61}[a0-9=])?\.)+a{2,63}')
"""The pattern of host names in which letters of all languages were replaced by `a`, and symbols by `=`."""
_ATOM = r'[^\s()<>\[\]:;@\\,."]+'
_ADDRESS = rf'({_ATOM}(\.{_ATOM})*|"[^"]*")@({_ATOM}(\.{_ATOM})*|\[[^\]]*\])'
_WORD = rf'({_ATOM}|"[^"]*")'
_EMAIL = re.compile(rf'\s*({_ADDRESS}|({_WORD}(\s+{_WORD})*\s*)?<{_ADDRESS}>)\s*')
_MAC = re.compile(
    '|'.join(
        f'{group}({mark}{group}){{{count}}}'
        for mark in ('', ':', '-', r'\.')
        for group, counts in (('[0-9a-fA-F]{2}', (5, 7, 19)), ('[0-9a-fA-F]{4}', (2, 3, 9)))
        for count in counts
    )
)
_CARD = re.compile(
    r'4\d{12}(\d{3})?|5[1-5]\d{14}|6(011|5\d\d)\d{12}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|'
    r'(2131|1800|35\d{3})\d{11}|6[27]\d{14}'
)
_BYTE = r'\s*(0|[1-9]\d?|1\d\d|2[0-4]\d|25[0-5])\s*'


def is_formatted(value: str, format: str) -> bool:
    """Check whether the string has the format; unknown formats are accepted."""
    if (parse := _FORMATS.get(format)) is None:
        return True
    try:
        return parse(value) not in (None, False)
    except (ValueError, binascii.Error):
        return False


def _duration(text: str) -> bool:
    if _GO_DURATION.fullmatch(text):
        return True
    words = (word.lower() for word in _AMOUNT.findall(text))
    return any(word in unit or word.startswith(unit[-1]) for word in words for unit in _UNITS)


def _date_time(text: str) -> object:
    return datetime.datetime.fromisoformat(text.upper()) if _MOMENT.fullmatch(text) else None


def _host(text: str) -> bool:
    kinds = {character: unicodedata.category(character)[0] for character in set(text)}
    plain = ''.join({'L': 'a', 'S': '='}.get(kinds[character], character) for character in text)
    return (
        len(text) <= 255 and _HOST.fullmatch(plain) is not None and all(len(label) <= 63 for label in text.split('.'))
    )


def _ipv4(text: str) -> object:
    if ':' in text:
        return ipaddress.IPv6Address(text).ipv4_mapped
    return ipaddress.IPv4Address('.'.join(part[:-1].lstrip('0') + part[-1:] for part in text.split('.')))


def _uuid(version: str) -> Callable[[str], object]:
    variant = '[89ab]' if version in '45' else '[0-9a-f]'
    digits = re.compile(
        f'[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{version}[0-9a-f]{{3}}-?{variant}[0-9a-f]{{3}}-?[0-9a-f]{{12}}', re.IGNORECASE
    )
    return digits.fullmatch


def _isbn10(text: str) -> bool:
    digits = re.sub('[ -]', '', text)
    if not re.fullmatch(r'\d{9}[\dX]', digits):
        return False
    return sum((index + 1) * (10 if digit == 'X' else int(digit)) for index, digit in enumerate(digits)) % 11 == 0


def _isbn13(text: str) -> bool:
    digits = re.sub('[ -]', '', text)
    return (
        bool(re.fullmatch(r'\d{13}', digits))
        and sum(int(digit) * (3 if index % 2 else 1) for index, digit in enumerate(digits)) % 10 == 0
    )


def _card(text: str) -> bool:
    digits = re.sub(r'[^0-9]+', '', text)
    doubled = (int(digit) * (2 if index % 2 else 1) for index, digit in enumerate(reversed(digits)))
    return bool(_CARD.fullmatch(digits)) and sum(number - 9 * (number > 9) for number in doubled) % 10 == 0


_FORMATS: Mapping[str, Callable[[str], object]] = {
    'bsonobjectid': re.compile('[0-9a-fA-F]{24}').fullmatch,
    'byte': lambda text: base64.b64decode(text, validate=True) if text else None,
    'cidr': lambda text: ipaddress.ip_network(text, strict=False) if '/' in text else None,
    'creditcard': _card,
    'date': lambda text: datetime.date.fromisoformat(text) if len(text) == 10 else None,
    'date-time': _date_time,
    'datetime': _date_time,
    'duration': _duration,
    'email': _EMAIL.fullmatch,
    'hexcolor': re.compile('#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})').fullmatch,
    'hostname': _host,
    'ipv4': _ipv4,
    'ipv6': lambda text: ipaddress.IPv6Address(text) if '%' not in text else None,
    'isbn': lambda text: _isbn10(text) or _isbn13(text),
    'isbn10': _isbn10,
    'isbn13': _isbn13,
    'k8s-long-name': lambda text: not names.subdomain_problems(text),
    'k8s-short-name': lambda text: not names.label_problems(text),
    'mac': _MAC.fullmatch,
    'rgbcolor': re.compile(rf'rgb\({_BYTE},{_BYTE},{_BYTE}\)').fullmatch,
    'ssn': re.compile(r'\d{3}[- ]\d\d[- ]\d{4}').fullmatch,
    'uri': lambda text: re.match(r'(?![a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]*\s)([a-zA-Z][a-zA-Z0-9+.-]*:|/)', text),
    'uuid': lambda text: uuid.UUID(text) if len(text) in (32, 36) else None,
    'uuid3': _uuid('3'),
    'uuid4': _uuid('4'),
    'uuid5': _uuid('5'),
}
