"""
All settings of an operator, with their defaults.

The settings are grouped by subject: the groups are attributes of `OperatorSettings`, and the individual settings are
attributes of the groups. They are normally changed in the startup handlers, and are read at the moment of their use.
So later changes take effect, too, but it is not guaranteed when.
"""

import concurrent.futures
import dataclasses
import datetime
import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, overload

from kopf._cogs.configs import diffbase, progress
from kopf._cogs.configs.selector_mappings import SelectorMapping
from kopf._cogs.structs import reviews

logger = logging.getLogger(__name__)


class _Object(NamedTuple):
    """A setting that is an object with methods, so that another value fails far from the line that sets it."""

    method: str
    title: str
    example: str


_OBJECTS: Mapping[str, _Object] = {
    'executor': _Object('submit', "an executor", 'concurrent.futures.ThreadPoolExecutor()'),
    'progress_storage': _Object('fetch', "a storage", 'kopf.AnnotationsProgressStorage()'),
    'diffbase_storage': _Object('fetch', "a storage", 'kopf.AnnotationsDiffBaseStorage()'),
}
"""The settings that are objects, by their names."""

_SUBDOMAIN = re.compile(r'(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
_QUALIFIED = re.compile(rf'({_SUBDOMAIN.pattern.replace("$", "/")}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?')
_LABEL_LIKE = re.compile(r'[A-Za-z0-9]([-A-Za-z0-9_.]{0,52}[A-Za-z0-9])?')  # 'children-' is before it in finalizers
_EXPLANATIONS: Mapping[re.Pattern[str], str] = {
    _SUBDOMAIN: "it is the name of an object, so it has only small letters, digits, '-', and '.'.",
    _QUALIFIED: "it has only letters, digits, '-', '_', and '.', up to 63, after an optional domain with '/'.",
    _LABEL_LIKE: "it is a part of keys, so it has only letters, digits, '-', '_', and '.', up to 54.",
}
"""What names of these patterns are like, for messages."""

_NAMES: Mapping[str, re.Pattern[str]] = {
    'AdmissionSettings.managed': _SUBDOMAIN,
    'ApplyingSettings.operator': _LABEL_LIKE,
    'PeeringSettings.name': _SUBDOMAIN,
    'PersistenceSettings.finalizer': _QUALIFIED,
}
"""The settings that are names in the API: it would refuse others again and again, without naming the setting."""


def explain_name(text: str) -> str:
    """Return why no object can have this name; an empty string if it can."""
    return '' if _SUBDOMAIN.fullmatch(text) else _EXPLANATIONS[_SUBDOMAIN]


_LEVELS = frozenset({'DEBUG', 'INFO', 'WARNING', 'ERROR', 'CRITICAL'})


class _Group:
    """A group of settings. It rejects undeclared ones, as a misspelt setting would have no effect."""

    if not TYPE_CHECKING:  # otherwise, type checkers would accept any attribute

        def __setattr__(self, name: str, value: object) -> None:
            # A misspelt setting would otherwise be a new attribute that is never read.
            if not hasattr(type(self), name) and name not in self.__dataclass_fields__:
                raise self._explain_missing(name)
            if isinstance(value, str | datetime.timedelta):
                value = self._to_number(name, value)
            else:
                self._check_type(name, value)
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> object:
            raise AttributeError(name) if name.startswith('_') else self._explain_missing(name)

    def _explain_missing(self, name: str) -> AttributeError:
        import difflib

        known = [field.lstrip('_') for field in self.__dataclass_fields__]  # type: ignore[attr-defined]
        names = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {names[0]!r}?" if names else "See the list of settings in the documentation."
        return AttributeError(f"There is no {name!r} in {type(self).__name__}. {hint}")

    def _check_type(self, name: str, value: object) -> None:
        """Raise `TypeError` for a value that would fail later, and far from the line that sets it."""
        field = self.__dataclass_fields__.get(name)  # type: ignore[attr-defined]
        wanted = getattr(field, 'type', None)
        where = f"{name!r} in {type(self).__name__}"
        if isinstance(wanted, type) and issubclass(wanted, _Group):
            if not isinstance(value, wanted):
                raise TypeError(
                    f"{where} is a group of settings: set them one by one, instead of setting it to {value!r}."
                )
        elif isinstance(value, type):
            raise TypeError(f"{where} must be an object, not a class: write {value.__name__}(...).")
        elif not isinstance(value, str) and (wanted is str or (wanted == str | None and value is not None)):
            raise TypeError(f"{where} must be a string, not {value!r}.")
        elif get_origin(wanted) is Iterable and not isinstance(value, Iterable):
            raise TypeError(f"{where} must be a list of numbers, not {value!r}.")
        elif get_origin(wanted) is SelectorMapping and not isinstance(value, SelectorMapping):
            raise TypeError(f"{where} is a mapping of resources: set its items, instead of setting it to {value!r}.")
        elif value is not None and (kind := _OBJECTS.get(name)) is not None and not hasattr(value, kind.method):
            raise TypeError(f"{where} must be {kind.title}, such as {kind.example}, not {value!r}.")

    def _check_text(self, name: str, value: object) -> None:
        """Raise `TypeError` or `ValueError` for a text that cannot be the value of the setting."""
        wanted = getattr(self.__dataclass_fields__.get(name), 'type', None)  # type: ignore[attr-defined]
        where = f"{name!r} in {type(self).__name__}"
        if wanted is bool:  # any text is true, 'false' and '0', too
            raise TypeError(f"{where} must be True or False, not {value!r}.")
        pattern = _NAMES.get(f'{type(self).__name__}.{name}')
        # Empty names are explained by what uses them.
        if pattern is not None and value and isinstance(value, str) and not pattern.fullmatch(value):
            raise ValueError(f"{where} cannot be {value!r}: {_EXPLANATIONS[pattern]}")
        self._check_type(name, value)

    def _to_number(self, name: str, value: Any) -> Any:
        """Convert strings, e.g. of environment variables, to numbers if a number is expected, or raise `TypeError`."""
        field = self.__dataclass_fields__.get(name)  # type: ignore[attr-defined]
        wanted = {getattr(field, 'type', None), *get_args(getattr(field, 'type', None))}
        if not wanted & {int, float}:
            self._check_text(name, value)
            return value
        if get_origin(getattr(field, 'type', None)) is Iterable:
            raise TypeError(f"{name!r} in {type(self).__name__} must be a list of numbers, not {value!r}.")
        try:
            return int(value) if int in wanted else float(value)
        except (TypeError, ValueError):
            where = f"{name.lstrip('_')!r} in {type(self).__name__}"
            listed = any(get_origin(each) is Iterable for each in wanted)
            what = "a number or a list of numbers" if listed else "a number"
            hint = f" Write logging.{value.upper()}." if name == 'level' and value.upper() in _LEVELS else ''
            raise TypeError(f"{where} must be {what}, not {value!r}.{hint}") from None


@dataclasses.dataclass
class ProcessSettings(_Group):
    """The life of the operator's process."""

    ultimate_exiting_timeout: float | None = 10 * 60
    """
    How long (in seconds) the operator can be exiting, before the process is killed regardless of what it is doing:
    e.g. because of threads that never end. `None` is forever.
    """


@dataclasses.dataclass
class PostingSettings(_Group):
    """Kubernetes events about the objects (``kubectl get events``)."""

    enabled: bool = True
    """Whether the events are posted at all: both explicit and made of log messages."""

    loggers: bool = True
    """Whether the messages of handlers' loggers are posted as events too."""

    handler_reasons: bool = False
    """Whether events of log messages have the id of their handler as the reason, if there is one, not ``Logging``."""

    level: int = logging.INFO
    """The minimal level of log messages and events to be posted, as a number from `logging`."""

    default_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """The delays (in seconds) between attempts to post an explicit event; after the last one, the event is lost."""

    logging_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5)
    """The delays (in seconds) between attempts to post a log message; after the last one, it is not posted."""

    worker_limit: int | None = None
    """How many events can be posted simultaneously. `None` is for no explicit limit."""

    idle_timeout: float = 1.0
    """How long (in seconds) the posting for an idle object is kept open, in case that more Events follow."""

    reporting_component: str = 'kopf'
    """The name of the controller in the events."""

    reporting_instance: str = 'dev'
    """The instance of the controller in the events, e.g. a pod name."""

    event_name_prefix: str = 'kopf-event-'
    """The prefix for names of the events, to which Kubernetes adds random characters."""


