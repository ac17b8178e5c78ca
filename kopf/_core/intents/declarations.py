"""
Declarations: the decorators use this module to check their options, and to create and register the handlers.

A wrong option raises an error in the decorator, before the operator starts, not when the first object is handled.
"""

import functools
import logging
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from kopf._cogs.structs.dicts import FieldPath, parse_field
from kopf._cogs.structs.labelselectors import LabelSelector
from kopf._cogs.structs.references import Marker, Resource, Selector
from kopf._core.actions.execution import ErrorsMode, Handler
from kopf._core.actions.invocation import is_async_fn
from kopf._core.intents import mistakes
from kopf._core.intents.callbacks import MetaFilterToken
from kopf._core.intents.handlers import ActivityHandler, ChangingHandler, ResourceHandler, Source, SubHandlerOptions
from kopf._core.intents.options import TEXTS, SelectorOptions
from kopf._core.intents.registries import get_default_registry, make_handler_id

if TYPE_CHECKING:
    from kopf._core.intents.declared_kinds import Kind

logger = logging.getLogger(__name__)

FnT = TypeVar('FnT', bound=Callable[..., Any])
Name = str | Marker | Callable[[Resource], bool] | type[object] | None
SubName = str | Marker | None


_VERSION_LIKE = re.compile(r'v\d+((alpha|beta)\d+)?')
_VERSION = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')  # a DNS label, as the names of versions in CRDs are
_SELECTING = frozenset(SelectorOptions.__annotations__)


def declare_activity(
    cls: type[ActivityHandler],
    name: str,
    misplaced: tuple[object, ...],
    options: Mapping[str, Any],
    **fixed: Any,
) -> Callable[[FnT], FnT]:
    """
    Return a decorator that registers the handler of an activity.

    Args:
        cls: the class of the handler.
        name: the name of the decorator.
        misplaced: the positional arguments that the user has given to the decorator; each of them is a mistake.
        options: the options that the user has given.
        fixed: the attributes of the handler that follow from the decorator itself.

    Raises:
        TypeError: (also `ValueError`) if the arguments or the options are wrong.
    """
    if misplaced:
        raise TypeError(
            mistakes.explain_bare(name, misplaced[0], '')
            if callable(misplaced[0])
            else f"@kopf.on.{name} is about no object: it takes only options by their names, not {misplaced[0]!r}."
        )
    given = _check_options(name, cls.options, options)
    registry = given.pop('registry', None) or get_default_registry()
    id = given.pop('id', None)

    def decorator(fn: FnT) -> FnT:
        mistakes.check_handler(name, fn)
        handler = cls(fn=fn, id=make_handler_id(fn, id), **given, **fixed)
        for warning in mistakes.find_idle_statements(handler):
            logger.warning("%s", warning, extra={'message_code': 'declaration-doubtful'})
        registry.of(cls).append(handler)
        return fn

    return decorator


def declare(
    cls: type[ResourceHandler],
    name: str,
    names: tuple[Name, SubName, SubName],
    options: Mapping[str, Any],
    *,
    shape: type[Any] | None = None,
    model: 'Kind | None' = None,
    **fixed: Any,
) -> Callable[[FnT], FnT]:
    """
    Return a decorator that registers a handler of objects.

    Args:
        cls: the class of the handler.
        name: the name of the decorator.
        names: the positional arguments of the decorator, which name the resource.
        options: the options that the user has given.
        shape: the typed dict of the permitted options, if other decorators of the same class take other options.
        model: the declared kind of the objects, if it is known; otherwise, it is known from a class in ``names``.
        fixed: the attributes of the handler that follow from the decorator itself.

    Raises:
        TypeError: (also `ValueError`) if the arguments or the options are wrong.
    """
    given = _check_options(name, cls.options if shape is None else shape, options)
    if mistakes.is_bare(names[0]):
        raise TypeError(mistakes.explain_bare(name, names[0], "'kopfexamples'"))
    registry = given.pop('registry', None) or get_default_registry()
    specified = {key: given.pop(key) for key in _SELECTING & set(given)}
    if isinstance(names[0], type):
        model = find_model(name, names[0])
        if specified or any(names[1:]):
            raise TypeError(f"@kopf.on.{name}: the class {model.cls.__qualname__} names the resource completely.")
        selector = model.selector
    else:
        selector = Selector(names[0], names[1], names[2], **specified)
    make = _prepare(cls, name, given, fixed, selector=selector, model=model)

    def decorator(fn: FnT) -> FnT:
        mistakes.check_handler(name, fn)
        handler, handlers = make(fn, None), registry.of(cls)
        if handler.exclusive and (namesake := mistakes.find_namesake(iter(handlers), handler)) is not None:
            text = mistakes.explain_namesake(handler, namesake)
            logger.warning("%s", text, extra={'message_code': 'handlers-of-one-id'})
        for warning in mistakes.find_doubts(handler):
            logger.warning("%s", warning, extra={'message_code': 'declaration-doubtful'})
        handlers.append(handler)
        return fn

    return decorator


