"""
What type checkers know of the handlers of declared kinds: the type of ``spec`` follows from the class.

This module is only for type checkers; nothing imports it at run time. Handlers of kinds that are named by texts are not
checked: their arguments can have any annotations.

The name of an index is an argument, too, and no protocol can list these. Pyright lets ``**kwargs`` stand for them.
Mypy does not; so there is a second protocol for functions that take ``spec`` first, whatever follows it.

Why does the decorated function not keep its type? No type means "this function, if it conforms to that protocol":
bounds of type variables cannot depend on others.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

SpecT_co = TypeVar('SpecT_co', covariant=True)
SpecT_contra = TypeVar('SpecT_contra', contravariant=True)


class HasSpec(Protocol[SpecT_co]):
    """An object of a declared kind."""

    @property
    def spec(self) -> SpecT_co:
        """The spec as the class has it."""


class NamingFn(Protocol[SpecT_contra]):
    """A function that takes some of the arguments by their names, and ``**_`` for all others."""

    def __call__(
        self,
        *,
        spec: SpecT_contra,
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
        obj: Any,
        old: Any,
        operation: Any,
        param: Any,
        patch: Any,
        reason: Any,
        reasons: Any,
        resource: Any,
        retry: Any,
        runtime: Any,
        sslpeer: Any,
        started: Any,
        status: Any,
        stopped: Any,
        subresource: Any,
        type: Any,
        uid: Any,
        userinfo: Any,
        warnings: Any,
        **indices: Any,
    ) -> Any:
        """Handle an object."""


class LeadingFn(Protocol[SpecT_contra]):
    """A function that takes the spec first, and then any arguments, such as indices."""

    def __call__(self, spec: SpecT_contra, /, *args: Any, **kwargs: Any) -> Any:
        """Handle an object."""


class TypedDecorator(Protocol[SpecT_co]):
    """A decorator of handlers whose objects have such a spec."""

    def __call__(self, fn: NamingFn[SpecT_co] | LeadingFn[SpecT_co], /) -> Callable[..., Any]:
        """Declare the handler."""
