"""
Conversion reviews: the API server sends custom objects in one version and requests them in another.

A review is all or nothing: if one object cannot be converted, the whole review fails, as the API server demands. If no
handler converts between the two versions directly, a chain of handlers through other versions does. The framework
keeps the fields that conversions must not change (names, uids, …), so handlers can omit them from their results.
Specified in the documentation's "Convert objects between versions".
"""

import asyncio
import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import orjson

from kopf._cogs.clients.api import encode
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._cogs.structs.reviews import ConversionRequest, ConversionResponse, Headers, SSLPeer, time_limit_var
from kopf._core.actions.execution import PermanentError
from kopf._core.engines.responders import Memos, Responder, ReviewError, describe
from kopf._core.intents.causes import ConversionCause
from kopf._core.intents.contexts import OperatorContext
from kopf._core.intents.handlers import ConversionHandler

if TYPE_CHECKING:
    from kopf._core.intents.declared_kinds import Kind  # imported only by operators with models

logger = logging.getLogger(__name__)

KIND = 'ConversionReview'
VERSION = 'apiextensions.k8s.io/v1'
ENDPOINT = 'convert/'
"""The prefix of the URL paths of conversions; the name of the CRD follows."""

Convertible = Mapping[ConversionHandler, Collection[Resource]]
"""The handlers with the resources that they are for."""

_YIELD_INTERVAL = 20
"""After how many objects other tasks can run: a list can be long, and sync handlers do not yield to the event loop."""
_CHANGEABLE = ('labels', 'annotations')


