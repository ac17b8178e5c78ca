"""
Admission reviews: choose the handlers for a request of the API server, run them, and build the response.

A malformed request raises `ReviewError` before any handler is run. For a well-formed one, the response is always a
well-formed review, whatever the handlers do: for any other response, the API server would apply the ``failurePolicy``,
and its clients would not see why. Handlers are not retried, as the API server waits for at most some seconds. Specified
in the documentation's "Check and change requests by webhooks".
"""

import asyncio
import base64
import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, cast

from kopf._cogs.clients.api import encode
from kopf._cogs.structs.bodies import Body, RawBody
from kopf._cogs.structs.body_guards import BodyGuard
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.diffs import diff
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Namespace, Resource
from kopf._cogs.structs.reviews import Headers, Request, Response, ResponsePayload, SSLPeer, time_limit_var
from kopf._core.actions.execution import HandlerTimeoutError, PermanentError, TemporaryError
from kopf._core.engines.indexing import IndexBarrier
from kopf._core.engines.responders import Memos, Responder, ReviewError, describe
from kopf._core.engines.webhook_configurations import Served, get_aliases, name_endpoints
from kopf._core.intents import filters
from kopf._core.intents.causes import TYPED_GETTERS, WebhookCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.dependencies import find_arguments
from kopf._core.intents.handlers import WebhookHandler, WebhookType

logger = logging.getLogger(__name__)

vault_var: ContextVar[Vault] = ContextVar('vault_var')
"""The credentials of the operator. Webhook servers use them to detect in which cluster they run."""

_Key: TypeAlias = tuple[str, str, str]
"""The group, the version, and the plural name of a resource."""

_VERSIONS = ('admission.k8s.io/v1', 'admission.k8s.io/v1beta1')
_OPERATIONS = ('CREATE', 'UPDATE', 'DELETE', 'CONNECT')
_DEFAULT_CODE = 500
_TIMEOUT_CODE = 504
_INVALID_CODE = 422
_FILLING = "; to fill it, take body instead of obj, spec, or status"
"""The hint for mutating handlers, which are called before the API server checks the schema."""


class AdmissionError(PermanentError):
    """
    Raised by handlers to deny the request, with this message and this HTTP code.

    If several handlers fail in one review, the response reports this error rather than errors of other classes.
    """

    def __init__(self, message: str | None = '', code: int | None = _DEFAULT_CODE) -> None:
        given: object = code
        if given is not None and not isinstance(given, int):
            # The API server would refuse the whole response.
            raise TypeError(f"kopf.AdmissionError: code= must be a number, such as 422, not {code!r}.")
        super().__init__(message)
        self.code = code


class _Review(NamedTuple):
    """The request of a review, validated as far as the framework relies on it."""

    api_version: str
    uid: str
    resource: _Key
    subresource: str | None
    operation: str
    name: str | None
    namespace: str | None
    dryrun: bool
    userinfo: Mapping[str, Any]
    old: RawBody | None
    new: RawBody | None

    @property
    def body(self) -> RawBody:
        """The new object, or the old one if the object is being deleted."""
        return cast(RawBody, self.new if self.new is not None else self.old)

    @classmethod
    def parse(cls, review: Any) -> '_Review':
        """
        Return the request of a decoded ``AdmissionReview``.

        Raises:
            ReviewError: if the review is malformed.
        """
        if not isinstance(review, Mapping) or review.get('kind') != 'AdmissionReview':
            raise ReviewError("The request is not an AdmissionReview.")
        if review.get('apiVersion') not in _VERSIONS:
            raise ReviewError(f"The version of the review must be one of {', '.join(_VERSIONS)}.")
        request = _get_mapping(review, 'request', 'review')
        resource = _get_mapping(request, 'resource', 'request')
        operation = _get_text(request, 'operation', 'request')
        if operation not in _OPERATIONS:
            raise ReviewError(f"The operation must be one of {', '.join(_OPERATIONS)}.")
        old, new = _get_body(request, 'oldObject'), _get_body(request, 'object')
        if new is None and old is None:
            raise ReviewError("The review has neither an object nor an old object.")
        return cls(
            review['apiVersion'],
            _get_text(request, 'uid', 'request'),
            (
                _get_text(resource, 'group', 'resource'),
                _get_text(resource, 'version', 'resource'),
                _get_text(resource, 'resource', 'resource'),
            ),
            _get_text(request, 'subResource', 'request') or None,
            operation,
            _get_text(request, 'name', 'request') or None,
            _get_text(request, 'namespace', 'request') or None,
            bool(request.get('dryRun')),
            _get_mapping(request, 'userInfo', 'request'),
            old,
            new,
        )


