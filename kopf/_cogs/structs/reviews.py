"""
Admission and conversion reviews: the requests of the Kubernetes API to webhooks, the responses, and webhook servers.

Developers can replace webhook servers, so these types are the protocol between such a server and the framework.
The server gets a function to call with every request, and yields the client configs by which the API can reach it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from kopf._cogs.structs import bodies

Headers: TypeAlias = dict[str, str]
SSLPeer: TypeAlias = dict[str, Any]

Operation: TypeAlias = Literal['CREATE', 'UPDATE', 'DELETE', 'CONNECT']
ReviewVersion: TypeAlias = Literal['admission.k8s.io/v1', 'admission.k8s.io/v1beta1']


class RequestKind(TypedDict):
    """The kind of the object under review."""

    group: str
    version: str
    kind: str


class RequestResource(TypedDict):
    """The resource of the object under review."""

    group: str
    version: str
    resource: str


class UserInfo(TypedDict):
    """The user that has requested the change."""

    username: str
    uid: str
    groups: list[str]


class CreateOptions(TypedDict, total=False):
    """The options of the creation request."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['CreateOptions']


class UpdateOptions(TypedDict, total=False):
    """The options of the update request."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['UpdateOptions']


class DeleteOptions(TypedDict, total=False):
    """The options of the deletion request."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['DeleteOptions']


class RequestPayload(TypedDict):
    """The change to be reviewed. The old object is null on creation, and the new one is null on deletion."""

    uid: str
    kind: RequestKind
    resource: RequestResource
    subResource: str | None
    requestKind: RequestKind
    requestResource: RequestResource
    requestSubResource: str | None
    userInfo: UserInfo
    name: str
    namespace: str | None
    operation: Operation
    options: CreateOptions | UpdateOptions | DeleteOptions | None
    dryRun: bool
    object: bodies.RawBody
    oldObject: bodies.RawBody | None


class Request(TypedDict):
    """The whole message from the API to the webhook."""

    apiVersion: ReviewVersion
    kind: Literal['AdmissionReview']
    request: RequestPayload


class ResponseStatus(TypedDict, total=False):
    """The reason why the change is denied."""

    code: int
    message: str


class ResponsePayload(TypedDict, total=False):
    """The response to a review; the patch is a JSON patch in Base64."""

    uid: str
    allowed: bool
    warnings: list[str] | None
    status: ResponseStatus | None
    patch: str | None
    patchType: Literal['JSONPatch'] | None


class Response(TypedDict):
    """The whole message from the webhook to the API."""

    apiVersion: ReviewVersion
    kind: Literal['AdmissionReview']
    response: ResponsePayload


class ConversionRequestPayload(TypedDict):
    """The objects to be converted, and the API group and version to convert them to."""

    uid: str
    desiredAPIVersion: str
    objects: list[bodies.RawBody]


class ConversionRequest(TypedDict):
    """The whole message from the API to the conversion webhook."""

    apiVersion: Literal['apiextensions.k8s.io/v1']
    kind: Literal['ConversionReview']
    request: ConversionRequestPayload


class ConversionResult(TypedDict, total=False):
    """The result of a conversion: a success, or a failure with its reason."""

    status: Literal['Success', 'Failed']
    message: str


class ConversionResponsePayload(TypedDict, total=False):
    """The converted objects in the order of the request; none if any has failed."""

    uid: str
    convertedObjects: list[bodies.RawBody]
    result: ConversionResult


class ConversionResponse(TypedDict):
    """The whole message from the conversion webhook to the API."""

    apiVersion: Literal['apiextensions.k8s.io/v1']
    kind: Literal['ConversionReview']
    response: ConversionResponsePayload


class WebhookClientConfigService(TypedDict, total=False):
    """The service in the cluster through which the API reaches the webhook server."""

    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """The address of the webhook server for the API: a URL or a service; with the CA to trust (Base64 of PEM)."""

    caBundle: str | None
    url: str | None
    service: WebhookClientConfigService | None


class WebhookFn(Protocol):
    """The framework's function for webhook servers to call with every request."""

    def __call__(
        self,
        request: Request,
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> Awaitable[Response]:
        """
        Review one request, or convert its objects, depending on the kind of the request.

        Args:
            request: the parsed body of the HTTP request.
            webhook: the id of the handler to call, normally from the URL; all suitable handlers if absent.
            headers: the headers of the HTTP request.
            sslpeer: the certificate of the client, as `ssl.SSLSocket.getpeercert` returns it.
        """


WebhookServerProtocol: TypeAlias = Callable[[WebhookFn], AsyncIterator[WebhookClientConfig]]

time_limit_var: ContextVar[float] = ContextVar('time_limit_var', default=29.0)
"""
The time (in seconds) for which the API waits for the response to the current review.

Webhook servers set it if they know it. The default is slightly less than the longest time that the API permits.
"""

shared_port_var: ContextVar[bool] = ContextVar('shared_port_var', default=False)
"""Whether several processes of the operator listen at the same port for reviews: see ``--processes``."""
