"""
Comparison of the fields that decorators name with the schema of the kind: `find_doubts_of_kinds`, `find_doubt`.

The API server drops the fields that a closed schema does not have. So a handler with a misspelt ``field=`` would never
be called, without any error. The schemas come from declared classes (JSON schemas) or from CRDs (structural schemas);
both are read without a conversion.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from kopf._cogs.structs.references import Resource, Selector
from kopf._core.intents.handlers import ResourceHandler, find_typed
from kopf._core.intents.known_fields import Schema
from kopf._core.intents.mistakes import locate
from kopf._core.intents.registries import OperatorRegistry

if TYPE_CHECKING:
    from kopf._core.intents.declared_kinds import Kind  # imported only by operators with models

_TEXT = re.compile(r'''r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')''')
_SELF = re.compile(r'(?<![\w.])self((?:\s*\.\s*\w+)+)(\s*\()?')


def find_doubts_of_kinds(registry: OperatorRegistry) -> Iterator[str]:
    """Yield a message for each field that handlers or the declarations of kinds name, and that the class lacks."""
    for kind in registry.kinds:
        named = [
            *_list_fields_of_handlers(kind, registry),
            *_list_arguments(kind, registry),
            *_list_columns(kind),
            *_list_rules(kind),
        ]
        named = [(what, path) for what, path in named if not (kind.conditions and path[:2] == ('status', 'conditions'))]
        if not named:
            continue
        try:
            schema = Schema(kind.adapter.make_schema(), is_structural=False)
        except Exception:  # of any library: the class has no schema, which is what `kopf crd` is for
            continue
        for what, path in named:
            if (unknown := schema.find_unknown(path)) is not None:
                yield f"{what}, but the class {kind.cls.__qualname__} has no such field. {unknown.hint}"


def find_doubt(handler: ResourceHandler, schema: Schema, name: str) -> str | None:
    """
    Return a message if the schema does not have the field of the handler.

    Args:
        handler: the handler.
        schema: the schema of the objects that the handler is for.
        name: the name of the CRD with the schema.
    """
    unknown = schema.find_unknown(handler.field or ())
    if unknown is None:
        return None
    return f"{_describe(handler)}, but the schema in the CRD {name!r} has no such field. {unknown.hint}"


def names_field(handler: ResourceHandler) -> bool:
    """Check whether the handler is for a field of one resource, which can have a schema."""
    return bool(handler.field) and handler.selector is not None and handler.selector.is_specific


def is_declared(selector: Selector, kinds: Collection['Kind']) -> bool:
    """Check whether the selector selects one of the declared kinds."""
    return any(selector.check(_make_resource(kind)) for kind in kinds)


def _make_resource(kind: 'Kind') -> Resource:
    return Resource(
        kind.group,
        kind.version,
        kind.plural,
        kind=kind.kind,
        singular=kind.singular,
        shortcuts=frozenset(kind.short_names),
    )


def _describe(handler: ResourceHandler) -> str:
    return f"{handler} ({locate(handler.fn)}) has field={'.'.join(handler.field or ())!r}"


def _list_fields_of_handlers(kind: 'Kind', registry: OperatorRegistry) -> Iterator[tuple[str, Sequence[str]]]:
    for handler in registry.iter_resource_handlers():
        if names_field(handler) and handler.selector is not None and is_declared(handler.selector, [kind]):
            yield _describe(handler), handler.field or ()


def _list_arguments(kind: 'Kind', registry: OperatorRegistry) -> Iterator[tuple[str, Sequence[str]]]:
    # Not the status: for classes without it, it is known to be ``None``.
    for handler in registry.iter_resource_handlers():
        if handler.model is kind and 'spec' in find_typed(handler.fn):
            yield f"{handler} ({locate(handler.fn)}) asks for 'spec', which is always None", ('spec',)


def _list_columns(kind: 'Kind') -> Iterator[tuple[str, Sequence[str]]]:
    for name, column in kind.columns.items():
        path = column if isinstance(column, str) else column.get('path', column.get('jsonPath', ''))
        names = path.removeprefix('.').split('.')
        # Other paths have filters and indices of lists, which only the API server evaluates.
        if all(re.fullmatch(r'\w+', each) for each in names):
            yield f"{kind}: columns= has {name!r} with {path!r}", names


def _list_rules(kind: 'Kind') -> Iterator[tuple[str, Sequence[str]]]:
    for rule in kind.rules:
        text = rule if isinstance(rule, str) else rule[0] if isinstance(rule, tuple) else str(rule.get('rule'))
        for path in list_fields_of_rule(text):
            yield f"{kind}: rules= has {text!r} with 'self.{'.'.join(path)}'", path


def list_fields_of_rule(text: str) -> list[tuple[str, ...]]:
    """Return the paths of the fields of ``self`` in a CEL expression, without fields of variables."""
    found: dict[tuple[str, ...], None] = {}
    for match in _SELF.finditer(_TEXT.sub("''", text)):
        names = [name.strip() for name in match[1].split('.')[1:]]
        if match[2]:
            del names[-1]  # a method, such as `self.spec.items.all(...)`
        # Names that CEL reserves or cannot spell are escaped, such as `__namespace__`.
        escaped = next((index for index, name in enumerate(names) if '__' in name), len(names))
        if names[:escaped]:
            found[tuple(names[:escaped])] = None
    return list(found)
