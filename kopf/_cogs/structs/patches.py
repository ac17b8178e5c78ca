"""
Changes that handlers make to the object.

A patch is a dict of new values, where ``None`` removes a field. The framework sends these values as a JSON merge patch,
which applies to any version of the object. Functions make the changes that a merge cannot express, e.g. of an item of a
list: they get the newest body and modify it in place. The framework sends their changes as a JSON patch. If another
client has changed the object meanwhile, it calls the functions again with the newer body.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypedDict, cast

from kopf._cogs.helpers.explanations import INTERRUPTIONS, name_error
from kopf._cogs.structs import bodies, dicts
from kopf._cogs.structs.diffs import is_same

PatchFn: TypeAlias = Callable[[bodies.RawBody], None]
JSONPatchOp: TypeAlias = Literal['add', 'replace', 'remove', 'test', 'move', 'copy']


_ABSENT: Final = object()


class JSONPatchItem(TypedDict, total=False):
    """One operation of a JSON patch (RFC 6902)."""

    op: JSONPatchOp
    path: str
    value: Any | None


JSONPatch: TypeAlias = list[JSONPatchItem]


def is_merged(changes: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Check whether the merge patch with these changes would change nothing in the target."""
    for key, value in changes.items():
        if value is None:
            if key in target:
                return False
        elif isinstance(value, Mapping):
            inner = target.get(key)
            if not isinstance(inner, Mapping) or not is_merged(value, inner):
                return False
        elif key not in target or not is_same(value, target[key], exact=False):
            return False
    return True


class SpecPatch(dicts.MutableMappingView[str, Any]):
    """The changes of the spec."""

    __slots__ = ()

    def __init__(self, src: 'Patch', /) -> None:
        super().__init__(src, ('spec',))


class StatusPatch(dicts.MutableMappingView[str, Any]):
    """The changes of the status."""

    __slots__ = ()

    def __init__(self, src: 'Patch', /) -> None:
        super().__init__(src, ('status',))


class StringsPatch(dicts.MutableMappingView[str, str | None]):
    """The changes of labels or annotations; only strings, as the API refuses the whole patch for any other value."""

    __slots__ = ()

    def __setitem__(self, key: str, value: str | None, /) -> None:
        if value is not None and not isinstance(value, str):
            raise TypeError(
                f"patch.{'.'.join(self._path)}[{key!r}] must be a string, not {value!r}: use str() or json.dumps()."
            )
        super().__setitem__(key, value)


class MetaPatch(dicts.MutableMappingView[str, Any]):
    """The changes of the metadata."""

    __slots__ = ()

    def __init__(self, src: 'Patch', /) -> None:
        super().__init__(src, ('metadata',))

    @property
    def labels(self) -> dicts.MutableMappingView[str, str | None]:
        """The changes of the labels."""
        return StringsPatch(self, ('labels',))

    @property
    def annotations(self) -> dicts.MutableMappingView[str, str | None]:
        """The changes of the annotations."""
        return StringsPatch(self, ('annotations',))


class ModelFields(dict[str, Any]):
    """The changes of the spec or the status, from an assigned model: its fields without a value are ``None``."""

    __slots__ = ()


class Replacing:
    """
    A function of a patch that modifies only the top-level dict in place; nested values are replaced by changed copies.

    Other functions get a deep copy of the body, which takes longer than the patch itself. These functions need none.
    """

    __slots__ = ('_fn',)

    def __init__(self, fn: PatchFn, /) -> None:
        self._fn = fn

    def __repr__(self) -> str:
        return repr(self._fn)

    def __call__(self, body: bodies.RawBody, /) -> None:
        self._fn(body)


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Why a default? Strict checkers would refuse `kopf.Patch` without an argument, as in annotations of existing
    # code.
    ModelT = TypeVar('ModelT', default=Any)

    class _Changes(dict[str, Any], Generic[ModelT]):
        """The base of patches, as type checkers see it: ``kopf.Patch[WebApp]`` is for objects of a class."""
else:
    ModelT = Any

    class _Changes(dict):
        __slots__ = ()

        def __class_getitem__(cls, model):
            return types.GenericAlias(cls, (model,))


