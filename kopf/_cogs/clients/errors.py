"""
The errors of the Kubernetes API, typed by HTTP status.

Callers distinguish errors by class, e.g. "gone", "conflict", or "server error", never by comparing numbers.
Network errors have the same base class, so that `except APIError` catches all failures of a request, whatever
the HTTP library is. Bodies that are not a `Status` object (of proxies and load balancers) are cut to a few characters.
"""

import datetime
import re
from collections.abc import Mapping
from typing import Any

_SNIPPET = 200

_LONGEST_RETRY_AFTER = 300.0
"""The limit of delays requested by servers (in seconds): a proxy with a wrong value must not stop the operator."""


_PARTIAL_REFUSALS = (
    'storage is (re)initializing',  # of a new CRD, of a conversion webhook that does not answer
    'Cannot evict pod',  # because of its disruption budget
    'limit reached on type',  # of Events, by the admission plugin EventRateLimit
)

UNTYPED = 'failed to create typed patch object'
"""
The beginning of messages about applied objects that do not fit the schema of their kind.

API servers respond with 500 to them. Nevertheless, it is a mistake of the client, and must not be tried again.
"""

_WEBHOOK_DENIAL = re.compile(r'admission webhook "[^"]*" denied the request')

_POLICY_DENIAL = re.compile(r".* is forbidden: ValidatingAdmissionPolicy '", re.DOTALL)

_PLUGIN_DENIAL = re.compile(r'.* is forbidden: (?!User ".*" cannot )', re.DOTALL)
"""
The texts of admission plugins of API servers, such as quotas, limits, and the security of pods.

When RBAC refuses a user, the message, the status and the reason look similar. The end of the message can be any text,
so only its beginning distinguishes these refusals.
"""


class APIError(Exception):
    """
    A request has failed.

    Attributes:
        message: the message of the server, for humans.
        status: the HTTP status; 0 if there was no response.
        code: the code in the Status object, usually the same as `status`.
        reason: the machine-readable reason, e.g. ``AlreadyExists``.
        details: the details of the Status object, possibly empty.
        headers: the headers of the response.
        retry_after: the delay that the server requests before the next attempt (in seconds; at most 5 minutes).
    """

    status: int

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int = 0,
        code: int | None = None,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.reason = reason
        self.details: Mapping[str, Any] = details or {}
        self.headers: Mapping[str, str] = headers or {}

    def __repr__(self) -> str:
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"{type(self).__name__}({self.message!r}, status={self.status}{reason})"

    @property
    def is_by_admission(self) -> bool:
        """
        True if the request is permitted to the account, but the object was denied by a webhook, a policy, or a plugin.

        Only the text indicates it: webhooks and policies choose the status and the reason of their denials.
        """
        message = self.message or ''
        return _is_denial(message) or (self.reason == 'Forbidden' and _PLUGIN_DENIAL.match(message) is not None)

    @property
    def retry_after(self) -> float | None:
        # Use the header first: proxies in front of the API also set it, but they send no Status object.
        header = self.headers.get('Retry-After')
        if header is not None:
            seconds = _parse_retry_after(header)
            if seconds is not None:
                return min(seconds, _LONGEST_RETRY_AFTER)
        value = self.details.get('retryAfterSeconds')
        return min(float(value), _LONGEST_RETRY_AFTER) if isinstance(value, (int, float)) and value > 0 else None


class APIConnectionError(APIError):
    """The request or its response was lost in the network; the cause is in ``__cause__``."""


class APITimeoutError(APIConnectionError, TimeoutError):
    """There was no (whole) response in time."""


class APIFencedError(APIError):
    """A write was not sent, because the operator must not write now: another replica can be the leader."""


class APIServerError(APIError):
    """5xx: the server has failed; usually temporary."""


class APIClientError(APIError):
    """4xx: the request is wrong; usually permanent."""


class APIUnauthorizedError(APIClientError):
    """401: the credentials are not accepted (any more)."""


