"""
Scripts that declare handlers and end: ``python handlers.py``, where ``kopf run handlers.py`` was meant.

Nothing would be said otherwise, as the declarations are the whole program. A script that runs anything by itself, such
as `kopf.run`, is not warned of: it can have reasons to end without an operator, e.g. because of its own options.
"""

import atexit
import functools
import logging
import pathlib
import re
import sys

logger = logging.getLogger(__name__)

_RUNNING = re.compile(r'\b(run|operator|main|execute)\s*\(')


def note_declaration(fn: object) -> None:
    """Called when a handler is declared: if it is in the script, warn at the end if the script has run nothing."""
    if getattr(fn, '__module__', None) == '__main__':
        _expect_run(getattr(sys.modules['__main__'], '__file__', None))


@functools.cache  # one warning is enough
def _expect_run(path: str | None) -> None:
    if path is not None and path.endswith('.py') and not hasattr(sys, 'ps1'):
        atexit.register(_warn, path)


def _warn(path: str) -> None:
    try:
        text = pathlib.Path(path).read_text(encoding='utf-8')
    except (OSError, ValueError):
        return
    # A script that has failed has said why. No formatter adds the code here, as the script has not configured any.
    if not _RUNNING.search(text) and not hasattr(sys, 'last_type') and not sys.flags.interactive:
        logger.warning("Nothing has run: %s only declares handlers. To run them: kopf run %s [nothing-run]", path, path)
