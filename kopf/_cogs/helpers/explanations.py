"""
Errors for users: their texts name the mistake, its location, and the remedy.

The command line shows only the text of such an error, without a traceback. Each module derives its own errors from
the base class here, so that the command line needs to import none of these modules.
"""

import collections.abc
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
    text = f"{get_text(error)}{_find_hint(error)}"
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


def _find_hint(error: BaseException) -> str:
    # Why not in `__getattr__` of the mappings? That method makes all attributes slower.
    if not isinstance(error, AttributeError) or not isinstance(error.obj, collections.abc.Mapping):
        return ''
    if not error.name or error.name.startswith('_') or 'it is a mapping' in get_text(error):
        return ''
    return f": it is a mapping, use [{error.name!r}] or .get({error.name!r})"


def quote_error(error: BaseException) -> str:
    """
    Return the text of an error for users who do not know the code: with the type, unless the text was written for them.

    The texts of most types say little without the type, e.g. ``'field'`` of a `KeyError`.
    """
    is_written = isinstance(error, ValueError | RuntimeError | ExplainedError) or type(error) is Exception
    return (is_written and get_text(error)) or name_error(error)
