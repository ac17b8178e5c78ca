"""
Errors that are made for people: their texts say what is wrong, where, and what to do about it.

The command line shows nothing but the text of them. Whoever raises one derives it from here, so that the command line
does not have to know, nor to import, all those who can fail.
"""

import collections.abc


class ExplainedError(Exception):
    """An error whose text is all that its reader needs."""

    exit_code = 1
    """What the command ends with if it fails because of this error."""


def name_error(error: BaseException) -> str:
    """Return the type of the error and its text; only the type if there is no text."""
    text = f"{error}{_find_hint(error)}"
    return f"{type(error).__name__}: {text}" if text and text != 'None' else f"{type(error).__name__}()"


def _find_hint(error: BaseException) -> str:
    # A method of the mappings could say this, too; but one for absent attributes makes all attributes slower.
    if not isinstance(error, AttributeError) or not isinstance(error.obj, collections.abc.Mapping):
        return ''
    if not error.name or error.name.startswith('_') or 'it is a mapping' in str(error):
        return ''
    return f": it is a mapping, use [{error.name!r}] or .get({error.name!r})"


def quote_error(error: BaseException) -> str:
    """
    Return the text of an error for those who do not know the code: with the type unless it was written for them.

    Of most types, the texts alone say little: ``'field'`` of a `KeyError`.
    """
    is_written = isinstance(error, ValueError | RuntimeError | ExplainedError) or type(error) is Exception
    return str(error) if is_written and str(error) else name_error(error)