@dataclasses.dataclass
class PeeringSettings(_Group):
    """Coexistence with other operators for the same resources: one operator is active, others are paused."""

    name: str = 'default'
    """The name of the peering object."""

    stealth: bool = False
    """Whether the keep-alive activity is kept out of the logs; it goes on nevertheless."""

    priority: int = 0
    """The priority of this operator: the one with the highest priority is active."""

    lifetime: int = 60
    """How long (in seconds) the operator is considered alive after its last keep-alive."""

    mandatory: bool = False
    """Whether the operator waits for an absent peering object to be created; otherwise, it works without peering."""

    standalone: bool = False
    """Whether the peering is off, i.e. other operators are ignored."""

    clusterwide: bool = False
    """Whether the peering object is cluster-scoped (`True`) or is in every namespace of the operator (`False`)."""

    @property
    def namespaced(self) -> bool:
        """The opposite of `clusterwide`."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        self.clusterwide = not value


@dataclasses.dataclass
class LeadershipSettings(_Group):
    """Replicas of the operator: one of them is elected and handles the objects, the others wait and keep warm."""

    enabled: bool = False
    """Whether the replicas elect a leader, by a Lease in the cluster; the same as ``--leader-election``."""

    name: str | None = None
    """
    The name of the Lease. `None`: ``kopf-<operator>``, with `ApplyingSettings.operator`. All replicas of an operator
    need the same name, and different operators in one namespace need different names.
    """

    namespace: str | None = None
    """
    The namespace of the Lease. `None`: the namespace of the pod; outside of a cluster, the namespace of the context in
    the kubeconfig; otherwise, ``default``. All replicas of an operator need the same one.
    """

    duration: float = 15
    """
    After how long (in seconds) without a renewal another replica takes over. A leader that could not renew the Lease
    has stopped all its work by then; if it could not stop it, its process is ended.
    """

    renew_deadline: float = 10
    """
    After how long (in seconds) without a renewal the leader stops its work: handlers, daemons and timers are cancelled,
    and nothing is written any more. The rest of `duration` is the time that they have to stop.
    """

    retry_period: float = 2
    """How often (in seconds) the leader renews the Lease, and how soon a failed request is repeated."""


@dataclasses.dataclass
class ShardingSettings(_Group):
    """Members of a sharded operator: all of them work, each for its own part of the objects."""

    enabled: bool = False
    """Whether the operator is one of several members that share the objects; the same as ``--shards=auto``."""

    name: str | None = None
    """
    The name of the group, and of its Lease. `None`: ``kopf-<operator>-shards``, with `ApplyingSettings.operator`. All
    members of a group need the same name, and different operators in one namespace need different names.
    """

    namespace: str | None = None
    """
    The namespace of the Leases. `None`: the namespace of the pod; outside of a cluster, the namespace of the context in
    the kubeconfig; otherwise, ``default``. All members of a group need the same one.
    """

    buckets: int = 256
    """
    How many parts all objects are divided into. Members hold whole buckets, equally many. All members of a group need
    the same number: one with another number works only when all the others have ended.
    """

    key: Literal['uid', 'namespace'] = 'uid'
    """
    What decides on the bucket of an object: its uid; or its namespace, so that one member handles all objects of a
    namespace, and another one all objects without a namespace. All members of a group need the same key.
    """

    server_side: bool = True
    """
    Whether members request only their own objects from the API server. It selects them if it has the feature gate
    ``ShardedListAndWatch``, an alpha feature of Kubernetes 1.36; otherwise, it sends all objects in either case.
    """

    duration: float = 15
    """
    After how long (in seconds) without a renewal of its Lease the buckets of a member go to others. The member has
    stopped all its work by then; if it could not stop it, its process is ended.
    """

    renew_deadline: float = 10
    """
    After how long (in seconds) without a renewal a member stops its work: handlers, daemons and timers are cancelled,
    and nothing is written any more. The rest of `duration` is the time that they have to stop.
    """

    retry_period: float = 2
    """How often (in seconds) a member renews its Lease, and how soon a failed request is repeated."""


@dataclasses.dataclass
class WatchingSettings(_Group):
    """Lists of objects and streams of their changes."""

    server_timeout: float | None = None
    """The requested duration (in seconds) of a stream, after which the server closes it. `None`: the server decides."""

    client_timeout: float | None = None
    """
    How long (in seconds) a stream may last, with connecting, before the client closes it. `None` or zero is forever.
    """

    connect_timeout: float | None = None
    """
    How long (in seconds) connecting may last for a stream. `None` or zero: as for requests (see `NetworkingSettings`).
    """

    reconnect_backoff: float = 0.1
    """The delay (in seconds) between a stream's end and the next stream, to not overload the API."""

    inactivity_timeout: float = 70.0
    """
    How long (in seconds) a stream may be silent, with not even bookmarks coming, before it is considered broken.
    The servers send bookmarks every 60 seconds, and keep their history for 75 seconds.
    """

    chunk_size: int | None = None
    """How many objects are requested per page in the initial lists. `None` is for the framework's default."""

    initial_streaming: bool = False
    """Whether the initial lists are always requested as streams, even from servers that may not support it."""

    streaming_lists: bool = True
    """Whether the initial lists are requested as streams if the server supports that; otherwise in chunks."""

    label_selectors: SelectorMapping[str] = dataclasses.field(default_factory=SelectorMapping)
    """The label selectors by resources (``app=x,env!=y``): the servers send only the matching objects."""

    field_selectors: SelectorMapping[str] = dataclasses.field(default_factory=SelectorMapping)
    """The field selectors by resources (``metadata.name=x``): the servers send only the matching objects."""

    shard_selectors: SelectorMapping[str] = dataclasses.field(default_factory=SelectorMapping)
    """The shard selectors by resources: the servers send only the objects of this shard."""