def _get_mapping(source: Mapping[str, Any], name: str, title: str) -> Mapping[str, Any]:
    value = source.get(name)
    # Decoded JSON has only dicts, and `isinstance` with an abstract class takes ten times longer.
    if value.__class__ is not dict and not isinstance(value, Mapping):
        raise ReviewError(f"The field {name!r} of the {title} must be an object.")
    return cast(Mapping[str, Any], value)


def _get_text(source: Mapping[str, Any], name: str, title: str) -> str:
    value = source.get(name)
    if value is None:
        return ''
    if not isinstance(value, str):
        raise ReviewError(f"The field {name!r} of the {title} must be a string.")
    return value


def _get_body(request: Mapping[str, Any], name: str) -> RawBody | None:
    if request.get(name) is None:
        return None
    body = _get_mapping(request, name, 'request')
    if body.get('metadata') is not None:
        metadata = _get_mapping(body, 'metadata', name)
        for key in ('name', 'namespace', 'uid'):
            _get_text(metadata, key, 'metadata')
        for key in ('labels', 'annotations'):
            if metadata.get(key) is not None:
                _get_mapping(metadata, key, 'metadata')
    return cast(RawBody, body)


class AdmissionReviewer(Responder):
    """
    Answers admission reviews by running the handlers; webhook servers call it for each request.

    It serves no handlers until the resources are discovered and `serve` is called.

    Args:
        context: what the operator shares.
        memos: finds the memos of objects.
        barrier: tells whether the indices are complete that the handlers can use; ``None`` not to wait for them.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        memos: Memos,
        barrier: IndexBarrier | None = None,
    ) -> None:
        super().__init__(context, memos=memos)
        self._barrier = barrier
        self._warned: set[WebhookHandler] = set()
        self._resources: dict[_Key, Resource] = {}
        self._endpoints: dict[str, list[WebhookHandler]] = {}
        self._handlers: dict[tuple[_Key, str | None], list[WebhookHandler]] = {}

    def serve(self, served: Served) -> None:
        """Replace the handlers and the resources for which reviews are answered."""
        self._resources, self._endpoints, self._handlers = {}, {}, {}
        endpoints = name_endpoints(served)
        for handler, resources in served.items():
            for resource in resources:
                key = (resource.group, resource.version, resource.plural)
                self._resources.setdefault(key, resource)
                self._handlers.setdefault((key, None), []).append(handler)
            for endpoint in {handler.id, *get_aliases(endpoints[handler])}:
                self._endpoints.setdefault(endpoint, []).append(handler)
        for (key, _), handlers in list(self._handlers.items()):
            self._handlers[key, None] = list(filters.deduplicate(handlers))
            for endpoint, called in self._endpoints.items():
                self._handlers[key, endpoint] = list(
                    filters.deduplicate(handler for handler in handlers if handler in called)
                )

    async def __call__(
        self,
        request: Request,
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> Response:
        """
        Answer one review; see `kopf.WebhookFn`.

        Raises:
            ReviewError: if the request is malformed, or if there are no handlers for its resource or its path.
        """
        review = _Review.parse(request)
        resource, handlers = self._find(review, webhook)
        try:
            cause = self._make_cause(review, resource, webhook, headers or {}, sslpeer or {})
        except RecursionError:
            raise ReviewError("The object is nested too deeply.") from None
        verdict = _Verdict()
        limit = time_limit_var.get()
        # All handlers share one deadline: the API server limits the time of the whole request.
        deadline = asyncio.get_running_loop().time() + limit
        for handler in handlers:
            # The handlers run one after another: they share one patch, which must have their order.
            if _is_asked(handler, cause):
                await self._call(handler, cause, verdict, deadline, limit)
        return cast(
            Response,
            {
                'apiVersion': review.api_version,
                'kind': 'AdmissionReview',
                'response': verdict.respond(review, cause),
            },
        )

    def _find(self, review: _Review, webhook: str | None) -> tuple[Resource, Sequence[WebhookHandler]]:
        resource = self._resources.get(review.resource)
        if resource is None:
            group, version, plural = review.resource
            raise ReviewError(f"There are no handlers for {plural}.{version}.{group}.", status=404)
        handlers = self._handlers.get((review.resource, webhook or None))
        if handlers is None:
            raise ReviewError(f"There is no handler {webhook!r}.", status=404)
        return resource, handlers

    def _make_cause(
        self,
        review: _Review,
        resource: Resource,
        webhook: str | None,
        headers: Headers,
        sslpeer: SSLPeer,
    ) -> WebhookCause:
        body = Body(review.body)
        metadata = None if review.old is None else review.old.get('metadata') or {}
        return WebhookCause(
            **self.get_basics(resource, body, metadata),
            dryrun=review.dryrun,
            reason=None,
            webhook=webhook,
            headers=headers,
            sslpeer=sslpeer,
            userinfo=review.userinfo,
            warnings=[],
            operation=review.operation,
            subresource=review.subresource,
            name=review.name,
            namespace=review.namespace,
            old=None if review.old is None else Body(review.old),
            new=None if review.new is None else body,
            diff=diff(review.old, review.new),
        )

    async def _call(
        self,
        handler: WebhookHandler,
        cause: WebhookCause,
        verdict: '_Verdict',
        deadline: float,
        limit: float,
    ) -> None:
        """Run the handler if it matches the object, and add its outcome to the verdict and to the cause's patch."""
        if self._barrier is not None and not self._barrier.is_complete:
            # If callbacks are among the filters, they can use indices, too.
            if not any(handler.iter_callbacks()) and not _matches(handler, cause, verdict):
                return
            if not await _await_indices(self._barrier, handler, cause.namespace, deadline, limit):
                verdict.add_failure(
                    handler, HandlerTimeoutError(f"{handler} is not called, as its indices are not complete."), cause
                )
                return
        if not _matches(handler, cause, verdict):
            return
        if (obstacle := _find_obstacle(handler, cause)) is not None:
            text = f"{handler} is not called, as what is stored already cannot be checked: {describe(obstacle)}"
            cause.warnings.append(text)
            cause.logger.info("%s", text)
            return
        verdict.strict = verdict.strict or not handler.ignore_failures
        # The copy restores the patch after a failure that is ignored. Any other failure denies the request, so the
        # response has no patch.
        before = Patch(copy.deepcopy(dict(cause.patch)), fns=cause.patch.fns) if handler.ignore_failures else None
        guard = BodyGuard(cast(RawBody, cause.body._data())) if handler.type is WebhookType.MUTATING else None
        timeout = asyncio.timeout_at(deadline)
        was_patched = bool(cause.patch)
        failure: BaseException | None
        try:
            async with timeout:
                outcome = await self.run_once(handler, cause)
            failure = outcome.exception
            self._warn_of_mistakes(handler, cause, outcome.result, was_patched=was_patched)
            del outcome  # it would make a reference cycle: see `Outcome.without_exception`
        except TimeoutError:
            # A TimeoutError before the deadline was raised by the handler itself.
            if not timeout.expired():
                raise
            failure = HandlerTimeoutError(f"{handler} has not answered within {limit:g} seconds.")
            cause.logger.error("%s", failure)
        if guard is not None and guard.is_changed:  # the JSON patch is for the unchanged object of the request
            cause.logger.warning("%s: %s", handler, guard.explain(), extra={'message_code': 'changed-in-place'})
            cause.body._replace_with(guard.original)
        verdict.mutating = verdict.mutating or handler.type is WebhookType.MUTATING
        if failure is not None:
            verdict.add_failure(handler, failure, cause)
            del failure  # as above, to avoid a reference cycle
            if before is not None:  # the changes of a handler whose failure is ignored must not be applied in part
                cause.patch.clear()
                cause.patch.update(before)
                cause.patch.fns.extend(before.fns)

    def _warn_of_mistakes(
        self,
        handler: WebhookHandler,
        cause: WebhookCause,
        result: object,
        *,
        was_patched: bool,
    ) -> None:
        """Log a warning, once for each handler, if the handler has done something that has no effect."""
        if handler in self._warned:
            return
        if result is False or isinstance(result, str):
            text = (
                f"has returned {result!r}, which refuses nothing: results of webhooks are ignored. "
                f"To refuse the object, raise kopf.AdmissionError({result or 'the reason'!r})."
            )
        elif isinstance(result, Mapping) and result is not cause.patch:
            text = "has returned a mapping, which changes nothing: results of webhooks are ignored. " + (
                "To change the object, use the argument patch."
                if handler.type is WebhookType.MUTATING
                else "To refuse the object, raise kopf.AdmissionError('the reason')."
            )
        elif handler.type is WebhookType.VALIDATING and cause.patch and not was_patched:
            text = "has changed its patch, which has no effect: only handlers of @kopf.on.mutate can change objects."
        else:
            return
        self._warned.add(handler)
        cause.logger.warning("%s %s", handler, text, extra={'message_code': 'webhook-result-ignored'})


