"""
Errors for users: their texts name the mistake, its location, and the remedy.

The command line shows only the text of such an error, without a traceback. Each module derives its own errors from
the base class here, so that the command line needs to import none of these modules.
"""

import collections.abc


class ExplainedError(Exception):
    """An error whose text is sufficient for the user, without a traceback."""

    exit_code = 1
    """The exit code of a command that fails because of this error."""


def name_error(error: BaseException) -> str:
    """Return the type of the error and its text; only the type if there is no text."""
    text = f"{error}{_find_hint(error)}"
    return f"{type(error).__name__}: {text}" if text and text != 'None' else f"{type(error).__name__}()"


def _find_hint(error: BaseException) -> str:
    # Why not in `__getattr__` of the mappings? That method makes all attributes slower.
    if not isinstance(error, AttributeError) or not isinstance(error.obj, collections.abc.Mapping):
        return ''
    if not error.name or error.name.startswith('_') or 'it is a mapping' in str(error):
        return ''
    return f": it is a mapping, use [{error.name!r}] or .get({error.name!r})"


def quote_error(error: BaseException) -> str:
    """
    Return the text of an error for users who do not know the code: with the type, unless the text was written for them.

    The texts of most types say little without the type, e.g. ``'field'`` of a `KeyError`.
    """
    is_written = isinstance(error, ValueError | RuntimeError | ExplainedError) or type(error) is Exception
    return str(error) if is_written and str(error) else name_error(error)