@dataclasses.dataclass
class QueueingSettings(_Group):
    """Queueing of the changes of objects, and their processing by workers."""

    worker_limit: int | None = None
    """How many objects can be processed simultaneously, per resource kind and namespace. `None` is for no limit."""

    idle_timeout: float = 5.0
    """How long (in seconds) the processing of an idle object is kept open, in case that more changes follow."""

    exit_timeout: float | None = 2.0
    """How long (in seconds) the processing of objects may take on exit before it is cancelled. `None` is forever."""

    error_delays: Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
    """
    The delays (in seconds) before an object is processed again after unexpected errors of the framework or of the API;
    the last one is repeated forever; with none of them, there are almost no delays. They restart after a success. Any
    object that can be iterated several times is accepted, even an infinite one. Errors in handlers are not affected.
    """

    _batch_window: float = dataclasses.field(default=0.1, repr=False)

    @property
    def batch_window(self) -> float:
        """Deprecated: has no effect (seconds)."""
        self._warn_of_batching()
        return self._batch_window

    @batch_window.setter
    def batch_window(self, value: float) -> None:
        self._warn_of_batching()
        self._batch_window = value

    def _warn_of_batching(self) -> None:
        warnings.warn(
            "Events are not batched by time any more, so settings.queueing.batch_window has no effect. Do not set it.",
            DeprecationWarning,
            stacklevel=3,
        )


