"""
What was recorded of real control planes, by ``scripts/record_*.py``: packed JSON, unpacked when it is first needed.
"""

import gzip
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent


def unpack(name: str) -> Any:
    """The content of a recording."""
    return orjson.loads(gzip.decompress((FOLDER / name).read_bytes()))
