"""
Types that are too small for modules of their own.

Existing operators import them from this module to annotate their arguments; they are public in `kopf`, too.
"""

import logging
from typing import Any, TypeAlias

Logger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]
"""The type of the loggers passed to handlers; they put the name of the object before the messages."""