@dataclasses.dataclass
class ScanningSettings(_Group):
    """Discovery of resources and namespaces."""

    disabled: bool = False
    """Whether only the resources and namespaces that exist at the startup are served; namespaces by names only."""

    permissions: str | None = None
    """
    What happens at the start if the operator's account lacks permissions for its handlers: with ``'warn'``, a warning
    names each missing rule; with ``'require'``, the operator ends; with ``'off'``, the permissions are not reviewed.
    `None`: ``'warn'`` if there are level-triggered handlers or declared kinds; otherwise, ``'off'``.
    """


@dataclasses.dataclass
class AdmissionSettings(_Group):
    """Admission webhooks, by which the API asks the operator to validate or mutate objects."""

    server: reviews.WebhookServerProtocol | None = None
    """
    The server or tunnel to which the API sends the requests: anything that can be called with a webhook function
    and that yields client configs (see `kopf.WebhookServer`). `None`: no admission handlers are allowed.
    """

    managed: str | None = None
    """The name of the webhook configurations that the operator keeps up to date. `None`: it does not touch them."""


def _log_waiting(threads: int) -> None:
    logger.info(
        "All the %d threads of sync handlers are in use; further handlers wait until some of them end. "
        "If it takes too long, raise settings.execution.max_workers, or make the handlers async.",
        threads,
    )


