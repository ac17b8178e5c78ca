"""The syntax of names, labels and annotations, and a real server's messages about invalid ones."""

import re

_SUBDOMAIN = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'
_LABEL = r'[a-z0-9]([-a-z0-9]*[a-z0-9])?'
_QUALIFIED = r'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'
_VALUE = f'({_QUALIFIED})?'
_WORD = r'[a-z]([-a-z0-9]*[a-z0-9])?'
_WORD_RE = re.compile(_WORD)
_SUBDOMAIN_RE, _LABEL_RE = re.compile(_SUBDOMAIN), re.compile(_LABEL)
_QUALIFIED_RE, _VALUE_RE = re.compile(_QUALIFIED), re.compile(_VALUE)

_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation "
    f"is '{_SUBDOMAIN}')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{_LABEL}')"
)
_WORD_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    f"validation is '{_WORD}')"
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation "
    f"is '{_QUALIFIED}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    f"for validation is '{_VALUE}')"
)


def subdomain_problems(text: str) -> list[str]:
    """Return why the text is not a DNS subdomain: the name of an object of most kinds. Empty if it is one."""
    problems = ['must be no more than 253 characters'] if len(text) > 253 else []
    return problems if _SUBDOMAIN_RE.fullmatch(text) else [*problems, _SUBDOMAIN_TEXT]


def label_problems(text: str) -> list[str]:
    """Return why the text is not a DNS label: the name of a namespace. Empty if it is one."""
    problems = ['must be no more than 63 characters'] if len(text) > 63 else []
    if _LABEL_RE.fullmatch(text):
        return problems
    return [*problems, 'must not contain dots' if _SUBDOMAIN_RE.fullmatch(text) else _LABEL_TEXT]


def word_problems(text: str) -> list[str]:
    """Return why the text is not a DNS-1035 label: the name of a service, or a name of a CRD. Empty if it is one."""
    problems = ['must be no more than 63 characters'] if len(text) > 63 else []
    return problems if _WORD_RE.fullmatch(text) else [*problems, _WORD_TEXT]


def port_problems(text: str) -> list[str]:
    """Return why the text is not the name of a port. Empty if it is one."""
    rules = (
        (len(text) <= 15, 'must be no more than 15 characters'),
        (re.fullmatch('[-a-z0-9]+', text), 'must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)'),
        (re.search('[a-z]', text), 'must contain at least one letter (a-z)'),
        ('--' not in text, 'must not contain consecutive hyphens'),
        (text.strip('-') == text, 'must not begin or end with a hyphen'),
    )
    return [why for fits, why in rules if not fits]


def path_problems(text: str) -> list[str]:
    """Return why the text is not a path segment, as the names of roles must be. Empty if it is one."""
    if text in ('.', '..'):
        return [f"may not be '{text}'"]
    return [f"may not contain '{character}'" for character in '/%' if character in text]


def label_key_problems(text: str) -> list[str]:
    """Return why the text is not the key of a label or an annotation. Empty if it is one."""
    prefix, slash, name = text.rpartition('/')
    if text.count('/') > 1:
        return [
            f"a valid label key {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        ]
    problems = []
    if slash and not prefix:
        problems.append('prefix part must be non-empty')
    elif slash:
        problems += [f'prefix part {problem}' for problem in subdomain_problems(prefix)]
    if not name:
        problems.append('name part must be non-empty')
    elif len(name) > 63:
        problems.append('name part must be no more than 63 bytes')
    if not _QUALIFIED_RE.fullmatch(name):
        problems.append(f'name part {_QUALIFIED_TEXT}')
    return problems


def label_value_problems(text: str) -> list[str]:
    """Return why the text is not the value of a label. Empty if it is one."""
    problems = ['must be no more than 63 bytes'] if len(text) > 63 else []
    return problems if _VALUE_RE.fullmatch(text) else [*problems, _VALUE_TEXT]
