"""
Refusals: the error responses of the sandbox.

Programs react to the code, the reason and the details of a ``Status``; people read its message. This module has the
common messages of a real API server. Any module may raise a `Refusal`: the HTTP server converts it to a response, and
the Python API of the sandbox raises it unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson


class Cause(NamedTuple):
    """One violation in an object: the path of the field, the machine-readable reason, the message."""

    field: str
    reason: str
    message: str


class Refusal(Exception):
    """
    An error response of the API.

    Args:
        code: The HTTP status.
        reason: The machine-readable word (``"NotFound"``, ``"Conflict"``, ...); can be empty.
        message: The text for people.
        details: What the ``Status`` body contains besides the message, if anything.
        headers: Additional headers of the response.
    """

    __module__ = 'kopf.testing'  # tracebacks show this name, which users import

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = dict(headers or {})

    def as_status(self) -> dict[str, Any]:
        """Return the body of the response: a ``Status`` of the API version v1."""
        status: dict[str, Any] = {
            'kind': 'Status',
            'apiVersion': 'v1',
            'metadata': {},
            'status': 'Failure',
            'message': self.message,
        }
        if self.reason:
            status['reason'] = self.reason
        if self.details is not None:
            status['details'] = dict(self.details)
        status['code'] = self.code
        return status


class UnknownPath(Refusal):
    """Raised for an unknown path of the API: a real server responds with plain text here, not with a ``Status``."""

    __qualname__ = Refusal.__qualname__

    def __init__(self) -> None:
        super().__init__(404, 'NotFound', '404 page not found')


def about(group: str, kind: str, name: str = '') -> dict[str, Any]:
    """Return the details that identify the object; ``kind`` is a plural or a kind, depending on the message."""
    details = {'name': name, 'group': group, 'kind': kind}
    return {key: value for key, value in details.items() if value}


def qualified(group: str, word: str) -> str:
    """Return a plural or a kind as messages name it: ``pods``, ``deployments.apps``."""
    return f'{word}.{group}' if group else word


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """Return the body of the response when an object was removed immediately."""
    return {
        'kind': 'Status',
        'apiVersion': 'v1',
        'metadata': {},
        'status': 'Success',
        'details': {**about(group, plural, name), 'uid': uid},
    }


def bad_request(message: str) -> Refusal:
    """Return a 400: the request could not be understood."""
    return Refusal(400, 'BadRequest', message)


def wrong_namespace() -> Refusal:
    """Return a 400: the namespace of the object differs from that of the request."""
    return bad_request('the namespace of the provided object does not match the namespace sent on the request')


def unauthorized() -> Refusal:
    """Return a 401: the credentials are unknown or have expired."""
    return Refusal(401, 'Unauthorized', 'Unauthorized')


def forbidden(group: str, plural: str, name: str, why: str, causes: Iterable[Cause] = ()) -> Refusal:
    """Return a 403: the request is valid, but not allowed in the present state."""
    subject = f'{qualified(group, plural)} {text(name)}' if name else qualified(group, plural)
    details = about(group, plural, name)
    if listed := _causes(causes):
        details['causes'] = listed
    return Refusal(403, 'Forbidden', f'{subject} is forbidden: {why}', details)


def not_found(group: str, plural: str, name: str) -> Refusal:
    """Return a 404: the object does not exist."""
    return Refusal(404, 'NotFound', f'{qualified(group, plural)} {text(name)} not found', about(group, plural, name))


def no_resource() -> Refusal:
    """Return a 404: the API version is served, but this resource of it is not."""
    return Refusal(404, 'NotFound', 'the server could not find the requested resource', {})


def no_method() -> Refusal:
    """Return a 405: the resource exists, but does not support the verb."""
    message = 'the server does not allow this method on the requested resource'
    return Refusal(405, 'MethodNotAllowed', message, {})


def not_acceptable(accepted: Iterable[str] = (), message: str = '') -> Refusal:
    """Return a 406: none of the media types that the client accepts is available."""
    known = f'only the following media types are accepted: {", ".join(accepted)}'
    return Refusal(406, 'NotAcceptable', message or known)


def exists(group: str, plural: str, name: str, *, deleting: bool = False, generated: bool = False) -> Refusal:
    """Return a 409: the name is taken; if it was generated, another attempt can succeed."""
    prefix = 'object is being deleted: ' if deleting else ''
    suffix = ', the server was not able to generate a unique name for the object' if generated else ''
    details = about(group, plural, name)
    return Refusal(
        409,
        'AlreadyExists',
        f'{prefix}{qualified(group, plural)} "{name}" already exists{suffix}',
        {**details, 'retryAfterSeconds': 1} if generated else details,
        headers={'Retry-After': '1'} if generated else {},
    )


def conflict(group: str, word: str, name: str, why: str = '') -> Refusal:
    """Return a 409: the object has another uid or version than the client expected."""
    why = why or 'the object has been modified; please apply your changes to the latest version and try again'
    return Refusal(
        409,
        'Conflict',
        f'Operation cannot be fulfilled on {qualified(group, word)} "{name}": {why}',
        about(group, word, name),
    )


def expired(message: str) -> Refusal:
    """Return a 410: the requested version is no longer in the history."""
    return Refusal(410, 'Expired', message)


def unsupported_media(accepted: Iterable[str], hint: str = '') -> Refusal:
    """Return a 415: the media type of the body is not accepted; with a hint if only the sandbox does not support it."""
    message = 'the body of the request was in an unknown format - accepted media types include: ' + ', '.join(accepted)
    return Refusal(415, 'UnsupportedMediaType', f'{message} ({hint})' if hint else message)


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> Refusal:
    """Return a 422: the object violates the rules listed as causes."""
    listed = list(causes)
    texts = list(dict.fromkeys(f'{cause.field}: {cause.message}' for cause in listed))
    text = texts[0] if len(texts) == 1 else f'[{", ".join(texts)}]'
    return Refusal(
        422,
        'Invalid',
        f'{qualified(group, kind)} "{name}" is invalid: {text}',
        {**about(group, kind, name), 'causes': _causes(listed)},
    )


def rejected() -> Refusal:
    """Return a 422: a JSON patch cannot be applied, or its test fails."""
    return Refusal(422, 'Invalid', 'the server rejected our request due to an error in our request', {})


def invalid_options(kind: str, *causes: Cause) -> Refusal:
    """Return a 422: query parameters or options contradict each other."""
    return invalid('meta.k8s.io', kind, '', causes)


def internal(message: str) -> Refusal:
    """Return a 500 without a reason: a real server's response to input that it does not expect."""
    return Refusal(500, '', message)


