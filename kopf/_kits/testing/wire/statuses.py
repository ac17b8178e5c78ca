"""
Refusals: everything the sandbox answers instead of doing what was asked.

Clients decide by the code, the reason and the details of a ``Status``, and people by its message; so all
of them are worded here once, the way a real API server words them. Any module may raise a `Refusal`:
the HTTP server turns it into an answer, the Python door of the sandbox raises it as it is.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson


class Cause(NamedTuple):
    """One broken rule of an object: the path of the field, the machine's reason, the text for people."""

    field: str
    reason: str
    message: str


class Refusal(Exception):
    """
    A request that the API did not fulfil.

    ``code`` is the HTTP status, ``reason`` the machine-readable word (``"NotFound"``, ``"Conflict"``, ...; it can be
    empty), ``details`` what the ``Status`` body says besides the message (or None), ``headers`` go with the answer.
    """

    __module__ = 'kopf.testing'  # it is shown by this name

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
        """The body of the answer: a ``Status`` of the API version v1."""
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
    """No such place in the API at all: a real server answers with plain text here, not with a ``Status``."""

    __qualname__ = Refusal.__qualname__

    def __init__(self) -> None:
        super().__init__(404, 'NotFound', '404 page not found')


def about(group: str, kind: str, name: str = '') -> dict[str, Any]:
    """The details that say which object the refusal is about; ``kind`` is a plural or a kind, as the case may be."""
    details = {'name': name, 'group': group, 'kind': kind}
    return {key: value for key, value in details.items() if value}


def qualified(group: str, word: str) -> str:
    """A plural or a kind as messages name it: ``pods``, ``deployments.apps``."""
    return f'{word}.{group}' if group else word


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """What is answered when an object is gone at once."""
    return {
        'kind': 'Status',
        'apiVersion': 'v1',
        'metadata': {},
        'status': 'Success',
        'details': {**about(group, plural, name), 'uid': uid},
    }


def bad_request(message: str) -> Refusal:
    """400: the request could not be understood."""
    return Refusal(400, 'BadRequest', message)


def wrong_namespace() -> Refusal:
    """400: the object says that it is in another namespace than the request."""
    return bad_request('the namespace of the provided object does not match the namespace sent on the request')


def unauthorized() -> Refusal:
    """401: the credentials are unknown or have expired."""
    return Refusal(401, 'Unauthorized', 'Unauthorized')


def forbidden(group: str, plural: str, name: str, why: str, causes: Iterable[Cause] = ()) -> Refusal:
    """403: understood, but not allowed in the present state."""
    subject = f'{qualified(group, plural)} {text(name)}' if name else qualified(group, plural)
    details = about(group, plural, name)
    if listed := _causes(causes):
        details['causes'] = listed
    return Refusal(403, 'Forbidden', f'{subject} is forbidden: {why}', details)


def not_found(group: str, plural: str, name: str) -> Refusal:
    """404: there is no such object."""
    return Refusal(404, 'NotFound', f'{qualified(group, plural)} {text(name)} not found', about(group, plural, name))


def no_resource() -> Refusal:
    """404: the API version is served, this resource of it is not."""
    return Refusal(404, 'NotFound', 'the server could not find the requested resource', {})


def no_method() -> Refusal:
    """405: the resource exists, the verb does not."""
    message = 'the server does not allow this method on the requested resource'
    return Refusal(405, 'MethodNotAllowed', message, {})


def not_acceptable(accepted: Iterable[str] = (), message: str = '') -> Refusal:
    """406: none of the media types that the client accepts can be had."""
    known = f'only the following media types are accepted: {", ".join(accepted)}'
    return Refusal(406, 'NotAcceptable', message or known)


def exists(group: str, plural: str, name: str, *, deleting: bool = False, generated: bool = False) -> Refusal:
    """409: the name is taken; if it was to be generated, another attempt can succeed."""
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
    """409: the object is not the one, or not in the version, that the client meant."""
    why = why or 'the object has been modified; please apply your changes to the latest version and try again'
    return Refusal(
        409,
        'Conflict',
        f'Operation cannot be fulfilled on {qualified(group, word)} "{name}": {why}',
        about(group, word, name),
    )


def expired(message: str) -> Refusal:
    """410: the version asked for is no longer in the history."""
    return Refusal(410, 'Expired', message)


def unsupported_media(accepted: Iterable[str], hint: str = '') -> Refusal:
    """415: the body's format is not one of those accepted, or is not emulated (then with a hint)."""
    message = 'the body of the request was in an unknown format - accepted media types include: ' + ', '.join(accepted)
    return Refusal(415, 'UnsupportedMediaType', f'{message} ({hint})' if hint else message)


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> Refusal:
    """422: the object breaks the rules listed as causes."""
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
    """422: a JSON patch that cannot be applied, or whose test fails."""
    return Refusal(422, 'Invalid', 'the server rejected our request due to an error in our request', {})


def invalid_options(kind: str, *causes: Cause) -> Refusal:
    """422: query parameters or options that contradict each other."""
    return invalid('meta.k8s.io', kind, '', causes)


def internal(message: str) -> Refusal:
    """500 without a reason: what a real server says where it did not expect such input."""
    return Refusal(500, '', message)


def not_emulated(what: str, hint: str) -> Refusal:
    """501: a real cluster can do this, the sandbox cannot."""
    return Refusal(501, 'NotImplemented', f'the sandbox does not emulate {what}: {hint}')


def too_new(version: int, current: int, *, cached: bool = True) -> Refusal:
    """504: a version that lies in the future; the caches of a real server say when it is worth to try again."""
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
    """A field must be there and is not."""
    return Cause(field, 'FieldValueRequired', f'Required value: {text}' if text else 'Required value')


def value_invalid(field: str, value: str, text: str) -> Cause:
    """A field's value breaks a rule; ``value`` is given as JSON text."""
    return Cause(field, 'FieldValueInvalid', f'Invalid value: {value}: {text}')


def value_mistyped(field: str, value: str, text: str) -> Cause:
    """A field's value is of a wrong type; ``value`` is given as JSON text."""
    return Cause(field, 'FieldValueTypeInvalid', f'Invalid value: {value}: {text}')


def value_unsupported(field: str, value: str, supported: Iterable[str]) -> Cause:
    """A field's value is none of those supported; all are given as JSON text."""
    return Cause(
        field, 'FieldValueNotSupported', f'Unsupported value: {value}: supported values: {", ".join(supported)}'
    )


def value_forbidden(field: str, text: str) -> Cause:
    """A field may not be set here."""
    return Cause(field, 'FieldValueForbidden', f'Forbidden: {text}')


def text(value: Any) -> str:
    """A value as messages quote it: as JSON."""
    return orjson.dumps(value).decode()


def _causes(causes: Iterable[Cause]) -> list[dict[str, str]]:
    return [{'reason': cause.reason, 'message': cause.message, 'field': cause.field} for cause in causes]
