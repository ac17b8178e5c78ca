"""
The options that decorators of several kinds share, as typed dicts.

Both type checkers and the decorators themselves read them. The options of a single kind are in `handlers`, next to the
class of that kind.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from kopf._cogs.structs.dicts import FieldSpec
from kopf._core.actions.execution import ErrorsMode
from kopf._core.intents.callbacks import MetaFilterFn, MetaFilterToken, WhenFilterFn

if TYPE_CHECKING:  # registries keep handlers, and handlers name their options
    from kopf._core.intents.registries import OperatorRegistry

Meta = Mapping[str, str | MetaFilterToken | MetaFilterFn]


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
