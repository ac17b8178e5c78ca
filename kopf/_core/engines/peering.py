"""
Operators that know of each other: who is there, who is to act, and who has to wait.

They meet in an object of a special kind: each keeps a record of itself in its status. Those with a lower priority than
somebody else pause. A record is alive for its lifetime since it was seen to change, by our own clock: the clocks of
others may go wrong, and what they have written is believed only when there is nothing else, i.e. at first sight.
Specified in the documentation's "Peering".
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

import orjson

from kopf._cogs.clients import api, errors
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.helpers.hostnames import get_descriptive_hostname
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
    """The peering can't be used as it is asked for."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Peer:
    """One operator, as it is described in its record."""

    identity: str
    priority: int = 0
    lifetime: int = 60
    lastseen: str = ''
    waiting: bool = False
    """Whether it is to take over, and waits until those below have stopped."""
    paused: bool = False
    """Whether it has stopped all its work, and somebody waits for that."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.identity}: priority={self.priority}, lifetime={self.lifetime}, "
            f"lastseen={self.lastseen!r}>"
        )

    @classmethod
    def parse(cls, identity: str, record: Any) -> 'Peer | None':
        """Read a record; give ``None`` if it makes no sense. What is not there has its default."""
        if not isinstance(record, Mapping):
            return None
        try:
            return cls(
                identity,
                priority=int(record.get('priority') or 0),
                lifetime=int(record.get('lifetime', 60)),
                lastseen=str(record.get('lastseen') or ''),
                waiting=record.get('waiting') is True,
                paused=record.get('paused') is True,
            )
        except (TypeError, ValueError):
            return None

    def as_record(self) -> dict[str, Any]:
        """Make the record for the status of the peering object."""
        return {'priority': self.priority, 'lifetime': self.lifetime, 'lastseen': self.lastseen}

    def seems_dead(self, now: datetime.datetime) -> bool:
        """Tell if the record is past its lifetime, as far as the clock of its author can be believed."""
        try:
            lastseen = datetime.datetime.fromisoformat(self.lastseen)
        except ValueError:
            return False
        if lastseen.tzinfo is None:
            lastseen = lastseen.replace(tzinfo=datetime.UTC)
        return lastseen + datetime.timedelta(seconds=self.lifetime) <= now


def detect_own_id(*, manual: bool) -> str:
    """
    Give the identity of this operator.

    :param manual: for people who run commands: the same each time; otherwise, unique for each run of an operator.
    """
    pod = os.environ.get('POD_ID')
    if pod:
        return pod
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # containers run under users that are in no list
        user = str(os.getuid()) if hasattr(os, 'getuid') else 'unknown'
    place = f'{user}@{get_descriptive_hostname()}'
    if manual:
        return place
    now = datetime.datetime.now(datetime.UTC)
    suffix = ''.join(random.choices(string.ascii_lowercase + string.digits, k=3))
    return f'{place}/{now:%Y%m%d%H%M%S}/{suffix}'


def describe_place(name: str, namespace: Namespace) -> str:
    """Name a peering object in a log."""
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
    Put the records into a peering object, or remove those that are ``None``.

    :param version: the only resource version to be changed; for removals, so that nobody's fresh record is removed.
    :param backoffs: the pauses between attempts (seconds) instead of those of the settings.
    :returns: the new state of the object, or ``None`` if there is no such object.
    :raises errors.APIError: if the request is refused or has failed.
    """
    patch: dict[str, Any] = {'status': dict(records)}
    if version is not None:
        patch['metadata'] = {'resourceVersion': version}
    path = resource.get_url(
        namespace=namespace, name=name, subresource='status' if 'status' in resource.subresources else None
    )
    try:
        body: Mapping[str, Any] = orjson.loads(
            await client.request(
                'PATCH', path, payload=api.encode(patch), content_type='application/merge-patch+json', backoffs=backoffs
            )
        )
    except errors.APINotFoundError:
        return None
    return body


@dataclasses.dataclass(frozen=True)
class PeeringCommand:
    """
    Puts one record into all the peering objects of the namespaces, or removes it from there, once.

    It is how people pause and resume operators. With the lifetime of zero, the record is removed.
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
        Do it.

        :raises PeeringError: if there is no peering object of this name at all.
        :raises errors.APIError: if the API does not permit it, or does not work.
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
        found = [
            await self._touch(client, resource, namespace, name)
            for namespace in ([None] if clusterwide else await find_namespaces(client, patterns))
        ]
        if not any(found):
            raise PeeringError(f"There is no {resource.kind} {name!r}, so nobody was told.")

    async def _touch(self, client: api.ApiClient, resource: Resource, namespace: Namespace, name: str) -> bool:
        lastseen = datetime.datetime.now(datetime.UTC).isoformat(timespec='microseconds')
        peer = Peer(self.identity, priority=self.priority, lifetime=self.lifetime, lastseen=lastseen)
        record = None if self.lifetime <= 0 else peer.as_record()
        place = describe_place(name, namespace)
        if await touch(client, resource, namespace, name, {self.identity: record}) is None:
            logger.warning("The peering %s is not found.", place)
            return False
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
        return True


async def find_namespaces(client: api.ApiClient, patterns: Collection[NamespacePattern]) -> list[str]:
    """
    Give the names of the namespaces that are asked for; the cluster is asked only if there are patterns.

    :raises errors.APIError: if namespaces can't be listed.
    """
    names = set(select_specific_namespaces(patterns))
    if any(not select_specific_namespaces([pattern]) for pattern in patterns):
        page = await client.get_json('/api/v1/namespaces')
        existing = [item['metadata']['name'] for item in page.get('items') or ()]
        names |= {name for name in existing if any(match_namespace(name, pattern) for pattern in patterns)}
    return sorted(names)
