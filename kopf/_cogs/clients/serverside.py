"""
Server-side apply: the desired fields of an object are sent, and the API server creates or changes the object.

The API server remembers which field manager owns which field. Unless the request is forced, it refuses to change the
values of fields that other managers own. It removes the fields that the manager has applied before, but does not apply
any more.

The errors of `apply_object` name the fields and the remedy. The fields are parsed from the causes in the details of the
response, and only without causes from its message.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from kopf._cogs.clients import api, errors
from kopf._cogs.structs import bodies, references

# JSON is valid YAML, and the client has an encoder of JSON.
_APPLY: Final = 'application/apply-patch+yaml'

_OWNED: Final = 'FieldManagerConflict'
"""The reason of the causes that name the fields of other managers."""

_OWNER = re.compile(r'conflict with ("(?:[^"\\]|\\.)*")')
_IMMUTABLE = re.compile(
    r'immutable|(?:may|can|must|should) ?not (?:be )?(?:change|modif|update)|updates to .* forbidden'
)
_UNDECLARED = re.compile(r'(?:^|\s)\.(\S+?): ')

_UNSUPPORTED = (405, 415)
"""The statuses for methods and content types that the server does not support."""

_E = TypeVar('_E', bound=errors.APIError)


class ApplyConflictError(errors.APIConflictError):
    """409: other managers own some of the applied fields, and have set them to other values."""

    @property
    def conflicts(self) -> Mapping[str, Sequence[str]]:
        """The paths of the fields by the names of their managers."""
        fields: dict[str, list[str]] = {}
        for cause in _iter_causes(self):
            if cause.get('reason') == _OWNED:
                paths = fields.setdefault(_parse_owner(cause), [])
                if (path := _parse_path(cause)) not in paths:  # a manager can own it in several API versions
                    paths.append(path)
        return fields


class ApplyUnsupportedError(errors.APIClientError):
    """405, 415: the server does not support server-side apply of this kind, e.g. one of an aggregated API."""


class ApplyInvalidError(errors.APIUnprocessableError):
    """422: the object would be invalid, or an immutable field would be changed."""

    @property
    def fields(self) -> Sequence[str]:
        """The paths of the refused fields; empty if the server does not name them."""
        paths = [_parse_path(cause) for cause in _iter_causes(self)]
        # Fields that the schema does not have are only in the message: one on each line.
        paths = paths or [match.group(1) for match in _UNDECLARED.finditer(_get_reason(self))]
        return list(dict.fromkeys(filter(None, paths)))

    @property
    def immutable_fields(self) -> Sequence[str]:
        """The paths of the fields that can be set only when the object is created; each is also in `fields`."""
        return list(
            dict.fromkeys(
                path
                for cause in _iter_causes(self)
                if (path := _parse_path(cause)) and _IMMUTABLE.search(str(cause.get('message')))
            )
        )


async def apply_object(
    client: api.ApiClient,
    *,
    resource: references.Resource,
    namespace: references.Namespace,
    name: str,
    body: Mapping[str, Any],
    field_manager: str,
    force: bool = False,
    dry_run: bool = False,
    logger: api.AnyLogger | None = None,
) -> bodies.RawBody:
    """
    Apply the desired fields of an object, and return its new state.

    The object is created if it is absent. If it exists, the server sets the fields in the body, and removes the fields
    that this manager has applied before but omits now. Without any differences, the object is not changed.

    Args:
        client: the client to apply with.
        resource: the kind of the object.
        namespace: the namespace of the object, if it is in a namespace.
        name: the name of the object; the server cannot generate it.
        body: the desired fields, with the ``apiVersion``, the ``kind``, and the name.
        field_manager: the name under which the server remembers the fields.
        force: take the fields away from other managers instead of failing.
        dry_run: let the server check the request and compute its result without storing it.
        logger: the logger of the object.

    Raises:
        ApplyConflictError: if other managers own some of the fields; not if forced.
        ApplyInvalidError: if the object would be invalid, or an immutable field would be changed.
        ApplyUnsupportedError: if the server cannot apply objects of this kind.
        errors.APIError: if the API refuses the request for other reasons, or does not work.
    """
    url = resource.get_url(namespace=namespace, name=name)
    params = {
        'fieldManager': field_manager,
        'force': 'true' if force else None,
        'dryRun': 'All' if dry_run else None,
    }
    title = ' '.join([str(resource), f'{namespace}/{name}' if namespace is not None else name])
    try:
        result = await client.patch(url, body, _APPLY, params=params, logger=logger)
    except errors.APIClientError as error:
        explained = _explain(error, title, resource, field_manager)
        if explained is None:
            raise
        raise explained from error
    if not isinstance(result, dict) or not isinstance(result.get('metadata'), dict):
        raise errors.APIServerError(f"The response to the apply of {title} is no object: {result!r:.200}")
    return cast(bodies.RawBody, result)


def _explain(
    error: errors.APIClientError,
    title: str,
    resource: references.Resource,
    field_manager: str,
) -> errors.APIClientError | None:
    """Return the error with the fields and the remedy; `None` if the error is not about the apply itself."""
    if isinstance(error, errors.APIUnprocessableError):
        return _explain_invalid(error, title)
    if isinstance(error, errors.APIConflictError):
        conflict = _rebuild(ApplyConflictError, error, '')
        # Without fields, the conflict concerns the uid or the version in the body, or is a race of writers.
        if not conflict.conflicts:
            return None
        owners = '; '.join(f"{owner!r} owns {', '.join(paths)}" for owner, paths in conflict.conflicts.items())
        message = (
            f"{title} cannot be applied by the field manager {field_manager!r}, as other managers have set its fields: "
            f"{owners}. Do not apply these fields, or take them over with force=True."
        )
        return _rebuild(ApplyConflictError, error, message)
    if error.status in _UNSUPPORTED:
        message = (
            f"{title} cannot be applied, as the server does not support server-side apply of {resource}: "
            f"{error.message}. Create and patch the objects of this kind instead."
        )
        return _rebuild(ApplyUnsupportedError, error, message)
    return None


def _explain_invalid(error: errors.APIUnprocessableError, title: str) -> ApplyInvalidError:
    invalid = _rebuild(ApplyInvalidError, error, error.message or '')
    message = f"{title} cannot be applied"
    if immutable := invalid.immutable_fields:
        message += (
            f", as {', '.join(immutable)} cannot be changed after the creation of the object: {error.message}. "
            f"Keep the former value, or delete the object first."
        )
    elif fields := invalid.fields:
        message += f", as {', '.join(fields)} would be invalid: {_get_reason(error)}"
    else:
        message += f": {error.message}"
    return _rebuild(ApplyInvalidError, error, ' '.join(message.split()))


def _rebuild(cls: type[_E], error: errors.APIError, message: str) -> _E:
    return cls(
        message,
        status=error.status,
        code=error.code,
        reason=error.reason,
        details=error.details,
        headers=error.headers,
    )


def _iter_causes(error: errors.APIError) -> Iterator[Mapping[str, Any]]:
    # The types are checked, because servers can send malformed errors: see `build_status_error`.
    causes = error.details.get('causes')
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, Mapping):
            yield cause


def _parse_path(cause: Mapping[str, Any]) -> str:
    # The paths of conflicts begin with a dot, the paths of invalid values do not.
    return str(cause.get('field') or '').removeprefix('.')


def _parse_owner(cause: Mapping[str, Any]) -> str:
    """Return the name of the manager: ``conflict with "kubectl-edit" using apps/v1 at 2026-01-01T00:00:00Z``."""
    message = str(cause.get('message') or '')
    match = _OWNER.search(message)
    try:
        return str(json.loads(match.group(1))) if match else message
    except ValueError:  # escapes of Go that JSON does not know, such as \x00
        return message


def _get_reason(error: errors.APIError) -> str:
    """Return the message without the name of the object before it."""
    message = error.message or ''
    _, found, reason = message.partition('): ')  # failed to create typed patch object (ns/name; apps/v1, Kind=…): …
    return reason if found and message.startswith(errors.UNTYPED) else message
