"""
Decoding and checking of JSON from clients; errors have the texts of a real server.

The errors of the fast parser differ from the errors of Go. So if the parser refuses a text, the text is scanned again
by the rules of Go's scanner.
"""

import math
import re
from typing import Any

import orjson

from kopf._cogs.helpers.jsontexts import replace_halves

_SPACES = ' \t\r\n'
_NUMBER = re.compile(r'-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?')
_LITERALS = {'t': 'true', 'f': 'false', 'n': 'null'}
_ESCAPES = {
    '\\': '\\\\',
    "'": "\\'",
    '"': '"',
    '\n': '\\n',
    '\r': '\\r',
    '\t': '\\t',
    '\0': '\\x00',
    '\b': '\\b',
    '\f': '\\f',
    '\a': '\\a',
    '\v': '\\v',
}
_INT64 = 2**63
END = 'unexpected end of JSON input'


class NumberError(ValueError):
    """Raised when a number is larger than Go can read; the message is Go's."""


def loads(text: bytes) -> Any:
    """
    Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON; the message is Go's.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    decoded = text.decode('utf-8', 'replace')  # Go replaces invalid UTF-8, too.
    if (problem := complaint(decoded)) is not None:
        raise ValueError(problem)
    import json

    return _whole(json.loads(decoded, strict=False, parse_int=_finite, parse_float=_finite))


def _whole(value: Any) -> Any:
    """Return the value with unpaired surrogates replaced: Go decodes them as U+FFFD."""
    match value:
        case str():
            return replace_halves(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise NumberError(f'json: cannot unmarshal number {text} into Go value of type float64')
    return number if re.search('[.eE]', text) or not -_INT64 <= int(text) < _INT64 else int(text)


def excerpt(text: bytes) -> str:
    """Return the beginning of a text for messages."""
    if not text:
        return '<empty>'
    short = text[:30]
    shown = short.decode(errors='replace') if text.startswith(b'{') else short.hex()
    return shown if len(text) <= 30 else f'{shown} ...'


def complaint(text: str) -> str | None:
    """Return the error of a JSON text in Go's words, or None if the text is valid."""
    try:
        place = _value(text, 0)
        place = _skip(text, place)
        if place < len(text):
            raise _Problem(f'invalid character {_quoted(text[place])} after top-level value')
    except _Problem as problem:
        return str(problem)
    return None


class _Problem(Exception):
    """Raised when the scanner finds an error in the text."""


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SPACES:
        place += 1
    return place


def _at(text: str, place: int) -> str:
    if place >= len(text):
        raise _Problem(END)
    return text[place]


def _value(text: str, place: int) -> int:
    place = _skip(text, place)
    character = _at(text, place)
    match character:
        case '{':
            return _object(text, place + 1)
        case '[':
            return _array(text, place + 1)
        case '"':
            return _string(text, place + 1)
        case 't' | 'f' | 'n':
            word = _LITERALS[character]
            for index, wanted in enumerate(word):
                if _at(text, place + index) != wanted:
                    raise _Problem(
                        f'invalid character {_quoted(text[place + index])} in literal {word} '
                        f'(expecting {_quoted(wanted)})'
                    )
            return place + len(word)
    if character == '-' or character.isdigit() and character.isascii():
        return _number(text, place)
    raise _Problem(f'invalid character {_quoted(character)} looking for beginning of value')


def _number(text: str, place: int) -> int:
    match = _NUMBER.match(text, place)
    if match is None:  # a minus without digits
        raise _Problem(f'invalid character {_quoted(_at(text, place + 1))} in numeric literal')
    end = match.end()
    if end < len(text) and (text[end] == '.' or text[end] in 'eE'):
        where = 'after decimal point in numeric literal' if text[end] == '.' else 'in exponent of numeric literal'
        after = end + 1 + (text[end] in 'eE' and text[end + 1 : end + 2] in ('+', '-'))
        raise _Problem(f'invalid character {_quoted(_at(text, after))} {where}')
    return end


def _string(text: str, place: int) -> int:
    while (character := _at(text, place)) != '"':
        if character == '\\':
            place += 1
            escape = _at(text, place)
            if escape == 'u':
                for _ in range(4):
                    place += 1
                    if (digit := _at(text, place)) not in '0123456789abcdefABCDEF':
                        raise _Problem(f'invalid character {_quoted(digit)} in \\u hexadecimal character escape')
            elif escape not in '"\\/bfnrt':
                raise _Problem(f'invalid character {_quoted(escape)} in string escape code')
        elif character < ' ':
            raise _Problem(f'invalid character {_quoted(character)} in string literal')
        place += 1
    return place + 1


def _object(text: str, place: int) -> int:
    place = _skip(text, place)
    if _at(text, place) == '}':
        return place + 1
    while True:
        if (character := _at(text, place)) != '"':
            raise _Problem(f'invalid character {_quoted(character)} looking for beginning of object key string')
        place = _skip(text, _string(text, place + 1))
        if (character := _at(text, place)) != ':':
            raise _Problem(f'invalid character {_quoted(character)} after object key')
        place = _skip(text, _value(text, place + 1))
        match _at(text, place):
            case '}':
                return place + 1
            case ',':
                place = _skip(text, place + 1)
            case character:
                raise _Problem(f'invalid character {_quoted(character)} after object key:value pair')


def _array(text: str, place: int) -> int:
    place = _skip(text, place)
    if _at(text, place) == ']':
        return place + 1
    while True:
        place = _skip(text, _value(text, place))
        match _at(text, place):
            case ']':
                return place + 1
            case ',':
                place += 1
            case character:
                raise _Problem(f'invalid character {_quoted(character)} after array element')


def _quoted(character: str) -> str:
    if character not in _ESCAPES and ord(character) < 0x20:
        return f"'\\x{ord(character):02x}'"
    if not character.isascii():  # Go looks at the first byte only.
        character = chr(character.encode(errors='replace')[0])
    return f"'{_ESCAPES.get(character, character)}'"
