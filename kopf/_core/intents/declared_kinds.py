"""
Kinds of custom resources as classes: `kind` declares them, and their handlers get objects of these classes.

The classes are of several libraries: see `model_adapters`. Specified in the documentation's "Declare a kind by a
class".
"""

import collections
import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kopf._cogs.helpers.explanations import INTERRUPTIONS
from kopf._cogs.structs.model_adapters import Adapter, ModelError, get_adapter, is_model, list_fields
from kopf._cogs.structs.references import Selector
from kopf._core.actions.execution import PermanentError, describe_error
from kopf._core.intents.known_fields import Schema
from kopf._core.intents.status_writers import StatusWriters

if TYPE_CHECKING:
    from kopf._core.intents.registries import OperatorRegistry

Scope = Literal['Namespaced', 'Cluster']
Rule = str | tuple[str, str] | Mapping[str, Any]
Column = str | Mapping[str, Any]
ClassT = TypeVar('ClassT', bound=type[Any])

_VERSION = re.compile(r'v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?')
DOMAIN = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+')
KIND = re.compile(r'[A-Z][A-Za-z0-9]*')
PLURAL = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')
_CACHE_SIZE = 256

SCALE_PATHS = ('specReplicasPath', 'statusReplicasPath', 'labelSelectorPath')
"""The keys of the scale subresource in CRDs."""

COLUMN_KEYS = ('path', 'jsonPath', 'type', 'format', 'description', 'priority')
"""The keys of printer columns in declarations."""

RULE_KEYS = ('rule', 'message', 'messageExpression', 'reason', 'fieldPath', 'optionalOldSelf')
"""The keys of rules in CRDs (``x-kubernetes-validations``)."""

_SCALE_EXAMPLE = "{'specReplicasPath': '.spec.replicas', 'statusReplicasPath': '.status.replicas'}"


