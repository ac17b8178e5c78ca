"""
What type checkers know of the handlers of declared kinds: the types of ``spec``, ``status``, ``obj``, and ``patch``.

This module is only for type checkers; nothing imports it at run time. Handlers of kinds that are named by texts are not
checked: their arguments can have any annotations.

Handlers can also take indices, whose names the user chooses, so no protocol can list these names. Pyright accepts them
as a part of ``**kwargs``; mypy does not. So there are more protocols, for functions with up to three indices as their
first arguments, or after ``spec``. The names of all other arguments are listed twice: if the first protocol used the
typed dict, pyright would refuse functions with additional arguments that have defaults.

Why does the decorated function not keep its type? Python cannot express "this type, if it conforms to that protocol",
because the bounds of type variables cannot depend on other variables.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from kopf._cogs.structs.ephemera import Index
from kopf._cogs.structs.patches import Patch

ModelT = TypeVar('ModelT')
SpecT = TypeVar('SpecT')
StatusT = TypeVar('StatusT')
ModelT_co = TypeVar('ModelT_co', covariant=True)
SpecT_co = TypeVar('SpecT_co', covariant=True)
StatusT_co = TypeVar('StatusT_co', covariant=True)
SpecT_contra = TypeVar('SpecT_contra', contravariant=True)
StatusT_contra = TypeVar('StatusT_contra', contravariant=True)

AnyIndex = Index[Any, Any]


class HasSpec(Protocol[SpecT_co]):
    """An object of a declared kind."""

    @property
    def spec(self) -> SpecT_co:
        """The spec as the class has it."""


class HasStatus(HasSpec[SpecT_co], Protocol[SpecT_co, StatusT_co]):
    """An object of a declared kind whose class has a status."""

    @property
    def status(self) -> StatusT_co:
        """The status as the class has it."""


class AbsentStatus:
    """The type of ``status`` if the class has none: only ``Any`` and ``object`` are right for it."""


class NamingFn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes some of the arguments by their names, and ``**_`` for all others."""

    def __call__(
        self,
        *,
        annotations: Any,
        body: Any,
        children: Any,
        conditions: Any,
        deleting: Any,
        diff: Any,
        dryrun: Any,
        event: Any,
        headers: Any,
        labels: Any,
        logger: Any,
        memo: Any,
        meta: Any,
        name: Any,
        namespace: Any,
        new: Any,
        obj: ModelT,
        old: Any,
        operation: Any,
        param: Any,
        patch: Patch[ModelT],
        reason: Any,
        reasons: Any,
        resource: Any,
        retry: Any,
        runtime: Any,
        spec: SpecT_contra,
        sslpeer: Any,
        started: Any,
        status: StatusT_contra,
        stopped: Any,
        subresource: Any,
        type: Any,
        uid: Any,
        userinfo: Any,
        warnings: Any,
        **indices: Any,
    ) -> Any:
        """Handle an object."""


class OtherArguments(TypedDict, Generic[ModelT, StatusT]):
    """All arguments but ``spec``."""

    annotations: Any
    body: Any
    children: Any
    conditions: Any
    deleting: Any
    diff: Any
    dryrun: Any
    event: Any
    headers: Any
    labels: Any
    logger: Any
    memo: Any
    meta: Any
    name: Any
    namespace: Any
    new: Any
    obj: ModelT
    old: Any
    operation: Any
    param: Any
    patch: Patch[ModelT]
    reason: Any
    reasons: Any
    resource: Any
    retry: Any
    runtime: Any
    sslpeer: Any
    started: Any
    status: StatusT
    stopped: Any
    subresource: Any
    type: Any
    uid: Any
    userinfo: Any
    warnings: Any


class Arguments(OtherArguments[ModelT, StatusT], Generic[ModelT, SpecT, StatusT]):
    """All arguments."""

    spec: SpecT


class Indexed1Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes one index first."""

    def __call__(self, i1: AnyIndex, /, **kwargs: Unpack[Arguments[ModelT, SpecT_contra, StatusT_contra]]) -> Any:
        """Handle an object."""


class SpecIndexed1Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes the spec first, and then one index."""

    def __call__(
        self, spec: SpecT_contra, i1: AnyIndex, /, **kwargs: Unpack[OtherArguments[ModelT, StatusT_contra]]
    ) -> Any:
        """Handle an object."""


class Indexed2Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes two indices first."""

    def __call__(
        self, i1: AnyIndex, i2: AnyIndex, /, **kwargs: Unpack[Arguments[ModelT, SpecT_contra, StatusT_contra]]
    ) -> Any:
        """Handle an object."""


class SpecIndexed2Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes the spec first, and then two indices."""

    def __call__(
        self,
        spec: SpecT_contra,
        i1: AnyIndex,
        i2: AnyIndex,
        /,
        **kwargs: Unpack[OtherArguments[ModelT, StatusT_contra]],
    ) -> Any:
        """Handle an object."""


class Indexed3Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes three indices first."""

    def __call__(
        self,
        i1: AnyIndex,
        i2: AnyIndex,
        i3: AnyIndex,
        /,
        **kwargs: Unpack[Arguments[ModelT, SpecT_contra, StatusT_contra]],
    ) -> Any:
        """Handle an object."""


class SpecIndexed3Fn(Protocol[ModelT, SpecT_contra, StatusT_contra]):
    """A function that takes the spec first, and then three indices."""

    def __call__(
        self,
        spec: SpecT_contra,
        i1: AnyIndex,
        i2: AnyIndex,
        i3: AnyIndex,
        /,
        **kwargs: Unpack[OtherArguments[ModelT, StatusT_contra]],
    ) -> Any:
        """Handle an object."""


TypedFn = (
    NamingFn[ModelT, SpecT, StatusT]
    | Indexed1Fn[ModelT, SpecT, StatusT]
    | SpecIndexed1Fn[ModelT, SpecT, StatusT]
    | Indexed2Fn[ModelT, SpecT, StatusT]
    | SpecIndexed2Fn[ModelT, SpecT, StatusT]
    | Indexed3Fn[ModelT, SpecT, StatusT]
    | SpecIndexed3Fn[ModelT, SpecT, StatusT]
)


# Why covariant, although it takes functions? In overloads, the decorator for a class counts as one for a protocol of
# it.
class TypedDecorator(Protocol[ModelT_co]):  # type: ignore[misc]
    """A decorator of handlers of the declared kind."""

    @overload
    def __call__(
        self: 'TypedDecorator[HasStatus[SpecT, StatusT]]', fn: TypedFn[ModelT_co, SpecT, StatusT], /
    ) -> Callable[..., Any]: ...
    @overload
    def __call__(
        self: 'TypedDecorator[HasSpec[SpecT]]', fn: TypedFn[ModelT_co, SpecT, AbsentStatus], /
    ) -> Callable[..., Any]: ...
    def __call__(self, fn: Any, /) -> Callable[..., Any]:
        """Declare the handler."""