class _Executor:
    # The thread pool is created on the first access: operators with only async handlers do not need it.

    @overload
    def __get__(self, instance: None, owner: type) -> None: ...

    @overload
    def __get__(self, instance: 'ExecutionSettings', owner: type) -> concurrent.futures.Executor: ...

    def __get__(self, instance: 'ExecutionSettings | None', owner: type) -> concurrent.futures.Executor | None:
        if instance is None:
            return None  # the default value for the constructor
        executor: concurrent.futures.Executor | None = instance.__dict__['_executor']
        if executor is None:
            from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool

            executor = DaemonicThreadPool(max_workers=instance.max_workers, on_full=_log_waiting)
            instance.__dict__['_executor'] = executor
        return executor

    def __set__(self, instance: 'ExecutionSettings', value: concurrent.futures.Executor | None) -> None:
        instance.__dict__['_executor'], instance.__dict__['_is_executor_replaced'] = value, value is not None


@dataclasses.dataclass
class ExecutionSettings(_Group):
    """Running of handlers."""

    default_backoff: float = 60
    """The delay (in seconds) before a retry after an arbitrary error in a handler that has no ``backoff=``."""

    executor: _Executor = _Executor()
    """
    The executor for sync handlers: by default, a thread pool, which logs a message when it is full for the first time.
    By default, logins, index functions, and handlers of webhooks and probes have other threads, as handlers can wait
    for them; if this executor is replaced, they run there, too. Handlers that have started in the former executor
    finish there. This includes the startup handler that replaces it, so that handler is better async.
    """

    blocking_limit: float | None = 1.0
    """
    How long (in seconds) an async handler may block the event loop, before it is reported in the logs: with the line
    where it does so, and once for each handler. `None`: blocks are not reported. This is for debugging; for restarts
    of an operator that hangs, see `ProbingSettings`.
    """

    _max_workers: int | None = dataclasses.field(default=None, repr=False)

    @property
    def is_executor_replaced(self) -> bool:
        """True if the executor is not the default one."""
        return bool(self.__dict__['_is_executor_replaced'])

    @property
    def max_workers(self) -> int | None:
        """
        The limit of sync handlers running simultaneously: the size of the thread pool. `None`: the default of Python.

        It cannot be less than 1. It has no effect on executors that are not thread pools.
        """
        return self._max_workers

    @max_workers.setter
    def max_workers(self, value: int | str) -> None:
        # The group converts only texts of fields, and this is a property.
        number: int = self._to_number('_max_workers', value) if isinstance(value, str) else value
        if number < 1:
            raise ValueError(f"At least one thread is needed for sync handlers, so max_workers cannot be {number!r}.")
        self._max_workers = number
        executor = self.__dict__['_executor']
        if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            executor._max_workers = number  # why not a new pool? it would not count the handlers of the old one
        elif executor is not None:
            warnings.warn(f"max_workers has no effect on {executor!r}: not a thread pool.", UserWarning, stacklevel=2)


@dataclasses.dataclass
class BackgroundSettings(_Group):
    """Running of daemons and timers."""

    max_threads: int = 500
    """
    How many sync daemons can run simultaneously: each has a thread of its own, besides those of the other handlers.
    The others wait for a thread, with a warning in the logs.
    """

    cancellation_polling: float = 60
    """The interval (in seconds) of log messages about a daemon that does not stop, unless set for the daemon."""

    instant_exit_timeout: float | None = None
    """
    How long (in seconds) the daemons are waited for right after they were asked to stop, in the hope that they exit
    at once: then, the object needs no second round of processing. `None`: this time is zero.
    """

    instant_exit_zero_time_cycles: int | None = 10
    """The same, but in cycles of the event loop, which take almost no time. `None` is for no such cycles."""