class InvalidObjectError(PermanentError):
    """Raised if an object does not conform to the class of its kind: typed handlers cannot get it until it changes."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Kind:
    """The declaration of one version of a kind: its names, its class, and the parts of the CRD besides the schema."""

    cls: type[Any]
    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short_names: Collection[str] = ()
    categories: Collection[str] = ()
    scope: Scope = 'Namespaced'
    columns: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    rules: Collection[Rule] = ()
    scale: Mapping[str, str] | None = None
    storage: bool | None = None
    served: bool = True
    deprecated: bool | str = False
    conditions: bool = False
    status_writers: StatusWriters = dataclasses.field(default_factory=StatusWriters, init=False)
    """The handlers that have written fields of the status."""
    _cache: 'collections.OrderedDict[tuple[str, str], Any]' = dataclasses.field(
        default_factory=collections.OrderedDict, init=False
    )

    def __str__(self) -> str:
        return f"{self.cls.__qualname__} ({self.plural}.{self.group}/{self.version})"

    @property
    def selector(self) -> Selector:
        """The selector of the resource."""
        return Selector(group=self.group, version=self.version, plural=self.plural)

    @property
    def adapter(self) -> Adapter:
        """The adapter of the class."""
        return get_adapter(self.cls)

    def load(self, body: Mapping[str, Any], *, stored: bool = True) -> Any:
        """
        Return the object as an instance of the class. The same version of an object is validated only once.

        Args:
            body: the object.
            stored: whether the API server has stored it. The objects in requests for admission are not stored yet, so
                they have other contents than the stored ones of the same resource version.

        Raises:
            InvalidObjectError: if the object does not conform to the class.
        """
        meta = body.get('metadata') or {}
        key = (meta.get('uid') or '', meta.get('resourceVersion') or '')
        cacheable = stored and all(key)
        if cacheable and key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        try:
            obj = self.adapter.load(self._reduce(body))
        except ValueError as error:
            raise InvalidObjectError(
                f"{self.kind} {meta.get('name')!r} does not conform to the class {self.cls.__qualname__}: {error}"
            ) from None
        if cacheable:
            self._cache[key] = obj
            if len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return obj

    def find_nonconformity(self, body: Mapping[str, Any]) -> str | None:
        """Return why the object does not conform to the class; ``None`` if it does."""
        try:
            self.load(body)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # validators are functions of users, which can raise anything
            return describe_error(error)
        return None

    def is_nonconformity(self, error: BaseException | None, body: Mapping[str, Any]) -> bool:
        """Check whether the error is that this version of the object does not conform to the class."""
        # Why compare the texts? Functions can raise this error, too, e.g. about other objects: it is permanent, then,
        # as no other version of this object has another result.
        return isinstance(error, InvalidObjectError) and describe_error(error) == self.find_nonconformity(body)

    def _reduce(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object without the implied fields that the class does not mention, as it can forbid them."""
        data = {name: value for name, value in body.items() if name not in self._implied}
        status = data.get('status')
        if self.conditions and isinstance(status, Mapping) and not self._has_conditions:
            data['status'] = {name: value for name, value in status.items() if name != 'conditions'}
        return data

    def carry_over(self, body: Mapping[str, Any], converted: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Return the converted object with the fields that the class does not know, such as ``status.conditions``.

        A handler that converts objects of classes cannot do that: its object does not have these fields. Fields of the
        converted object are not changed. Why not compare with the dumped object? It can lack fields with defaults.

        Args:
            body: the object in the version of this class.
            converted: the object in another version.
        """
        result = dict(converted)
        for *parents, name in self._schema.find_strangers(body):
            source: Any = functools.reduce(lambda value, key: value[key], parents, body)
            target: Any = result
            for key in parents:
                # Create no parents, except for the status: a new structure could lack fields that the schema requires
                # in it.
                inner = target.get(key, {} if parents == ['status'] else None)
                if not isinstance(inner, Mapping):
                    break
                target[key] = target = dict(inner)
            else:
                target.setdefault(name, source[name])
        return result

    @staticmethod
    def pick(obj: Any, name: str) -> Any:
        """Return the spec or the status of an object of the class, in the type of the class; ``None`` if absent."""
        return obj.get(name) if isinstance(obj, Mapping) else getattr(obj, name, None)

    def check_beside(self, other: 'Kind') -> None:
        """
        Check that both declarations can belong to one operator.

        Raises:
            ModelError: if both declare the same version of a kind, or if they differ in fields that all versions share.
        """
        if (other.group, other.plural) != (self.group, self.plural) and (other.group, other.kind) != (
            self.group,
            self.kind,
        ):
            return
        places = f"{_locate(other.cls)} and {_locate(self.cls)}"
        if other.version == self.version:
            raise ModelError(
                f"{self.kind} of {self.group}/{self.version} is declared by two classes: {places}. Remove one of "
                f"them, or give it another version."
            )
        for name in ('kind', 'plural', 'singular', 'scope'):
            if getattr(other, name) != getattr(self, name):
                raise ModelError(
                    f"The classes {places} declare versions of one kind, but differ in {name}=: "
                    f"{getattr(other, name)!r} and {getattr(self, name)!r}. All versions share it."
                )
        if other.storage and self.storage:
            raise ModelError(f"Both {places} have storage=True, but only one version of a kind can be stored.")

    def replaces(self, other: 'Kind') -> bool:
        """Check whether this is the class of the other declaration, imported again."""
        return _locate(self.cls) == _locate(other.cls)

    @functools.cached_property
    def _schema(self) -> Schema:
        try:
            return Schema(self.adapter.make_schema(), is_structural=False)
        except Exception:  # any error of the library: without a schema, the fields are not known
            return Schema(True, is_structural=False)

    @functools.cached_property
    def _has_conditions(self) -> bool:
        return self._schema.find_unknown(('status', 'conditions')) is None

    @functools.cached_property
    def _implied(self) -> Collection[str]:
        """The fields that all objects have but the class does not mention; they are removed, as it can forbid them."""
        absent = {'status'} if self._schema.is_always_null('status') else set()
        return {'apiVersion', 'kind', 'metadata'} - list_fields(self.cls) | absent


def _locate(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def kind(
    api_version: str,
    kind: str | None = None,
    *,
    plural: str | None = None,
    singular: str | None = None,
    short_names: Iterable[str] = (),
    categories: Iterable[str] = (),
    scope: Scope = 'Namespaced',
    columns: Mapping[str, Column] | None = None,
    rules: Iterable[Rule] = (),
    scale: Mapping[str, str] | None = None,
    storage: bool | None = None,
    served: bool = True,
    deprecated: bool | str = False,
    conditions: bool = False,
    registry: 'OperatorRegistry | None' = None,
) -> Callable[[ClassT], ClassT]:
    """
    Declare the class as the model of a custom resource, so that it can be used in place of the resource's name.

    The class is a pydantic model, a dataclass, a TypedDict, or a Struct of msgspec, with the fields of the objects:
    ``spec``, ``status``, and others. Handlers of the class get ``spec``, ``status`` and ``obj`` as its objects. The
    command ``kopf crd`` makes the CRD. See "Declare a kind by a class" in the documentation.

    Args:
        api_version: the group and the version: ``'example.com/v1'``.
        kind: the name of the kind; by default, that of the class.
        plural: the plural name in URLs; by default, it is made from the kind: ``webapps`` for ``WebApp``.
        singular: the singular name; by default, the kind in lower case.
        short_names: further names for kubectl.
        categories: the categories of resources that it belongs to, such as ``'all'``.
        scope: ``'Namespaced'`` or ``'Cluster'``.
        columns: what ``kubectl get`` shows: the titles with the paths of the fields, such as ``'.spec.replicas'``, or
            with mappings: ``path``, ``type``, ``format``, ``description``, ``priority``. An age is added.
        rules: CEL expressions that must hold for each object, or pairs of an expression and a message, or mappings
            with the fields of ``x-kubernetes-validations``.
        scale: the fields of the scale subresource: ``{'specReplicasPath': '.spec.replicas', ...}``.
        storage: whether this version is stored; by default, the version with the highest priority is.
        served: whether the API serves this version.
        deprecated: whether clients are warned of this version; a text is the warning.
        conditions: whether the status has conditions besides the fields of the class.
        registry: the registry that keeps the declaration; by default, the one of all decorators.

    Raises:
        TypeError: if the class is no model, or the same version of the kind is declared by another class.
        ValueError: if a name is not accepted by the API.
    """
    group, version = _parse_api_version(api_version)
    _check_lists(rules=rules, short_names=short_names, categories=categories)
    short_names = [_check_name('short_names', name, PLURAL, 'wa') for name in dict.fromkeys(short_names)]
    categories = [_check_name('categories', name, PLURAL, 'all') for name in dict.fromkeys(categories)]
    if scope not in typing.get_args(Scope):
        raise ValueError(f"@kopf.kind: scope= must be 'Namespaced' or 'Cluster', not {scope!r}.")
    _check_columns(columns := columns or {})
    _check_rules(rules := tuple(rules))
    _check_scale(scale)
    make = functools.partial(
        Kind,
        group=group,
        version=version,
        short_names=tuple(short_names),
        categories=tuple(categories),
        scope=scope,
        columns=columns,
        rules=rules,
        scale=scale,
        storage=storage,
        served=served,
        deprecated=deprecated,
        conditions=conditions,
    )

    def decorator(cls: ClassT) -> ClassT:
        _check_class(cls)
        _declare(make(cls=cls, **_make_names(cls, kind, plural, singular)), registry)
        return cls

    return decorator


def _declare(declared: Kind, registry: 'OperatorRegistry | None') -> None:
    # Why not at the top? Registries keep handlers, and handlers can have a kind.
    from kopf._core.intents.registries import get_default_registry

    (get_default_registry() if registry is None else registry).add_kind(declared)
    _declared[declared.cls] = declared


class _Names(typing.TypedDict):
    kind: str
    plural: str
    singular: str


def _make_names(cls: type[Any], kind: str | None, plural: str | None, singular: str | None) -> _Names:
    name = _check_name('kind', cls.__name__ if kind is None else kind, KIND, 'WebApp')
    return {
        'kind': name,
        'plural': _check_name('plural', pluralize(name) if plural is None else plural, PLURAL, 'webapps'),
        'singular': _check_name('singular', name.lower() if singular is None else singular, PLURAL, 'webapp'),
    }


# Why not an attribute of the class? A TypedDict and a Struct accept none, and subclasses would inherit it.
_declared: dict[type[Any], Kind] = {}


def get_kind(cls: type[Any]) -> Kind:
    """
    Return the declaration of the class.

    Raises:
        ModelError: if it is not declared with `kopf.kind`.
    """
    found = _declared.get(cls)
    if found is None:
        raise ModelError(
            f"The class {cls.__qualname__} names no resource. Decorate it with @kopf.kind('example.com/v1', ...)."
        )
    return found


def pluralize(kind: str) -> str:
    """
    Return the plural of a kind by the usual rules: ``policies`` for ``Policy``, ``ingresses``, ``bookshelves``.

    These are the rules of Kubernetes' generators, except that they change each ``f`` at the end: ``proofs``, ``safes``.
    """
    name = kind.lower()
    if re.search(r'(s|x|z|ch|sh)$', name):
        return f'{name}es'
    if re.search(r'[^aeiou]y$', name):
        return f'{name[:-1]}ies'
    if re.search(r'((?<!go)(?<!gu)l|ea|oa|ar|thie)f$', name):
        return f'{name[:-1]}ves'
    return f'{name[:-2]}ves' if name.endswith('ife') else f'{name}s'


def _parse_api_version(api_version: object) -> tuple[str, str]:
    if isinstance(api_version, type):
        raise TypeError(
            f"@kopf.kind has no parentheses: write @kopf.kind('example.com/v1') before the class "
            f"{api_version.__qualname__}."
        )
    group, _, version = str(api_version).partition('/')
    if not DOMAIN.fullmatch(group) or not _VERSION.fullmatch(version):
        raise ValueError(
            f"@kopf.kind: {api_version!r} is no API version of a custom resource. Write the group, which is a domain "
            f"with a dot, and the version: 'example.com/v1'."
        )
    return group, version


def _check_class(cls: type[Any]) -> None:
    if not is_model(cls):
        raise ModelError(
            f"@kopf.kind: {cls!r} is no model. Derive the class from pydantic.BaseModel, msgspec.Struct, or "
            f"typing.TypedDict, or put @dataclasses.dataclass below this decorator."
        )


def _check_lists(**options: Iterable[Any]) -> None:
    for option, value in options.items():
        if isinstance(value, str):
            raise TypeError(f"@kopf.kind: {option}= must be a list, even if there is only one: [{value!r}].")


def _check_name(option: str, name: Any, pattern: re.Pattern[str], example: str) -> str:
    if not isinstance(name, str) or not pattern.fullmatch(name) or len(name) > 63:
        raise ValueError(f"@kopf.kind: {option}={name!r} is not a name that the API accepts, such as {example!r}.")
    return name


def _check_columns(columns: Any) -> None:
    if not isinstance(columns, Mapping):
        raise TypeError("@kopf.kind: columns= must be a mapping, such as {'Replicas': '.spec.replicas'}.")
    for name, column in columns.items():
        is_mapping = isinstance(column, Mapping)
        path = column.get('jsonPath', column.get('path')) if is_mapping else column
        if not isinstance(path, str) or not path.startswith('.'):
            raise ValueError(
                f"@kopf.kind: columns={{{name!r}: {column!r}}} must be a path that begins with a dot, such as "
                f"'.spec.replicas', or a mapping with 'path' and the fields of an additional printer column."
            )
        if is_mapping:
            _check_keys(f"columns={{{name!r}: ...}}", column, COLUMN_KEYS)


def _check_scale(scale: Any) -> None:
    if scale is None:
        return
    if not isinstance(scale, Mapping):
        raise TypeError(f"@kopf.kind: scale= must be a mapping of paths, not {scale!r}: {_SCALE_EXAMPLE}.")
    _check_keys("scale=", scale, SCALE_PATHS)
    for name, path in scale.items():
        if not isinstance(path, str) or not path.startswith('.'):
            raise ValueError(
                f"@kopf.kind: scale={{{name!r}: {path!r}}} must be a path that begins with a dot: {_SCALE_EXAMPLE}."
            )
    if missing := [name for name in SCALE_PATHS if name not in scale and name != 'labelSelectorPath']:
        raise ValueError(f"@kopf.kind: scale= has no {missing[0]!r}, which the API requires: {_SCALE_EXAMPLE}.")


def _check_rules(rules: Collection[Any]) -> None:
    for rule in rules:
        is_pair = isinstance(rule, tuple) and len(rule) == 2 and all(isinstance(each, str) for each in rule)
        expression = rule.get('rule') if isinstance(rule, Mapping) else rule
        if not is_pair and not isinstance(expression, str):
            raise TypeError(
                f"@kopf.kind: {rule!r} in rules= must be a CEL expression, a pair of an expression and a message, or "
                f"a mapping with 'rule' and the fields of x-kubernetes-validations."
            )
        if isinstance(rule, Mapping):
            _check_keys("rules=", rule, RULE_KEYS)


def _check_keys(option: str, given: Iterable[Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            import difflib  # only for mistakes

            found = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {found[0]!r}?" if found else f"There are: {', '.join(known)}."
            raise ValueError(f"@kopf.kind: {option} has no {name!r}. {hint}")