class APIForbiddenError(APIClientError):
    """
    403: the credentials are accepted, but have no rights for this; or the object was denied by admission.

    The latter also comes with the status 401, 404, 409, or 410, if a webhook or a policy has chosen it. It does not
    mean that the credentials are invalid, the object is gone, and so on.
    """


class APINotFoundError(APIClientError):
    """404: no such object, resource or API group."""


class APIUnservedError(APINotFoundError):
    """404: the API does not serve the resource now, so it is unknown whether the object exists."""


class APIConflictError(APIClientError):
    """409: the object exists already, or is not in the expected version."""


class APIGoneError(APIClientError):
    """410: the resource version or the continuation token is too old."""


class APIPayloadTooLargeError(APIClientError):
    """413: the object does not fit into a request."""


class APIUnprocessableError(APIClientError):
    """422: the object is invalid, or a JSON patch does not apply."""


class APITooManyRequestsError(APIClientError):
    """429: the server protects itself; see `retry_after`."""

    @property
    def is_partial(self) -> bool:
        """
        True if the refusal concerns only this resource or object, while the server accepts other requests.

        Only the text indicates it: the flow control of API servers refuses with "Too many requests, please try again
        later." An unknown text counts as a refusal by the whole server, because proxies send texts of their own.
        """
        message = self.message or ''
        return message.startswith(_PARTIAL_REFUSALS) or 'denied the request' in message


_CLASSES: Mapping[int, type[APIError]] = {
    401: APIUnauthorizedError,
    403: APIForbiddenError,
    404: APINotFoundError,
    409: APIConflictError,
    410: APIGoneError,
    413: APIPayloadTooLargeError,
    422: APIUnprocessableError,
    429: APITooManyRequestsError,
}


def check_response(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Raise an error if the response is not a success.

    Raises:
        APIError: the subclass depends on the status.
    """
    if status >= 300:
        raise build_error(status, headers, body)


def build_error(status: int, headers: Mapping[str, str], body: bytes) -> APIError:
    """Return a typed error for a failed response, or for an ERROR event of a watch."""
    import orjson

    if 300 <= status < 400:  # an API never redirects, but a proxy before it can, e.g. to a login page
        target = headers.get('Location')
        return APIError(
            f"The server redirects to {target!r}, so it is not a Kubernetes API" if target else f"HTTP {status}",
            status=status,
            headers=headers,
        )
    try:
        data: Any = orjson.loads(body)
    except ValueError:
        data = None
    if isinstance(data, Mapping):
        return build_status_error(data, status=status, headers=headers)
    text = body[:_SNIPPET].decode('utf-8', errors='replace').strip()
    return _get_class(status)(text or f"HTTP {status}", status=status, headers=headers)


def build_status_error(
    data: Mapping[str, Any],
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> APIError:
    """
    Return a typed error for a Status object of a response or of an ERROR event of a watch.

    Args:
        data: the Status object as decoded; its fields are not trusted to be of the right types.
        status: the HTTP status; by default the code of the Status object.
        headers: the headers of the response, if there was one.
    """
    code = data.get('code')
    code = code if isinstance(code, int) else None
    details = data.get('details')
    message, reason = data.get('message'), data.get('reason')
    status = status if status is not None else code or 0
    mistaken = status == 500 and isinstance(message, str) and message.startswith(UNTYPED)
    disguised = status in (401, 404, 409, 410) and _is_denial(str(message))
    return _get_class(422 if mistaken else 403 if disguised else status)(
        str(message) if message else f"HTTP {status}",
        status=status,
        code=code,
        reason=str(reason) if reason else None,
        details=details if isinstance(details, Mapping) else None,
        headers=headers,
    )


def _is_denial(message: str) -> bool:
    return bool(_WEBHOOK_DENIAL.match(message) or _POLICY_DENIAL.match(message))


def _get_class(status: int) -> type[APIError]:
    generic = APIClientError if 400 <= status < 500 else APIServerError if status >= 500 else APIError
    return _CLASSES.get(status, generic)


def _parse_retry_after(value: str) -> float | None:
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    # Python returns a time without a zone for ``-0000``, which means UTC (RFC 5322, section 3.3).
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - datetime.datetime.now(datetime.UTC)).total_seconds())
