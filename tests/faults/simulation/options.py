"""What a run is like: drawn from its seed, or given by hand to narrow a failure down."""

import dataclasses


@dataclasses.dataclass
class Options:
    """
    The options of a run.

    Times are in seconds, rates are shares of one.
    """

    scope: str  # 'cluster', 'pattern' or 'specific': which namespaces are served
    selecting: str  # '', 'settings' or 'decorators': whether only objects with the label app=x are served, and by what
    peering: str  # '', 'optional' or 'mandatory'
    storage: str  # where progress and last-handled states are stored; see `storages`
    worker_limit: int | None
    streaming_lists: bool
    status_subresource: bool
    managing: bool  # whether there are handlers of changes, daemons and timers
    spawning: bool
    indexing: bool
    levels: bool
    children: bool
    limited: bool  # handlers with retries and time-outs
    sync: bool
    lifecycle: str
    daemon_backoff: float | None
    daemon_timeout: float | None
    level_interval: float | None
    level_backoff: float
    daemon_threads: int
    handler_threads: int
    consistency_timeout: float
    slow_handlers: float
    error_rate: float
    patching_spec: bool
    patching_functions: bool
    posting: bool
    slowness: float
    lagging: float
    pause: float  # the longest usual pause between two actions
    faults: int  # how often the API fails
    killing: bool
    rivals: bool  # whether there are several operators at once
    restoring: bool  # whether the cluster is restored from a back-up
    clocks: bool  # whether the wall clock is changed, and the machine suspended
    conflicts: bool
    refusals: bool
    downtimes: bool
    migrating: bool  # whether the storages change from one start to the next
    relabelling: bool
    applying: bool = False  # whether a level-triggered handler applies children
    conditions: bool = False
    remote: bool = False  # whether some children are in other namespaces
    concurrency: int | None = None
    applying_timeout: float | None = None
    electing: str = ''  # never drawn: '', 'election' or 'shards': how the operators agree by Leases
    forbidding: bool = False  # whether the permissions for some resources or namespaces are missing for a while
    pruning: bool = False  # whether the schema has no status, so that the API server drops what is stored there
    odd: bool = False  # whether there are timers and indices with unusual options
    observing: bool = False  # whether handlers of raw events take their time, fail, and patch
    pausing: bool = False  # whether peers come and go all the time
    fleeting: bool = False  # whether fields come and go, with handlers of their own
    disturbing: bool = False  # whether timers patch what other handlers are for
    clusterwide_kind: bool = False  # whether the objects are in no namespace
    sharing: bool = False  # whether there are two handlers that apply children, and hand them over to each other
    twins: str = ''  # '', 'stacked' or 'category': how these handlers are also for another kind
    scanning: bool = True  # whether new kinds and namespaces are looked for
    outages: bool = False  # whether some API groups are down for a while
    deleting: bool = False  # whether there are deletion handlers with limits, and such that match only some objects
    remembering: bool = False  # whether the handlers check the memos
    upgrading: bool = False  # whether each start is of other code, without some of the handlers
    matching: bool = False  # whether there are handlers that match only while the object has a label
    stacking: bool = False  # whether there are functions with several decorators
    mutating: str = ''  # '', 'values' or 'stamps': what webhooks write beside the changes of others; see `mutating`
    blind: bool = False  # never drawn: whether the operators serve another label than the checks expect


def _draw_handlers(rng):
    chance = lambda share: rng.random() < share  # noqa: E731  # it reads as a table
    choice = rng.choice
    return {
        'managing': chance(0.93),
        'spawning': chance(0.6),
        'indexing': chance(0.6),
        'levels': chance(0.5),
        'children': chance(0.5),
        'limited': chance(0.5),
        'sync': chance(0.5),
        'lifecycle': choice(['asap', 'asap', 'all_at_once', 'one_by_one', 'randomized']),
        'daemon_backoff': choice([None, 0.1, 2]),
        'daemon_timeout': choice([None, None, 0.2, 3]),
        'level_interval': choice([None, None, 2]),
        'level_backoff': choice([0.2, 1]),
        'daemon_threads': choice([1000, 1000, 2]),
        'handler_threads': choice([1000, 1000, 1]),
        'slow_handlers': choice([0.4, 0.4, 6]),
        'error_rate': choice([0, 0.15, 0.15, 0.5]),
        'patching_spec': chance(0.3),
        'patching_functions': chance(0.3),
    }


