"""
Decoding and checking of YAML as clients send it; errors have the texts of a real server.

The text is parsed by the rules of the server's library: ``n`` and ``off`` are booleans (as keys, too), and timestamps
are strings. The parser here is another port of libyaml than the server's, so its errors are translated.
"""

import functools
import re
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
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader of YAML 1.1 with the rules of the server's library."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((':timestamp', ':bool'))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    words = r'y|Y|yes|Yes|YES|on|On|ON|n|N|no|No|NO|off|Off|OFF|true|True|TRUE|false|False|FALSE'
    Loader.add_implicit_resolver('tag:yaml.org,2002:bool', re.compile(f'^(?:{words})$'), list('yYoOnNtTfF'))
    Loader.bool_values = {**yaml.SafeLoader.bool_values, 'y': True, 'n': False}
    return Loader


def _plain(value: Any) -> Any:
    """Return the value with its keys converted to strings, as JSON requires."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
