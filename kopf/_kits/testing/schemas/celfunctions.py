"""
Kubernetes' functions of CEL besides those of the language: lists, sets, regular expressions, URLs, quantities, etc.

URLs, quantities, versions, and addresses are represented by maps; a real server has separate types for them.
"""

import datetime
import functools
import ipaddress
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from google.protobuf import duration_pb2, timestamp_pb2

SUFFIXES = {
    'n': Decimal('1e-9'),
    'u': Decimal('1e-6'),
    'm': Decimal('1e-3'),
    '': Decimal(1),
    'k': Decimal(10**3),
    'M': Decimal(10**6),
    'G': Decimal(10**9),
    'T': Decimal(10**12),
    'P': Decimal(10**15),
    'E': Decimal(10**18),
    'Ki': Decimal(2**10),
    'Mi': Decimal(2**20),
    'Gi': Decimal(2**30),
    'Ti': Decimal(2**40),
    'Pi': Decimal(2**50),
    'Ei': Decimal(2**60),
}
_QUANTITY = re.compile(r'([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)')
_SEMVER = re.compile(
    r'(?P<major>0|[1-9]\d*)\.(?P<minor>0|[1-9]\d*)\.(?P<patch>0|[1-9]\d*)'
    r'(-(?P<before>[0-9A-Za-z.-]+))?(\+(?P<build>[0-9A-Za-z.-]+))?',
    re.ASCII,
)


class Form(NamedTuple):
    """One overload of a function; types are words, such as ``'LIST'``."""

    name: str
    parameters: Sequence[str]
    is_member: bool
    function: Callable[..., Any]
    result: str = 'DYN'


def forms() -> Iterator[Form]:
    """Yield all overloads."""
    yield Form('isSorted', ['LIST'], True, lambda items: list(items) == sorted(items), 'BOOL')
    yield Form('sum', ['LIST'], True, _sum)
    yield Form('min', ['LIST'], True, lambda items: _returned(min(items)))
    yield Form('max', ['LIST'], True, lambda items: _returned(max(items)))
    yield Form('sets.contains', ['LIST', 'LIST'], False, lambda one, two: all(item in one for item in two), 'BOOL')
    yield Form('sets.intersects', ['LIST', 'LIST'], False, lambda one, two: any(item in one for item in two), 'BOOL')
    yield Form('sets.equivalent', ['LIST', 'LIST'], False, _equivalent, 'BOOL')
    yield Form('find', ['STRING', 'STRING'], True, _find, 'STRING')
    yield Form('findAll', ['STRING', 'STRING'], True, lambda text, pattern: _find_all(text, pattern, -1), 'LIST')
    yield Form('findAll', ['STRING', 'STRING', 'INT'], True, _find_all, 'LIST')
    yield from _url_forms()
    yield from _number_forms()
    yield from _address_forms()


def _url_forms() -> Iterator[Form]:
    yield Form('isURL', ['STRING'], False, lambda text: _attempt(_url, text) is not None, 'BOOL')
    yield Form('url', ['STRING'], False, lambda text: {'url': _url(text)})
    yield Form('getQuery', ['MAP'], True, lambda self: parse_qs(urlsplit(self['url']).query, keep_blank_values=True))
    for name, part in _URL_PARTS.items():
        yield Form(name, ['MAP'], True, lambda self, part=part: part(urlsplit(self['url'])), 'STRING')


_URL_PARTS: Mapping[str, Callable[[Any], str]] = {
    'getScheme': lambda url: url.scheme,
    'getHost': lambda url: url.netloc.rpartition('@')[2],
    'getHostname': lambda url: url.hostname or '',
    'getPort': lambda url: str(url.port or ''),
    'getEscapedPath': lambda url: url.path,
}


def _number_forms() -> Iterator[Form]:
    yield Form('isSemver', ['STRING'], False, lambda text: _SEMVER.fullmatch(text) is not None, 'BOOL')
    yield Form('semver', ['STRING'], False, _semver)
    for name in ('major', 'minor', 'patch'):
        yield Form(name, ['MAP'], True, lambda self, name=name: int(self[name]), 'INT')
    yield Form('isQuantity', ['STRING'], False, lambda text: _attempt(_quantity, text) is not None, 'BOOL')
    yield Form('quantity', ['STRING'], False, lambda text: _boxed(_quantity(text)))
    yield Form('isGreaterThan', ['MAP', 'MAP'], True, lambda one, two: _compare(one, two) > 0, 'BOOL')
    yield Form('isLessThan', ['MAP', 'MAP'], True, lambda one, two: _compare(one, two) < 0, 'BOOL')
    yield Form('compareTo', ['MAP', 'MAP'], True, _compare, 'INT')
    yield Form('sign', ['MAP'], True, lambda self: _compare(self, _boxed(Decimal(0))), 'INT')
    yield Form('isInteger', ['MAP'], True, lambda self: _number(self) == int(_number(self)), 'BOOL')
    yield Form('asInteger', ['MAP'], True, lambda self: int(_number(self)), 'INT')
    yield Form('asApproximateFloat', ['MAP'], True, lambda self: float(_number(self)), 'DOUBLE')
    for name, sign in (('add', 1), ('sub', -1)):
        yield Form(name, ['MAP', 'MAP'], True, lambda one, two, sign=sign: _boxed(_number(one) + sign * _number(two)))
        yield Form(name, ['MAP', 'INT'], True, lambda one, two, sign=sign: _boxed(_number(one) + sign * two))


