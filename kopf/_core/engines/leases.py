"""
Leases (``coordination.k8s.io/v1``): the objects with which the replicas of an operator elect a leader.

The fields of a Lease have the same meaning as in client-go, so that tools in Go understand the Leases of operators,
and operators understand the Leases of other programs. The timestamps are only for people: the framework does not
compare them, as the clocks of machines differ.
"""

import datetime
import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from kopf._cogs.clients import api, errors, pacing
from kopf._cogs.clients.logins import SERVICE_ACCOUNT
from kopf._cogs.structs.references import Resource

logger = logging.getLogger(__name__)

LEASES = Resource('coordination.k8s.io', 'v1', 'leases', kind='Lease', namespaced=True)
"""The resource of Leases. Every cluster has it, so it is not discovered."""

MANAGED_BY = 'app.kubernetes.io/managed-by'
"""The label that marks the Leases of operators of this framework."""


MAX_TRANSITIONS = 2**31 - 1
"""The highest number that the API accepts. Other clients can have written it, and the next holder must not count on."""


class LeaseRecord(NamedTuple):
    """The content of a Lease."""

    holder: str | None
    """The identity of the process that holds the Lease; ``None`` if it is released."""
    duration: float | None = None
    """How long the Lease is valid without a renewal (in seconds)."""
    acquired: str | None = None
    """When the holder has acquired the Lease, by the clock of the holder."""
    renewed: str | None = None
    """When the holder has renewed it, by the clock of the holder."""
    transitions: int = 0
    """The number of changes of the holder."""

    @classmethod
    def parse(cls, spec: Any) -> 'LeaseRecord':
        """Return the record of a Lease, with defaults for fields that are missing or malformed by other programs."""
        spec = spec if isinstance(spec, Mapping) else {}
        duration, transitions = spec.get('leaseDurationSeconds'), spec.get('leaseTransitions')
        return cls(
            holder=str(spec.get('holderIdentity') or '') or None,
            duration=float(duration) if isinstance(duration, int) and duration > 0 else None,
            acquired=_to_text(spec.get('acquireTime')),
            renewed=_to_text(spec.get('renewTime')),
            transitions=transitions if isinstance(transitions, int) else 0,
        )

    def as_spec(self) -> dict[str, Any]:
        """Return the fields of the Lease; those that are ``None`` are to be removed."""
        return {
            'holderIdentity': self.holder,
            'leaseDurationSeconds': None if self.duration is None else int(self.duration),
            'acquireTime': self.acquired,
            'renewTime': self.renewed,
            'leaseTransitions': min(self.transitions, MAX_TRANSITIONS),
        }


def _to_text(value: object) -> str | None:
    return None if value is None else str(value)


def format_time(time: datetime.datetime) -> str:
    """Return the time in the format of Lease fields."""
    return f'{time.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f}Z'


def find_namespace(client: api.ApiClient) -> str:
    """Return the default namespace of Leases: that of the pod, or of the credentials, or ``default``."""
    try:
        with open(os.path.join(SERVICE_ACCOUNT, 'namespace'), encoding='utf-8') as file:
            namespace = file.read().strip()
    except (OSError, UnicodeDecodeError):
        namespace = ''
    return namespace or client.default_namespace or 'default'


class QuietLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs failed requests at the debug level: while the API is down, a request fails every few seconds."""

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message with the lowest level."""
        self.debug(msg, *args, **kwargs)


class LeaseStore:
    """
    One Lease in the API, which is read and written as a whole.

    Failed requests are not retried here, because the candidate reads a newer state first, and has a deadline.
    """

    def __init__(self, client: api.ApiClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._path = LEASES.get_url(namespace=namespace)
        self._logger = QuietLogger(logger, {})
        self.namespace = namespace
        self.name = name

    def __str__(self) -> str:
        return f'{self.name!r} in {self.namespace!r}'

    async def read(self) -> Mapping[str, Any] | None:
        """Return the Lease; ``None`` if there is none."""
        try:
            return await self._request('GET', f'{self._path}/{self.name}')
        except errors.APINotFoundError as error:
            if error.code is None:
                raise  # the response is not about the object, but about the whole resource
            return None

    async def create(self, record: LeaseRecord) -> Mapping[str, Any]:
        """Create the Lease."""
        metadata = {'name': self.name, 'namespace': self.namespace, 'labels': {MANAGED_BY: 'kopf'}}
        created = await self._request('POST', self._path, self._fill({'metadata': metadata}, record))
        self._mark(created)
        return created

    async def replace(self, body: Mapping[str, Any], record: LeaseRecord, *, is_dry: bool = False) -> Mapping[str, Any]:
        """
        Replace the record, if the Lease is still in this state.

        Args:
            body: the known state. Fields of other clients stay as they are.
            record: the new record.
            is_dry: whether the API server only checks the request.
        """
        path = f'{self._path}/{self.name}{"?dryRun=All" if is_dry else ""}'
        replaced = await self._request('PUT', path, self._fill(body, record))
        self._mark(replaced)
        return replaced

    def _mark(self, body: Mapping[str, Any]) -> None:
        """Recognize the cluster by the Lease: a login can lead to another address of the same cluster."""
        # Otherwise, the holder would lose the Lease, and what its handlers have done while they waited for the login.
        uid = body['metadata'].get('uid')
        if uid is not None:
            self._client.set_landmark(f'{self._path}/{self.name}', uid)

    def _fill(self, body: Mapping[str, Any], record: LeaseRecord) -> Mapping[str, Any]:
        metadata = {key: value for key, value in body['metadata'].items() if key != 'managedFields'}
        spec = body.get('spec')
        fields = {**(spec if isinstance(spec, Mapping) else {}), **record.as_spec()}
        return {
            'apiVersion': 'coordination.k8s.io/v1',
            'kind': 'Lease',
            'metadata': metadata,
            'spec': {key: value for key, value in fields.items() if value is not None},
        }

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        payload = None if body is None else api.encode(body)
        # The logger is replaced only during the request: the same task also starts the work of the leader.
        token = api.unfenced_var.set(True)
        try:
            with pacing.exempted():
                answer = await self._client.request(method, path, payload=payload, logger=self._logger, backoffs=())
        finally:
            api.unfenced_var.reset(token)
        return api.decode_object(method, path, answer)
