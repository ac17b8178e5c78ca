"""
The records with which operators find their peers, and the commands that pause and resume operators.

Each operator keeps its record in the status of a shared object of the kind ``KopfPeering``. An operator pauses if there
is another one with a higher priority. A record is alive until its lifetime has passed since its last observed change.
The observer measures this by its own clock, as clocks of other machines can be wrong. The timestamp in the record is
used only when the operator sees the record for the first time, as it has not observed the last change. Specified in
the documentation's "Let operators pause each other".
"""

import dataclasses
import datetime
import getpass
import logging
import os
import random
import string
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.clients import api, errors, pacing
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.helpers.hostnames import get_descriptive_hostname
from kopf._cogs.structs.patches import is_merged
from kopf._cogs.structs.references import (
    Namespace,
    NamespacePattern,
    Resource,
    match_namespace,
    select_peerings,
    select_specific_namespaces,
)

logger = logging.getLogger(__name__)


class PeeringError(ExplainedError):
    """Raised when the peering cannot be used as requested."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Peer:
    """The record of one operator."""

    identity: str
    priority: int = 0
    lifetime: int = 60
    lastseen: str = ''
    waiting: bool = False
    """Whether the operator takes over, and waits until operators with lower priorities have paused."""
    pausing: bool = False
    """Whether the operator starts no further handlers, but another operator still waits for the running ones."""
    paused: bool = False
    """Whether the operator has stopped all its work, while another operator waits for that."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.identity}: priority={self.priority}, lifetime={self.lifetime}, "
            f"lastseen={self.lastseen!r}>"
        )

    @classmethod
    def parse(cls, identity: str, record: Any) -> 'Peer | None':
        """Return the peer of a stored record, with defaults for missing fields; ``None`` if the record is malformed."""
        if not isinstance(record, Mapping):
            return None
        try:
            return cls(
                identity,
                priority=int(record.get('priority') or 0),
                lifetime=int(record.get('lifetime', 60)),
                lastseen=str(record.get('lastseen') or ''),
                waiting=record.get('waiting') is True,
                pausing=record.get('pausing') is True,
                paused=record.get('paused') is True,
            )
        except (TypeError, ValueError):
            return None

    def as_record(self) -> dict[str, Any]:
        """Return the record to be stored in the status of the peering object."""
        return {'priority': self.priority, 'lifetime': self.lifetime, 'lastseen': self.lastseen}

    def seems_dead(self, now: datetime.datetime) -> bool:
        """Check whether the record is past its lifetime according to its own timestamp."""
        try:
            lastseen = datetime.datetime.fromisoformat(self.lastseen)
        except ValueError:
            return False
        if lastseen.tzinfo is None:
            lastseen = lastseen.replace(tzinfo=datetime.UTC)
        return lastseen + datetime.timedelta(seconds=self.lifetime) <= now


def detect_own_id(*, manual: bool) -> str:
    """
    Return the identity of this operator.

    Args:
        manual: whether the identity is for the commands of a user. It is the same for all commands, but unique for each
            run of an operator.
    """
    pod = os.environ.get('POD_ID')
    if pod:
        return pod
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # containers often run with user ids that have no names
        user = str(os.getuid()) if hasattr(os, 'getuid') else 'unknown'
    place = f'{user}@{get_descriptive_hostname()}'
    if manual:
        return place
    now = datetime.datetime.now(datetime.UTC)
    suffix = ''.join(random.choices(string.ascii_lowercase + string.digits, k=3))
    return f'{place}/{now:%Y%m%d%H%M%S}/{suffix}'


def describe_place(name: str, namespace: Namespace) -> str:
    """Return the name of a peering object for logs."""
    return f"{name!r} {'cluster-wide' if namespace is None else f'in {namespace!r}'}"


async def touch(
    client: api.ApiClient,
    resource: Resource,
    namespace: Namespace,
    name: str,
    records: Mapping[str, Mapping[str, Any] | None],
    *,
    version: str | None = None,
    backoffs: api.Backoffs | None = None,
) -> Mapping[str, Any] | None:
    """
    Write the records into a peering object, or remove those that are ``None``.

    Args:
        client: the API client of the operator.
        resource: the resource of the peering object.
        namespace: the namespace of the peering object; ``None`` if it is cluster-scoped.
        name: the name of the peering object.
        records: the records by the identities of the operators.
        version: the resource version to which the change applies. It is given for removals, so that a record is not
            removed if it was just renewed.
        backoffs: the pauses between attempts instead of those of the settings (in seconds).

    Returns:
        The new state of the object, or ``None`` if there is no such object.

    Raises:
        errors.APIError: if the API server refuses the request, or is unavailable.
    """
    patch: dict[str, Any] = {'status': dict(records)}
    if version is not None:
        patch['metadata'] = {'resourceVersion': version}
    payload = api.encode(patch)

    async def send(subresource: str | None) -> Mapping[str, Any]:
        path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
        content_type = 'application/merge-patch+json'
        with pacing.exempted():
            answer = await client.request('PATCH', path, payload=payload, content_type=content_type, backoffs=backoffs)
        return api.decode_object('PATCH', path, answer)

    try:
        if 'status' not in resource.subresources:
            return await send(None)
        try:
            return await send('status')
        except errors.APINotFoundError:
            body = await send(None)  # only the subresource can be missing, if it was removed from the CRD
        if not is_merged(patch['status'], body.get('status') or {}):
            raise errors.APIServerError("The records are ignored: only some API servers serve the status.", status=404)
        return body
    except errors.APINotFoundError as error:
        if error.code is None:
            # The 404 is not about the object, but about the whole resource: the API server has just started, and does
            # not serve the resource yet. Otherwise, the object would seem absent until its next change.
            raise
        return None