async def _await_indices(
    barrier: IndexBarrier, handler: WebhookHandler, namespace: Namespace, deadline: float, limit: float
) -> bool:
    """Wait until the indices are complete that the handler can use; return false if they are not in time."""
    arguments = find_arguments([handler])
    if handler.ignore_failures:
        deadline -= limit / 2  # the other handlers of the request, which matter more, need some of the time
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await barrier.wait_filled(arguments, namespace)
    return barrier.is_filled(arguments, namespace)


def _matches(handler: WebhookHandler, cause: WebhookCause, verdict: '_Verdict') -> bool:
    """Check whether the handler matches the object; deny the request if the filters fail."""
    try:
        return filters.match(handler, cause)
    except filters.FilterError as error:
        # Why not skip the handler? It could have denied the request, and it is unknown whether it should be called.
        text = error.explain(handler)
        cause.logger.error("%s", text, extra={'message_code': 'function-failed'})
        verdict.add_failure(handler, Exception(text), cause)
        return False


def _find_obstacle(handler: WebhookHandler, cause: WebhookCause) -> Exception | None:
    """
    Return the error because of which the handler cannot get the object, if this must not deny the request.

    It must not if the object is stored in such a state already: because the class was less strict then, or the webhook
    was absent. Otherwise, the operator could not even remove its own finalizer, so the object could not be deleted.
    Kubernetes' own validation of custom resources passes unchanged values, too ("ratcheting").
    """
    if handler.model is None or cause.old is None:
        return None
    if not any(name in TYPED_GETTERS and name not in cause.indices for name in handler.extras):
        return None
    is_leaving = cause.operation == 'DELETE' or cause.body.metadata.get('deletionTimestamp') is not None
    if not is_leaving and _omit_rest(cause.body) != _omit_rest(cause.old):
        return None
    try:
        cause.load(handler.model)
    except Exception as error:  # validators are functions of users, which can raise anything
        if is_leaving:
            return error
    else:
        return None
    try:
        handler.model.load(cause.old, stored=False)
    except Exception as error:
        return error
    return None  # only the new status is wrong, so the request is denied


