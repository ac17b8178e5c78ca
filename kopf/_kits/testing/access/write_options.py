"""The options of a write, from its query and its ``DeleteOptions``, and the warnings that the client gets."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kopf._kits.testing.access.users import User
from kopf._kits.testing.wire import queries, statuses


@dataclasses.dataclass(slots=True)
class Options:
    """The options of a write, and the collected ``warnings`` for the client."""

    user: User = dataclasses.field(default_factory=User)
    dry_run: bool = False
    field_validation: str = 'Warn'
    propagation: str = ''
    uid: str = ''
    version: str = ''
    manager: str = 'kube-apiserver'
    force: bool = False
    warnings: list[str] = dataclasses.field(default_factory=list)
    mistakes: list[str] = dataclasses.field(default_factory=list)
    """The errors of strict decoding in the text of the request, for custom kinds."""
    patched: Any = None
    """The result of a patch, if it is decoded strictly: error messages quote it."""


def decode_options(body: Any, params: Mapping[str, str], options: Options) -> None:
    """Set the ``DeleteOptions`` from the body of a request or its query; raise a 4xx if they are invalid."""
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
    """Report the errors of strict decoding as ``fieldValidation`` requests: by warnings, a refusal, or not at all."""
    if mistakes and options.field_validation == 'Strict':
        raise refuse(f'strict decoding error: {", ".join(mistakes)}')
    if options.field_validation != 'Ignore':
        options.warnings += [text for text in mistakes if text not in options.warnings]
