"""
CertificateSigningRequests: the server records the requestor; a request is approved or denied only once.

The sandbox signs no certificates: on a real cluster, not the server but controllers and operators sign them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.testing.access.users import User
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.wire import statuses, timestamps
from kopf._kits.testing.wire.statuses import Cause

PLURAL = 'certificatesigningrequests'
LASTING = ('Approved', 'Denied', 'Failed')


def claim(body: Body, user: User) -> None:
    """Record the user in a new request."""
    spec = body.get('spec')
    if not isinstance(spec, dict):
        return
    for key in ('username', 'groups', 'uid', 'extra'):
        spec.pop(key, None)
    info = user.as_info()
    spec.update({key: info[key] for key in ('username', 'uid', 'groups', 'extra') if key in info})


def decide(body: Body, old: Body, kind: Kind) -> Body:
    """Return the old object with the conditions of the new one; raise a 422 if they change an earlier decision."""
    status = body.get('status')
    given = status.get('conditions') if isinstance(status, Mapping) else None
    before = (old.get('status') or {}).get('conditions') or []
    conditions = [_stamped(item, before) for item in given or ()]
    if causes := list(_causes(conditions, before)):
        raise statuses.invalid(kind.group, kind.name, old['metadata']['name'], causes)
    return {**body, 'status': {**(old.get('status') or {}), 'conditions': conditions}}


def _stamped(condition: Mapping[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    known = next((item for item in before if item.get('type') == condition.get('type')), {})
    same = known.get('status') == condition.get('status')
    now = timestamps.now()
    changed = known.get('lastTransitionTime') if same else None
    return {
        **condition,
        'lastUpdateTime': condition.get('lastUpdateTime') or now,
        'lastTransitionTime': condition.get('lastTransitionTime') or changed or now,
    }


def _causes(conditions: list[dict[str, Any]], before: list[dict[str, Any]]) -> Iterator[Cause]:
    types = [item.get('type') for item in conditions]
    if 'Approved' in types and 'Denied' in types:
        later = max(types.index('Approved'), types.index('Denied'))
        yield statuses.value_invalid(
            'status.conditions', f'"{types[later]}"', 'Approved and Denied conditions are mutually exclusive'
        )
    for lasting in LASTING:
        if lasting in (item.get('type') for item in before) and lasting not in types:
            yield statuses.value_forbidden(
                'status.conditions', f'updates may not remove a condition of type "{lasting}"'
            )
