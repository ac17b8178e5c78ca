"""The decorators of ``kopf.on`` and their options, as the code has them: for the API reference, and for its tests."""

import inspect
import re
import types
from typing import Any

import kopf.on
from kopf._core.intents.signatures import list_descriptions


def list_decorators() -> list[types.FunctionType]:
    """Return the public decorators in the order of their declaration."""
    found = [each for name, each in vars(kopf.on).items() if inspect.isfunction(each) and name[0] != "_"]
    return [fn for fn in found if fn.__module__ == "kopf.on"]


def list_options(fn: types.FunctionType) -> list[tuple[str, str, str, str]]:
    """Return the name of each option, its type, its default (unless it is ``None``), and its meaning."""
    meanings = list_descriptions(fn.__doc__ or "")
    found = []
    for name, each in inspect.signature(fn).parameters.items():
        if each.kind is each.KEYWORD_ONLY:
            default = "required" if each.default is each.empty else "" if each.default is None else repr(each.default)
            found.append((name, spell_type(each.annotation), default, meanings[name]))
    return found


def spell_type(hint: Any) -> str:
    """Return the type as users write it; ``None`` is left out, as it means that the option is absent."""
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).removesuffix(" | None").removeprefix("None | ")
    return text.replace("MetaFilterToken", "PRESENT | ABSENT")
