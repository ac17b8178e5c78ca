"""
Watching one resource in one namespace or in the whole cluster, until stopped, despite all failures.

A watch is a state machine: LISTING → STREAMING → BACKING_OFF → … The list brings the states of all objects, the stream
brings the changes after the list. A stream that ends is continued from the last resource version. When the server does
not have that version any more (HTTP 410), or a login has led to another cluster, all objects are listed again. Objects
that were deleted meanwhile are then reported as deleted: before a new object of the same name, otherwise at the end of
the list.

With WatchList, the list is a part of the stream: its objects come as events, followed by a bookmark. Resource versions
before that bookmark must not be used to continue. Servers without WatchList refuse the request, or ignore its
parameters and stream only changes (mocks, aggregated APIs): their objects are listed in chunks.

In a sharded operator, a member requests only its own objects from the API server. Servers without sharded lists and
watches send all objects; the watch ignores those of other members, without decoding their lines.

A failure concerns only its own resource: it is retried with growing delays.
"""

import asyncio
import enum
import itertools
import logging
import math
import random
import time
import weakref
from collections.abc import Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NoReturn, cast

from kopf._cogs.aiokits.inactivity_timeouts import InactivityTimeout
from kopf._cogs.aiokits.loop_monitors import rouse
from kopf._cogs.clients import errors
from kopf._cogs.clients.api import ApiClient, decode
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import RawBody, RawEvent, RawEventType, is_older_version
from kopf._cogs.structs.credentials import LoginError
from kopf._cogs.structs.instruments import NO_INSTRUMENTS, Instruments, WatchChange
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Namespace, Resource
from kopf._core.reactor.object_records import ObjectRecord, get_api_version, identify
from kopf._core.reactor.sinks import EventSink

if TYPE_CHECKING:
    from kopf._cogs.clients.sessions import Lines
    from kopf._core.engines.shard_filters import ReadingPace, Selection, ShardFilter
    from kopf._core.reactor.seen_states import SeenStates

logger = logging.getLogger(__name__)

CHUNK_SIZE = 500
"""The number of objects in a chunk of a list, unless set by ``settings.watching.chunk_size``."""
MAX_AT_ONCE = 50
"""The number of events to read before other tasks run: each event stays in memory until its worker has run."""
MIN_BACKOFF, MAX_BACKOFF, HEALTHY_AFTER = 0.8, 30.0, 120.0
"""
The shortest and longest delay after failures, and the time without failures that resets the delay (in seconds).
"""
FORBIDDEN_BACKOFF = 60.0
"""The shortest delay after several responses with HTTP 403 (in seconds): only a change of RBAC can help."""
QUICK_REFUSALS = 4
"""
The number of failures after which HTTP 403 is taken for a missing permission.

API servers that have just started refuse requests until they have loaded the RBAC rules.
"""
TRANSIENT_REFUSALS = (401, 408, 429)
"""The statuses of client errors that can be temporary: the same request can succeed later."""
EXPIRATIONS = ('Expired', 'Gone')
"""The reasons of errors that mean that the resource version has expired."""
EXPIRATION_PERIOD = 10.0
"""The time (in seconds), within which a second expiration counts as a failure."""
MAX_FAILURES = 3
"""
The number of failed attempts to continue from the same resource version, after which all objects are listed again.
"""
SUSPICIOUS_SILENCES = 2
"""The number of consecutive streams without events and bookmarks, after which the resource version is verified."""
SHORT_LIFE = 0.5
"""The duration (in seconds) below which a stream without events counts as a failure."""

LIST_SILENCE = 5.0
"""
How long the stream of an unfinished list may bring no objects (in seconds).

API servers check every second whether the list can end; client-go warns after 10 seconds of silence. Large lists may
take much longer, as their objects keep coming. If the limit is too short for a server, the objects are listed in chunks
instead.
"""
OPENING_TIMEOUT = 20.0
"""
How long the response to a request for a streamed list may take (in seconds).

API servers respond before they have any events to send, but overloaded ones can queue the request for 15 seconds.
"""

END_OF_LIST = 'k8s.io/initial-events-end'


class WatchState(enum.Enum):
    """The state of a watch."""

    LISTING = 'listing'
    STREAMING = 'streaming'
    BACKING_OFF = 'backing-off'
    STOPPED = 'stopped'


class RefusalAccepted(Exception):
    """Raised when the API server refuses the watch, and the sink accepts the refusal."""