def not_emulated(what: str, hint: str) -> Refusal:
    """Return a 501: a real cluster supports this, the sandbox does not."""
    return Refusal(501, 'NotImplemented', f'the sandbox does not emulate {what}: {hint}')


def too_new(version: int, current: int, *, cached: bool = True) -> Refusal:
    """Return a 504: the version is a future one; if the response comes from a cache, it says when to retry."""
    details: dict[str, Any] = {
        'causes': [{'reason': 'ResourceVersionTooLarge', 'message': 'Too large resource version'}]
    }
    if cached:
        details['retryAfterSeconds'] = 1
    return Refusal(
        504,
        'Timeout',
        f'Timeout: Too large resource version: {version}, current: {current}',
        details,
        headers={'Retry-After': '1'} if cached else {},
    )


def value_required(field: str, text: str = '') -> Cause:
    """Return a cause: a required field is absent."""
    return Cause(field, 'FieldValueRequired', f'Required value: {text}' if text else 'Required value')


def value_invalid(field: str, value: str, text: str) -> Cause:
    """Return a cause: the value of a field violates a rule; ``value`` is JSON text."""
    return Cause(field, 'FieldValueInvalid', f'Invalid value: {value}: {text}')


def value_mistyped(field: str, value: str, text: str) -> Cause:
    """Return a cause: the value of a field has a wrong type; ``value`` is JSON text."""
    return Cause(field, 'FieldValueTypeInvalid', f'Invalid value: {value}: {text}')


def value_unsupported(field: str, value: str, supported: Iterable[str]) -> Cause:
    """Return a cause: the value of a field is not a supported one; all values are JSON texts."""
    return Cause(
        field, 'FieldValueNotSupported', f'Unsupported value: {value}: supported values: {", ".join(supported)}'
    )


def value_forbidden(field: str, text: str) -> Cause:
    """Return a cause: the field may not be set here."""
    return Cause(field, 'FieldValueForbidden', f'Forbidden: {text}')


def text(value: Any) -> str:
    """Return a value as messages quote it: as JSON."""
    return orjson.dumps(value).decode()


def _causes(causes: Iterable[Cause]) -> list[dict[str, str]]:
    return [{'reason': cause.reason, 'message': cause.message, 'field': cause.field} for cause in causes]
