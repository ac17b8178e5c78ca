"""
The comparison of the states of objects in different courses.

Even undisturbed courses have different end states: with other uids, versions, times, and generated names. From several
undisturbed courses, the normalizer learns which fields vary. It removes these fields, and replaces generated names by
numbers. Then, the states of two courses must be equal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from kopf._kits.checking.defaulted_fields import Defaulted, mark, unwrap
from kopf._kits.checking.plans import Target

Path = tuple[str, ...]
Flat = dict[str, Any]
"""A normalized state: the objects by resource and name, without the fields that vary."""

_TIME = re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?')
_UID = re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}')
_DROPPED = frozenset(
    {'uid', 'resourceVersion', 'creationTimestamp', 'generation', 'managedFields', 'selfLink', 'deletionTimestamp'}
)
_BOOKKEEPERS = ('kopf.zalando.org', 'kopf.dev', 'kubectl.kubernetes.io', 'deployment.kubernetes.io')
_ROUNDS = 8
_LONGEST = 100


class StoredObject(NamedTuple):
    """One object of a state."""

    resource: str
    namespace: str
    name: str
    body: Mapping[str, Any]
    is_bookkeeping: bool = False
    """
    Whether a controller of the cluster has created the object for its own bookkeeping about another object.

    Bookkeeping objects depend on the past of the other object: for example, a deployment keeps the replica sets of its
    earlier templates. They are not compared, but their names are recognized in other objects.
    """


class State(NamedTuple):
    """The objects of the cluster at one moment, and the observed states of systems outside of the cluster."""

    objects: Sequence[StoredObject]
    outside: Mapping[str, Any]

    def find(self, target: Target) -> Mapping[str, Any] | None:
        """Return the object, if it exists."""
        key = (target.resource, target.namespace, target.name)
        return next((item.body for item in self.objects if (item.resource, item.namespace, item.name) == key), None)


class Normalizer:
    """
    Removes from states everything that varies between undisturbed courses.

    Args:
        groups: for each moment at which states are compared, the states of all undisturbed courses.
        result_fields: the fields of the status with the results of handlers.
    """

    def __init__(self, groups: Iterable[Sequence[State]], result_fields: frozenset[str] = frozenset()) -> None:
        self._results = result_fields
        self._names: set[tuple[str, str, str]] = set()
        self._varying: set[Path] = set()
        """The fields whose values vary."""
        self._bags: set[Path] = set()
        """The mappings and lists of which only the values are compared, because their keys vary."""
        self.unstable: set[str] = set()
        """The resources for which the number of objects varies."""
        for states in groups:
            self._names |= set.intersection(*({_key(item) for item in state.objects} for state in states))
            for _ in range(_ROUNDS):
                flats = [self.normalize(state) for state in states]
                if not sum(self._learn((), flats[0], other) for other in flats[1:]):
                    break

    def normalize(self, state: State, *, history: bool = True) -> Flat:
        """
        Return the state without the parts that vary.

        Args:
            state: the state to normalize.
            history: whether to keep the results of handlers. They depend on the past of the objects.
        """
        names = _Names(state, self._names)
        found: list[tuple[str, StoredObject, Any]] = []
        for item in state.objects:
            if item.resource not in self.unstable and not item.is_bookkeeping:
                body = names.replace(_strip(item.body, self._results if not history else frozenset()))
                found.append((item.resource, item, self._canonise((item.resource,), body)))
        flat: Flat = {}
        counts: dict[str, int] = {}
        # Objects with generated names are numbered in the order of their contents.
        for resource, item, body in sorted(found, key=lambda entry: (entry[0], _dump(entry[2]))):
            place = f'{item.namespace}/' if item.namespace else ''
            if _key(item) in self._names:
                flat[f'{resource} {place}{item.name}'] = body
            else:
                counts[resource + place] = number = counts.get(resource + place, 0) + 1
                flat[f'{resource} {place}#{number}'] = body
        for name, value in state.outside.items():
            flat[f'outside {name}'] = self._canonise((f'outside {name}',), names.replace(value))
        return flat

    def _canonise(self, path: Path, value: Any) -> Any:
        if path in self._varying:
            return '(varies)'
        if isinstance(value, Defaulted):
            return Defaulted(self._canonise(path, value.value))
        if isinstance(value, Mapping):
            if path in self._bags:
                return sorted((self._canonise((*path, '*'), item) for item in value.values()), key=_dump)
            return {str(key): self._canonise((*path, str(key)), item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            if path in self._bags:
                return sorted((self._canonise((*path, '*'), item) for item in value), key=_dump)
            return {key: self._canonise((*path, key), item) for key, item in _index(value)}
        return value

    def _learn(self, path: Path, one: Any, other: Any) -> int:
        """Record which fields differ between two states; return the number of differences."""
        one, other = unwrap(one), unwrap(other)
        if one == other:
            return 0
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            return sum(self._learn((*path, '*'), left, right) for left, right in zip(one, other, strict=True))
        if not isinstance(one, Mapping) or not isinstance(other, Mapping):
            self._varying.add(_as_stored(path))
        elif one.keys() == other.keys():
            return sum(self._learn((*path, key), one[key], other[key]) for key in one)
        elif not path:
            self._learn_objects(one, other)
        elif len(one) == len(other):
            self._bags.add(_as_stored(path))
        else:
            self._varying.add(_as_stored(path))
        return 1

    def _learn_objects(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        for key in one.keys() ^ other.keys():
            resource, _, _ = key.partition(' ')
            if resource != 'outside':
                self.unstable.add(resource)


def _as_stored(path: Path) -> Path:
    """Return the same path in all objects of the resource: without the name of the object in its first part."""
    head = path[0] if path[0].startswith('outside ') else path[0].partition(' ')[0]
    return (head, *path[1:])


def find_differences(expected: Flat, actual: Flat) -> list[str]:
    """Return one line for each missing (``-``), superfluous (``+``), or different (``~``) value."""
    lines = [f'- {key}' for key in expected.keys() - actual.keys()]
    lines += [f'+ {key}' for key in actual.keys() - expected.keys()]
    lines.sort()
    for key in sorted(expected.keys() & actual.keys()):
        lines += _compare(key, '', expected[key], actual[key])
    return lines


def _compare(key: str, path: str, expected: Any, actual: Any) -> Iterator[str]:
    if all(value is _ABSENT or isinstance(value, Defaulted) for value in (expected, actual)):
        return
    expected, actual = unwrap(expected), unwrap(actual)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            step = name if name.startswith('[') or not path else f'.{name}'
            yield from _compare(key, path + step, expected.get(name, _ABSENT), actual.get(name, _ABSENT))
    elif expected != actual:
        field = f' {path}' if path else ''
        yield f'~ {key}{field}: {_shorten(expected)} is expected, {_shorten(actual)} is there'


class _Absent:
    def __repr__(self) -> str:
        return 'nothing'


_ABSENT = _Absent()


def _shorten(value: Any) -> str:
    text = 'nothing' if value is _ABSENT else _dump(value).decode()
    return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=repr)


def _key(item: StoredObject) -> tuple[str, str, str]:
    return item.resource, item.namespace, item.name


def _index(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items with keys for comparison: the type or name of the item if it has one, otherwise its position."""
    items = list(values) if isinstance(values, (list, tuple)) else sorted(values, key=_dump)
    for field in ('type', 'name', 'uid'):
        if items and all(isinstance(item, Mapping) and isinstance(item.get(field), str) for item in items):
            keys = [item[field] for item in items]
            if len({*keys}) == len(keys):
                yield from ((f'[{key}]', item) for key, item in sorted(zip(keys, items, strict=True), key=_get_first))
                return
    yield from ((f'[{number}]', item) for number, item in enumerate(items))