def find_model(name: str, cls: type[Any]) -> 'Kind':
    """
    Return the declared kind of the class that a decorator has got as the name of a resource.

    Args:
        name: the name of the decorator.
        cls: the class.

    Raises:
        TypeError: if the class is not declared with `kopf.kind`.
    """
    from kopf._core.intents import declared_kinds  # only by operators with models

    try:
        return declared_kinds.get_kind(cls)
    except TypeError as error:
        raise TypeError(f"@kopf.on.{name}: {error}") from None


def find_versions(old: Any, new: Any, options: Mapping[str, Any]) -> tuple['Kind', 'Kind']:
    """
    Return the declared kinds of the two classes of ``@kopf.on.convert``.

    Raises:
        TypeError: if they are not two versions of one kind, or if options name the versions, too.
    """
    if not isinstance(old, type) or not isinstance(new, type):
        raise TypeError("@kopf.on.convert takes either the names of a resource, or the classes of two versions of it.")
    kinds = find_model('convert', old), find_model('convert', new)
    if kinds[0].group != kinds[1].group or kinds[0].plural != kinds[1].plural:
        raise TypeError(f"@kopf.on.convert: {kinds[0]} and {kinds[1]} are not versions of one kind.")
    if given := sorted({'from_version', 'to_version', *_SELECTING} & set(options)):
        raise TypeError(f"@kopf.on.convert: {given[0]}= is known already from the classes.")
    return kinds


def parse_versions(name: str, value: str | Collection[str] | None) -> frozenset[str] | None:
    """Return the versions in the option ``name`` of ``@kopf.on.convert``; ``None`` for all versions."""
    if value is None:
        return None
    versions = frozenset([value] if isinstance(value, str) else value)
    if not versions:
        raise ValueError(f"@kopf.on.convert: {name}= must not be empty; for all versions, leave it out.")
    for version in versions:
        if not _VERSION.fullmatch(str(version)):
            raise ValueError(f"@kopf.on.convert: {name}={version!r} is not a version, such as 'v1' or 'v1beta1'.")
    return versions


def check_positive(name: str, options: Mapping[str, Any], names: Collection[str]) -> None:
    """Check that these options, if they are given, are numbers above zero; ``concurrency`` must be a whole number."""
    for option in names:
        value = options.get(option)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(
                f"@kopf.on.{name}: {option}= must be a number, not {value!r}.{_explain_unit(option, value)}"
            )
        if not value > 0 or (option == 'concurrency' and value % 1 != 0):  # this refuses infinity, too
            what = "a whole number above zero" if option == 'concurrency' else "above zero"
            raise ValueError(f"@kopf.on.{name}: {option}= must be {what}, but it is {value!r}.")


def parse_flag(name: str, option: str, value: Any) -> bool:
    """Return an option that is either on or off."""
    if not isinstance(value, bool):
        raise TypeError(f"@kopf.on.{name}: {option}= must be True or False, not {value!r}.")
    return value


def check_flags(name: str, shape: type[Any], options: Mapping[str, Any]) -> None:
    """Check that no option of the typed dict that is on or off is a text: any text is true, ``'no'`` included."""
    for option in _find_options(cast(Hashable, shape), bool) & set(options):
        if isinstance(options[option], str):
            raise TypeError(f"@kopf.on.{name}: {option}= must be True or False, not {options[option]!r}.")


