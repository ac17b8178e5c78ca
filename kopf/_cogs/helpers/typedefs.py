"""
Types that are too small for modules of their own.

Operators out there annotate their arguments with them by the path of this module; they are public in `kopf`.
"""

import logging
from typing import Any, TypeAlias

Logger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]
"""What handlers are given to log: with the name of the object before the messages."""
