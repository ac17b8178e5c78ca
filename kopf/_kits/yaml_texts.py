"""
YAML of and for other programs: kubectl, Helm, kustomize, Prometheus.

The libraries of Go, in kubectl and in the API server, resolve other strings than PyYAML: they read ``y`` and ``n`` as
booleans (as keys, too), and ``1e3`` and ``0o17`` as numbers, but timestamps and ``1:30`` as strings. Files for the
cluster are read by their rules. Written files have quotes wherever PyYAML or they would read values of other types.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_AMBIGUOUS = re.compile(
    r"""
      [yn~=] | yes | no | on | off | true | false | null | <<
    | [-+]? \.? (?: inf | nan )
    | [-+._]* \d [-+.,:_\da-fox \tptz]*     # numbers in all notations and bases, sexagesimals, dates, times
    """,
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
"""The strings that some reader takes for values of other types, and some that only look so: quotes do no harm."""

_BREAKS = re.compile('[\x85\u2028\u2029\ufeff]')
"""The characters that a reader drops or converts to other ones, unless they are escaped."""

_INTEGER = re.compile(r'[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|[1-9][0-9]*|0)')
_FLOAT = re.compile(r'[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?')
_INT64, _UINT64 = 2**63, 2**64


def dump_yaml(documents: Iterable[Any], *, sort_keys: bool = False, width: int = 120) -> str:
    """Return the objects as a stream of YAML documents; the result is equal for equal objects."""
    import yaml

    options: Mapping[str, Any] = {'sort_keys': sort_keys, 'width': width, 'allow_unicode': True}
    return '---\n'.join(yaml.dump(each, Dumper=_make_dumper(), **options) for each in documents)


@functools.cache
def _make_dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """A dumper that quotes all strings that a reader could take for something else, and has no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Dumper, text: str) -> Any:
        style = '"' if _BREAKS.search(text) else "'" if _AMBIGUOUS.fullmatch(text) else None
        return dumper.represent_scalar('tag:yaml.org,2002:str', text, style=style)

    Dumper.add_representer(str, represent)
    return Dumper


def load_yaml(text: str) -> Iterator[Any]:
    """
    Yield the values of all documents of a stream, except for empty ones; parse it in C, which is ten times faster.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    import yaml

    for document in yaml.load_all(text, make_loader(fast=True)):
        if document is not None:
            yield make_plain(document)


@functools.cache
def make_loader(*, fast: bool = False) -> Any:
    """Return the class of PyYAML's loaders with the rules of kubectl; if ``fast``, of those in C, with other errors."""
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


def make_plain(value: Any) -> Any:
    """Return the value with its keys converted to strings, as JSON requires."""
    if isinstance(value, dict):
        return {_key(key): make_plain(item) for key, item in value.items()}
    return [make_plain(item) for item in value] if isinstance(value, list) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