def parse_backoff(name: str, value: Any) -> tuple[float, float]:
    """Return the option ``backoff`` as the first and the longest delay after errors (in seconds)."""
    numbers = value if isinstance(value, tuple | list) else ()
    if len(numbers) != 2 or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        raise TypeError(
            f"@kopf.on.{name}: backoff= must be the first and the longest delay, such as (1, 600), not {value!r}."
        )
    first, longest = numbers
    if not 0 < first <= longest:
        raise ValueError(f"@kopf.on.{name}: backoff= must be above zero and not descend, but it is {value!r}.")
    return first, longest


def parse_sources(name: str, owns: Any, watches: Any) -> tuple[Source, ...]:
    """Return the resources of the options ``owns`` and ``watches``, with the functions of the latter."""
    if isinstance(owns, str) or not isinstance(owns, Iterable):
        raise TypeError(f"@kopf.on.{name}: owns= must be a list of resources, even if there is only one, not {owns!r}.")
    if watches is not None and not isinstance(watches, Mapping):
        raise TypeError(f"@kopf.on.{name}: watches= must be a mapping of resources to functions, not {watches!r}.")
    if isinstance(owns, tuple) and any(isinstance(each, str) and _VERSION_LIKE.fullmatch(each) for each in owns):
        raise TypeError(f"@kopf.on.{name}: owns= must be a list of resources: write owns=[{owns!r}] for this one.")
    sources = [Source(_parse_source(name, 'owns', each)) for each in owns]
    for each, fn in (watches or {}).items():
        selector = _parse_source(name, 'watches', each)
        if not callable(fn):
            raise TypeError(f"@kopf.on.{name}: watches={{{each!r}: ...}} must be a function, not {fn!r}.")
        _check_callback(name, 'watches', fn)
        sources.append(Source(selector, fn, find_model(name, each) if isinstance(each, type) else None))
    return tuple(sources)


def _parse_source(name: str, option: str, value: Any) -> Selector:
    if isinstance(value, type):
        return find_model(name, value).selector
    names = value.split('/') if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not all(isinstance(each, str) for each in names):
        raise TypeError(
            f"@kopf.on.{name}: {option}= names resources as 'deployments', 'apps/v1/deployments', "
            f"or ('apps', 'v1', 'deployments'), not {value!r}."
        )
    try:
        return Selector(*names)
    except TypeError as error:
        raise TypeError(f"@kopf.on.{name}: {option}= contains {value!r}: {error}") from None


def make_subhandler(
    fn: Callable[..., Any],
    parent: Handler,
    options: Mapping[str, Any],
    name: str = 'subhandler',
) -> ChangingHandler:
    """Create a sub-handler of the handler that is being run."""
    given = _check_options(name, SubHandlerOptions, options)
    mistakes.check_handler(name, fn)
    fixed = {'needs_change': given.get('old') is not None or given.get('new') is not None}
    return cast(ChangingHandler, _prepare(ChangingHandler, name, given, fixed)(fn, parent))


def _prepare(
    cls: type[ResourceHandler],
    name: str,
    given: dict[str, Any],
    fixed: dict[str, Any],
    **more: Any,
) -> Callable[[Callable[..., Any], Handler | None], ResourceHandler]:
    _check_filters(name, given)
    if (text := given.pop('label_selector', None)) is not None:
        given['label_selector'] = _parse_label_selector(name, text)
    id = given.pop('id', None)
    field: FieldPath | None = parse_field(given.pop('field', None)) or None

    def make(fn: Callable[..., Any], parent: Handler | None) -> ResourceHandler:
        # Sub-handlers have ids without their fields, as in upstream: the ids are keys of stored records.
        suffix = field if cls.named_by_field and parent is None else None
        full_id = make_handler_id(fn, id, field=suffix, parent=None if parent is None else parent.id)
        inherited = {'model': parent.model, **more} if isinstance(parent, ResourceHandler) else more
        return cls(fn=fn, id=full_id, field=field, **given, **fixed, **inherited)

    return make


def _parse_label_selector(name: str, text: Any) -> LabelSelector:
    if not isinstance(text, str):
        raise TypeError(
            f"@kopf.on.{name}: label_selector= must be a text, such as 'app=x,env!=test', not {text!r}. "
            f"For a mapping, use labels=."
        )
    try:
        return LabelSelector.parse(text)
    except ValueError as error:
        raise ValueError(f"@kopf.on.{name}: label_selector={text!r}: {error}") from None


