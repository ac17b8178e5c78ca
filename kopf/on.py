"""
The decorators that declare handlers: ``@kopf.on.create('kopfexamples')``, ``@kopf.on.startup()``, and the others.

Each resource decorator takes up to three positional arguments that name the resource (see "Resources"
in the documentation), the options of its kind of handlers, and an optional ``registry``. All of them return the
decorated function unchanged, so that they can be stacked. A wrong option raises `TypeError` or `ValueError` at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack, get_args, overload

from kopf._cogs.structs.dicts import FieldSpec, parse_field
from kopf._core.intents import declarations as _declarations
from kopf._core.intents.causes import Activity, Reason
from kopf._core.intents.declarations import Name, SubName
from kopf._core.intents.handlers import (
    ActivityHandler,
    ActivityOptions,
    ChangingHandler,
    ConversionHandler,
    ConversionOptions,
    DaemonHandler,
    DaemonOptions,
    DeleteOptions,
    EventOptions,
    FieldOptions,
    IndexingHandler,
    OperationName,
    ReconcileOptions,
    ReconcilingHandler,
    ResumeOptions,
    ScheduleHandler,
    ScheduleOptions,
    SubHandlerOptions,
    TimerHandler,
    TimerOptions,
    UpdateOptions,
    WatchingHandler,
    WebhookHandler,
    WebhookOptions,
    WebhookType,
)
from kopf._core.intents.options import RetriedOptions
from kopf._core.intents.signatures import describing_options as _describing_options

if TYPE_CHECKING:
    from kopf._core.intents.typed_functions import HasSpec, TypedDecorator

FnT = TypeVar('FnT', bound=Callable[..., Any])
ModelT = TypeVar('ModelT', bound='HasSpec[Any]')

_OPERATIONS: tuple[OperationName, ...] = get_args(OperationName)


@_describing_options(ActivityOptions)
def startup(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """Run the function when the operator starts, before any request to the API; if it fails, the operator ends."""
    return _declarations.declare_activity(ActivityHandler, 'startup', misplaced, options, activity=Activity.STARTUP)


@_describing_options(ActivityOptions)
def cleanup(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """
    Run the function when the operator ends, after all its work has stopped.

    Args:
        backoff: the delay after an error (in seconds); by default, 1.
    """
    return _declarations.declare_activity(ActivityHandler, 'cleanup', misplaced, options, activity=Activity.CLEANUP)


@_describing_options(ActivityOptions)
def leading(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """
    Run the function when this replica of the operator is elected, before it handles any objects.

    If the function fails permanently, the operator ends, and another replica is elected. It is not called if
    ``settings.leadership`` is off.
    """
    return _declarations.declare_activity(ActivityHandler, 'leading', misplaced, options, activity=Activity.LEADING)


@_describing_options(ActivityOptions)
def yielding(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """
    Run the function when this replica of the operator stops leading.

    At the end of the operator, it is called when all work has stopped, and before another replica is elected. If the
    Lease could not be renewed in time, it is called at once, and the process is ended if it takes too long.
    """
    return _declarations.declare_activity(ActivityHandler, 'yielding', misplaced, options, activity=Activity.YIELDING)


@_describing_options(ActivityOptions)
def login(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """Call the function to log in to the API: it returns a `kopf.ConnectionInfo`, or ``None``."""
    return _declarations.declare_activity(
        ActivityHandler, 'login', misplaced, options, activity=Activity.AUTHENTICATION
    )


@_describing_options(ActivityOptions)
def probe(*misplaced: Never, **options: Unpack[ActivityOptions]) -> Callable[[FnT], FnT]:
    """Call the function for the liveness endpoint, and include its result in the response."""
    return _declarations.declare_activity(ActivityHandler, 'probe', misplaced, options, activity=Activity.PROBE)


@_describing_options(ScheduleOptions)
def schedule(
    *misplaced: Never,
    interval: float,
    **options: Unpack[ScheduleOptions],
) -> Callable[[FnT], FnT]:
    """
    Run the function periodically while the operator runs, independently of objects.

    The first run is when the operator begins to serve. Runs never overlap, and none begins while the operator is paused
    because of its peers. A permanent failure ends only its run, not the schedule.

    Args:
        interval: the time from the end of one run to the beginning of the next one (in seconds).
        initial_delay: the time from the start of the operator to the first run (in seconds).
        sharp: whether the interval is between the beginnings of the runs. Missed runs are skipped.
    """
    if not misplaced and not interval:
        raise ValueError("@kopf.on.schedule: interval= must be above zero: the function would be run without a pause.")
    return _declarations.declare_activity(
        ScheduleHandler, 'schedule', misplaced, {**options, 'interval': interval}, activity=Activity.SCHEDULE
    )


@overload
def event(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[EventOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def event(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[EventOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(EventOptions)
def event(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[EventOptions],
) -> Callable[[FnT], FnT]:
    """Run the function for each event of the objects, as it comes from the API; errors are logged and ignored."""
    return _declarations.declare(WatchingHandler, 'event', (arg1, arg2, arg3), options)


@overload
def create(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[RetriedOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def create(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[RetriedOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(RetriedOptions)
def create(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[RetriedOptions],
) -> Callable[[FnT], FnT]:
    """Run the function when an object is seen that was never handled before."""
    return _declarations.declare(ChangingHandler, 'create', (arg1, arg2, arg3), options, reason=Reason.CREATE)


@overload
def update(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[UpdateOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def update(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[UpdateOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(UpdateOptions)
def update(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[UpdateOptions],
) -> Callable[[FnT], FnT]:
    """Run the function when an object differs from its last handled state; with ``field``, if the field differs."""
    return _declarations.declare(
        ChangingHandler,
        'update',
        (arg1, arg2, arg3),
        options,
        shape=UpdateOptions,
        reason=Reason.UPDATE,
        needs_change=True,
    )


@overload
def resume(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[ResumeOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def resume(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[ResumeOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(ResumeOptions)
def resume(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[ResumeOptions],
) -> Callable[[FnT], FnT]:
    """
    Run the function once for each object that existed before the operator started.

    With ``deleted=True``, also for those that are being deleted.
    """
    _declarations.check_flags('resume', ResumeOptions, options)
    deleted = bool(options.pop('deleted', None))
    return _declarations.declare(ChangingHandler, 'resume', (arg1, arg2, arg3), options, initial=True, deleted=deleted)


@overload
def delete(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[DeleteOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def delete(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[DeleteOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(DeleteOptions)
def delete(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[DeleteOptions],
) -> Callable[[FnT], FnT]:
    """
    Run the function when an object is being deleted; the object stays until it has succeeded or failed for good.

    With ``optional=True``, the handler does not hold the object: it may be gone before the handler has run.
    """
    _declarations.check_flags('delete', DeleteOptions, options)
    optional = bool(options.pop('optional', None))
    return _declarations.declare(
        ChangingHandler,
        'delete',
        (arg1, arg2, arg3),
        options,
        reason=Reason.DELETE,
        requires_finalizer=not optional,
    )


@overload
def field(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, *, field: FieldSpec, **options: Unpack[FieldOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def field(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    *,
    field: FieldSpec,
    **options: Unpack[FieldOptions],
) -> Callable[[FnT], FnT]: ...
@_describing_options(FieldOptions)
def field(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    *,
    field: FieldSpec,
    **options: Unpack[FieldOptions],
) -> Callable[[FnT], FnT]:
    """Run the function when the field of an object is added, changed or removed: by its creation too."""
    if not parse_field(field):
        raise TypeError("@kopf.on.field: field= must name a field, such as 'spec.items'.")
    return _declarations.declare(
        ChangingHandler,
        'field',
        (arg1, arg2, arg3),
        {**options, 'field': field},
        shape=UpdateOptions,
        needs_change=True,
    )


@overload
def reconcile(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[ReconcileOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def reconcile(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[ReconcileOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(ReconcileOptions, owns=(), backoff=(1, 600), conditions=False, prune=True)
def reconcile(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[ReconcileOptions],
) -> Callable[[FnT], FnT]:
    """
    Run the function when an object, or anything that it depends on, can have changed.

    The function makes the actual state match the desired one. It is also run when the operator starts, and never twice
    at the same time for one object. A run sees all changes made before it; changes made during a run cause one more.
    Nothing is stored on the object. The function can return `kopf.Again` to be run once more after some time. See
    "Reconcile objects" in the documentation.

    Args:
        owns: the resources whose objects have owner references to objects of the handler.
        watches: the other resources that the handler reads, each with a function that returns which objects of the
            handler depend on an object of that resource: a list of pairs of a namespace and a name. They have no
            ``label_selector=``: set ``settings.watching.label_selectors`` to watch only some objects of a resource.
        interval: how often to run the function if nothing happens (in seconds, varied by a tenth).
        timeout: how long one run may take (in seconds). After it, a coroutine is cancelled; a thread is left.
        concurrency: for how many objects the function may run at once; by default, there is no limit but that of the
            workers.
        backoff: the first delay after an error, and the longest one (in seconds); each is twice the previous one.
        retries: how many attempts there are until the next change; by default, there is no limit.
        conditions: whether to keep the conditions ``Ready``, ``Reconciling`` and ``Stalled`` of the objects.
        prune: whether the children are deleted that a successful run has not applied; see "React to child objects".
    """
    _declarations.check_flags('reconcile', ReconcileOptions, options)
    owns, watches = options.pop('owns', ()), options.pop('watches', None)
    backoff, timeout = options.pop('backoff', (1, 600)), options.pop('timeout', None)
    conditions, prune = options.pop('conditions', False), options.pop('prune', True)
    _declarations.check_positive('reconcile', {**options, 'timeout': timeout}, ('interval', 'timeout', 'concurrency'))
    return _declarations.declare(
        ReconcilingHandler,
        'reconcile',
        (arg1, arg2, arg3),
        options,
        sources=_declarations.parse_sources('reconcile', owns, watches),
        backoffs=_declarations.parse_backoff('reconcile', backoff),
        run_timeout=timeout,
        conditions=_declarations.parse_flag('reconcile', 'conditions', conditions),
        prune=bool(prune),
    )


@overload
def index(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[RetriedOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def index(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[RetriedOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(RetriedOptions)
def index(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[RetriedOptions],
) -> Callable[[FnT], FnT]:
    """
    Build an index from the function's results for all objects; handlers get it under the function's name.

    Args:
        errors: what an unknown error means; by default, ``kopf.ErrorsMode.IGNORED``: the object is not indexed.
        id: the name of the index; by default, the name of the function.
    """
    return _declarations.declare(IndexingHandler, 'index', (arg1, arg2, arg3), options)


@overload
def daemon(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[DaemonOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def daemon(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[DaemonOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(DaemonOptions)
def daemon(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[DaemonOptions],
) -> Callable[[FnT], FnT]:
    """Run the function for each object while the object exists."""
    return _declarations.declare(DaemonHandler, 'daemon', (arg1, arg2, arg3), options)


@overload
def timer(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[TimerOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def timer(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[TimerOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(TimerOptions)
def timer(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[TimerOptions],
) -> Callable[[FnT], FnT]:
    """Run the function for each object periodically, while the object exists."""
    return _declarations.declare(TimerHandler, 'timer', (arg1, arg2, arg3), options)


@overload
def validate(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[WebhookOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def validate(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[WebhookOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(WebhookOptions)
def validate(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[WebhookOptions],
) -> Callable[[FnT], FnT]:
    """Call the function before an object is stored; it can deny the request by raising `kopf.AdmissionError`."""
    return _webhook(WebhookType.VALIDATING, 'validate', (arg1, arg2, arg3), options)


@overload
def mutate(  # type: ignore[overload-overlap]
    model: 'type[ModelT]', /, **options: Unpack[WebhookOptions]
) -> 'TypedDecorator[ModelT]': ...
@overload
def mutate(
    arg1: Name = None, arg2: SubName = None, arg3: SubName = None, /, **options: Unpack[WebhookOptions]
) -> Callable[[FnT], FnT]: ...
@_describing_options(WebhookOptions)
def mutate(
    arg1: Name = None,
    arg2: SubName = None,
    arg3: SubName = None,
    /,
    **options: Unpack[WebhookOptions],
) -> Callable[[FnT], FnT]:
    """Call the function before an object is stored; it can change the object by its ``patch``."""
    return _webhook(WebhookType.MUTATING, 'mutate', (arg1, arg2, arg3), options)


@_describing_options(ConversionOptions)
def convert(
    arg1: Name = None,
    arg2: SubName | type[Any] = None,
    arg3: SubName = None,
    /,
    **options: Unpack[ConversionOptions],
) -> Callable[[FnT], FnT]:
    """
    Call the function when the API needs to convert objects of a custom resource from one version to another.

    The function gets the object as ``body``, ``spec``, and so on, besides ``from_version`` and ``to_version``. It
    returns the whole object in the new version, or changes it by ``patch``. ``apiVersion``, ``kind`` and all of the
    metadata but labels and annotations are filled in. If there is no function for two versions, a chain of functions
    is used where there is one. With the classes of two versions, ``@kopf.on.convert(Old, New)``, it gets and returns
    objects of these classes. See "Convert objects between versions" in the documentation.

    Args:
        arg1: the name of the resource, its group if the name follows, or the class of the first version.
        arg2: the name of the resource, if its group is ``arg1``, or the class of the other version.
        arg3: is not used, as the name is without a version.
        from_version: the version (``"v1"``) or versions that it converts from; by default, all.
        to_version: the version or versions that it converts to; by default, all.
        persistent: whether the CRD keeps referring to the operator after the operator ends, so that objects cannot
            be converted until it is back; this is the default. With ``False``, the former strategy of the CRD is
            restored: usually, no conversion at all. Then the API serves and stores the objects of one version
            as if they were of another.

    Raises:
        TypeError: if the resource is named with a version.
        ValueError: if a version is no version, or if no two different versions are left to convert between.
    """
    model = target = None
    if isinstance(arg1, type) or isinstance(arg2, type):
        model, target = _declarations.find_versions(arg1, arg2, options)
        arg1, arg2 = model.group, model.plural
        options = {**options, 'from_version': model.version, 'to_version': target.version}
    from_versions = _declarations.parse_versions('from_version', options.pop('from_version', None))
    to_versions = _declarations.parse_versions('to_version', options.pop('to_version', None))
    if from_versions is not None and from_versions == to_versions and len(from_versions) == 1:
        raise ValueError("@kopf.on.convert: from_version= and to_version= must be different versions.")
    _declarations.check_flags('convert', ConversionOptions, options)
    persistent = options.pop('persistent', None)
    return _declarations.declare(
        ConversionHandler,
        'convert',
        (arg1, arg2, arg3),
        options,
        model=model,
        target=target,
        from_versions=from_versions,
        to_versions=to_versions,
        persistent=persistent is None or persistent,
    )


def _webhook(
    type: WebhookType,
    name: str,
    names: tuple[Name, SubName, SubName],
    options: WebhookOptions,
) -> Callable[[FnT], FnT]:
    operation, operations = options.pop('operation', None), options.pop('operations', None)
    if isinstance(operations, str):
        raise TypeError(f"@kopf.on.{name}: operations= must be a collection of names; for one, use operation=.")
    if operations is not None and not operations:
        raise ValueError(f"@kopf.on.{name}: operations= must not be empty; for all of them, leave it out.")
    chosen = operations if operation is None else list(dict.fromkeys([*(operations or ()), operation]))
    if unknown := set(chosen or ()) - {*_OPERATIONS, '*'}:
        raise ValueError(
            f"@kopf.on.{name}: there is no operation {unknown.pop()!r}; there are: {', '.join(_OPERATIONS)}."
        )
    if '*' in (chosen or ()):
        chosen = _OPERATIONS
    return _declarations.declare(WebhookHandler, name, names, options, type=type, operations=chosen)


@_describing_options(SubHandlerOptions)
def subhandler(**options: Unpack[SubHandlerOptions]) -> Callable[[FnT], FnT]:
    """
    Add the function as a sub-handler of the handler that is being run.

    The parent is finished only when all its sub-handlers are; until then, it is run again each time to declare
    them anew. Raises `LookupError` outside of handlers.
    """
    from kopf._core.engines.changing import append_subhandler

    def decorator(fn: FnT) -> FnT:
        append_subhandler(fn, options)
        return fn

    return decorator


@_describing_options(SubHandlerOptions)
def register(fn: FnT, **options: Unpack[SubHandlerOptions]) -> FnT:
    """Add the function as a sub-handler: the same as `subhandler`, for existing functions."""
    return subhandler(**options)(fn)
