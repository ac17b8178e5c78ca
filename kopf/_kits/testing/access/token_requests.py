"""Token requests, a subresource of service accounts."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from kopf._kits.testing.access import users
from kopf._kits.testing.access.access_reviews import AUDIENCE
from kopf._kits.testing.access.users import Tokens
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.wire import statuses, timestamps

TOKEN = Kind(
    group='authentication.k8s.io',
    version='v1',
    plural='tokenrequests',
    singular='tokenrequest',
    name='TokenRequest',
    namespaced=True,
)

SHORTEST = 600
"""The shortest lifetime of a token that can be requested (seconds)."""


def check_request(asked: Mapping[str, Any], name: str) -> None:
    """Refuse (422) a request for another service account."""
    if (given := asked['metadata'].get('name', '')) not in ('', name):
        raise statuses.invalid(
            'authentication.k8s.io',
            'TokenRequest',
            name,
            [
                statuses.value_invalid(
                    'metadata.name', statuses.text(given), 'must match the service account name if specified'
                )
            ],
        )


def token_request(namespace: str, account: Body, asked: Mapping[str, Any], tokens: Tokens) -> Body:
    """Return a token for a service account."""
    meta = account['metadata']
    seconds = (asked.get('spec') or {}).get('expirationSeconds') or 3600
    for wrong, word in ((seconds < SHORTEST, 'less than 10 minutes'), (seconds > 2**32, 'larger than 2^32 seconds')):
        if wrong:
            raise statuses.invalid(
                'authentication.k8s.io',
                'TokenRequest',
                '',
                [statuses.value_invalid('spec.expirationSeconds', str(seconds), f'may not specify a duration {word}')],
            )
    audiences = (asked.get('spec') or {}).get('audiences') or [AUDIENCE]
    user = users.service_account(namespace, meta['name'], meta['uid'])
    user = dataclasses.replace(user, extra={users.CREDENTIAL: [f'JTI={uuid.uuid4()}']})
    return {
        'kind': 'TokenRequest',
        'apiVersion': 'authentication.k8s.io/v1',
        'metadata': {
            'name': meta['name'],
            'namespace': namespace,
            'uid': meta['uid'],
            'creationTimestamp': timestamps.now(),
        },
        'spec': {'audiences': audiences, 'expirationSeconds': seconds, 'boundObjectRef': None},
        'status': {'token': tokens.issue(user, seconds=seconds), 'expirationTimestamp': timestamps.after(seconds)},
    }