def _check_options(name: str, shape: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    allowed = set(shape.__annotations__)
    unknown = sorted(set(options) - allowed)
    if unknown:
        raise TypeError(
            f"@kopf.on.{name} got an unexpected keyword argument {unknown[0]!r}. "
            f"{mistakes.suggest(unknown[0], allowed) or mistakes.find_takers(unknown[0])}"
            f"It takes: {', '.join(sorted(allowed))}."
        )
    errors = options.get('errors')
    if errors is not None and not isinstance(errors, ErrorsMode):
        modes = [f'kopf.ErrorsMode.{mode.name}' for mode in ErrorsMode]
        raise TypeError(
            f"@kopf.on.{name}: errors= must be one of kopf.ErrorsMode, not {errors!r}. There are: {', '.join(modes)}."
        )
    check_flags(name, shape, options)
    for option in _find_options(cast(Hashable, shape), int, float) & set(options):
        value = options[option]
        if callable(value) and option == 'initial_delay':
            _check_callback(name, option, value)
        elif value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise TypeError(
                f"@kopf.on.{name}: {option}= must be a number, not {value!r}.{_explain_unit(option, value)}"
            )
        elif value is not None and not value >= 0:
            raise ValueError(f"@kopf.on.{name}: {option}= must not be negative, but it is {value!r}.")
    return dict(options)


@functools.cache  # there are few shapes, but sub-handlers are declared in each attempt of their parents
def _find_options(shape: type[Any], *types: type) -> frozenset[str]:
    """Return the options of the typed dict that accept values of these types."""
    return frozenset(
        option for option, hint in shape.__annotations__.items() if not set(types).isdisjoint([hint, *get_args(hint)])
    )


def _explain_unit(option: str, value: object) -> str:
    """Return the remedy for a time that is given in another form than a number of seconds; an empty string if none."""
    if '(in seconds)' not in TEXTS.get(option, ''):
        return ''
    return " It is in seconds: use .total_seconds()." if isinstance(value, timedelta) else " It is in seconds."


def _check_callback(name: str, option: str, fn: Any, positional: int = 0) -> None:
    if fn is None:
        return  # as for most options; the check below is slow
    if is_async_fn(fn):
        raise TypeError(f"@kopf.on.{name}: {option}= must not be an async function: its result is needed at once.")
    mistakes.check_callback(name, option, fn, positional)


def _check_filters(name: str, given: Mapping[str, Any]) -> None:
    for option in ('labels', 'annotations'):
        pattern = given.get(option)
        if pattern is None:
            continue
        if not isinstance(pattern, Mapping):
            raise TypeError(
                f"@kopf.on.{name}: {option}= must be a mapping of names to values, markers, or callbacks, "
                f"not {pattern!r}."
            )
        for key, value in pattern.items():
            if value is None:
                raise ValueError(
                    f"@kopf.on.{name}: {option}={{{key!r}: None}} is ambiguous; use kopf.PRESENT or kopf.ABSENT."
                )
            if not isinstance(value, str | MetaFilterToken) and not callable(value):
                marker = {True: 'kopf.PRESENT', False: 'kopf.ABSENT'}.get(value) if isinstance(value, bool) else None
                raise TypeError(
                    f"@kopf.on.{name}: {option}={{{key!r}: {value!r}}} never matches: "
                    f"the values of {option} are strings."
                    + (f" To ask only whether there is one, use {marker}." if marker else '')
                )
            _check_callback(name, option, value, positional=1)
    if given.get('when') is not None and not callable(given['when']):
        raise TypeError(f"@kopf.on.{name}: when= must be a function, not {given['when']!r}.")
    _check_callback(name, 'when', given.get('when'))
    for option in ('value', 'old', 'new'):
        _check_callback(name, option, given.get(option), positional=1)
    if '' in parse_field(given.get('field')):
        path = '.'.join(filter(None, parse_field(given['field'])))
        hint = f" Did you mean {path!r}?" if path else ''
        raise ValueError(f"@kopf.on.{name}: field={given['field']!r} names no field.{hint}")
    valued = [option for option in ('value', 'old', 'new') if given.get(option) is not None]
    if valued and not parse_field(given.get('field')):
        raise TypeError(f"@kopf.on.{name}: {valued[0]}= has no effect without field=.")
    if 'value' in valued and len(valued) > 1:
        raise TypeError(
            f"@kopf.on.{name}: either value= or old=/new= can be used, not both: "
            f"value= already checks the field before and after the change."
        )
