"""
Digests in place of values that are not to be stored: they are secret, or there is no room for them.

With a digest, a change of the value is still noticed, though not what it was before. When what is stored is compared
with an object, the digests of values that the object still has are replaced by these values: so only what has changed
is seen as changed, and a digest is all that is left of what it was. The digests of different objects are different even
for equal values. They protect from copying, not from guessing: a weak password can be found by trying.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from kopf._cogs.configs import conventions
from kopf._cogs.structs import bodies

PREFIX: Final = 'digest:'
"""What digests begin with. No value of a Secret can: those are in Base64."""

_DEPTH: Final = 8
_WORTH: Final = 40  # characters of JSON; shorter values are not longer than their digests
_MAX_UNPACKED: Final = 16 * 1024 * 1024  # far more than any object can have


class DigestedEssence(dict[str, Any]):
    """An essence with digests in place of some values."""


def conceal(essence: bodies.BodyEssence, fields: Collection[str], body: bodies.Body) -> bodies.BodyEssence:
    """Replace all values in these mappings of the essence by digests; the essence itself is not modified."""
    salt = _get_salt(body)
    changes = {
        field: {key: _digest(value, salt) for key, value in values.items()}
        for field in fields
        if isinstance(values := essence.get(field), Mapping)
    }
    return cast(bodies.BodyEssence, {**essence, **changes}) if changes else essence


def reveal(stored: bodies.BodyEssence, essence: bodies.BodyEssence, body: bodies.Body) -> bodies.BodyEssence:
    """Replace the digests of what is stored by those values of the current essence that they are of."""
    return cast(bodies.BodyEssence, _reveal(stored, essence, _get_salt(body)))


def pack(text: str) -> str:
    """Compress a text to what can be stored as a text."""
    return base64.b64encode(zlib.compress(text.encode('utf-8'), level=9)).decode('ascii')


def unpack(text: str) -> str:
    """
    Get back what was compressed.

    :raises ValueError: if it is not such a text.
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
    """Make a JSON of the essence for so much room (in characters): with digests of as few values as it takes."""
    salt, text = _get_salt(body), ''
    for depth in range(_DEPTH, 0, -1):
        text = conventions.dump_json(_cut(essence, depth, salt))
        if len(text) <= room:
            break
    return text


def _cut(value: Any, depth: int, salt: str) -> Any:
    if isinstance(value, Mapping) and depth > 0:
        return {key: _cut(child, depth - 1, salt) for key, child in value.items()}
    if not isinstance(value, (Mapping, list, str)) or len(conventions.dump_json(value)) <= _WORTH:
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
        return value  # it is one already: of an older state, of which nothing else is known
    text = json.dumps([salt, value], separators=(',', ':'), sort_keys=True)
    return PREFIX + hashlib.blake2b(text.encode('ascii'), digest_size=12).hexdigest()


def _get_salt(body: bodies.Body) -> str:
    # Not the uid: backups are restored with another one.
    meta = body.get('metadata') or {}
    return f"{meta.get('namespace') or ''}/{meta.get('name') or ''}"
