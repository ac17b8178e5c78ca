"""
The syntax of regular expressions in Go, in which Python's differs: the errors of patterns in schemas.

Only what a pattern can be refused for is scanned. The patterns are matched by Python.
"""

import re

_REPEAT = re.compile(r'[*+?]|\{(0|[1-9]\d*)(,(0|[1-9]\d*)?)?\}', re.ASCII)
_FLAGS = re.compile(r'\(\?[imsU]*(?:-[imsU]*)?(.|$)', re.DOTALL)
_NAMED = re.compile(r'\(\?P?<\w+>', re.ASCII)
_NAMING = re.compile(r'\(\?P?<.', re.DOTALL)
_MOST = 1000
_ESCAPES = 'aftnrvdDsSwWpPx01234567'
"""The letters and digits that can follow a backslash everywhere; the signs of ASCII can, too."""
_ANCHORS = 'AbBzQ'
"""The letters that can follow a backslash outside of character classes only."""


def complaint(pattern: str) -> str | None:
    """Return the error of a pattern in Go's words; ``None`` if there is none."""
    place, depth = 0, 0
    can_repeat, repeated = False, -1  # whether there is something to repeat, and the place of the preceding repetition
    while place < len(pattern):
        problem, begun, end = None, -1, place + 1
        if repeat := _REPEAT.match(pattern, place):
            begun, end = place, repeat.end() + pattern.startswith('?', repeat.end())
            problem = _check_repeat(repeat, pattern, end, repeated, can_repeat=can_repeat)
        elif pattern[place] == '(':
            end, problem = _open_group(pattern, place)
            if pattern[end - 1] != ')':  # otherwise, it is not a group but a change of flags
                depth, can_repeat = depth + 1, False
        elif pattern[place] == '|':
            can_repeat = False
        else:
            can_repeat = True
            match pattern[place]:
                case ')':
                    depth -= 1
                    problem = f'unexpected ): `{pattern}`' if depth < 0 else None
                case '[':
                    end, problem = _skip_class(pattern, place)
                case '\\':
                    end, problem = _skip_escape(pattern, place, _ESCAPES + _ANCHORS)
        if problem is not None:
            return problem
        place, repeated = end, begun
    return f'missing closing ): `{pattern}`' if depth else None


def _check_repeat(repeat: re.Match[str], pattern: str, end: int, former: int, *, can_repeat: bool) -> str | None:
    least, most = int(repeat[1] or 0), int(repeat[3] or repeat[1] or 0)
    if max(least, most) > _MOST or least > most:
        return f'invalid repeat count: `{repeat[0]}`'
    if former >= 0:
        return f'invalid nested repetition operator: `{pattern[former:end]}`'
    return None if can_repeat else f'missing argument to repetition operator: `{pattern[repeat.start() : end]}`'


def _open_group(pattern: str, place: int) -> tuple[int, str | None]:
    """Return the place after the beginning of a group, or after flags, and its error."""
    if not pattern.startswith('(?', place):
        return place + 1, None
    if match := _NAMED.match(pattern, place):
        return match.end(), None
    if _NAMING.match(pattern, place):
        end = pattern.find('>', place)
        return place + 1, f'invalid named capture: `{pattern[place : len(pattern) if end < 0 else end + 1]}`'
    flags = _FLAGS.match(pattern, place)
    assert flags is not None
    if flags[1] in (':', ')') and pattern[flags.end() - 2] != '-':
        return flags.end(), None
    return place + 1, f'invalid or unsupported Perl syntax: `{flags[0]}`'


def _skip_escape(pattern: str, place: int, known: str) -> tuple[int, str | None]:
    """Return the place after an escape sequence, or after a quotation, and its error."""
    letter, after = pattern[place + 1 : place + 2], pattern[place + 2 : place + 3]
    if not letter:
        return place, 'trailing backslash at end of expression: ``'
    if letter == 'Q' and letter in known:
        end = pattern.find('\\E', place)
        return (len(pattern) if end < 0 else end + 2), None
    is_reference = letter in '1234567' and not (after and after in '01234567')
    if is_reference or not (letter.isascii() and (letter in known or not letter.isalnum())):
        return place, f'invalid escape sequence: `\\{letter}`'
    return place + 2, None


def _skip_class(pattern: str, start: int) -> tuple[int, str | None]:
    """Return the place after a character class, and its error."""
    place = start + 1 + pattern.startswith('^', start + 1)
    is_first, low = True, ''
    while place < len(pattern) and (is_first or pattern[place] != ']'):
        is_first = False
        if pattern.startswith('[:', place) and (end := pattern.find(':]', place + 2)) >= 0:
            place = end + 2
            continue
        first = place
        place, problem = _skip_member(pattern, place)
        if problem is None and pattern.startswith('-', place) and pattern[place + 1 : place + 2] not in ('', ']'):
            low, high = pattern[first:place], place + 1
            place, problem = _skip_member(pattern, high)
            if problem is None and len(low) == 1 and place == high + 1 and pattern[high] < low:
                problem = f'invalid character class range: `{pattern[first:place]}`'
        if problem is not None:
            return place, problem
    return (place + 1, None) if place < len(pattern) else (place, f'missing closing ]: `{pattern[start:]}`')


def _skip_member(pattern: str, place: int) -> tuple[int, str | None]:
    return _skip_escape(pattern, place, _ESCAPES) if pattern[place] == '\\' else (place + 1, None)
