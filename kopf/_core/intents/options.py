"""
The options that decorators of several kinds share, as typed dicts.

Both type checkers and the decorators themselves read them. The options of a single kind are in `handlers`, next to the
class of that kind. `TEXTS` describes the options for `help` and for the API reference.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from kopf._cogs.structs.dicts import FieldSpec
from kopf._core.actions.execution import ErrorsMode
from kopf._core.intents.callbacks import MetaFilterFn, MetaFilterToken, WhenFilterFn

if TYPE_CHECKING:  # registries keep handlers, and handlers name their options
    from kopf._core.intents.registries import OperatorRegistry

Meta = Mapping[str, str | MetaFilterToken | MetaFilterFn]

TEXTS: Mapping[str, str] = {
    # All handlers.
    'fn': "the function.",
    'id': "the id, which is the key of the stored progress; by default, the name of the function.",
    'param': "any value, which the function gets as ``param``.",
    'registry': "the registry that keeps the handler; by default, the one that `kopf.run` uses.",
    # Errors.
    'errors': "what an unknown error means; by default, ``kopf.ErrorsMode.TEMPORARY``: the function is called again.",
    'timeout': "for how long the function is called again after errors (in seconds); by default, without a limit.",
    'retries': "how many attempts there are; by default, without a limit.",
    'backoff': "the delay after an error (in seconds); by default, ``settings.execution.default_backoff``, a minute.",
    # Resources.
    'arg1': "the name of the resource; its group, if the name follows; `kopf.EVERYTHING`; a function; or a class.",
    'arg2': "the name of the resource, if its group, or group and version, is ``arg1``; or the version.",
    'arg3': "the name of the resource, if its group and its version are before it.",
    'group': "the API group of the resource; by default, any.",
    'version': "the version of the resource; by default, the preferred one.",
    'kind': "the kind of the resource, such as ``'Pod'``.",
    'plural': "the plural name of the resource, such as ``'pods'``.",
    'singular': "the singular name of the resource, such as ``'pod'``.",
    'shortcut': "the short name of the resource, such as ``'po'``.",
    'category': "the category of the resources, such as ``'all'``; it can select several ones.",
    # Filters.
    'label_selector': "the label selector for the API server, such as ``'app=x,env!=test'``; by default, all objects.",
    'labels': "the labels, with their values, `kopf.PRESENT`, `kopf.ABSENT`, or functions of the values.",
    'annotations': "the annotations, with their values, `kopf.PRESENT`, `kopf.ABSENT`, or functions of the values.",
    'when': "a function of the arguments that returns whether the object matches.",
    'field': "the field, as ``'spec.field'`` or ``('spec', 'field')``; it must be there, unless values say otherwise.",
    'value': "the value of the field before or after the change; or a marker or a function, as for labels.",
    'old': "the value of the field before the change; or a marker or a function, as for labels.",
    'new': "the value of the field after the change; or a marker or a function, as for labels.",
    # Changes.
    'deleted': "whether objects are included that are being deleted; by default, they are not.",
    'optional': "whether an object does not wait for the handler when it is deleted; by default, it waits.",
    # Repeated calls.
    'interval': "the time from the end of a call to the beginning of the next one (in seconds); without it, there is "
    "one call.",
    'initial_delay': "the time before the first call (in seconds), or a function of the arguments that returns it; by "
    "default, none.",
    'sharp': "whether the interval is between the beginnings of calls, where missed ones are skipped; by default, not.",
    'idle': "how long the object must not have changed (in seconds); by default, changes do not matter.",
    'cancellation_backoff': "the time from the request to stop until the cancellation (in seconds); by default, none.",
    'cancellation_timeout': "the time from the cancellation until the daemon is left (in seconds); if absent, it is "
    "not cancelled.",
    'cancellation_polling': "how often the log names a daemon that does not stop (in seconds); by default, 60.",
    'concurrency': "for how many objects the function may run at once; by default, as many as there are workers.",
    # Webhooks.
    'operation': "the operation to be called for: CREATE, UPDATE, DELETE, or CONNECT; by default, all of them.",
    'operations': "several of these operations.",
    'subresource': "the subresource, or ``'*'`` for it and the object; by default, only the object itself.",
    'persistent': "whether the webhook stays in the cluster when the operator ends; by default, it does not.",
    'side_effects': "whether the function changes something outside, so that dry runs do not call it; by default, not.",
    'ignore_failures': "whether requests pass if the operator does not respond; by default, they are refused.",
}
"""
The descriptions of the options, with the units of times. A decorator can replace some of them by its own.

Why not string literals below the keys of the typed dicts? These are not there at run time, where `help` needs them.
"""


class IdentityOptions(TypedDict, total=False):
    """Options of all handlers."""

    id: str | None
    param: Any
    registry: 'OperatorRegistry | None'


class ErrorsOptions(TypedDict, total=False):
    """Options of handlers with retries; the times are in seconds."""

    errors: ErrorsMode | None
    timeout: float | None
    retries: int | None
    backoff: float | None


class SelectorOptions(TypedDict, total=False):
    """Options that specify the resource."""

    group: str | None
    version: str | None
    kind: str | None
    plural: str | None
    singular: str | None
    shortcut: str | None
    category: str | None


class WatchOptions(TypedDict, total=False):
    """Options of handlers whose objects are watched."""

    label_selector: str | None


class MetaOptions(TypedDict, total=False):
    """Options that filter the objects."""

    labels: Meta | None
    annotations: Meta | None
    when: WhenFilterFn | None
    value: Any


class FilterOptions(MetaOptions, total=False):
    """Options that filter the objects, also by a field."""

    field: FieldSpec


class ObjectOptions(IdentityOptions, SelectorOptions, FilterOptions, total=False):
    """Options of handlers without retries."""


class RetriedOptions(ObjectOptions, WatchOptions, ErrorsOptions, total=False):
    """Options of handlers with retries."""
