"""
Errors for users: their texts name the mistake, its location, and the remedy.

The command line shows only the text of such an error, without a traceback. Each module derives its own errors from
the base class here, so that the command line needs to import none of these modules.
"""

import collections.abc
import re
from typing import Final

INTERRUPTIONS: Final = (KeyboardInterrupt, GeneratorExit)
"""
The exceptions that are raised on, where all other ones of users' functions are caught.

Why are the others not only `Exception`? `SystemExit` would end the loop, and so the operator. A cancellation would end
the task without any trace; where a synchronous function raises it, it is not meant for this task, but comes from the
result of another one. And some libraries have errors that are no `Exception`, e.g. for panics in extensions in Rust.
"""


class ExplainedError(Exception):
    """An error whose text is sufficient for the user, without a traceback."""

    exit_code = 1
    """The exit code of a command that fails because of this error."""


def name_error(error: BaseException) -> str:
    """Return the type of the error and its text; only the type if there is no text."""
    text, hint = get_text(error), find_hint(error)
    if hint:
        text = text.removesuffix('.') + hint
    return f"{type(error).__name__}: {text}" if text and text != 'None' else f"{type(error).__name__}()"


def get_text(error: BaseException) -> str:
    """Return the text of the error; empty if it cannot be made, as some classes of errors have mistakes themselves."""
    try:
        return str(error)
    except Exception:
        return ''


def show_error(error: BaseException) -> str:
    """Return the representation of the error; only its type if the representation cannot be made."""
    try:
        return repr(error)
    except Exception:
        return f'{type(error).__name__}()'


_HINTS: Final = (
    (
        re.compile(r"asyncio\.run\(\) cannot be called from a running event loop"),
        "an async function is in the event loop already, so write await instead",
    ),
    (
        re.compile(r"There is no current event loop in thread"),
        "sync functions run in threads without one, so write async def and await, or asyncio.run(...)",
    ),
    (
        re.compile(r"Object of type (Body|Spec|Status|Meta|Labels|Annotations|MappingView) is not JSON serializable"),
        "it is a view of a dict, so write dict(...)",
    ),
    (re.compile(r"'coroutine' object (is not|has no|does not)"), "write await before the call that has returned it"),
)
"""What to write instead, for errors of Python that are frequent in handlers."""


def find_hint(error: BaseException) -> str:
    """Return what to write instead, if the error of Python is a frequent one in handlers; otherwise, an empty text."""
    # Why not in `__getattr__` of the mappings? That method makes all attributes slower.
    if isinstance(error, AttributeError) and isinstance(error.obj, collections.abc.Mapping):
        known = not error.name or error.name.startswith('_') or 'has no attribute' not in get_text(error)
        if known or 'it is a mapping' in get_text(error):
            return ''
        return f": it is a mapping, use [{error.name!r}] or .get({error.name!r})"
    if type(error).__name__ == 'RepresenterError':  # of PyYAML, which may not be imported here
        return ": write dict(...) for a view of a dict" if isinstance(error.args[-1], collections.abc.Mapping) else ''
    if isinstance(error, RuntimeError | TypeError | AttributeError):
        text = get_text(error)
        return next((f": {hint}" for pattern, hint in _HINTS if pattern.match(text)), '')
    return ''


def quote_error(error: BaseException) -> str:
    """
    Return the text of an error for users who do not know the code: with the type, unless the text was written for them.

    The texts of most types say little without the type, e.g. ``'field'`` of a `KeyError`.
    """
    is_written = isinstance(error, ValueError | RuntimeError | ExplainedError) or type(error) is Exception
    return (is_written and get_text(error)) or name_error(error)
