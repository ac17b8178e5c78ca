"""
Decoding and checking of YAML as clients send it; errors have the texts of a real server.

The values are those of the server's library, see `kopf._kits.yaml_texts`. The parser here is another port of libyaml
than the server's, so its errors are translated.
"""

import re
from typing import Any

from kopf._kits.yaml_texts import make_loader, make_plain

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
        return make_plain(yaml.load(text, make_loader()))
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
