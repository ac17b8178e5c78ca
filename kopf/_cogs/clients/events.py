"""
Posting of Kubernetes Events: what is shown by ``kubectl describe`` and ``kubectl get events``.

These are the core v1 Events, as other controllers post them. They are nice to have and nothing more: a failure
to post one is logged, and never gets in the way of what it tells about.
"""
import datetime
import logging

from kopf._cogs.clients import api, errors, pacing
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, credentials

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 1024
_INFIX = '...'


async def post_event(
        client: api.ApiClient,
        *,
        ref: bodies.ObjectReference,
        type: str,
        reason: str,
        message: str,
        settings: configuration.OperatorSettings,
        backoffs: api.Backoffs | None = None,
) -> None:
    """
    Post an Event about an object; log it if this is impossible.

    Args:
        client: the client to post with.
        ref: the object.
        type: the type of the event, e.g. ``Normal``, ``Warning``.
        reason: the reason in one word, in CamelCase.
        message: what has happened; it is cut in the middle if it is longer than the API permits.
        settings: the settings of how events look like: ``settings.posting``.
        backoffs: the pauses between attempts (seconds); by default, ``settings.posting.default_backoffs``.
    """
    posting = settings.posting
    now = datetime.datetime.now(datetime.UTC)
    moment = now.strftime('%Y-%m-%dT%H:%M:%SZ')
    namespace = ref.get('namespace') or 'default'  # the events about cluster-scoped objects are there
    body = {
        'metadata': {'namespace': namespace, 'generateName': posting.event_name_prefix},
        'action': 'Action?',
        'type': type,
        'reason': reason,
        'message': _cut(str(message)),
        'reportingComponent': posting.reporting_component,
        'reportingInstance': posting.reporting_instance,
        'source': {'component': posting.reporting_component},
        'involvedObject': {**ref, 'namespace': namespace},
        'firstTimestamp': moment,
        'lastTimestamp': moment,
        'eventTime': now.strftime('%Y-%m-%dT%H:%M:%S.%fZ'),
    }
    try:
        with pacing.background():  # handling is more important than telling about it
            await client.request(
                'POST', f'/api/v1/namespaces/{namespace}/events', payload=api.encode(body),
                backoffs=posting.default_backoffs if backoffs is None else backoffs)
    except (errors.APIError, credentials.LoginError) as e:
        logger.warning(f"Failed to post an event, it is lost: {e!r}; the event: {body!r}")


def _cut(message: str) -> str:
    if len(message) <= _MAX_MESSAGE:
        return message
    head = _MAX_MESSAGE // 2 - len(_INFIX) // 2
    tail = _MAX_MESSAGE - head - len(_INFIX)
    return f"{message[:head]}{_INFIX}{message[-tail:]}"