@dataclasses.dataclass
class NetworkingSettings(_Group):
    """Connections and requests to the API, except for the streams (see `WatchingSettings`)."""

    request_timeout: float | None = 5 * 60
    """
    How long (in seconds) a request may take in full, from connecting to reading the response. `None` or zero is
    forever.
    """

    connect_timeout: float | None = None
    """How long (in seconds) connecting may take. `None` or zero: only the whole request is limited."""

    error_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8, 13, 21)
    """
    The delays (in seconds) between attempts of a request in case of errors in the network or in the servers; when
    there are no more of them, the error escalates. One number is one delay, i.e. two attempts. Any object that can be
    iterated several times is accepted, even if it is infinite.
    """

    login_backoffs: float | Iterable[float] = (1, 1, 2, 3, 5, 8)
    """
    The delays (in seconds) before credentials that the server has refused (401) are tried again, if the login handlers
    have no others: it can be a fault of the server; or if their new ones are refused, too. The login handlers are
    called again each time, and all requests wait. When there are no more delays, the operator ends; and after the first
    one already if the server has not accepted any credentials yet. They restart after a success. Any object that can be
    iterated several times is accepted; with none of them, the operator ends at the first refusal. If the server accepts
    the credentials for other requests, neither happens: only the refused requests fail.
    """

    enforce_retry_after: bool = False
    """
    Which delay is used when the server refuses too many requests: exactly the one that the server requests (`True`),
    or the client's own delay if that is longer (`False`).
    """

    trust_env: bool = False
    """Whether the proxies and credentials are taken from the environment variables and ``~/.netrc``."""

    max_connections: int = 16
    """
    How many requests can be in flight to one server simultaneously, i.e. how many connections are used for them; the
    streams and the Events have connections of their own. Requests that are not answered within a second count only for
    others about the same resource.
    """

    requests_per_second: float | None = 1000
    """
    How many requests per second are made to one server in the long run, streams included. `None` or zero: as many
    as possible. Further requests are queued; those about recent changes of objects go first.
    """

    requests_burst: int = 1000
    """How many requests can be made above `requests_per_second` after a time of fewer requests."""


@dataclasses.dataclass
class PersistenceSettings(_Group):
    """The data stored in objects: the finalizer, the progress of handlers, the last-handled configuration."""

    finalizer: str = 'kopf.zalando.org/KopfFinalizerMarker'
    """The finalizer that keeps an object from disappearing before its deletion is handled."""

    progress_storage: progress.ProgressStorage = dataclasses.field(default_factory=progress.SmartProgressStorage)
    """Where the progress of handlers is stored between attempts."""

    diffbase_storage: diffbase.DiffBaseStorage = dataclasses.field(default_factory=diffbase.AnnotationsDiffBaseStorage)
    """Where the last-handled configuration is stored, with which the changes are detected."""

    store_secrets: bool = False
    """
    Whether the data of Secrets are stored as they are in the last-handled configuration, which is usually
    an annotation. By default, only their digests are stored: changes are detected, and unchanged values are shown
    as they are. For a changed value, the handlers get the digest of the old one in ``old`` and ``diff``.
    """

    consistency_timeout: float = 5.0
    """
    How long (in seconds) the operator waits for the patched state of the object before the next handling.
    After that, the known state is considered consistent. Zero disables the waiting.
    """


@dataclasses.dataclass
class ApplyingSettings(_Group):
    """Server-side apply: objects that handlers apply, such as children."""

    operator: str = 'operator'
    """
    The name of the operator: the field manager of children is ``kopf-<operator>``, that of other applied objects is
    ``kopf-<operator>/apply``. Operators that apply children of the same objects need different names. With another
    name, the operator does not know its former children.
    """