def draw(rng):
    """Draw options that fit together."""
    chance = lambda share: rng.random() < share  # noqa: E731  # it reads as a table
    choice = rng.choice
    options = Options(
        **_draw_handlers(rng),
        scope=choice(['cluster', 'pattern', 'pattern', 'specific']),
        selecting=choice(['', '', 'settings', 'decorators']),
        peering=choice(['', '', 'optional', 'mandatory']),
        storage=choice(['annotations'] * 4 + ['status', 'flaky', 'database', 'smart']),
        worker_limit=choice([None, None, 1, 3]),
        streaming_lists=chance(0.6),
        status_subresource=chance(0.4),
        consistency_timeout=choice([5, 5, 1, 30]),
        posting=chance(0.2),
        slowness=choice([1] * 6 + [10, 10, 100, 300]),
        lagging=choice([0.0, 0.05, 0.3]),
        pause=choice([0.05, 0.5, 3]),
        faults=choice([0, 1, 1, 3]),
        killing=chance(0.4),
        rivals=chance(0.4),
        restoring=chance(0.08),
        clocks=chance(0.25),
        conflicts=chance(0.3),
        refusals=chance(0.25),
        downtimes=chance(0.5),
        migrating=chance(0.25),
        relabelling=chance(0.3),
    )
    # Drawn last, so that the other options of a seed stay the same.
    options.applying, options.conditions, options.remote = chance(0.4), chance(0.5), chance(0.4)
    options.concurrency, options.applying_timeout = choice([None, None, 1]), choice([None, None, 2])
    options.forbidding, options.odd = chance(0.3), chance(0.4)
    options.pruning = options.storage == 'status' and chance(0.5)
    options.observing, options.pausing = chance(0.3), chance(0.3)
    options.fleeting, options.disturbing, options.clusterwide_kind = chance(0.4), chance(0.2), chance(0.15)
    options.sharing, options.twins = chance(0.5), choice(['', '', 'stacked', 'category'])
    options.outages, options.deleting, options.remembering = chance(0.3), chance(0.4), chance(0.5)
    options.scanning, options.upgrading, options.matching = chance(0.85), chance(0.25), chance(0.4)
    options.stacking, options.mutating = chance(0.4), choice(['', '', 'values', 'stamps'])
    fit(options)
    options.remote = options.remote and options.scope == 'cluster'  # where no namespace is deleted
    if options.peering:
        # Peers that are too slow, or whose clocks differ, cannot agree; and they wait only for some seconds.
        options.slowness, options.clocks = min(options.slowness, 10), False
        options.slow_handlers = min(options.slow_handlers, 3)
    return options


def fit(options):
    """Adjust options that contradict each other; called again for those that are given by hand."""
    if options.pruning:  # all is only in memory
        options.killing = options.rivals = options.downtimes = options.migrating = options.restoring = False
        options.conditions = False
    if options.storage in ('flaky', 'database'):
        # Storages of users may drop the mark of an edited creation, so any record of a creation counts as such a one,
        # also of handlers that were away at the end of it.
        options.upgrading = False
    if options.clusterwide_kind:
        options.children = options.applying = False  # they are in the namespaces of the objects
    if options.scope == 'pattern' or options.electing:
        options.scanning = True  # namespaces are served by their names only; Leases are in one of their own
    if not options.applying:
        options.sharing, options.twins = False, ''
