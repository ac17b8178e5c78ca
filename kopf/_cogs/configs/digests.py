"""
Digests that are stored instead of secret or too long values.

With a digest, a change of the value is still detected, but the old value is unknown. When a stored essence is compared
with an object, the digests of unchanged values are replaced with these values. So only changed values are reported as
changed, with the digest as the old value. The digests of different objects differ even for equal values.
They protect from reading the values, but not from guessing: an attacker can find a weak password by trials.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from kopf._cogs.configs import storage_formats
from kopf._cogs.structs import bodies

PREFIX: Final = 'digest:'
"""The prefix of digests. No value of a Secret can begin with it, as those are in Base64."""

_DEPTH: Final = 8
_WORTH: Final = 40  # characters of JSON; shorter values are not longer than their digests
_MAX_UNPACKED: Final = 16 * 1024 * 1024  # far more than any object can have


class DigestedEssence(dict[str, Any]):
    """An essence with digests in place of some values."""


def conceal(essence: bodies.BodyEssence, fields: Collection[str], body: bodies.Body) -> bodies.BodyEssence:
    """Return a copy of the essence with digests instead of all values of these mappings."""
    salt = _get_salt(body)
    changes = {
        field: {key: _digest(value, salt) for key, value in values.items()}
        for field in fields
        if isinstance(values := essence.get(field), Mapping)
    }
    return cast(bodies.BodyEssence, {**essence, **changes}) if changes else essence


def reveal(stored: bodies.BodyEssence, essence: bodies.BodyEssence, body: bodies.Body) -> bodies.BodyEssence:
    """Replace the digests in the stored essence with the values of the current essence that have these digests."""
    return cast(bodies.BodyEssence, _reveal(stored, essence, _get_salt(body)))


def pack(text: str) -> str:
    """Compress a text, and encode it as a text."""
    return base64.b64encode(zlib.compress(text.encode('utf-8'), level=9)).decode('ascii')


def unpack(text: str) -> str:
    """
    Decompress a text.

    Raises:
        ValueError: if it is not such a text.
    """
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED)
    except zlib.error as e:
        raise ValueError(f"not compressed data: {e}") from None
    if not reader.eof:
        raise ValueError("compressed data that are cut off, or are too big")
    return data.decode('utf-8')


def shorten(essence: bodies.BodyEssence, room: int, body: bodies.Body) -> str:
    """Return JSON of the essence that fits into the room (in characters), with digests of as few values as possible."""
    salt, text = _get_salt(body), ''
    # Begin at the deepest level: the deeper the values are cut, the more values stay readable.
    for depth in range(_DEPTH, 0, -1):
        text = storage_formats.dump_json(_cut(essence, depth, salt))
        if len(text) <= room:
            break
    return text


def _cut(value: Any, depth: int, salt: str) -> Any:
    if isinstance(value, Mapping) and depth > 0:
        return {key: _cut(child, depth - 1, salt) for key, child in value.items()}
    if not isinstance(value, (Mapping, list, str)) or len(storage_formats.dump_json(value)) <= _WORTH:
        return value
    return _digest(value, salt)


def _reveal(stored: Any, actual: Any, salt: str) -> Any:
    if isinstance(stored, Mapping) and isinstance(actual, Mapping):
        return {key: _reveal(value, actual[key], salt) if key in actual else value for key, value in stored.items()}
    if type(stored) is str and stored.startswith(PREFIX) and stored == _digest(actual, salt):
        return actual
    return stored


def _digest(value: Any, salt: str) -> str:
    if type(value) is str and value.startswith(PREFIX):
        return value  # a digest of an older state
    # Sort the keys, because the API server does not keep their order.
    text = json.dumps([salt, value], separators=(',', ':'), sort_keys=True)
    return PREFIX + hashlib.blake2b(text.encode('ascii'), digest_size=12).hexdigest()


def _get_salt(body: bodies.Body) -> str:
    # Why not the uid? It changes when an object is restored from a backup.
    meta = body.get('metadata') or {}
    return f"{meta.get('namespace') or ''}/{meta.get('name') or ''}"