@dataclasses.dataclass
class ProbingSettings(_Group):
    """The liveness and readiness endpoints."""

    cache_lifetime: float = 10.0
    """How long (in seconds) the results of the probes are shown before the probes are run again."""

    timeout: float = 10.0
    """How long (in seconds) the probes may take. Then the operator is reported as failing."""

    failing_watch_limit: float | None = 300.0
    """
    How long (in seconds) a watch-stream may fail before the operator is reported as failing. `None`: forever.

    Missing permissions do not count, because a restart of the operator does not help against them.
    """

    stuck_loop_limit: float | None = 60.0
    """How long (in seconds) the event loop may be blocked before it is reported as failing. `None`: forever."""


@dataclasses.dataclass
class MetricsSettings(_Group):
    """The metrics for Prometheus."""

    endpoint: str | None = None
    """
    The URL where the metrics are served, such as ``http://0.0.0.0:9090/metrics``. `None`: there are no metrics. It is
    read after the startup handlers; ``kopf run --metrics`` sets it.
    """

    registry: Any = None
    """The registry of ``prometheus_client`` with the metrics of the program. `None`: the default one of the library."""

    timeout: float = 10.0
    """How long (in seconds) the metrics may be collected. Then the request fails."""


@dataclasses.dataclass
class TracingSettings(_Group):
    """The traces for OpenTelemetry."""

    enabled: bool = False
    """Whether there are traces. It is read after the startup handlers; ``kopf run --tracing`` sets it."""

    provider: Any = None
    """
    The ``TracerProvider`` for the traces. `None`: that of the program (``set_tracer_provider``); if there is none, one
    that is configured by the ``OTEL_*`` variables of the environment.
    """


@dataclasses.dataclass
class InspectingSettings(_Group):
    """Looking into the running operator with ``kopf top`` and the inspector."""

    enabled: bool = False
    """Whether it is possible. It is read after the startup handlers; ``kopf run --inspect`` sets it."""

    port: int = 0
    """The port on the loopback interface. Zero: any free one, which is written into the file with the token."""

    token: str | None = None
    """The token that requests need. `None`: a random one."""

    folder: str | None = None
    """The folder for the file with the address and the token. `None`: that of the user for running programs."""

    entries: int = 20_000
    """
    How many entries the timelines of all objects have together, for the inspector: 1-2 KB of memory each. Objects
    with the oldest news lose their timelines first. Zero: nothing is recorded.
    """


@dataclasses.dataclass
class OperatorSettings(_Group):
    """All settings of an operator, by groups."""

    process: ProcessSettings = dataclasses.field(default_factory=ProcessSettings)
    posting: PostingSettings = dataclasses.field(default_factory=PostingSettings)
    peering: PeeringSettings = dataclasses.field(default_factory=PeeringSettings)
    leadership: LeadershipSettings = dataclasses.field(default_factory=LeadershipSettings)
    sharding: ShardingSettings = dataclasses.field(default_factory=ShardingSettings)
    watching: WatchingSettings = dataclasses.field(default_factory=WatchingSettings)
    queueing: QueueingSettings = dataclasses.field(default_factory=QueueingSettings)
    scanning: ScanningSettings = dataclasses.field(default_factory=ScanningSettings)
    admission: AdmissionSettings = dataclasses.field(default_factory=AdmissionSettings)
    execution: ExecutionSettings = dataclasses.field(default_factory=ExecutionSettings)
    background: BackgroundSettings = dataclasses.field(default_factory=BackgroundSettings)
    networking: NetworkingSettings = dataclasses.field(default_factory=NetworkingSettings)
    persistence: PersistenceSettings = dataclasses.field(default_factory=PersistenceSettings)
    probing: ProbingSettings = dataclasses.field(default_factory=ProbingSettings)
    metrics: MetricsSettings = dataclasses.field(default_factory=MetricsSettings)
    tracing: TracingSettings = dataclasses.field(default_factory=TracingSettings)
    inspecting: InspectingSettings = dataclasses.field(default_factory=InspectingSettings)
    applying: ApplyingSettings = dataclasses.field(default_factory=ApplyingSettings)

    @property
    def batching(self) -> QueueingSettings:
        """Deprecated: an old name of `queueing`."""
        warnings.warn("settings.batching is now settings.queueing. Please rename.", DeprecationWarning, stacklevel=2)
        return self.queueing