class StreamBroken(Exception):
    """Raised when the stream cannot be continued, for a reason other than an API error. ``reason`` is one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StreamedListMissing(Exception):
    """Raised when the server streams events, but not the requested list."""


class ResourceWatch:
    """
    Watches one resource in one namespace or in the whole cluster; owns the records of its objects.

    Args:
        client: the client of the API.
        settings: the settings of the operator.
        resource: the resource.
        namespace: the namespace; ``None`` for the whole cluster.
        sink: the receiver of the events.
        selective: whether the selectors of the settings apply.
        name: the name of the only object to watch; all objects by default.
        label_selector: the additional selector of the handlers.
        instruments: the instruments that are notified of changes of the watch.
        refusal_delays: the delays (in seconds) of the next requests while the first list is refused. The sink is
            asked only when all of these were refused, too.
        shard: the filter of the objects that this operator handles, if others handle the rest and nothing here needs
            them. When it selects more objects than before, `relist` or `restart` must be called.
    """

    def __init__(
        self,
        client: ApiClient,
        settings: OperatorSettings,
        resource: Resource,
        namespace: Namespace,
        sink: EventSink,
        *,
        selective: bool = True,
        name: str | None = None,
        label_selector: LabelSelector | None = None,
        instruments: Instruments = NO_INSTRUMENTS,
        refusal_delays: Sequence[float] = (),
        shard: 'ShardFilter | None' = None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.state = WatchState.STOPPED
        self.paused = False
        """Whether the operator is paused, so that events are not handled."""
        self.failure: str | None = None
        self.failing_since: float | None = None
        self.refused = False
        """Whether the API server forbids watching, and the sink has accepted to work without the objects."""
        self.last_event_at = time.monotonic()
        self.records: dict[str, ObjectRecord] = {}
        # The objects with a DELETED event that still have workers or daemons. Such an object can still exist, if it
        # only stopped matching the selectors. If it matches again, it keeps its record: a new one would get a second
        # worker.
        self._departed: weakref.WeakValueDictionary[str, ObjectRecord] = weakref.WeakValueDictionary()
        self._client = client
        self._settings = settings
        self._sink = sink
        self._run_lock = asyncio.Lock()
        self._instruments = instruments
        self._selective = selective  # whether the selectors of the settings apply
        self._name = name  # the name of the only object to watch, if there is only one
        self._label_selectors = [] if label_selector is None else [str(label_selector)]  # the selectors of the handlers
        self._refusal_delays = iter(refusal_delays)
        self._shard = shard
        self._requested: Selection | None = None  # the objects of this operator in the current list or stream
        self._pace = None if shard is None else shard.make_pace()
        self._skipped = 0  # the number of ignored lines of other members
        self._is_cut: bool | None = None  # whether the server sends only these objects; None if that is unknown
        self._path = resource.get_url(namespace=namespace)
        self._since: str | None = None
        # The position in the stream; without it, all objects are listed. An empty one is valid: see `_list`.
        self._listing_since: float | None = None
        self._cluster_generation = client.cluster_generation
        """The cluster from which the objects are listed, see `ApiClient.cluster_generation`."""
        self._listed = 0
        """The number of objects in the current list so far."""
        self._unlisted: dict[str, ObjectRecord] = {}
        """The known objects that the current list has not brought yet."""
        self._predecessors: dict[str, ObjectRecord] | None = None
        """The objects of `_unlisted` by namespace and name. It is built when a list brings the first new object."""
        self._flawed = False  # whether a part of the list was malformed
        self._complete = False  # whether a list was completed at least once
        self._is_relisting = False  # whether the sink waits for another list, see `relist`
        # the states from responses to writes, ahead of the stream; None if there were none yet
        self._seen: SeenStates | None = None
        # the names of the features in `ApiClient.lacks`
        self._streamed_list, self._sharded_list = f'streamed lists of {resource}', f'shards of {resource}'
        self._endless_lists = 0  # the number of streamed lists in a row without an end
        self._backoff = MIN_BACKOFF
        self._healthy_since: float | None = None
        self._opened_at: float | None = None
        self._expired_at: float | None = None
        self._failures = 0  # since the last event
        self._silences = 0  # the number of streams in a row that brought nothing until the inactivity timeout

    def __str__(self) -> str:
        where = 'cluster-wide' if self.namespace is None else f'in {self.namespace!r}'
        return f'{self.resource} {where}'

    async def persist(self, delays: Sequence[float] = ()) -> None:
        """
        Watch until cancelled, even if the sink accepts a refusal.

        The permissions can be granted later. And an API server that has just started refuses requests until it has
        loaded the RBAC rules.

        Args:
            delays: the first delays of the next attempts after accepted refusals (in seconds).
        """
        for delay in itertools.chain(delays, itertools.repeat(FORBIDDEN_BACKOFF)):
            await self.run()
            await asyncio.sleep(delay * random.uniform(1.0, 1.2))

    async def run(self) -> None:
        """
        Watch until cancelled, until a login fails, or until the sink accepts a refusal.

        Another task can continue the watch: it begins when the cancelled one has ended.
        """
        # Why not wait for the task? A task that is cancelled before its first step does not wait for its own
        # predecessor, and two running tasks would mix two lists.
        async with self._run_lock:
            await self._run()

    async def _run(self) -> None:
        logger.debug("Starting the watch-stream for %s.", self)
        try:
            while True:
                try:
                    await self._list_and_stream()
                # Why not retry it here? The vault has retried the login already.
                except LoginError:
                    raise
                except errors.APIError as error:
                    await self._recover(error)
                except StreamBroken as error:
                    await self._fail(error)
                except Exception as error:  # an unexpected response, such as HTML from a proxy
                    logger.exception("The watch-stream for %s has failed unexpectedly.", self)
                    # If the error has interrupted the stream, an event can be lost: list all objects again.
                    self._since = None
                    await self._fail(error)
                else:
                    # API servers end all streams after a while. So this is no failure: it is neither logged nor
                    # delayed.
                    await self._back_off(self._settings.watching.reconnect_backoff, 'ended')
        except RefusalAccepted:
            pass
        finally:
            self._enter(WatchState.STOPPED)
            logger.debug("Stopping the watch-stream for %s.", self)

    async def _recover(self, error: errors.APIError) -> None:
        """Wait after an error of the API; list all objects again if the stream cannot be continued."""
        if self._is_selector_refused(error):
            if not self._client.lacks(self._sharded_list):  # watches of other namespaces can already have noted this
                logger.info(
                    "The API server refuses the shard selector for %s; reading all of them: %s", self.resource, error
                )
            self._client.note_lack(self._sharded_list)
            self._since = None
            return
        if self._is_elsewhere():
            # This is no failure, however often it happens: the client has ended the streams of the former cluster.
            logger.debug("Restarting the watch-stream for %s, as it was that of another cluster: %s", self, error)
            self._since, self._is_relisting = None, True  # the sink is told of the first list of that cluster, too
            await self._back_off(self._settings.watching.reconnect_backoff, 'expired', error)
            return
        if _is_expired(error):
            logger.debug("Restarting the watch-stream for %s: %s", self, error)
            self._since = None
            # One expiration is normal after a long silence, or after a compaction of the storage. Repeated ones are a
            # failure: if versions expired before each list is complete, the objects would be listed all the time.
            previous, self._expired_at = self._expired_at, time.monotonic()
            if previous is None or self._expired_at - previous > EXPIRATION_PERIOD:
                await self._back_off(self._settings.watching.reconnect_backoff, 'expired', error)
                return
        # Why keep the position after other errors? A list of thousands of objects is expensive.
        elif isinstance(error, errors.APIClientError) and error.status not in (403, *TRANSIENT_REFUSALS):
            self._since = None  # the reason of the error can be the resource version
        # If a server repeats the error, it may be unable to continue from this version, so the objects are listed. But
        # a broken connection (without a status) does not depend on the version.
        elif error.status and self._failures >= MAX_FAILURES:
            self._since = None
        if self._is_refused(error) and (delay := next(self._refusal_delays, None)) is not None:
            logger.debug("The list of %s is refused; trying again in %g seconds: %s", self, delay, error)
            self.failure = str(error)
            await self._back_off(delay, _name_reason(error), error)
            return
        forbidden = isinstance(error, errors.APIForbiddenError)
        is_lasting = forbidden and self._failures >= QUICK_REFUSALS
        await self._fail(error, at_least=FORBIDDEN_BACKOFF if is_lasting else error.retry_after or 0)

    def _is_selector_refused(self, error: errors.APIError) -> bool:
        """Check whether the server does not accept the shard selector, so that the next request must not have it."""
        if self._requested is None:
            return False
        # Kubernetes answers 500 to a malformed selector: the syntax of an alpha feature can change.
        return error.status == 400 or ((error.status or 0) in (422, 500) and 'shard selector' in str(error))

    def _is_refused(self, error: Exception) -> bool:
        """Check whether the API server has refused the first list, and the refusal is probably not temporary."""
        return (
            not self._complete
            and isinstance(error, errors.APIClientError)
            and error.status not in TRANSIENT_REFUSALS
            and not _is_expired(error)
        )

    def restart(self) -> None:
        """Forget the position in the stream, after the watch was cancelled: `run` lists all objects again."""
        self.failure = self.failing_since = None
        self._since, self._complete = None, False
        self._finish_list()
        if self._seen is not None:
            self._seen.clear()

    def relist(self) -> None:
        """Forget the position in the stream, after the watch was cancelled: `run` lists all objects once more."""
        self._since, self._is_relisting, self._is_cut = None, True, None
        self._finish_list()
        if self._seen is not None:
            self._seen.clear()

    @property
    def is_too_wide(self) -> bool:
        """Return whether the stream brings objects of other members that the next request would not bring."""
        if self._shard is None or self._requested is None or self._is_cut is False:
            return False
        return self._requested != self._shard.selection

    def forget(self, uids: Set[str]) -> None:
        """Forget the objects that other members handle from now on, unless the watch reads all objects."""
        if self._shard is None:
            return
        # Why not a loop over the uids? They are those of all watches, and there can be hundreds of watches.
        for uid in uids & self.records.keys():
            record = self.records[uid]
            if not record.in_use and self._shard.excludes(uid, record.namespace):
                del self.records[uid]
                self._unlisted.pop(uid, None)
                if self._seen is not None:
                    self._seen.forget_name(uid, (record.namespace, record.name))

    def inherit(self, predecessor: 'ResourceWatch') -> None:
        """Take over the records of a stopped watch of the same objects, e.g. in another version of the resource."""
        self.records, predecessor.records = predecessor.records, {}
        # Why move them? The predecessor must not report these objects as deleted when it ends.
        self._departed, predecessor._departed = predecessor._departed, self._departed

    async def report_deletions(self) -> None:
        """Report all objects as deleted. Called after the watch has ended with its namespace or resource."""
        self._finish_list()
        for number, record in enumerate(list(self.records.values()), start=1):
            self._take(self._make_deletion(record))
            if number % MAX_AT_ONCE == 0:
                await asyncio.sleep(0)

    def get_known(self) -> Collection[ObjectRecord]:
        """Return the records of all objects, including deleted ones with running workers or daemons."""
        return [*self.records.values(), *self._departed.values()]

    def has_reached(self, version: str) -> bool:
        """Check whether the stream has certainly passed this version, so that it brings no older states."""
        if self.state is WatchState.STOPPED and not self._is_relisting:
            return True
        return self._since is not None and not is_older_version(self._since, version)

    @property
    def complete(self) -> bool:
        """Return whether all objects were listed at least once since the start or the restart."""
        return self._complete

    @property
    def failing_for(self) -> float:
        """The duration of the current failure (in seconds); zero if the watch works, or if its refusal was accepted."""
        if self.failing_since is None or self.refused or self._is_alive():
            return 0
        return time.monotonic() - self.failing_since

    def _is_alive(self) -> bool:
        # An open stream counts as working even without events and bookmarks, which can be rare.
        return self._opened_at is not None and time.monotonic() - self._opened_at > SHORT_LIFE

    async def _list_and_stream(self) -> None:
        if self._since is None:
            self._enter(WatchState.LISTING)
            self._listing_since, self._flawed = time.monotonic(), False
            self._begin_list()
            if self._wants_streamed_list():
                try:
                    # The API requires "NotOlderThan" for such lists. Without a version, the list is as consistent as a
                    # usual one.
                    await self._stream(self._params(sendInitialEvents='true', resourceVersionMatch='NotOlderThan'))
                    return
                except StreamedListMissing as error:
                    logger.debug("The server does not stream lists of %s; using chunked ones: %s.", self, error)
                    self._client.note_lack(self._streamed_list)
                except errors.APITimeoutError as error:  # if the server is only busy, the next list can be streamed
                    logger.debug("The server does not begin to stream the list of %s; using chunks: %s", self, error)
                except errors.APIClientError as error:
                    # The server does not accept the parameters: Kubernetes
                    # answers 422 if it lacks the feature, others can answer 400.
                    if error.status not in (400, 422) or self._is_selector_refused(error):
                        raise
                    logger.debug("The server has no streaming lists of %s; using chunked ones.", self)
                    self._client.note_lack(self._streamed_list)
                # Begin a new list: the streamed one can have brought a part of the objects.
                self._begin_list()
            await self._list()
        else:
            self._check_cluster()
            if self._silences >= SUSPICIOUS_SILENCES:
                await self._check_version()
        await self._stream(self._params(resourceVersion=self._since))

    def _wants_streamed_list(self) -> bool:
        watching = self._settings.watching
        return (watching.streaming_lists or watching.initial_streaming) and not self._client.lacks(self._streamed_list)

    def _params(self, **params: str | None) -> dict[str, str | int | None]:
        timeout = self._settings.watching.server_timeout
        return {
            'watch': 'true',
            'allowWatchBookmarks': 'true',
            # The API requires whole seconds; at least 1, as zero means the server's default.
            'timeoutSeconds': None if timeout is None or math.isinf(timeout) else max(1, int(timeout)),
            **self._select(),
            **params,
        }

    def _select(self) -> dict[str, str]:
        """Return the selectors of the next request; remember which objects of this operator it selects."""
        selectors = self._selectors()
        self._requested = None
        if self._shard is None or not self._settings.sharding.server_side:
            return selectors
        # If the user has set a shard selector, send only that: there is no syntax for the intersection of two
        # selectors.
        if 'shardSelector' in selectors or self._client.lacks(self._sharded_list):
            return selectors
        self._requested = self._shard.selection
        return selectors | {'shardSelector': str(self._requested)}

    def _selectors(self) -> dict[str, str]:
        if not self._selective:
            selectors = {} if self._name is None else {'fieldSelector': f'metadata.name={self._name}'}
            return selectors | ({'labelSelector': ','.join(self._label_selectors)} if self._label_selectors else {})
        watching = self._settings.watching
        return {
            param: ','.join(texts)
            for param, texts in {
                'labelSelector': [*watching.label_selectors.collect(self.resource), *self._label_selectors],
                'fieldSelector': watching.field_selectors.collect(self.resource),
                'shardSelector': watching.shard_selectors.collect(self.resource),
            }.items()
            if texts
        }

    async def _list(self) -> None:
        """List all objects in chunks, or as a whole if a continue token expires before the last chunk (HTTP 410)."""
        limit: int | None = self._settings.watching.chunk_size or CHUNK_SIZE
        token: str | None = None
        selectors = self._select()  # the same for all chunks
        while True:
            # Why not resourceVersion=0, so that servers answer from their caches? Such a list can be older than the
            # known objects: the newest of them would look deleted.
            params = {'limit': limit, 'continue': token, **selectors}
            try:
                page = await self._client.get_json(self._path, params, logger=logger)
            except errors.APIError as error:
                if token is None or not _is_expired(error):
                    raise
                # Why not in chunks again? If all of them take longer than a token is valid, no list would ever end.
                logger.debug("The list of %s expires between its chunks; requesting it as a whole: %s", self, error)
                self._begin_list()
                limit = token = None
                continue
            if not isinstance(page, dict) or not isinstance(page.get('items', 0), list | None):
                # If this were treated as an empty list, all objects would be reported as deleted.
                raise errors.APIServerError(f"The answer is no list of objects: {str(page)[:200]}")
            # API servers omit both fields in listed items of built-in resources, but not in events. Handlers must not
            # see a difference.
            defaults = {'apiVersion': page.get('apiVersion'), 'kind': (page.get('kind') or '').removesuffix('List')}
            is_cut = self._note_echo(page)
            for number, item in enumerate(page.get('items') or (), start=1):
                raw = {**defaults, **item} if isinstance(item, dict) else item
                if not self._is_foreign(raw):
                    self._take({'type': None, 'object': cast(RawBody, raw)})
                elif self._is_cut is not False:
                    self._note_foreign(raw, is_cut=is_cut)
                if number % MAX_AT_ONCE == 0:
                    await asyncio.sleep(0)
            meta = page.get('metadata') or {}
            token = meta.get('continue')
            self._check_cluster()  # before the end of the list: some of its chunks can be those of another cluster
            if not token:
                self._end_list(meta.get('resourceVersion') or '')  # if it is empty, the stream begins with all objects
                return

    def _note_echo(self, page: Mapping[str, Any]) -> bool:
        """Return whether the response states that the list has only the selected objects."""
        # Kubernetes 1.36 does not state this for custom resources, although it selects them.
        if self._requested is None or not isinstance(page.get('metadata'), dict) or not get_meta(page).get('shardInfo'):
            return False
        if self._is_cut is None:
            logger.debug("The API server sends only the objects of this member: %s.", self)
        self._is_cut = True
        return True

    def _is_foreign(self, raw: object) -> bool:
        """Check whether other members handle the object, and nothing here needs it."""
        if self._shard is None:
            return False
        meta = get_meta(raw)
        return bool(meta.get('uid')) and self._shard.excludes(str(meta['uid']), meta.get('namespace'))

    def _note_foreign_line(self, requested: 'Selection', line: bytes) -> None:
        """Note whether the server sends all objects, as it has sent a foreign one."""
        try:
            raw = decode(line)['object']
        except (ValueError, KeyError, TypeError):
            return
        if self._is_foreign(raw) and not requested.covers_object(get_meta(raw)):
            self._is_cut = False

    def _note_foreign(self, raw: object, *, is_cut: bool) -> None:
        """Note whether the server sends all objects, as the list has a foreign one."""
        if self._requested is None or self._requested.covers_object(get_meta(raw)):
            return  # the list was requested before this member lost the object
        if not is_cut:
            self._is_cut = False
            return
        # The function of hashes differs from that of Kubernetes, so the list does not have all own objects.
        self._client.note_lack(self._sharded_list)
        logger.warning("The API server selects wrong shards of %s; reading all objects instead.", self.resource)
        raise errors.APIGoneError("the list does not have the requested shard", status=410)

    def _end_list(self, version: str | None) -> None:
        """Report the objects that are not in the list as deleted; continue from its resource version."""
        # Why not report them? A wrong DELETED event stops daemons and empties indices, while a missing one comes with
        # the next list.
        if self._unlisted and self._flawed:
            logger.warning(
                "%d known objects are not in the list of %s. "
                "They are not reported as deleted, because some items of the list are malformed.",
                len(self._unlisted),
                self,
            )
            self._unlisted = {}
        for record in list(self._unlisted.values()):
            self._take(self._make_deletion(record))
        self._since = version
        self._endless_lists = 0
        self._finish_list()
        self._note_health()
        self.refused = False
        if not self._complete or self._is_relisting:
            self._complete, self._is_relisting = True, False
            self._sink.listed(self)
        if self._seen is not None:
            for parked in self._seen.end_list():
                self.see(parked.raw, is_deleted=parked.is_deleted)
                uid = identify(parked.raw)
                if uid not in self.records and self._is_selected(parked.raw) and not self._is_foreign(parked.raw):
                    self._sink.missed(uid)

    def _begin_list(self) -> None:
        self._cluster_generation = self._client.cluster_generation
        self._listed, self._unlisted, self._predecessors = 0, dict(self.records), None

    def _finish_list(self) -> None:
        self._listing_since, self._unlisted, self._predecessors = None, {}, None

    async def _stream(self, params: Mapping[str, Any]) -> None:
        """Receive events until the stream ends or breaks."""
        started, count = time.monotonic(), 0
        listing = self._since is None
        self._enter(WatchState.LISTING if listing else WatchState.STREAMING)
        limit = self._settings.watching.inactivity_timeout
        # Servers that do not know the parameters ignore them, and keep a stream open without a list. Only a timeout
        # detects this.
        hasty = listing and not (limit and limit <= LIST_SILENCE)  # until the list ends
        async with self._client.stream(self._path, params, opening=OPENING_TIMEOUT if listing else None) as batches:
            self._check_cluster()  # the login can have been the result of this request
            self._opened_at = time.monotonic()
            try:
                async with InactivityTimeout(LIST_SILENCE if hasty else limit) as silence:
                    async for lines in batches:
                        known, skipped = self._listed, self._skipped
                        for number, line in enumerate(lines, start=1):
                            count += self._take_line(line)
                            if number % MAX_AT_ONCE == 0:
                                await asyncio.sleep(0)
                                silence.renew()  # do not count the time for handling the received lines
                        self._note_health()
                        if hasty and self._since is not None:
                            hasty = False
                            silence.relax(limit)
                        if not hasty or self._listed > known:  # live changes must not prolong the wait for a list
                            silence.renew()
                        if self._pace is not None and self._skipped != skipped and self._since is not None:
                            await self._rest(self._pace, batches, len(lines), self._skipped - skipped)
            except TimeoutError as error:
                if hasty:
                    raise StreamedListMissing(f"no objects and no end for {LIST_SILENCE:g} seconds") from error
                self._silences += 1
                # A low limit makes silence normal, and changes are not seen during the pause: it must not grow.
                if self._since is not None:
                    self._backoff = MIN_BACKOFF
                raise StreamBroken('inactive', f"the stream is inactive for {limit:g} seconds; reconnecting") from error
        if self._since is None:
            self._endless_lists += 1
            if self._endless_lists >= MAX_FAILURES:
                raise StreamedListMissing(f"{self._endless_lists} streams have ended without an end of the list")
            raise StreamBroken('incomplete', "the stream has ended before the end of its initial list")
        # This counts as a failure: otherwise, a proxy that closes all streams at once would get ten requests a second.
        if not count and time.monotonic() - started < SHORT_LIFE:
            raise StreamBroken('refused', "the stream has ended at once")

    async def _rest(self, pace: 'ReadingPace', batches: 'Lines', lines: int, foreign: int) -> None:
        if rest := pace.find_rest(lines, foreign, time.monotonic()):
            await batches.rest(rest)

    def _take_line(self, line: bytes) -> bool:
        """Process a line of the stream; return whether it is an event of an object."""
        if self._shard is not None and self._shard.excludes_line(line, namespaced=bool(self.resource.namespaced)):
            self._listed += self._since is None
            self._skipped += 1
            if self._is_cut is None and self._requested is not None:
                self._note_foreign_line(self._requested, line)
            return True
        try:
            event = decode(line)
            type_, raw = event['type'], event['object']
        # Why not restart the stream? From the same version, it would bring the same line again.
        except (ValueError, KeyError, TypeError):
            self._flawed = True
            logger.warning("Ignoring a malformed line in the watch-stream for %s: %r", self, line[:200])
            return False
        if type_ == 'BOOKMARK':
            self._take_bookmark(raw)
        elif type_ == 'ERROR':
            status = raw if isinstance(raw, dict) else {'message': repr(raw)}
            # The HTTP status of the stream is always 200, so the code in the event decides. An event without a code
            # counts as a failure of the server, and is retried.
            raise errors.build_status_error(status if isinstance(status.get('code'), int) else {**status, 'code': 500})
        elif type_ in ('ADDED', 'MODIFIED', 'DELETED'):
            listing = self._since is None
            if self._seen is None or listing or not self._is_seen(type_, raw):
                # Handlers must not depend on the kind of list: the type of listed objects is documented as `None`.
                self._take({'type': None if listing and type_ == 'ADDED' else type_, 'object': raw})
            # In the initial part of a stream, the objects come in any order, so the stream cannot be continued from
            # their versions.
            if not listing:
                self._since = get_meta(raw).get('resourceVersion') or self._since
            return True
        else:
            logger.warning("Ignoring an event of an unknown type %r in the watch-stream for %s.", type_, self)
        return False

    def _take_bookmark(self, raw: object) -> None:
        meta = get_meta(raw)
        version = meta.get('resourceVersion')
        if self._since is None:
            if (meta.get('annotations') or {}).get(END_OF_LIST) == 'true':
                self._end_list(version)
                self._enter(WatchState.STREAMING)
        elif version:
            # Why only for bookmarks, which come about once a minute? Comparing each event would slow down the hot path.
            if is_older_version(version, self._since):
                self._go_back()
            self._since = version
            if self._seen is not None and self._shard is not None:
                self._seen.forget_foreign(self._shard.excludes)  # their lines are left out
            if self._seen is not None and self._seen.reach(version):
                raise errors.APIGoneError("the stream has not brought a state that was seen", status=410)

    async def _check_version(self) -> None:
        """List all objects again if the server's resource version is lower, so that the stream would stay silent."""
        # API servers accept versions from the future, and send no events then, so the stream itself cannot reveal it.
        page = await self._client.get_json(self._path, {'limit': 1, **self._selectors()}, logger=logger)
        self._silences = 0
        if is_older_version(get_meta(page).get('resourceVersion') or '', self._since):
            self._go_back()

    def _is_elsewhere(self) -> bool:
        """Check whether a login has led to another cluster since the list was requested."""
        return self._client.cluster_generation != self._cluster_generation

    def _check_cluster(self) -> None:
        """List all objects again if they were those of another cluster, with other resource versions."""
        if self._is_elsewhere():
            raise errors.APIGoneError("a login has led to another cluster", status=410)

    def _go_back(self) -> NoReturn:
        """List all objects again: resource versions went back, because the cluster was restored from a backup."""
        raise errors.APIGoneError(f"the versions have gone back since {self._since}", status=410)

    def _take(self, event: RawEvent) -> None:
        raw: Any = event['object']
        meta = get_meta(raw)
        if not meta.get('name'):
            self._flawed = True
            logger.warning(
                "Ignoring an event of an object without a name in the watch-stream for %s: %s", self, str(raw)[:200]
            )
            return
        uid = identify(raw)
        record = self.records.get(uid)
        if event['type'] == 'DELETED':
            if record is None:
                record = self._departed.get(uid) or ObjectRecord(
                    uid, meta.get('namespace'), meta['name'], initial=False
                )
            self.records.pop(uid, None)
            self._unlisted.pop(uid, None)
            if self._seen is not None:
                self._seen.forget_name(uid, (record.namespace, record.name))
        else:
            if self._unlisted and self._unlisted.pop(uid, None) is None and record is None:
                # Report the deletion before the new object: otherwise, sinks that identify objects by names would
                # consider the new object deleted.
                self._bury_predecessor(meta.get('namespace'), meta['name'])
            self._listed += event['type'] is None
            # Why reuse the record? With a new one, a second worker would handle the object while the first one still
            # runs.
            if record is None and self._departed:
                record = self._departed.get(uid)
                self._departed.pop(uid, record)
            if record is None:
                record = ObjectRecord(uid, meta.get('namespace'), meta['name'], initial=event['type'] is None)
            self.records[uid] = record
            if self._seen is not None:
                self._seen.note_name(uid, (record.namespace, record.name))
        rouse()  # the sink calls filters of users, which can block the event loop
        try:
            self._sink.receive(record, event, listed_since=self._listing_since)
        # Why not raise it? The watch would list all objects again, and fail at the same object.
        except Exception:
            logger.exception(
                "Ignoring an event of %r in the watch-stream for %s, as its processing has failed.", record, self
            )
        # This comes after the sink, which starts the worker for this event.
        if event['type'] == 'DELETED' and record.in_use:
            self._departed[uid] = record

    # States from responses to writes, ahead of the stream.

    def see(self, raw: RawBody, *, is_deleted: bool = False) -> ObjectRecord | None:
        """
        Receive the state of an object from the response to a write, ahead of the stream; pass it on as an event.

        Known states and older ones are ignored. States that the stream would not bring are ignored, too: those without
        a resource version, and those that certainly do not match the selectors. While the objects are being listed,
        the state is kept aside until the list is complete, because the list can be older or newer.

        Args:
            raw: the object. It must not be changed afterwards.
            is_deleted: whether the API server has said that the object is deleted, and not only marked for deletion.

        Returns:
            The record of the object if the state is passed on, or was passed on before.
        """
        if not get_meta(raw).get('name') or not get_meta(raw).get('uid'):
            return None
        if self._is_foreign(raw):
            return None  # the stream will not bring it
        if self._seen is None:
            # Why not at the top? The watches of most operators never need it.
            from kopf._core.reactor.seen_states import SeenStates

            self._seen = SeenStates(self.records.values())
        uid = identify(raw)
        if self._since is None:
            self._seen.park(uid, raw, is_deleted=is_deleted)
            return None
        known, is_selected = self.records.get(uid), self._is_selected(raw)
        if known is None and (is_deleted or not is_selected):
            return None
        place, version = (
            (raw['metadata'].get('namespace'), raw['metadata']['name']),
            get_meta(raw).get('resourceVersion'),
        )
        predecessor = self.records.get(self._seen.find(place) or '') if known is None else None
        if is_deleted:
            self._seen.admit_deletion(uid, place, version)
        elif not self._seen.admit(uid, place, version, self._since, is_absent=is_selected is False):
            return known  # the stream can have just brought the object, so index functions can still be running for it
        if predecessor is not None:
            self._seen.admit_deletion(predecessor.uid, place)
            self._take(self._make_deletion(predecessor))
        type_: RawEventType = 'ADDED' if known is None else 'MODIFIED'
        self._take({'type': 'DELETED' if is_deleted or is_selected is False else type_, 'object': raw})
        return known if known is not None else self.records.get(uid)

    def _is_seen(self, type_: str, raw: object) -> bool:
        """Check whether this state of the object, or a newer one, was received before from the response to a write."""
        meta = get_meta(raw)
        if not self._seen or not meta.get('uid'):
            return False
        place = meta.get('namespace'), str(meta.get('name'))
        verdict = self._seen.judge(meta['uid'], place, type_, meta.get('resourceVersion'))
        if verdict.is_outdated and (record := self.records.get(meta['uid'])) is not None:
            self._sink.outdated(record)
        return not verdict.is_news

    def _is_selected(self, raw: RawBody) -> bool | None:
        """Check whether the selectors of the watch match the object; ``None`` if only the API server can decide."""
        if self.namespace is not None and raw['metadata'].get('namespace') != self.namespace:
            return False
        selectors = self._selectors()
        text = selectors.pop('labelSelector', None)
        try:
            is_labelled = text is None or LabelSelector.parse(text).matches(raw['metadata'].get('labels') or {})
        except ValueError:
            return None
        return None if is_labelled and selectors else is_labelled

    def _bury_predecessor(self, namespace: str | None, name: str) -> None:
        """Report the former object of this name as deleted, as the list has brought a new one."""
        # Created when a list brings the first new object, and dropped with the list. A permanent index of all names
        # would cost memory for each object at rest.
        if self._predecessors is None:
            self._predecessors = {f'{record.namespace}/{record.name}': record for record in self._unlisted.values()}
        predecessor = self._predecessors.get(f'{namespace}/{name}')
        if predecessor is not None and predecessor.uid in self._unlisted:
            self._take(self._make_deletion(predecessor))

    def _make_deletion(self, record: ObjectRecord) -> RawEvent:
        """Return an event for a deletion that the stream has missed. It has only the identity of the object."""
        metadata = {'name': record.name, 'uid': record.uid}
        if record.namespace is not None:
            metadata['namespace'] = record.namespace
        body: RawBody = {
            'apiVersion': get_api_version(self.resource),
            'kind': self.resource.kind or '',
            'metadata': metadata,  # type: ignore[typeddict-item]
        }
        return {'type': 'DELETED', 'object': body}

    def _note_health(self) -> None:
        now = self.last_event_at = time.monotonic()
        self.failure = self.failing_since = None
        self._failures = self._silences = 0
        if self._healthy_since is None:
            self._healthy_since = now
        elif now - self._healthy_since > HEALTHY_AFTER:
            self._backoff = MIN_BACKOFF

    async def _fail(self, error: Exception, *, at_least: float = 0) -> None:
        """Log the failure, and wait: longer each time, until the stream works for a while."""
        healthy_since = self._opened_at if self._healthy_since is None else self._healthy_since
        if healthy_since is not None and time.monotonic() - healthy_since > HEALTHY_AFTER:
            self._backoff = MIN_BACKOFF
        self._healthy_since = None
        # Both delays are random, so that not all watches return to a recovered server at the same time, but never
        # shorter than the delay that the server has requested.
        delay = max(at_least * random.uniform(1.0, 1.2), self._backoff * random.uniform(0.8, 1.2))
        self._backoff = min(MAX_BACKOFF, self._backoff * 2)
        self._failures += 1
        if self._since is None:
            self._finish_list()
        self.failure = str(error) or repr(error)
        if isinstance(error, errors.APIForbiddenError):
            # Why no failure for the liveness probe? A restart of the pod would not grant the permissions.
            self.failing_since = None
        elif self.failing_since is None or self._is_alive():
            self.failing_since = time.monotonic()
        self._opened_at = None
        # The sink is asked only before the first complete list. A watch that has worked once is retried for ever.
        if isinstance(error, errors.APIClientError) and self._is_refused(error):
            if self._sink.refused(self, error):
                self.refused = True
                raise RefusalAccepted from error
        elif not self._complete:
            self._sink.failed(self, error)
        if isinstance(error, errors.APIForbiddenError):
            logger.error(
                "Not permitted to list or watch %s; trying again in %.0f seconds. Grant the verbs list and watch "
                "for it to the operator's account: %s",
                self,
                delay,
                error,
            )
        else:
            logger.warning(
                "The watch-stream for %s has failed; trying again in %.1f seconds: %s", self, delay, self.failure
            )
        await self._back_off(delay, _name_reason(error), error)

    async def _back_off(self, delay: float, reason: str, error: Exception | None = None) -> None:
        self._enter(WatchState.BACKING_OFF, reason, error, delay)
        await asyncio.sleep(delay)

    def pause(self, paused: bool) -> None:
        """Set whether the operator is paused, so that events are not handled; the watch continues in any case."""
        if paused is not self.paused:
            self.paused = paused
            self._tell(self.state, 'paused' if paused else 'resumed')

    def _enter(
        self,
        state: WatchState,
        reason: str | None = None,
        error: Exception | None = None,
        delay: float | None = None,
    ) -> None:
        previous, self.state = self.state, state
        if previous is not state:
            self._tell(previous, reason, error, delay)

    def _tell(
        self,
        previous: WatchState,
        reason: str | None,
        error: Exception | None = None,
        delay: float | None = None,
    ) -> None:
        if self._instruments.watches:
            change = WatchChange(
                self.resource, self.namespace, previous.value, self.state.value, self.paused, reason, error, delay
            )
            self._instruments.tell(self._instruments.watches, 'watch_changes', change)


_REASONS: Mapping[type[Exception], str] = {
    errors.APIUnauthorizedError: 'unauthorized',
    errors.APIForbiddenError: 'forbidden',
    errors.APITooManyRequestsError: 'throttled',
    errors.APIGoneError: 'expired',
    errors.APIClientError: 'refused',
    errors.APIServerError: 'server',
    errors.APITimeoutError: 'timeout',
    errors.APIConnectionError: 'connection',
}


def _is_expired(error: errors.APIError) -> bool:
    """Check whether the API server does not have the requested version any more, so that all objects must be listed."""
    return error.status == 410 or error.reason in EXPIRATIONS


def _name_reason(error: Exception) -> str:
    """Return the reason of the back-off as one word, for the labels of metrics."""
    if isinstance(error, StreamBroken):
        return error.reason
    if isinstance(error, errors.APIError) and error.reason in EXPIRATIONS:
        return 'expired'
    return next((reason for cls, reason in _REASONS.items() if isinstance(error, cls)), 'unexpected')


def get_meta(raw: object) -> Mapping[str, Any]:
    """Return the metadata of an object from the API; an empty mapping if the object is malformed."""
    meta = raw.get('metadata') if isinstance(raw, dict) else None
    return meta if isinstance(meta, dict) else {}