class Patch(_Changes[ModelT]):
    """
    The changes to be made to the object, as a nested dict and as functions. Falsy if there are no changes.

    Args:
        src: the initial changes; if it is a patch, its functions are copied, too.
        body: the object to be patched; the JSON patch is built against it by default.
        fns: functions that modify the raw body in place; the framework can call them several times.
    """

    __slots__ = ('_body', '_fns')

    def __init__(
        self,
        src: Mapping[str, Any] | None = None,
        /,
        body: bodies.Body | None = None,
        fns: Iterable[PatchFn] = (),
    ) -> None:
        super().__init__(src if src is not None else ())
        self._body = body
        self._fns: list[PatchFn] = [*(src._fns if isinstance(src, Patch) else ()), *fns]

    def __repr__(self) -> str:
        args = [repr(dict(self))] if len(self) else []
        args += [f'fns={self._fns!r}'] if self._fns else []
        return f'{type(self).__name__}({", ".join(args)})'

    def __bool__(self) -> bool:
        return len(self) > 0 or bool(self._fns)

    def __missing__(self, key: str) -> Any:
        hint = (
            f"The patch has no {key!r} yet. To create it, assign a field: patch.{key}[...] = ..."
            if key in ('spec', 'status', 'metadata')
            else key
        )
        raise KeyError(hint)

    @property
    def fns(self) -> list[PatchFn]:
        """The functions that modify the raw body in place; handlers append their own ones to this list."""
        return self._fns

    # Why not cache the views? They refer to the patch, and such a cycle would live until the garbage collection.
    @property
    def metadata(self) -> MetaPatch:
        """The changes of the metadata."""
        return MetaPatch(self)

    @property
    def meta(self) -> MetaPatch:
        """A shorter name of `metadata`."""
        return MetaPatch(self)

    @property
    def spec(self) -> SpecPatch:
        """The changes of the spec. Assigning a mapping, or an object of a model, replaces all of these changes."""
        return SpecPatch(self)

    @spec.setter
    def spec(self, value: Any) -> None:
        self._assign('spec', value)

    @property
    def status(self) -> StatusPatch:
        """
        The changes of the status. Assigning a mapping, or an object of a model, replaces all of these changes.

        Assigning ``None`` removes the status, with all its fields.
        """
        return StatusPatch(self)

    @status.setter
    def status(self, value: Any) -> None:
        # Why not for the spec, too? Hardly any kind permits objects without it.
        if value is None:
            self['status'] = None
        else:
            self._assign('status', value)

    def _assign(self, name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            from kopf._cogs.structs import model_adapters  # imported only by operators with models

            value = model_adapters.dump_model(value)
            if isinstance(value, Mapping):
                self[name] = ModelFields(value)
                return
        if not isinstance(value, Mapping):
            raise TypeError(
                f"patch.{name} must be a mapping or an object of a model, not {value!r}. To change one field of it, "
                f"write patch.{name}[...] = ..."
            )
        self[name] = dict(value)

    def clear(self) -> None:
        """Remove all the changes, including the functions."""
        super().clear()
        self._fns.clear()

    def applied_to(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return a changed copy of the body; the body itself is not modified.

        The dict is merged as the API does (RFC 7386), except that removals of absent fields create no parents.
        Then the functions are called; their errors are raised unchanged, except for those that would end the task or
        the event loop.

        Raises:
            RuntimeError: if a function raises `SystemExit`, a cancellation, or what else is no `Exception`.
        """
        new: dict[str, Any] = _merge(dict(body), self)
        # The merged dict shares its unchanged parts with the body. Functions other than `Replacing` could modify these
        # parts in place, so they get a deep copy.
        if not all(type(fn) is Replacing for fn in self._fns):
            new = _clone(new)
        try:
            for fn in self._fns:
                fn(cast(bodies.RawBody, new))
        except (Exception, *INTERRUPTIONS):
            raise
        except BaseException as error:
            raise RuntimeError(f"A function of the patch has raised {name_error(error)}.") from error
        return new

    def apply_to(self, body: bodies.RawBody) -> None:
        """Apply the changes to the body itself, in place. See `applied_to` for the rules."""
        raw = cast(dict[str, Any], body)
        new = self.applied_to(raw)
        # Why not return the new body? The caller continues to use its own dict, as if a patch function had changed it.
        raw.clear()
        raw.update(new)

    def as_json_patch(self, body: bodies.Body | bodies.RawBody | None = None) -> list[JSONPatchItem]:
        """
        Convert the changes to a JSON patch (RFC 6902) of this body, or by default, of the body from the constructor.

        There are no operations for fields that already have the desired values. See `applied_to` for the rules.

        Raises:
            ValueError: if there are changes, but no body to compare with.
        """
        if not self:
            return []
        original = body if body is not None else self._body
        if original is None:
            raise ValueError("A JSON patch cannot be built without the body that it is to be applied to.")
        return express_changes(dict(original), self.applied_to(original))


def combine(patch: Patch, newer: Patch) -> Patch:
    """Merge two patches: the newer values win, the newer functions go last; neither patch is modified."""
    if not newer:
        return patch
    if not patch:
        return newer
    return Patch(combine_values(patch, newer), fns=[*patch.fns, *newer.fns])


def combine_values(older: Mapping[str, Any], newer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge the values of two merge patches; the newer ones win."""
    if not len(newer):
        return older
    result = dict(older)
    for key, value in newer.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            value = combine_values(known, value)
        result[key] = value
    return result


def subtract_values(values: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a merge patch that are not in the other one, or that differ from it."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        other = known.get(key, _ABSENT)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if rest := subtract_values(value, other):
                result[key] = rest
        elif value is not other and value != other:
            result[key] = value
    return result


def express_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[JSONPatchItem]:
    """Express the differences of two bodies as a JSON patch of the old one."""
    return list(_iter_ops('', old, new))


def express_merge(changes: Mapping[str, Any], body: Mapping[str, Any]) -> list[JSONPatchItem]:
    """
    Express a merge patch (RFC 7386) as a JSON patch that is valid for other versions of the body, too.

    It fails only if the parents of the values, or the values to remove, are not as they are in this body.
    """
    return list(_iter_merge_ops('', changes, body))


def _iter_merge_ops(path: str, changes: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[JSONPatchItem]:
    for key, value in changes.items():
        old, at = known.get(key), f'{path}/{_escape(key)}'
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from _iter_merge_ops(at, value, old)
        elif value is None:
            yield {'op': 'remove', 'path': at} if key in known else {'op': 'test', 'path': at, 'value': None}
        elif not isinstance(value, Mapping):
            yield {'op': 'add', 'path': at, 'value': value}
        elif (fields := _merge(None, value)) or not value:
            # Others can have added other fields there meanwhile, which must stay.
            yield {'op': 'test', 'path': at, 'value': old}
            yield {'op': 'add', 'path': at, 'value': fields}


def _merge(old: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes
    new = dict(old) if isinstance(old, Mapping) else {}
    for key, change in changes.items():
        if change is None:
            new.pop(key, None)
        else:
            value = _merge(new.get(key), change)
            # A removal creates no empty parents, so that a patch that purges an absent record changes nothing.
            only_removals = value == {} and change != {}
            if key in new or not only_removals:
                new[key] = value
    return new


def _clone(value: Any) -> Any:
    # Most values are strings, so they go first; checks of abstract classes are several times slower.
    if type(value) is str:
        return value
    if type(value) is dict or isinstance(value, Mapping):
        return {key: _clone(val) for key, val in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clone(val) for val in value]
    return value


def _iter_ops(path: str, old: Any, new: Any) -> Iterator[JSONPatchItem]:
    # The old and the new body share the parts that are unchanged, so most parts need no comparison.
    if old is new:
        return
    elif type(old) is dict is type(new) or isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            if key not in new:
                yield {'op': 'remove', 'path': f'{path}/{_escape(key)}'}
        for key, value in new.items():
            if key not in old:
                yield {'op': 'add', 'path': f'{path}/{_escape(key)}', 'value': value}
            else:
                yield from _iter_ops(f'{path}/{_escape(key)}', old[key], value)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _iter_list_ops(path, old, new)
    elif not is_same(old, new, exact=False):
        yield {'op': 'replace', 'path': path, 'value': new}


def _iter_list_ops(path: str, old: list[Any], new: list[Any]) -> Iterator[JSONPatchItem]:
    # The common tail is skipped, so that one item added or removed at any position is one operation.
    old_end, new_end = len(old), len(new)
    while old_end and new_end and _is_same(old[old_end - 1], new[new_end - 1]):
        old_end -= 1
        new_end -= 1
    common_end = min(old_end, new_end)
    for index in range(common_end):
        yield from _iter_ops(f'{path}/{index}', old[index], new[index])
    # Begin at the end, so that a removal does not shift the next items: operations apply one after another.
    for index in reversed(range(common_end, old_end)):
        yield {'op': 'remove', 'path': f'{path}/{index}'}
    for index in range(common_end, new_end):
        yield {'op': 'add', 'path': f'{path}/{index}', 'value': new[index]}


def _is_same(old: Any, new: Any) -> bool:
    return next(_iter_ops('', old, new), None) is None


def _escape(key: str) -> str:
    # RFC 6901, section 4: in another order, the escapes of slashes would be escaped, too.
    return key.replace('~', '~0').replace('/', '~1')