def _get_first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _strip(body: Mapping[str, Any], results: frozenset[str]) -> dict[str, Any]:
    """Return the object without the bookkeeping of the API server and of the framework."""
    given = mark(body)
    metadata = {key: value for key, value in given.pop('metadata', {}).items() if key not in _DROPPED}
    annotations = metadata.pop('annotations', None) or {}
    if annotations := {key: value for key, value in annotations.items() if not is_bookkeeping(key)}:
        metadata['annotations'] = annotations
    status = given.pop('status', None)
    if isinstance(status, Mapping):
        # Compare the first part of the id only: the ids of sub-handlers begin with the id of their parent.
        status = {key: value for key, value in status.items() if key != 'kopf' and key.partition('/')[0] not in results}
        status = _relate_generations(status, body.get('metadata', {}).get('generation'))
    return {'metadata': metadata, **given, **({'status': status} if status else {})}


ANNOTATION = 'kopf.dev/check'
"""The annotation that a disturbance adds to children as another client; it is not compared."""


def is_bookkeeping(annotation: str) -> bool:
    """Check whether the annotation is for the own use of a framework, a tool, or a controller of the cluster."""
    return annotation.partition('/')[0].endswith(_BOOKKEEPERS)


def _relate_generations(value: Any, generation: Any) -> Any:
    """Replace observed generations, which depend on the object's past, by whether they are the last one."""
    if isinstance(value, Mapping):
        return {
            key: ('(the last one)' if item == generation else '(an old one)')
            if key == 'observedGeneration'
            else _relate_generations(item, generation)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_relate_generations(item, generation) for item in value]
    return value


class _Names:
    """Replaces the uids, generated names and times in all texts of a state."""

    def __init__(self, state: State, known: set[tuple[str, str, str]]) -> None:
        self._uids = {
            item.body.get('metadata', {}).get('uid'): f'(uid of {item.resource})'
            if _key(item) not in known
            else f'(uid of {item.resource} {item.name})'
            for item in state.objects
        }
        generated = {item.name: f'(name of {item.resource})' for item in state.objects if _key(item) not in known}
        fixed = {item.name for item in state.objects if _key(item) in known}
        self._generated = {name: role for name, role in generated.items() if name not in fixed and len(name) > 3}
        words = sorted(self._generated, key=len, reverse=True)
        self._pattern = re.compile('|'.join(map(re.escape, words))) if words else None

    def replace(self, value: Any) -> Any:
        """Return the value with all texts replaced."""
        if isinstance(value, str):
            return self._replace_text(value)
        if isinstance(value, Mapping):
            replaced: dict[Any, Any] = {}
            for key, item in value.items():
                name, number = self.replace(key), 1
                while name in replaced:  # not unique: several generated names can have the same replacement
                    number += 1
                    name = f'{self.replace(key)} {number}'
                replaced[name] = self.replace(item)
            return replaced
        if isinstance(value, Defaulted):
            return Defaulted(self.replace(value.value))
        if isinstance(value, (list, tuple)):
            return [self.replace(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self.replace(item) for item in value), key=_dump)
        return value

    def _replace_text(self, text: str) -> str:
        if text in self._uids:
            return self._uids[text]
        text = _TIME.sub('(time)', _UID.sub(self._name_uid, text))
        return text if self._pattern is None else self._pattern.sub(self._name_match, text)

    def _name_uid(self, match: re.Match[str]) -> str:
        return self._uids.get(match[0], '(uid)')

    def _name_match(self, match: re.Match[str]) -> str:
        return self._generated[match[0]]
