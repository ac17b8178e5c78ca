"""
Decoding and checking of YAML as clients send it; errors have the texts of a real server.

The text is parsed by the rules of the server's library: ``n`` and ``off`` are booleans (as keys, too), ``1e3`` and
``0o17`` are numbers, and timestamps and ``1:30`` are strings. The parser here is another port of libyaml than the
server's, so its errors are translated.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

_WORDS = (
    (r"expected the node content, but found .*", 'did not find expected node content'),
    (r"expected <block end>, but found .*", ''),
    (r"expected (',' or '[\]}]'), but got .*", r'did not find expected \1'),
    (r"expected (alphabetic or numeric character), but found .*", r'did not find expected \1'),
    (r"mapping values are not allowed here", 'mapping values are not allowed in this context'),
    (r"found character .* that cannot start any token", 'found character that cannot start any token'),
    (r"found unknown escape character .*", 'found unknown escape character'),
    (r"found undefined alias '?(.*?)'?", r"unknown anchor '\1' referenced"),
)
"""The parser's errors with the corresponding errors of a real server; all other errors are the same."""


_INTEGER = re.compile(r'[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|[1-9][0-9]*|0)')
_FLOAT = re.compile(r'[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?')
_INT64, _UINT64 = 2**63, 2**64


class YamlError(ValueError):
    """Raised when the text is not YAML."""


def load(text: bytes) -> Any:
    """
    Return the value of a YAML text.

    Raises:
        YamlError: The text is not YAML.
    """
    import yaml

    try:
        return _plain(yaml.load(text, _loader()))
    except yaml.YAMLError as error:
        raise YamlError(f'yaml: {_complaint(error, text)}') from None


def load_all(text: str) -> Iterator[Any]:
    """
    Yield the values of all documents of a stream, except for empty ones; parse it in C, which is ten times faster.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    import yaml

    for document in yaml.load_all(text, _loader(fast=True)):
        if document is not None:
            yield _plain(document)


def _complaint(error: Any, text: bytes) -> str:
    import yaml

    if isinstance(error, yaml.reader.ReaderError):
        return 'control characters are not allowed'
    problem, context = error.problem or '', error.context or ''
    for pattern, words in _WORDS:
        if match := re.fullmatch(pattern, problem, re.DOTALL):
            problem = match.expand(words)
            break
    if context == 'while scanning a directive':
        problem = 'could not find expected directive name'
    elif not problem:
        problem = 'did not find expected key' if 'mapping' in context else "did not find expected '-' indicator"
    if isinstance(error, yaml.composer.ComposerError):
        return problem
    scanned = isinstance(error, yaml.scanner.ScannerError)
    line = error.problem_mark.line
    if _is_end(error.problem_mark, text) and (not scanned or problem.startswith('could not find expected \':')):
        line += 1  # The parser counts the end of the text as one more line.
    if not line and error.context_mark is not None:
        line = error.context_mark.line
    if line and scanned:
        line += 1
    return f'line {line}: {problem}' if line else problem


def _is_end(mark: Any, text: bytes) -> bool:
    return bool(mark.column) and mark.index >= len(text.decode(errors='replace'))


@functools.cache
def _loader(*, fast: bool = False) -> Any:
    import yaml

    base: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader) if fast else yaml.SafeLoader

    class Loader(base):  # type: ignore[misc]
        """A loader of YAML 1.1 with the rules of the server's library."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((':null', ':merge'))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    words = r'y|Y|yes|Yes|YES|on|On|ON|n|N|no|No|NO|off|Off|OFF|true|True|TRUE|false|False|FALSE'
    Loader.add_implicit_resolver('tag:yaml.org,2002:bool', re.compile(f'^(?:{words})$'), list('yYoOnNtTfF'))
    Loader.bool_values = {**yaml.SafeLoader.bool_values, 'y': True, 'n': False}
    Loader.add_implicit_resolver('!number', re.compile(r'^[-+.0-9][-+._0-9a-fA-FxXoO]*$'), list('-+.0123456789'))
    Loader.add_constructor('!number', lambda _, node: _number(node.value))
    Loader.add_constructor('tag:yaml.org,2002:merge', lambda _, node: node.value)  # of a value, where nothing is merged
    words = r'[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)'
    Loader.add_implicit_resolver('tag:yaml.org,2002:float', re.compile(f'^(?:{words})$'), list('-+.'))
    return Loader


def _number(text: str) -> Any:
    """Return the number, as an integer if it is whole; or the text, if it only looks like a number."""
    digits = text if text.startswith('.') else text.replace('_', '')
    if _INTEGER.fullmatch(digits):
        sign, rest = (digits[0], digits[1:]) if digits[0] in '-+' else ('', digits)
        base = {'0b': 2, '0x': 16, '0o': 8}.get(rest[:2].lower()) or (8 if rest[:1] == '0' else 10)
        value = int(sign + rest, base)
        if -_INT64 <= value < _UINT64:
            return value if value < _INT64 else float(value)
    if not _FLOAT.fullmatch(digits) or abs(number := float(digits)) == float('inf'):
        return text
    return int(number) if abs(number) < _INT64 and number.is_integer() else number


def _plain(value: Any) -> Any:
    """Return the value with its keys converted to strings, as JSON requires."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