class ConversionError(PermanentError):
    """Raised when an object cannot be converted; the API server shows the message to the client of the request."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Review:
    """The request of a review, validated as far as the framework relies on it."""

    uid: str
    group: str
    version: str
    objects: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, review: Any) -> '_Review':
        """
        Return the request of a decoded ``ConversionReview``.

        Raises:
            ReviewError: if the review is malformed.
        """
        if not isinstance(review, Mapping) or review.get('kind') != KIND:
            raise ReviewError("It is not a ConversionReview.")
        if review.get('apiVersion') != VERSION:
            raise ReviewError(f"The version of the review must be {VERSION}.")
        request = review.get('request')
        if not isinstance(request, Mapping):
            raise ReviewError("The field 'request' of the review must be an object.")
        uid, desired, objects = request.get('uid'), request.get('desiredAPIVersion'), request.get('objects')
        if not isinstance(uid, str):
            raise ReviewError("The field 'uid' of the request must be a string.")
        if not isinstance(desired, str) or not all(desired.partition('/')):
            raise ReviewError("The field 'desiredAPIVersion' of the request must be a group and a version.")
        if not isinstance(objects, list):
            raise ReviewError("The field 'objects' of the request must be a list.")
        for obj in objects:
            _check_object(obj)
        group, _, version = desired.partition('/')
        return cls(uid=uid, group=group, version=version, objects=objects)


class Converter(Responder):
    """
    Answers conversion reviews by running the handlers; webhook servers call it for each request.

    It serves no handlers until the resources are discovered and `serve` is called.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        memos: Memos,
    ) -> None:
        super().__init__(context, memos=memos)
        self._routes: dict[str, Routes] = {}  # by the names of CRDs

    def serve(self, served: Convertible) -> None:
        """Replace the handlers and the resources for which reviews are answered."""
        self._routes = {name: Routes(*found) for name, found in group_by_crd(served).items()}

    async def __call__(
        self,
        request: ConversionRequest,
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> ConversionResponse:
        """
        Answer one review; see `kopf.WebhookFn`.

        Raises:
            ReviewError: if the request is malformed, or if there are no handlers for its resource or its path.
        """
        review = _Review.parse(request)
        routes = self._find(review, webhook)
        limit = time_limit_var.get()
        response: dict[str, Any] = {'uid': review.uid}
        converted: list[Any] = []
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                for obj in review.objects:
                    # One after another: thousands of objects would be thousands of tasks, and the API server waits for
                    # all of them anyway.
                    converted.append(await self._convert(obj, review, routes, headers or {}, sslpeer or {}))
                    if len(converted) % _YIELD_INTERVAL == 0:
                        await asyncio.sleep(0)
        except (ConversionError, RecursionError) as error:
            response['result'] = {'status': 'Failed', 'message': describe(error)}
        except TimeoutError:
            if not timeout.expired():
                raise
            message = (
                f"Only {len(converted)} of {len(review.objects)} objects are converted to "
                f"{review.group}/{review.version} within {limit:g} seconds."
            )
            logger.error("%s", message)
            response['result'] = {'status': 'Failed', 'message': message}
        else:
            response['convertedObjects'] = converted
            response['result'] = {'status': 'Success'}
        return cast(ConversionResponse, {'apiVersion': VERSION, 'kind': KIND, 'response': response})

    def _find(self, review: _Review, webhook: str | None) -> 'Routes':
        if webhook:
            found = self._routes.get(webhook.removeprefix(ENDPOINT))
            if found is None or not webhook.startswith(ENDPOINT):
                raise ReviewError(f"There are no conversions at {webhook!r}.", status=404)
            if found.resource.group != review.group:
                raise ReviewError(f"The objects of {webhook!r} cannot be converted to another group: {review.group}.")
            return found
        kinds = {obj['kind'] for obj in review.objects}
        for routes in self._routes.values():
            if routes.resource.group == review.group and kinds <= {routes.resource.kind}:
                return routes
        raise ReviewError(f"There are no conversions for {', '.join(sorted(kinds))} of {review.group}.", status=404)

    async def _convert(
        self,
        obj: Mapping[str, Any],
        review: _Review,
        routes: 'Routes',
        headers: Headers,
        sslpeer: SSLPeer,
    ) -> Mapping[str, Any]:
        """Return one object in the requested version, converted through other versions if needed."""
        group, _, version = obj['apiVersion'].rpartition('/')
        if group != review.group or obj['kind'] != routes.resource.kind:
            raise ConversionError(
                f"{_name(obj)}: it is {obj['kind']} of {group or 'the core API'}, "
                f"not {routes.resource.kind} of {review.group}."
            )
        try:
            for handler, target in routes.find(version, review.version):
                cause = self._make_cause(obj, version, target, routes.resource, headers, sslpeer)
                obj, version = await self._call(handler, cause, obj, f'{review.group}/{target}'), target
        except ConversionError as error:
            raise ConversionError(f"{_name(obj)}: {error}") from None
        return obj

    async def _call(
        self,
        handler: ConversionHandler,
        cause: ConversionCause,
        obj: Mapping[str, Any],
        api_version: str,
    ) -> Mapping[str, Any]:
        outcome = await self.run_once(handler, cause)
        failure = None if outcome.exception is None else describe(outcome.exception)
        outcome = outcome.without_exception()
        if failure is not None:
            raise ConversionError(failure)
        try:
            return _finish(handler, obj, outcome.result, cause.patch, api_version)
        except ConversionError as error:
            cause.logger.error("%s has not converted the object: %s", handler, error)
            raise
        except Exception as error:  # raised by the patch's functions, or for values that are not JSON
            cause.logger.error("%s has not converted the object: %s", handler, describe(error), exc_info=error)
            raise ConversionError(describe(error)) from None

    def _make_cause(
        self,
        obj: Mapping[str, Any],
        start: str,
        end: str,
        resource: Resource,
        headers: Headers,
        sslpeer: SSLPeer,
    ) -> ConversionCause:
        return ConversionCause(
            **self.get_basics(resource, Body(obj), obj.get('metadata') or {}),
            from_version=start,
            to_version=end,
            headers=headers,
            sslpeer=sslpeer,
        )


class Routes:
    """The chains of handlers between the versions of one resource."""

    def __init__(self, resource: Resource, handlers: Sequence[ConversionHandler]) -> None:
        self.resource = resource
        self._handlers = handlers
        # Why not decorate the method? That cache would keep all former routes alive. Failures are not cached.
        self.find: Callable[[str, str], Sequence[tuple[ConversionHandler, str]]] = functools.lru_cache(256)(self._find)

    def _find(self, start: str, end: str) -> Sequence[tuple[ConversionHandler, str]]:
        """Return the shortest chain of handlers to call one after another, each with the version it converts to."""
        named = (versions for handler in self._handlers for versions in (handler.from_versions, handler.to_versions))
        versions = sorted({end}.union(*(some for some in named if some is not None)))
        # A breadth-first search: each conversion can lose data, so the shortest chain is the best one.
        ways: dict[str, list[str]] = {start: [start]}
        queue = collections.deque([start])
        while queue and end not in ways:
            version = queue.popleft()
            for target in versions:
                if target not in ways and any(handler.converts(version, target) for handler in self._handlers):
                    ways[target] = [*ways[version], target]
                    queue.append(target)
        if end not in ways:
            raise ConversionError(
                f"There is no handler that converts from {start} to {end} "
                f"(@kopf.on.convert with from_version={start!r}, to_version={end!r})."
            )
        return [(self._choose(*pair), pair[1]) for pair in itertools.pairwise(ways[end])]

    def _choose(self, start: str, end: str) -> ConversionHandler:
        """Return the handler for two versions: preferably, one that names them, rather than one that accepts any."""
        found = [handler for handler in self._handlers if handler.converts(start, end)]
        best = max(map(_get_precision, found))
        first, *others = [handler for handler in found if _get_precision(handler) == best]
        for other in others:
            if other.fn is not first.fn or other.id != first.id:
                raise ConversionError(
                    f"Several handlers convert from {start} to {end}, and it is not clear which one "
                    f"to take: {first.id!r}, {other.id!r}."
                )
        return first


def group_by_crd(served: Convertible) -> dict[str, tuple[Resource, list[ConversionHandler]]]:
    """Return the resource and the handlers for each name of a CRD; the resource is in the preferred version."""
    found: dict[str, tuple[Resource, list[ConversionHandler]]] = {}
    for handler, resources in served.items():
        for resource in sorted(resources, key=lambda resource: not resource.preferred):
            _, handlers = found.setdefault(f'{resource.plural}.{resource.group}', (resource, []))
            if handler not in handlers:
                handlers.append(handler)
    return found


def _get_precision(handler: ConversionHandler) -> int:
    return (handler.from_versions is not None) + (handler.to_versions is not None)


def _check_object(obj: Any) -> None:
    if not isinstance(obj, Mapping):
        raise ReviewError("The objects to be converted must be objects.")
    if not isinstance(obj.get('apiVersion'), str) or not isinstance(obj.get('kind'), str):
        raise ReviewError("The objects to be converted must have strings as 'apiVersion' and 'kind'.")
    metadata = obj.get('metadata')
    if not isinstance(metadata, Mapping):
        raise ReviewError("The objects to be converted must have objects as 'metadata'.")
    for key in ('name', 'namespace', 'uid'):
        if not isinstance(metadata.get(key), str | None):
            raise ReviewError(f"The field 'metadata.{key}' of the objects to be converted must be a string.")
    for key in _CHANGEABLE:
        if not isinstance(metadata.get(key), Mapping | None):
            raise ReviewError(f"The field 'metadata.{key}' of the objects to be converted must be an object.")


def _finish(
    handler: ConversionHandler, old: Mapping[str, Any], result: object, patch: Patch, api_version: str
) -> Mapping[str, Any]:
    """Return the object in the new version, made from the result of the handler and from its patch."""
    if handler.target is not None:
        _check_result(handler.target, result, patch)
    if not isinstance(result, Mapping | None):
        from kopf._cogs.structs import model_adapters  # the result can be an object of the class of the new version

        result = model_adapters.drop_nulls(model_adapters.dump_model(result))
    if result is not None and not isinstance(result, Mapping):
        raise ConversionError(
            f"The handler must return the converted object, or nothing if it has changed the object "
            f"by patch; it has returned {result!r}."
        )
    if result is not None and handler.model is not None:
        result = handler.model.carry_over(old, result)
    new = old if result is None else result
    # Encoded and decoded to detect values that are not JSON, and to share no values with the handler, which can keep
    # them.
    new = orjson.loads(encode(patch.applied_to(new) if patch else new))
    metadata, given = dict(old['metadata']), new.get('metadata')
    if given is not None and not isinstance(given, Mapping):
        raise ConversionError(f"The handler has made metadata of {given!r}.")
    for key, value in (given or {}).items():
        if key in _CHANGEABLE:
            metadata[key] = value
        elif value != metadata.get(key):
            raise ConversionError(
                f"The handler has changed metadata.{key}, but conversions can change only "
                f"{' and '.join(_CHANGEABLE)} there."
            )
    return {**new, 'apiVersion': api_version, 'kind': old['kind'], 'metadata': metadata}


def _check_result(target: 'Kind', result: object, patch: Patch) -> None:
    """
    Check that the handler has made an object of the class of the new version.

    The API server would accept any object, and drop the fields that the new version does not have.
    """
    name = target.cls.__qualname__
    if result is None and not patch:
        raise ConversionError(
            f"The handler has returned nothing, and has changed nothing by patch; it must return an object of {name}."
        )
    if not isinstance(result, Mapping | None) and not isinstance(result, target.cls):
        raise ConversionError(f"The handler must return an object of {name}; it has returned {result!r:.200}.")


def _name(obj: Mapping[str, Any]) -> str:
    metadata = obj['metadata']
    return '/'.join(filter(None, (metadata.get('namespace'), metadata.get('name')))) or obj['kind']
