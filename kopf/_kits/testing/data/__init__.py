"""Recordings of real control planes by ``scripts/record_*.py``: packed JSON, unpacked when first needed."""

import gzip
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent


def unpack(name: str) -> Any:
    """Return the content of a recording."""
    return orjson.loads(gzip.decompress((FOLDER / name).read_bytes()))
