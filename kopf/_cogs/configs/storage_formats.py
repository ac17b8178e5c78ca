"""
Conventions of storages for annotations and fields of objects, which they share with other clients.

Several operators can store their states in the same object. So keys have prefixes and must fit the limits of
Kubernetes, and markers let an operator ignore the annotations of other operators. The formats must not change, because
objects outlive operators. The keys are cached, because there are few ids and many events.
"""

import functools
import json
import logging
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

import orjson

from kopf._cogs.structs import bodies, dicts, patches

logger = logging.getLogger(__name__)

MAX_NAME_LENGTH: Final = 63
MAX_PREFIX_LENGTH: Final = 189  # 253 for the whole key, less 63 for the name, less the slash

MAX_KEYS: Final = 4096
"""The number of ids whose keys are cached: there are few ids, unless they are made of data."""

MAX_ANNOTATIONS_SIZE: Final = 256 * 1024  # bytes of all keys and values of an object

_encoder: Final = json.JSONEncoder(separators=(',', ':'))

_MARKER: Final = 'kopf-managed'
_MARKER_SUFFIX: Final = f'/{_MARKER}'
_KNOWN_PREFIX: Final = 'kopf.zalando.org'
_LAST_APPLIED: Final = 'kubectl.kubernetes.io/last-applied-configuration'
_LEGAL: Final = re.compile(r'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
_ILLEGAL: Final = re.compile(r'[^-A-Za-z0-9_.]')
_DOMAIN: Final = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
_UNSAFE: Final = str.maketrans({'/': '.', '<': '_', '>': '_'})


@functools.lru_cache(maxsize=4096)
def _make_suffix(key: str) -> str:
    import base64  # only for long ids, which most operators do not have
    import hashlib

    digest = hashlib.blake2b(key.encode('utf-8'), digest_size=4).digest()
    return '-' + base64.b64encode(digest, altchars=b'-.').decode('ascii').rstrip('=-.')


def _make_safe(key: str, room: int) -> str:
    safe_key = key.translate(_UNSAFE)
    if _LEGAL.fullmatch(safe_key if len(safe_key) <= room else f'{safe_key}x'):  # longer ones are cut off at the end
        return safe_key
    # Kubernetes refuses such names, e.g. of lambdas, with a leading underscore, or with non-ASCII characters.
    return f"x{_ILLEGAL.sub('_', safe_key)}{_make_suffix(key)}"


@functools.lru_cache(maxsize=4096)
def _make_v1_key(prefix: str, key: str, max_length: int) -> str:
    room = max_length - len(prefix) - 1
    safe_key = _make_safe(key, room)
    if len(safe_key) > room:
        suffix = _make_suffix(safe_key)
        # With long prefixes, the length is negative, and it cuts from the end. Existing objects have such keys.
        safe_key = safe_key[: room - len(suffix)] + suffix
    return f'{prefix}/{safe_key}'


@functools.lru_cache(maxsize=4096)
def _make_v2_key(prefix: str, key: str, max_length: int) -> str:
    safe_key = _make_safe(key, max_length)
    if len(safe_key) > max_length:
        suffix = _make_suffix(key)
        safe_key = safe_key[: max(0, max_length - len(suffix))] + suffix
    return f'{prefix}/{safe_key}'


class CollisionEvadingConvention:
    """Keys for objects to which Kubernetes copies the annotations of other objects."""

    def mark_key(self, key: str, *, body: bodies.Body) -> str:
        """Return another key for ReplicaSets of Deployments, as Kubernetes copies the annotations of Deployments."""
        if body.get('kind') == 'ReplicaSet':
            owners = (body.get('metadata') or {}).get('ownerReferences') or ()
            if any(owner.get('kind') == 'Deployment' for owner in owners):
                return f'{key}-ofDRS'
        return key


class StorageKeyFormingConvention(CollisionEvadingConvention):
    """
    Keys of annotations, made from ids of any length and with any characters.

    There are two forms. In the newer one (V2), the name has its 63 characters, whatever the prefix is. The older one
    (V1) counts the prefix, too. While `v1` is on, both are written and read if they differ: for older operators.

    Args:
        prefix: the prefix of all keys, without the slash.
        v1: whether the older form is used in addition.

    Raises:
        ValueError: if there is no prefix, or if it cannot be one.
    """

    prefix: str
    v1: bool

    def __init__(self, *args: Any, prefix: str, v1: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keys: dict[tuple[str, bool, str], list[str]] = {}
        if not prefix:
            raise ValueError("A storage in annotations must have a prefix, e.g. prefix='my-operator.example.com'.")
        if not _DOMAIN.fullmatch(prefix.lower()):  # capital letters are accepted in keys of annotations
            raise ValueError(
                f"The prefix of annotations cannot be {prefix!r}: it is a domain, so it has only letters, digits, '-', "
                f"and '.', e.g. prefix='my-operator.example.com'."
            )
        if len(prefix) > MAX_PREFIX_LENGTH:
            warnings.warn(
                f"The prefix of annotations is longer than {MAX_PREFIX_LENGTH} characters: "
                f"Kubernetes will reject the patches with it: {prefix!r}",
                UserWarning,
                stacklevel=3,
            )
        self.prefix = prefix
        self.v1 = v1

    def make_keys(self, key: str, *, body: bodies.Body | None = None) -> Iterable[str]:
        """
        Return all the keys under which a record is stored, in the order of preference for reading.

        Args:
            key: the id of the record.
            body: the object to which the record belongs, if its specifics are to be considered.
        """
        key = self.mark_key(key, body=body) if body is not None else key
        # The cache's key includes the prefix and the mode, because developers can change these attributes at any time.
        keys = self._keys.get((self.prefix, self.v1, key))
        if keys is None:
            keys = self._form_keys(key)
            if len(self._keys) < MAX_KEYS and not is_overridden(self, 'make_v1_key', 'make_v2_key'):
                self._keys[self.prefix, self.v1, key] = keys
        # Return a copy: the list is cached, but callers may modify it.
        return [*keys]

    def _form_keys(self, key: str) -> list[str]:
        v2_key = self.make_v2_key(key)
        if not self.v1:
            return [v2_key]
        v1_key = self.make_v1_key(key)
        if v1_key == v2_key or not self._is_possible(v1_key, key):
            return [v2_key]
        return [v2_key, v1_key]

    def _is_possible(self, v1_key: str, key: str) -> bool:
        # When the prefix leaves no room for the name, the API would reject the whole patch because of such a key.
        if is_overridden(self, 'make_v1_key'):
            return True
        name = v1_key[len(self.prefix) + 1 :]
        return len(name) <= MAX_NAME_LENGTH and name[:1] == self.make_safe_key(key[:1])

    def make_v1_key(self, key: str, max_length: int = MAX_NAME_LENGTH) -> str:
        """Return the key in the older form: the limit (in characters) is for the prefix, slash, and name together."""
        return _make_v1_key(self.prefix, key, max_length)

    def make_v2_key(self, key: str, max_length: int = MAX_NAME_LENGTH) -> str:
        """Return the key in the newer form: the limit (in characters) is for the name only."""
        return _make_v2_key(self.prefix, key, max_length)

    @staticmethod
    def make_safe_key(key: str) -> str:
        """Replace the characters that can be in ids but cannot be in keys."""
        return key.translate(_UNSAFE)

    def make_suffix(self, key: str) -> str:
        """Return a short digest of a key to be cut, so that different ids with a common beginning remain different."""
        return _make_suffix(key)


class StorageKeyMarkingConvention:
    """
    Markers by which any operator recognises the annotations of all operators of this framework.

    A prefix that is not obviously a prefix of this framework (``kopf.…``) gets an extra annotation: a marker.
    """

    def _store_marker(self, prefix: str, patch: patches.Patch, body: bodies.Body) -> None:
        key = f'{prefix}{_MARKER_SUFFIX}'
        if not prefix.startswith('kopf.') and key not in get_annotations(body):
            dicts.ensure(patch, ('metadata', 'annotations', key), 'yes')

    def _detect_marked_prefixes(self, keys: Collection[str]) -> Collection[str]:
        """Find the prefixes of other operators by the markers among the keys."""
        marked = [key for key in keys if key.endswith(_MARKER_SUFFIX) and key.count('/') == 1]
        return [key.removesuffix(_MARKER_SUFFIX) for key in marked]


class StorageStanzaCleaner:
    """Removal of empty parents from essences after the storages have removed their own fields."""

    @staticmethod
    def remove_annotations(essence: bodies.BodyEssence, keys_to_remove: Collection[str]) -> None:
        """Remove the annotations from the essence, in place, with the parents that are left empty."""
        for key in keys_to_remove:
            dicts.remove(essence, ('metadata', 'annotations', key))  # type: ignore[arg-type]

    @staticmethod
    def remove_empty_stanzas(essence: bodies.BodyEssence) -> None:
        """Remove the metadata and the status from the essence, in place, if there is nothing in them."""
        meta = essence.get('metadata')
        if meta is not None:
            if not meta.get('annotations', True):
                del meta['annotations']
            if not meta.get('labels', True):
                del meta['labels']
            if not meta:
                del essence['metadata']
        if not essence.get('status', True):
            del essence['status']


def is_overridden(storage: object, *names: str) -> bool:
    """Check whether developers have overridden one of these methods in the storage, or in its nested storages."""
    if not all(getattr(type(storage), name).__module__.startswith('kopf._cogs.') for name in names):
        return True
    return any(is_overridden(each, *names) for each in getattr(storage, 'storages', ()))


def get_annotations(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the raw annotations. Why not views? It is called several times for every event, and must be fast."""
    return (body.get('metadata') or {}).get('annotations') or {}


def measure_annotations(annotations: Mapping[str, Any]) -> int:
    """Return the size (in bytes) that Kubernetes limits; annotations to be removed (``None``) do not count."""
    return sum(_measure(key) + _measure(value) for key, value in annotations.items() if value is not None)


def _measure(text: Any) -> int:
    return len(text) if type(text) is str and text.isascii() else len(str(text).encode('utf-8', errors='replace'))


@functools.lru_cache(maxsize=4096)
def is_foreign(key: str) -> bool:
    """Check whether the annotation is inessential, because it is written by this framework or by kubectl."""
    prefix, slash, _ = key.partition('/')
    is_ours = prefix == _KNOWN_PREFIX or prefix.endswith(f'.{_KNOWN_PREFIX}')
    return (is_ours and slash != '') or key == _LAST_APPLIED


def dump_json(value: Any) -> str:
    """Serialise as all operators do: no spaces, everything but ASCII is escaped (faster libraries do not escape)."""
    return _encoder.encode(value)


def load_json(text: str) -> Any:
    """
    Parse the JSON that any operator could have stored.

    Raises:
        ValueError: if it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # e.g. file names in error messages can have lone surrogates, which JSON permits


def is_same_json(text: Any, value: Any) -> bool:
    """
    Check whether the text is surely the JSON of the value. It is several times faster than parsing the text.

    False negatives are possible, e.g. because of the order of keys or of different escaping of non-ASCII characters.
    """
    try:
        return type(text) is str and orjson.dumps(value) == text.rstrip('\n').encode('utf-8')
    except (TypeError, ValueError):  # too big numbers, lone surrogates
        return False


def warn_of_broken(body: bodies.Body, where: str, problem: str) -> None:
    """Log that the stored state is broken and ignored; only once, as it is read again with every event."""
    _warn_of_broken(describe_object(body), where, problem)


def describe_object(body: bodies.Body) -> str:
    """Return the kind, the namespace and the name of the object, for messages."""
    meta = body.get('metadata') or {}
    name = '/'.join(part for part in (meta.get('namespace'), meta.get('name')) if part)
    return f"{body.get('kind', 'an object')} {name}"


@functools.lru_cache(maxsize=1024)
def _warn_of_broken(who: str, where: str, problem: str) -> None:
    logger.warning(
        f"Ignoring the broken state of handling in {where} of {who}: {problem}. "
        f"Remove or fix it; or do nothing: it will be overwritten when the object is handled."
    )


def without(tree: dict[str, Any], path: dicts.FieldPath) -> dict[str, Any]:
    """
    Copy the dict without the field and without the field's parents that are (or were) empty.

    Only the changed dicts are copied, all others are shared; if the field is absent, the same dict is returned.
    """
    key, *rest = path
    if key not in tree:
        return tree
    child = tree[key]
    if rest:
        if not isinstance(child, dict):
            return tree
        if cleaned := without(child, tuple(rest)):
            return tree if cleaned is child else {**tree, key: cleaned}
    return {name: value for name, value in tree.items() if name != key}


def clear_field(essence: bodies.BodyEssence, path: dicts.FieldPath) -> bodies.BodyEssence:
    """Return the essence without the field: the same essence if the field is absent, a copy otherwise."""
    if path[0] not in essence:
        return essence
    return cast(bodies.BodyEssence, without(cast(dict[str, Any], essence), path))


def clear_empty_stanzas(essence: bodies.BodyEssence) -> bodies.BodyEssence:
    """Return the essence without empty metadata and status: the same one if they are not empty, a copy otherwise."""
    meta = essence.get('metadata')
    if meta is not None and not (meta and meta.get('labels', True) and meta.get('annotations', True)):
        essence = {**essence, 'metadata': {**meta}}
    elif essence.get('status', True):
        return essence
    else:
        essence = {**essence}
    StorageStanzaCleaner.remove_empty_stanzas(essence)
    return essence


def parse_template(field: dicts.FieldSpec, *, name: str) -> dicts.FieldPath:
    """Parse a field that can contain the operator's name as ``{name}``; only if it is a string with dots."""
    return dicts.parse_field(field.format(name=name) if isinstance(field, str) else field)