@dataclasses.dataclass(frozen=True)
class PeeringCommand:
    """
    Writes one record into the peering objects of all the namespaces, or removes it from there.

    The commands that pause and resume operators use it. With a lifetime of zero, the record is removed.
    """

    identity: str
    priority: int = 0
    lifetime: int = 0
    message: str | None = None

    async def __call__(
        self,
        client: api.ApiClient,
        settings: OperatorSettings,
        resources: Collection[Resource],
        patterns: Collection[NamespacePattern],
    ) -> None:
        """
        Write or remove the record.

        Raises:
            PeeringError: if there is no peering object of this name at all.
            errors.APIError: if the API server refuses the request, or is unavailable.
        """
        name, clusterwide = settings.peering.name, settings.peering.clusterwide
        resource = select_peerings(resources, clusterwide=clusterwide)
        if resource is None:
            raise PeeringError(
                f"The cluster has no {'ClusterKopfPeering' if clusterwide else 'KopfPeering'}: "
                f"its CRD is absent. Apply the file peering.yaml of the framework first."
            )
        if not name:
            raise PeeringError("The name of the peering object is empty.")
        namespaces = [None] if clusterwide else await find_namespaces(client, patterns)
        found = [await self._touch(client, resource, namespace, name) for namespace in namespaces]
        bodies = [body for body in found if body is not None]
        if not bodies:
            raise PeeringError(f"There is no {resource.kind} {name!r}, so no operator was paused or resumed.")
        self._report([peer for body in bodies for peer in self._list_others(body)], name)

    def _list_others(self, body: Mapping[str, Any]) -> list[Peer]:
        """Return the other peers whose records in the peering object are alive."""
        now, status = datetime.datetime.now(datetime.UTC), body.get('status')
        records = status if isinstance(status, Mapping) else {}
        peers = [Peer.parse(identity, record) for identity, record in records.items() if identity != self.identity]
        return [peer for peer in peers if peer is not None and not peer.seems_dead(now)]

    def _report(self, peers: Collection[Peer], name: str) -> None:
        """Log how many operators notice the command; without it, the command would seem to have paused others, too."""
        if not peers:
            logger.warning(
                "No operator has a live record in the peering %r, so none is %s. Operators that run with --standalone "
                "do not use it: scale them to zero instead, or run them with --peering=%s.",
                name,
                "resumed" if self.lifetime <= 0 else "paused",
                name,
            )
            return
        many = len(peers) != 1
        higher = 0 if self.lifetime <= 0 else sum(peer.priority >= self.priority for peer in peers)
        logger.info(
            "%d operator%s a live record in this peering%s.",
            len(peers),
            's have' if many else ' has',
            f"; not paused, as their priority is not below {self.priority}: {higher}" if higher else '',
        )

    async def _touch(
        self, client: api.ApiClient, resource: Resource, namespace: Namespace, name: str
    ) -> Mapping[str, Any] | None:
        """Write or remove the record; return the new state of the peering object, or ``None`` if there is none."""
        lastseen = datetime.datetime.now(datetime.UTC).isoformat(timespec='microseconds')
        peer = Peer(self.identity, priority=self.priority, lifetime=self.lifetime, lastseen=lastseen)
        record = None if self.lifetime <= 0 else peer.as_record()
        place = describe_place(name, namespace)
        body = await touch(client, resource, namespace, name, {self.identity: record})
        if body is None:
            logger.warning("The peering %s is not found. Create it, or name one that exists.", place)
            return None
        if record is None:
            logger.info("Resuming the operators of the peering %s: %s is gone.", place, self.identity)
        else:
            logger.info(
                "Pausing the operators of the peering %s for %d seconds by %r%s.",
                place,
                self.lifetime,
                peer,
                '' if self.message is None else f": {self.message}",
            )
        return body


async def find_namespaces(client: api.ApiClient, patterns: Collection[NamespacePattern]) -> list[str]:
    """
    Return the names of the namespaces that match the patterns; namespaces are listed only if there are globs.

    Raises:
        errors.APIError: if namespaces cannot be listed.
    """
    names = set(select_specific_namespaces(patterns))
    if any(not select_specific_namespaces([pattern]) for pattern in patterns):
        page = await client.get_json('/api/v1/namespaces')
        existing = [item['metadata']['name'] for item in page.get('items') or ()]
        names |= {name for name in existing if any(match_namespace(name, pattern) for pattern in patterns)}
    return sorted(names)
