"""
The rules of Events: few for those of the core group, more for those with ``eventTime`` or of ``events.k8s.io``.

Both groups have the same objects, which are stored in the form of the core group. The fields that field selectors can
use are the same, with different names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.kinds.kinds import Kind, event_to_stored
from kopf._kits.testing.wire import names, statuses
from kopf._kits.testing.wire.statuses import Cause, text

Body = Mapping[str, Any]

GROUP = 'events.k8s.io'
_REFERENCE = ('kind', 'namespace', 'name', 'uid', 'apiVersion', 'resourceVersion', 'fieldPath')
_TYPES = ('Normal', 'Warning')
_FIXED = (
    'reason',
    'reason',
    'type',
    'message',
    'source',
    'firstTimestamp',
    'lastTimestamp',
    'count',
    'action',
    'eventTime',
    'involvedObject',
    'related',
    'reportingComponent',
    'reportingInstance',
)

SELECTABLE = (*(f'involvedObject.{key}' for key in _REFERENCE), 'reason', 'reportingComponent', 'source', 'type')
"""The selectable fields in the core group, and in the other one."""
SELECTABLE_ANEW = (*(f'regarding.{key}' for key in _REFERENCE), 'reason', 'reportingController', 'type')


def pick(body: Body) -> Mapping[str, str]:
    """Return the selectable fields of an Event of the core group, under all names."""
    involved, reporter = body.get('involvedObject') or {}, body.get('reportingComponent') or ''
    fields = {key: str(involved.get(key) or '') for key in _REFERENCE}
    return {
        **{f'involvedObject.{key}': value for key, value in fields.items()},
        **{f'regarding.{key}': value for key, value in fields.items()},
        'reason': body.get('reason') or '',
        'type': body.get('type') or '',
        'reportingComponent': reporter,
        'reportingController': reporter,
        'source': (body.get('source') or {}).get('component') or reporter,
    }


def problems(given: Body, kind: Kind, old: Body | None) -> Iterator[Cause]:
    """Yield all errors of an Event, including changes that are not allowed in the newer group."""
    anew = kind.group == GROUP
    body = event_to_stored(dict(given)) if anew else given
    namespace, own = (body.get('involvedObject') or {}).get('namespace', ''), body['metadata'].get('namespace', '')
    if namespace != own and (namespace or own != 'default'):
        yield statuses.value_invalid('involvedObject.namespace', f'"{namespace}"', 'does not match event.namespace')
    if anew and old is not None:
        yield from _change_problems(body, event_to_stored(dict(old)))
        return
    if not body.get('eventTime'):
        if anew:
            yield statuses.value_required('eventTime')
        return
    reporter, field = body.get('reportingComponent') or '', f'reporting{"Controller" if anew else "Component"}'
    if not reporter:
        yield statuses.value_required(field)
    for problem in names.label_key_problems(reporter):
        yield statuses.value_invalid(field, text(reporter), problem)
    for key in ('reportingInstance', 'action', 'reason'):
        if not body.get(key):
            yield statuses.value_required(key)
        elif len(body[key]) > 128:
            yield _odd(key, 'can have at most 128 characters')
    if len(body.get('message') or '') > 1024:
        yield _odd('message', 'can have at most 1024 characters')
    if anew:
        yield from _problems_anew(body)


def _problems_anew(body: Body) -> Iterator[Cause]:
    if (type := body.get('type') or '') not in _TYPES:
        yield _odd('type', f'has invalid value: {type}')
    if (series := body.get('series')) is not None:
        if (series.get('count') or 0) < 2:
            yield _odd('series.count', 'should be at least 2')
        if not series.get('lastObservedTime'):
            yield statuses.value_required('series.lastObservedTime')
    for key in ('firstTimestamp', 'lastTimestamp', 'count', 'source'):
        if body.get(key):
            yield _odd(key, 'needs to be unset')


def _change_problems(body: Body, old: Body) -> Iterator[Cause]:
    for key in _FIXED:
        if (body.get(key) or None) != (old.get(key) or None):
            field = 'reportingController' if key == 'reportingComponent' else key
            yield statuses.value_invalid(field, _quoted(key, body.get(key)), 'field is immutable')


def _quoted(key: str, value: Any) -> str:
    """Return the value as Go prints it."""
    if key in ('involvedObject', 'related') and value is not None:
        return text(
            {
                name[0].upper() + name[1:]
                if name not in ('uid', 'apiVersion')
                else {'uid': 'UID', 'apiVersion': 'APIVersion'}[name]: value.get(name) or ''
                for name in _REFERENCE
            }
        )
    return text(value)


def _odd(field: str, why: str) -> Cause:
    return statuses.value_invalid(field, '""', why)
