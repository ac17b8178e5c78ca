"""
Posting of Kubernetes Events, as ``kubectl describe`` and ``kubectl get events`` show them.

These are the core v1 Events, as other controllers post them: a repeated Event gets a new count and a new time. It gets
them twice: in the fields of the core API (``count``, ``lastTimestamp``), and as the ``series`` of ``events.k8s.io``.
Both groups serve the same stored objects, so one patch suffices for the readers of both. Why not a patch through
``events.k8s.io``? It would need one more permission, and that API refuses changes of all fields but the series.

A failure to post an Event is logged, and never affects the handling of the object.
"""

import datetime
import logging
from typing import Any, NamedTuple

import orjson

from kopf._cogs.clients import api, errors, pacing
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, credentials

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 1024
_MAX_QUOTE = 200
_INFIX = '...'


class PostedEvent(NamedTuple):
    """An Event that exists in the cluster."""

    name: str | None
    """The name of the Event; ``None`` if the response of the server does not have it."""
    first: str
    """The time when it was posted first."""


class EventWriter:
    """
    Posts the Events of one operator.

    Args:
        client: the client to post with.
        settings: the settings of the operator, of which ``settings.posting`` is used.
    """

    def __init__(self, client: api.ApiClient, settings: configuration.OperatorSettings) -> None:
        self._client = client
        self._settings = settings
        self._denied: set[tuple[str, str]] = set()
        """The missing permissions that were logged: the verbs and the namespaces."""

    async def create(
        self,
        ref: bodies.ObjectReference,
        *,
        type: str,
        reason: str,
        message: str,
        count: int = 1,
        first: str | None = None,
        backoffs: api.Backoffs | None = None,
    ) -> PostedEvent | None:
        """
        Post an Event about an object; if this fails, log the error and return `None`; time-outs are not logged.

        Args:
            ref: the object.
            type: the type of the event, e.g. ``Normal``, ``Warning``.
            reason: the reason in one word, in CamelCase.
            message: the message; it is cut in the middle if it is longer than the API permits.
            count: the number of occurrences.
            first: the time of the first occurrence; by default, now.
            backoffs: the pauses between attempts (in seconds); by default, ``settings.posting.default_backoffs``.

        Raises:
            errors.APITimeoutError: if the API server does not answer in time.
        """
        posting = self._settings.posting
        now = datetime.datetime.now(datetime.UTC)
        namespace = _find_namespace(ref)
        body: dict[str, Any] = {
            'metadata': {'namespace': namespace, 'generateName': posting.event_name_prefix},
            # The same value as in upstream kopf: other programs read Events, so their format must not change.
            'action': 'Action?',
            'type': type,
            'reason': reason,
            'message': _cut(str(message), _MAX_MESSAGE),
            'reportingComponent': posting.reporting_component,
            'reportingInstance': posting.reporting_instance,
            'source': {'component': posting.reporting_component},
            'involvedObject': {**ref, 'namespace': namespace},
            'firstTimestamp': first or _format(now),
            'lastTimestamp': _format(now),
            'eventTime': _format_exactly(now),
        }
        # Like in upstream, single Events have no count.
        if count > 1:
            body |= _repeat(count, now)
        try:
            answer = await self._send('POST', f'/api/v1/namespaces/{namespace}/events', body, backoffs)
        except errors.APITimeoutError:
            raise
        except (errors.APIError, credentials.LoginError) as e:
            if not self._note_denial('create', namespace, e):
                logger.warning(
                    "Failed to post an event, it is lost: %r; the event: %s %s of %s %s/%s: %s",
                    e,
                    type,
                    reason,
                    ref.get('kind'),
                    namespace,
                    ref.get('name'),
                    _cut(str(message), _MAX_QUOTE),
                )
            return None
        return PostedEvent(_parse_name(answer), body['firstTimestamp'])

    async def update(
        self,
        ref: bodies.ObjectReference,
        name: str,
        *,
        count: int,
        message: str,
        backoffs: api.Backoffs | None = None,
    ) -> bool:
        """
        Update the count of a repeated Event; return false if a new Event must be posted instead.

        Args:
            ref: the object of the Event.
            name: the name of the Event.
            count: the number of occurrences by now.
            message: the message of the Event.
            backoffs: the pauses between attempts (in seconds); by default, ``settings.posting.default_backoffs``.

        Raises:
            errors.APITimeoutError: if the API server does not answer in time.
        """
        namespace = _find_namespace(ref)
        if ('patch', namespace) in self._denied:
            return False
        patch = {
            'message': _cut(str(message), _MAX_MESSAGE),
            **_repeat(count, datetime.datetime.now(datetime.UTC)),
        }
        try:
            await self._send('PATCH', f'/api/v1/namespaces/{namespace}/events/{name}', patch, backoffs)
        except errors.APINotFoundError:
            return False  # events are kept for an hour or so
        except errors.APITimeoutError:
            raise
        except (errors.APIError, credentials.LoginError) as e:
            if isinstance(e, errors.APIForbiddenError):
                self._note_denial('patch', namespace, e)
                return False
            # Why not return false? The next update has the whole count, and a new Event would be a needless object.
            logger.warning("Failed to count an event, which is tried again with the next one: %r", e)
        return True

    async def _send(self, method: str, path: str, body: dict[str, Any], backoffs: api.Backoffs | None) -> bytes:
        with pacing.background():  # requests of handling are more important than Events
            return await self._client.request(
                method,
                path,
                payload=api.encode(body),
                content_type='application/json' if method == 'POST' else 'application/merge-patch+json',
                backoffs=self._settings.posting.default_backoffs if backoffs is None else backoffs,
                reporting=True,
            )

    def _note_denial(self, verb: str, namespace: str, error: Exception) -> bool:
        """Return whether a permission is missing; log it once."""
        # In a namespace that is being deleted, 403 says nothing about permissions.
        if not isinstance(error, errors.APIForbiddenError) or 'being terminated' in (error.message or ''):
            return False
        if (verb, namespace) not in self._denied:
            self._denied.add((verb, namespace))
            if verb == 'patch':
                # Only a debug message: upstream's roles have no such verb, and nothing is lost without it.
                logger.debug(
                    "Events that happen again are posted as new ones in the namespace %r: %s. Grant the verb patch for "
                    "events of the core API group to the operator's account to have one Event with a count.",
                    namespace,
                    error.message or 'forbidden',
                )
            else:
                logger.warning(
                    "Events about objects are lost in the namespace %r: %s. Grant the verbs create, patch for events "
                    "of the core API group to the operator's account; or set settings.posting.enabled = False.",
                    namespace,
                    error.message or 'forbidden',
                )
        return True


def _find_namespace(ref: bodies.ObjectReference) -> str:
    return ref.get('namespace') or 'default'  # Kubernetes keeps the events about cluster-scoped objects there


def _format(moment: datetime.datetime) -> str:
    return moment.strftime('%Y-%m-%dT%H:%M:%SZ')


def _format_exactly(moment: datetime.datetime) -> str:
    return moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ')


def _repeat(count: int, moment: datetime.datetime) -> dict[str, Any]:
    """Return the fields of a repeated Event: those of the core API, and the series of ``events.k8s.io``."""
    return {
        'count': count,
        'lastTimestamp': _format(moment),
        'series': {'count': count, 'lastObservedTime': _format_exactly(moment)},
    }


def _parse_name(answer: bytes) -> str | None:
    try:
        name = orjson.loads(answer)['metadata']['name']
    except (ValueError, LookupError, TypeError):  # of servers that only imitate the API
        return None
    return name if isinstance(name, str) else None


def _cut(message: str, limit: int) -> str:
    if len(message) <= limit:
        return message
    head = limit // 2 - len(_INFIX) // 2
    tail = limit - head - len(_INFIX)
    return f"{message[:head]}{_INFIX}{message[-tail:]}"
