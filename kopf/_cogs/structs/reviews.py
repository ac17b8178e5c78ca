"""
Admission and conversion reviews: what the Kubernetes API asks of webhooks, what it gets in return, and who brings it.

Webhook servers are replaceable by developers, so these types are the protocol between such a server and the framework:
the server gets a function to call with every request, and yields the client configs by which the API can reach it.
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
    """Who has requested the change."""

    username: str
    uid: str
    groups: list[str]


class CreateOptions(TypedDict, total=False):
    """How the creation was requested."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['CreateOptions']


class UpdateOptions(TypedDict, total=False):
    """How the update was requested."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['UpdateOptions']


class DeleteOptions(TypedDict, total=False):
    """How the deletion was requested."""

    apiVersion: Literal['meta.k8s.io/v1']
    kind: Literal['DeleteOptions']


class RequestPayload(TypedDict):
    """The change to be reviewed. There is no old object on creation, and no (i.e. a null) new one on deletion."""

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
    """Why the change was rejected."""

    code: int
    message: str


class ResponsePayload(TypedDict, total=False):
    """The verdict; the patch is a JSON patch in Base64."""

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
    """The objects to be converted, and the API group and version that they are wanted in."""

    uid: str
    desiredAPIVersion: str
    objects: list[bodies.RawBody]


class ConversionRequest(TypedDict):
    """The whole message from the API to the conversion webhook."""

    apiVersion: Literal['apiextensions.k8s.io/v1']
    kind: Literal['ConversionReview']
    request: ConversionRequestPayload


class ConversionResult(TypedDict, total=False):
    """Whether the objects are converted, or why not."""

    status: Literal['Success', 'Failed']
    message: str


class ConversionResponsePayload(TypedDict, total=False):
    """The converted objects in the order in which they came; none if any has failed."""

    uid: str
    convertedObjects: list[bodies.RawBody]
    result: ConversionResult


class ConversionResponse(TypedDict):
    """The whole message from the conversion webhook to the API."""

    apiVersion: Literal['apiextensions.k8s.io/v1']
    kind: Literal['ConversionReview']
    response: ConversionResponsePayload


class WebhookClientConfigService(TypedDict, total=False):
    """A service in the cluster, by which the API reaches the webhook server."""

    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """How the API reaches the webhook server: by the URL or by the service; and the CA to trust (Base64 of PEM)."""

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
        Review one request, or convert the objects of it: the request tells by itself which of the two is wanted.

        :param request: The parsed body of the HTTP request.
        :param webhook: The id of the handler to call, normally from the URL; all suitable handlers if absent.
        :param headers: The headers of the HTTP request.
        :param sslpeer: The certificate of the client, as `ssl.SSLSocket.getpeercert` shows it.
        """


WebhookServerProtocol: TypeAlias = Callable[[WebhookFn], AsyncIterator[WebhookClientConfig]]

time_limit_var: ContextVar[float] = ContextVar('time_limit_var', default=29.0)
"""
For how many seconds the API waits for the answer to the review that is being asked for.

It is set by servers that know. The default is a little less than the longest time that the API permits at all.
"""