def _omit_rest(body: Body) -> dict[str, Any]:
    """Return the object without its metadata and status."""
    return {name: value for name, value in body._data().items() if name not in ('metadata', 'status')}


def _is_asked(handler: WebhookHandler, cause: WebhookCause) -> bool:
    """Check whether the handler is declared for the operation and for the subresource."""
    if handler.operations is not None:
        if cause.operation not in handler.operations:
            return False
    elif handler.type is WebhookType.MUTATING and cause.operation == 'DELETE':
        return False  # a deleted object cannot be mutated, so only handlers with operation='DELETE' are run
    return handler.subresource == '*' or handler.subresource == cause.subresource


class _Refusal(NamedTuple):
    """A denial because of a handler's error. Of several denials, the response reports the one with the lowest rank."""

    rank: int
    message: str
    code: int


class _Verdict:
    """The outcomes of the handlers in one review."""

    __slots__ = ('mutating', 'refusals', 'strict')

    def __init__(self) -> None:
        self.refusals: list[_Refusal] = []
        self.mutating = False
        self.strict = False
        """Whether any of the called handlers is declared without ``ignore_failures``."""

    def add_failure(self, handler: WebhookHandler, error: BaseException, cause: WebhookCause) -> None:
        """Deny the request because of a failed handler, or add a warning if its failures are ignored."""
        hint = ''
        is_invalid = handler.model is not None and _is_invalid_object(error)
        if is_invalid and handler.type is WebhookType.MUTATING:
            hint = _FILLING
        if handler.ignore_failures:
            # A warning makes the failure visible to the client: `kubectl` prints it.
            cause.warnings.append(f"{handler} has failed, which is ignored: {describe(error)}{hint}")
        else:
            refusal = _refuse(error)
            # The object is wrong, not the operator: for 500, clients would repeat the request, this operator included.
            code = _INVALID_CODE if is_invalid else refusal.code
            self.refusals.append(refusal._replace(message=refusal.message + hint, code=code))

    def respond(self, review: _Review, cause: WebhookCause) -> ResponsePayload:
        """Return the response of the review."""
        patch = self._encode_patch(review, cause)
        response: ResponsePayload = {'uid': review.uid, 'allowed': not self.refusals}
        if cause.warnings:
            response['warnings'] = [str(warning) for warning in cause.warnings]
        if patch is not None and not self.refusals:
            response['patch'] = patch
            response['patchType'] = 'JSONPatch'
        if self.refusals:
            # A response has room for one status. `min` keeps the order of the handlers among equal ranks.
            refusal = min(self.refusals, key=lambda each: each.rank)
            response['status'] = {'message': refusal.message, 'code': refusal.code}
        return response

    def _encode_patch(self, review: _Review, cause: WebhookCause) -> str | None:
        # The API server fails the request if a validating webhook returns a patch, or if there is no new object.
        if not self.mutating or self.refusals or review.new is None or not cause.patch:
            return None
        try:
            ops = cause.patch.as_json_patch(cause.body)
            return base64.b64encode(encode(ops)).decode() if ops else None
        except Exception as error:  # raised by the patch's functions, or for values that are not JSON
            cause.logger.error("The patch cannot be applied: %s", describe(error), exc_info=error)
            if self.strict:
                # The handlers share the patch, so it is unknown which of them has made it fail. So refuse the request
                # unless the failures of all of them are ignored.
                self.refusals.append(_refuse(error))
            else:
                cause.warnings.append(f"The patch cannot be applied, which is ignored: {describe(error)}")
            return None


def _is_invalid_object(error: BaseException) -> bool:
    from kopf._core.intents.declared_kinds import InvalidObjectError  # imported already if there are models

    return isinstance(error, InvalidObjectError)


def _refuse(error: BaseException) -> _Refusal:
    kinds: Iterator[type[BaseException]] = iter((AdmissionError, PermanentError, TemporaryError, BaseException))
    rank = next(index for index, kind in enumerate(kinds) if isinstance(error, kind))
    return _Refusal(rank, describe(error), _get_code(error))


def _get_code(error: BaseException) -> int:
    if isinstance(error, HandlerTimeoutError):
        return _TIMEOUT_CODE
    code = error.code if isinstance(error, AdmissionError) else None
    return code if isinstance(code, int) and code else _DEFAULT_CODE
