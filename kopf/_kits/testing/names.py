"""
What names, labels and annotations may look like, with the words that a real server has for those that do not.
"""
import re

_SUBDOMAIN = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'
_LABEL = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?'
_QUALIFIED = r'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'
_VALUE = f'({_QUALIFIED})?'
_SUBDOMAIN_RE, _LABEL_RE = re.compile(_SUBDOMAIN), re.compile(_LABEL)
_QUALIFIED_RE, _VALUE_RE = re.compile(_QUALIFIED), re.compile(_VALUE)

_SUBDOMAIN_TEXT = ("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
                   "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation "
                   f"is '{_SUBDOMAIN}')")
_LABEL_TEXT = ("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
               "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
               f"'{_LABEL}')")
_QUALIFIED_TEXT = ("must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                   "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation "
                   f"is '{_QUALIFIED}')")
_VALUE_TEXT = ("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
               "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
               f"for validation is '{_VALUE}')")


def subdomain_problem(text: str) -> str | None:
    """Why this cannot be the name of an object (of most kinds), or None if it can."""
    if len(text) > 253:
        return 'must be no more than 253 characters'
    return None if _SUBDOMAIN_RE.fullmatch(text) else _SUBDOMAIN_TEXT


def label_problem(text: str) -> str | None:
    """Why this cannot be the name of a namespace, or None if it can."""
    if len(text) > 63:
        return 'must be no more than 63 bytes'
    return None if _LABEL_RE.fullmatch(text) else _LABEL_TEXT


def path_problem(text: str) -> str | None:
    """Why this cannot be the name of a role or a binding, or None if it can."""
    if text in ('.', '..'):
        return f"may not be '{text}'"
    for character in '/%':
        if character in text:
            return f"may not contain '{character}'"
    return None


def label_key_problem(text: str) -> str | None:
    """Why this cannot be the key of a label or an annotation, or None if it can."""
    prefix, slash, name = text.rpartition('/')
    if text.count('/') > 1:
        return (f"a valid label key {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' "
                "(e.g. 'example.com/MyName')")
    if slash and not prefix:
        return 'prefix part must be non-empty'
    if slash and (problem := subdomain_problem(prefix)) is not None:
        return f'prefix part {problem}'
    if not name:
        return 'name part must be non-empty'
    if len(name) > 63:
        return 'name part must be no more than 63 bytes'
    return None if _QUALIFIED_RE.fullmatch(name) else f'name part {_QUALIFIED_TEXT}'


def label_value_problem(text: str) -> str | None:
    """Why this cannot be the value of a label, or None if it can."""
    if len(text) > 63:
        return 'must be no more than 63 bytes'
    return None if _VALUE_RE.fullmatch(text) else _VALUE_TEXT
