"""
Takeovers: an operator with an election or a peering begins to work in the place of one that was killed.

It waits until the Lease or the record of the dead one has expired, and writes nothing meanwhile. Therefore, a course in
real time is not at rest before that. All of this is derived from the requests of the operators.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson

from kopf._core.engines.leases import LeaseRecord
from kopf._core.engines.peering import Peer
from kopf._kits.testing.serving.faults import SeenRequest

PEERINGS = frozenset({'clusterkopfpeerings', 'kopfpeerings'})

SLACK = 5.0
"""How long a successor may take to begin when the term of the dead operator has expired (in seconds)."""

MAX_TERM = 60.0
"""The longest term that is waited for (in seconds): Leases of operators can also be locks that they never release."""


@dataclasses.dataclass
class HeldLease:
    """The state of a Lease, or of the record of one operator in a peering."""

    holder: str | None = None
    term: float = 0.0
    """How long it is valid without a renewal (in seconds)."""
    written_at: float = 0.0
    taken_at: float = 0.0
    """When the holder has changed (in seconds since the epoch)."""

    def note(self, holder: str | None, term: float | None, at: float) -> None:
        """Called with each write."""
        if holder != self.holder:
            self.taken_at = at
        self.holder, self.written_at = holder, at
        self.term = min(term or 0.0, MAX_TERM)


def find_takeover(requests: Iterable[SeenRequest], *, changed_at: float, ended: Collection[str]) -> float:
    """
    Return when the last takeover has happened, or when the next one will have happened (in seconds since the epoch).

    Why are Leases not compared with the ended operators, too? Clients have identities of their own in Leases. As the
    holder renews its Lease every few seconds, a Lease without a renewal is that of a dead operator.

    Args:
        requests: the requests of all operators.
        changed_at: when an operator was started, killed or suspended for the last time (in seconds since the epoch).
        ended: the identities of the operators that do not run any more.
    """
    leases: dict[str, HeldLease] = {}
    peers: dict[str, HeldLease] = {}
    for request in requests:
        if request.resource == 'leases':
            for key, record in _read_lease(request):
                leases.setdefault(key, HeldLease()).note(record.holder, record.duration, request.time)
        elif request.resource in PEERINGS:
            for identity, peer in _read_peers(request):
                holder, lifetime = (None, 0) if peer is None else (identity, peer.lifetime)
                peers.setdefault(identity, HeldLease()).note(holder, lifetime, request.time)
    times = [item.taken_at for item in (*leases.values(), *peers.values())]
    for lease in leases.values():
        # Also if it was released: other operators are about to take it.
        if lease.term and lease.written_at < changed_at:
            times.append(changed_at + lease.term + SLACK)
    for identity, peer_record in peers.items():
        if peer_record.holder is not None and identity in ended:
            times.append(peer_record.written_at + peer_record.term + SLACK)
    return max(times, default=0.0)


def _read_lease(request: SeenRequest) -> Iterator[tuple[str, LeaseRecord]]:
    """Yield the written Lease with its key, if the request has written it."""
    body = _read_body(request)
    name = request.name or (body.get('metadata') or {}).get('name')
    if name and request.method == 'DELETE' and request.status < 300:
        yield f'{request.namespace}/{name}', LeaseRecord(None)
    elif name and isinstance(body.get('spec'), Mapping):
        yield f'{request.namespace}/{name}', LeaseRecord.parse(body['spec'])


def _read_peers(request: SeenRequest) -> Iterator[tuple[str, Peer | None]]:
    """Yield the identities and the records that the request has written; no records for those that it has removed."""
    status = _read_body(request).get('status')
    for identity, record in status.items() if isinstance(status, Mapping) else ():
        yield identity, Peer.parse(identity, record)


def _read_body(request: SeenRequest) -> Mapping[str, Any]:
    """Return the written object; an empty one if the request has written nothing, or not as an object."""
    if request.method == 'GET' or not 200 <= request.status < 300 or 'dryRun' in request.query:
        return {}
    try:
        body = orjson.loads(request.body)
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}