def _address_forms() -> Iterator[Form]:
    yield Form('isIP', ['STRING'], False, lambda text: _attempt(ipaddress.ip_address, text) is not None, 'BOOL')
    yield Form('ip', ['STRING'], False, lambda text: {'ip': str(ipaddress.ip_address(text))})
    yield Form('family', ['MAP'], True, lambda self: ipaddress.ip_address(self['ip']).version, 'INT')
    yield Form('ip.isCanonical', ['STRING'], False, lambda text: str(ipaddress.ip_address(text)) == text, 'BOOL')
    for name, question in _ADDRESSES.items():
        yield Form(
            name, ['MAP'], True, lambda self, question=question: question(ipaddress.ip_address(self['ip'])), 'BOOL'
        )
    yield Form('isCIDR', ['STRING'], False, lambda text: '/' in text and _attempt(_network, text) is not None, 'BOOL')
    yield Form('cidr', ['STRING'], False, lambda text: {'cidr': ipaddress.ip_interface(text).with_prefixlen})
    yield Form('masked', ['MAP'], True, lambda self: {'cidr': str(_network(self['cidr']))})
    yield Form('ip', ['MAP'], True, lambda self: {'ip': str(ipaddress.ip_interface(self['cidr']).ip)})
    yield Form('prefixLength', ['MAP'], True, lambda self: _network(self['cidr']).prefixlen, 'INT')
    yield Form(
        'containsIP',
        ['MAP', 'STRING'],
        True,
        lambda self, text: ipaddress.ip_address(text) in _network(self['cidr']),
        'BOOL',
    )
    yield Form(
        'containsIP',
        ['MAP', 'MAP'],
        True,
        lambda self, other: ipaddress.ip_address(other['ip']) in _network(self['cidr']),
        'BOOL',
    )
    yield Form('containsCIDR', ['MAP', 'STRING'], True, _contains_network, 'BOOL')
    yield Form('containsCIDR', ['MAP', 'MAP'], True, lambda self, other: _contains_network(self, other['cidr']), 'BOOL')


_ADDRESSES: Mapping[str, Callable[[Any], bool]] = {
    'isUnspecified': lambda address: address.is_unspecified,
    'isLoopback': lambda address: address.is_loopback,
    'isLinkLocalUnicast': lambda address: address.is_link_local,
    'isLinkLocalMulticast': lambda address: (
        address in ipaddress.ip_network('224.0.0.0/24' if address.version == 4 else 'ff02::/16')
    ),
    'isGlobalUnicast': lambda address: (
        not (
            address.is_multicast
            or address.is_loopback
            or address.is_unspecified
            or address.is_link_local
            or str(address) == '255.255.255.255'
        )
    ),
}
"""The properties of addresses. As in Go, the addresses of private networks are global, too."""


def _sum(items: Sequence[Any]) -> Any:
    return _returned(functools.reduce(operator.add, items)) if items else 0


def _returned(value: Any) -> Any:
    """Return a value in a form that the library accepts: it does not know Python's times."""
    if isinstance(value, datetime.timedelta):
        duration = duration_pb2.Duration()
        duration.FromTimedelta(value)
        return duration
    if isinstance(value, datetime.datetime):
        timestamp = timestamp_pb2.Timestamp()
        timestamp.FromDatetime(value)
        return timestamp
    return value


def _equivalent(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return all(item in one for item in two) and all(item in two for item in one)


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group() if found is not None else ''


def _find_all(text: str, pattern: str, limit: int) -> list[str]:
    found = [match.group() for match in re.finditer(pattern, text)]
    return found if limit < 0 else found[:limit]


def _url(text: str) -> str:
    parts = urlsplit(text)
    if not (parts.scheme and (parts.netloc or parts.path)) and not text.startswith('/'):
        raise ValueError(f'URL parse error during conversion from string: parse "{text}": invalid URI for request')
    return text


def _quantity(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    return Decimal(match[1] + (match[2] or '')) * SUFFIXES[match[3] or '']


def _boxed(number: Decimal) -> dict[str, str]:
    return {'quantity': format(number.normalize(), 'f')}


def _number(box: Mapping[str, str]) -> Decimal:
    return Decimal(box['quantity'])


def _compare(one: Mapping[str, str], two: Mapping[str, str]) -> int:
    first, second = (_rank(box) if 'major' in box else _number(box) for box in (one, two))
    return bool(first > second) - bool(first < second)


def _semver(text: str) -> dict[str, str]:
    if (match := _SEMVER.fullmatch(text)) is None:
        raise ValueError(f'invalid semantic version: {text}')
    return {name: value or '' for name, value in match.groupdict().items()}


def _rank(box: Mapping[str, str]) -> Any:
    """Return the sort key of a semantic version: pre-releases precede the release, and numbers precede words."""
    labels = (
        [(0, int(label), '') if label.isdecimal() else (1, 0, label) for label in box['before'].split('.')]
        if box['before']
        else [(2, 0, '')]
    )
    return [int(box[name]) for name in ('major', 'minor', 'patch')], labels


def _network(text: str) -> Any:
    return ipaddress.ip_network(text, strict=False)


def _contains_network(self: Mapping[str, str], text: str) -> bool:
    inner, outer = _network(text), _network(self['cidr'])
    return bool(inner.version == outer.version and inner.subnet_of(outer))


def _attempt(function: Callable[[str], Any], text: str) -> Any:
    try:
        return function(text)
    except ValueError:
        return None
