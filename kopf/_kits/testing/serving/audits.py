"""
The audit log: a line of JSON for each answered request, in the format of ``audit.k8s.io/v1``.

Tools that compare operators by the audit logs of clusters can also read this log.
"""

import datetime
import os
import uuid
from typing import Any
from urllib.parse import urlencode

import orjson

from kopf._kits.testing.serving.faults import SeenRequest


class AuditLog:
    """An open file to which lines are appended. They have the bodies of requests, but not the bodies of responses."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, 'ab', buffering=0)  # unbuffered: tests read the line after the response

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, seen: SeenRequest) -> None:
        """Write the line of an answered request."""
        self._file.write(orjson.dumps(entry(seen)) + b'\n')


def entry(seen: SeenRequest) -> dict[str, Any]:
    """Return the audit event of a request."""
    query = f'?{urlencode(list(seen.query.items()))}' if seen.query else ''
    now = datetime.datetime.now(datetime.UTC)
    result: dict[str, Any] = {
        'kind': 'Event',
        'apiVersion': 'audit.k8s.io/v1',
        'level': 'Request',
        'auditID': str(uuid.uuid4()),
        'stage': 'ResponseComplete',
        'requestURI': f'{seen.path}{query}',
        'verb': seen.verb or seen.method.lower(),
        'user': {'username': seen.user},
        'sourceIPs': ['127.0.0.1'],
        'userAgent': seen.user_agent,
        'responseStatus': {'metadata': {}, 'code': seen.status},
        'requestReceivedTimestamp': _text(datetime.datetime.fromtimestamp(seen.time, datetime.UTC)),
        'stageTimestamp': _text(now),
    }
    if seen.resource:
        reference = {
            'resource': seen.resource,
            'namespace': seen.namespace,
            'name': seen.name,
            'apiGroup': seen.group,
            'apiVersion': seen.version,
            'subresource': seen.subresource,
        }
        result['objectRef'] = {key: value for key, value in reference.items() if value}
    if seen.body:
        try:
            body = orjson.loads(seen.body)
            if isinstance(body, dict) and seen.verb in ('create', 'update') and not seen.subresource:
                group_version = f'{seen.group}/{seen.version}' if seen.group else seen.version
                body = {'kind': seen.kind, 'apiVersion': group_version, **body}
            result['requestObject'] = body
        except ValueError:
            result['requestObject'] = seen.body.decode(errors='replace')
    return result


def _text(moment: datetime.datetime) -> str:
    return moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ')
