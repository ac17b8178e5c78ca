"""
How a write is to be done, by its query and its ``DeleteOptions``, and what the client is told besides the answer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing.access.users import User
from kopf._kits.testing.wire import queries, statuses


@dataclasses.dataclass(slots=True)
class Options:
    """How it is to be done; ``warnings`` collects what the client should be told besides."""

    user: User = dataclasses.field(default_factory=User)
    dry_run: bool = False
    field_validation: str = 'Warn'
    propagation: str = ''
    uid: str = ''
    version: str = ''
    manager: str = 'kube-apiserver'
    force: bool = False
    warnings: list[str] = dataclasses.field(default_factory=list)
    #: What is wrong with the text of the request, for custom kinds; and what a strict patch has led to.
    mistakes: list[str] = dataclasses.field(default_factory=list)
    patched: Any = None


def decode_options(body: Any, params: Mapping[str, str], options: Options) -> None:
    """Take over ``DeleteOptions``, from the body of a request or from its query; 4xx if they are wrong."""
    if isinstance(body, dict) and body.get('kind', 'DeleteOptions') != 'DeleteOptions':
        raise statuses.bad_request(
            f'no kind "{body["kind"]}" is registered for version "{body.get("apiVersion")}" '
            'in scheme "pkg/runtime/scheme.go:111"'
        )
    given = queries.Deletion(body, params)
    options.propagation = given.propagation or {None: '', True: 'Orphan', False: 'Background'}[given.orphan]
    options.uid, options.version = given.uid, given.version
    options.dry_run = bool(given.dry_run)


def report(mistakes: list[str], options: Options, refuse: Callable[[str], statuses.Refusal]) -> None:
    """Warn of what a strict decoder would refuse; or refuse it, or be silent, as the client wants it."""
    if mistakes and options.field_validation == 'Strict':
        raise refuse(f'strict decoding error: {", ".join(mistakes)}')
    if options.field_validation != 'Ignore':
        options.warnings += [text for text in mistakes if text not in options.warnings]
