"""
Conversion of JSON schemas, as pydantic and msgspec make them, to the structural schemas of CRDs.

Structural schemas have no references, one type per field, and no types inside of ``anyOf``. "Models" in the
documentation lists the schema of each Python type. If a structural schema cannot express a type, the conversion raises
an error that names the attribute. If it can, but the API server checks the value less strictly than the model does, the
conversion warns.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.structs.model_adapters import ModelError, drop_nulls
from kopf._kits.definitions.schema_extensions import INT_OR_STRING, LIST_TYPE, PRESERVE

Schema = dict[str, Any]
Warn = Callable[[str], None]

FORMATS = frozenset(
    'bsonobjectid byte cidr creditcard date date-time datetime email hexcolor hostname int32 int64 float double '
    'ipv4 ipv6 isbn isbn10 isbn13 mac password rgbcolor ssn uri uuid uuid3 uuid4 uuid5'.split()
)
"""The formats that the API server checks in the same way as the models do; it ignores or misreads all others."""

_NUMERIC = ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf')
_TEXTUAL = ('minLength', 'maxLength', 'pattern', 'format')
_LISTED = ('minItems', 'maxItems')
_COUNTED = ('minProperties', 'maxProperties')
_LIMITS = (*_NUMERIC, *_TEXTUAL, *_LISTED, *_COUNTED)
_VALIDATIONS = (*_LIMITS, 'enum', 'required', 'anyOf', 'allOf')
_UNCHECKED = frozenset('propertyNames patternProperties not if then else dependentRequired contains'.split())
_NOT_RE2 = re.compile(r'\(\?(=|!|<=|<!|\()|\\[1-9]|\(\?P=|[*+?}]\+')


def convert_schema(schema: Mapping[str, Any], *, model: str, warn: Warn) -> Schema:
    """
    Return the structural schema of a version of a CRD.

    Args:
        schema: the JSON schema of the class.
        model: the name of the class, for messages.
        warn: called with the message for each constraint that the API server will not check.

    Raises:
        ModelError: if the schema cannot be structural.
    """
    converter = _Converter(schema.get('$defs') or {}, model, warn)
    root = converter.convert(_drop_null_status(schema), ())
    if root.get('type') != 'object' or not root.get('properties'):
        raise ModelError(f"{model} has no fields, so it cannot be the model of a kind: add a spec.")
    for name in ('apiVersion', 'kind', 'metadata'):
        root['properties'].pop(name, None)
    required = [name for name in root.pop('required', ()) if name in root['properties']]
    return {**root, **({'required': required} if required else {})}


def _drop_null_status(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without a status that is always null: ``status: None`` says that the kind has none."""
    if (reference := schema.get('$ref')) is not None:
        definitions = schema.get('$defs') or {}
        schema = {**schema, **definitions.get(str(reference).removeprefix('#/$defs/'), {})}
        del schema['$ref']
    properties = schema.get('properties') or {}
    if (properties.get('status') or {}).get('type') != 'null':
        return schema
    return {
        **schema,
        'properties': {name: each for name, each in properties.items() if name != 'status'},
        'required': [name for name in schema.get('required') or () if name != 'status'],
    }


class _Converter:
    """
    The conversion of one schema.

    Args:
        definitions: the schemas that references can refer to, by their names.
        model: the name of the class, for messages.
        warn: called with messages.
    """

    def __init__(self, definitions: Mapping[str, Any], model: str, warn: Warn) -> None:
        self._definitions = definitions
        self._model = model
        self._warn = warn
        self._open: list[str] = []

    def convert(self, node: Any, path: tuple[str, ...]) -> Schema:
        """Return the structural schema of the field with this path."""
        if not isinstance(node, Mapping):  # true permits any value; models never contain false, which permits none
            return self._any()
        if (reference := node.get('$ref')) is not None:
            return self._follow(str(reference), node, path)
        alternatives = node.get('anyOf') or node.get('oneOf')
        if not alternatives and len(node.get('allOf') or ()) == 1:
            alternatives = node['allOf']
        elif node.get('allOf'):
            raise self._error(path, "a combination of several schemas (allOf)", "one class that has all the fields")
        if alternatives:
            tag = (node.get('discriminator') or {}).get('propertyName')
            return self._describe(self._unite(alternatives, path, tag=tag), node, path)
        if isinstance(types := node.get('type'), list):
            return self._describe(self._unite([{**node, 'type': each} for each in types], path), {}, path)
        return self._describe(self._convert_one(node, path), node, path)

    def _follow(self, reference: str, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        name = reference.removeprefix('#/$defs/')
        if name in self._open:
            self._warn(
                f"{self._name(path)} is recursive, which CRDs cannot express: the API server will accept any object "
                f"there, and keep all its fields."
            )
            return {'type': 'object', PRESERVE: True}
        self._open.append(name)
        try:
            siblings = {key: value for key, value in node.items() if key not in ('$ref', '$defs')}
            return self._describe(self.convert(self._definitions[name], path), siblings, path)
        finally:
            self._open.pop()

    def _describe(self, schema: Schema, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        """Add the description, the default, and the extensions of the node."""
        if description := node.get('description'):
            schema['description'] = description
        if (default := node.get('default')) is not None:
            schema['default'] = drop_nulls(default)
        for key, value in node.items():
            if key.startswith('x-kubernetes-'):
                schema[key] = value
            elif key in _UNCHECKED:
                self._warn(f"{self._name(path)}: the API server cannot check {key!r}; only the operator will.")
        if schema.get(INT_OR_STRING):
            schema.pop('type', None)
        return schema

    def _any(self) -> Schema:
        return {PRESERVE: True, 'nullable': True}

    def _convert_one(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        values = [node['const']] if 'const' in node else node.get('enum')
        if values is not None:
            return self._convert_enum(values, path)
        match node.get('type'):
            case 'object':
                return self._convert_object(node, path)
            case 'array':
                return self._convert_array(node, path)
            case 'string' | 'integer' | 'number' | 'boolean' as type:
                return {'type': type, **self._limits(node, path)}
            case None if node.keys() & {'properties', 'additionalProperties'}:
                return self._convert_object(node, path)
            case None:
                return self._any()
            case 'null':
                raise self._error(path, "a field that is always null", "no such field")
            case type:
                raise self._error(path, f"the type {type!r}", "another type")

    def _convert_enum(self, values: Sequence[Any], path: tuple[str, ...]) -> Schema:
        enum = [value for value in values if value is not None]
        if len(enum) < len(values):
            return self._allow_null(self._convert_enum(enum, path), path)
        kinds = {_TYPES.get(type(value)) for value in enum}
        kinds = {'number'} if kinds == {'integer', 'number'} else kinds
        if kinds == {'integer', 'string'}:
            return {INT_OR_STRING: True, 'enum': enum}
        if len(kinds) != 1 or None in kinds:
            raise self._error(path, f"the values {', '.join(map(repr, values))}", "values of one type")
        return {'type': kinds.pop(), 'enum': enum}

    def _convert_object(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        schema: Schema = {'type': 'object', **self._limits(node, path)}
        properties, others = node.get('properties'), node.get('additionalProperties')
        if properties:
            schema['properties'] = {key: self.convert(each, (*path, key)) for key, each in properties.items()}
            if required := [key for key in node.get('required') or () if key in properties]:
                schema['required'] = required
            if others is True or (isinstance(others, Mapping) and not others):
                schema[PRESERVE] = True
            elif isinstance(others, Mapping):
                raise self._error(path, "named fields beside others of one type", "a dict as one of the fields")
        elif isinstance(others, Mapping) and others:
            schema['additionalProperties'] = self.convert(others, (*path, '*'))
        elif others is not False:
            schema[PRESERVE] = True
        return schema

    def _convert_array(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        schema: Schema = {'type': 'array', **self._limits(node, path)}
        items, prefix = node.get('items'), node.get('prefixItems')
        if prefix:
            variants = [self.convert(each, (*path, '*')) for each in prefix]
            if any(each != variants[0] for each in variants) or isinstance(items, Mapping):
                raise self._error(path, "a tuple of different types", "a list or a class")
            return {**schema, 'items': variants[0], 'minItems': len(variants), 'maxItems': len(variants)}
        schema['items'] = self.convert({} if items is None else items, (*path, '*'))
        if node.get('uniqueItems'):
            if schema['items'].get('type') in ('string', 'integer', 'number', 'boolean'):
                schema[LIST_TYPE] = 'set'
            else:
                self._warn(f"{self._name(path)}: the API server cannot check that non-scalar items are unique.")
        return schema

    def _limits(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        """Return the constraints of the value, converted to OpenAPI 3.0: there, `exclusiveMinimum` is a boolean."""
        limits: Schema = {key: node[key] for key in _LIMITS if key in node}
        for exclusive, bound in (('exclusiveMinimum', 'minimum'), ('exclusiveMaximum', 'maximum')):
            if isinstance(value := limits.get(exclusive), int | float) and not isinstance(value, bool):
                tighter = max if bound == 'minimum' else min
                limits[exclusive] = limits.get(bound) is None or tighter(limits[bound], value) == value
                limits[bound] = value if limits[exclusive] else limits[bound]
        if (format := limits.get('format')) is not None and format not in FORMATS:
            del limits['format']
        if (pattern := limits.get('pattern')) and _NOT_RE2.search(pattern):
            raise self._error(path, f"the pattern {pattern!r}", "one without look-around and back-references")
        return limits

    # Unions.

    def _unite(self, alternatives: Iterable[Any], path: tuple[str, ...], *, tag: str | None = None) -> Schema:
        """Return the schema of values that conform to any of the alternatives, which the field `tag` tells apart."""
        nullable, schemas = False, list[Schema]()
        for each in alternatives:
            if isinstance(each, Mapping) and each.get('type') == 'null':
                nullable = True
                continue
            schema = self.convert(each, path)
            nullable = bool(schema.pop('nullable', False)) or nullable
            if tag in schema.get('properties', {}):
                # The model cannot choose the class without this field, even if the class has a default for it.
                schema['required'] = list(dict.fromkeys([*schema.get('required', ()), tag]))
            if schema not in schemas:
                schemas.append(schema)
        if not schemas:
            raise self._error(path, "a field that is always null", "no such field")
        united = schemas[0] if len(schemas) == 1 else self._unite_schemas(schemas, path)
        return self._allow_null(united, path) if nullable else united

    def _allow_null(self, schema: Schema, path: tuple[str, ...]) -> Schema:
        """
        Permit null for the field; replace its enum, because the API server refuses null even if the enum has it.

        The API server ignores patterns and branches for nulls, also those with an enum.
        """
        schema['nullable'] = True
        if (values := schema.pop('enum', None)) is None:
            return schema
        if not all(isinstance(value, str) for value in values):
            # Why not a rule in CEL? The estimated cost is too high in lists, and a rule does not work inside of unions.
            schema['allOf'] = [{'enum': values}]
        elif 'pattern' not in schema:
            schema['pattern'] = f"^({'|'.join(map(_escape, values))})$"
        return schema

    def _unite_schemas(self, schemas: list[Schema], path: tuple[str, ...]) -> Schema:
        if any(_is_any(each) for each in schemas):
            return {PRESERVE: True}
        united = self._join(schemas, path)
        limits = [_find_validations(each) for each in schemas]
        if all('enum' in each and len(each) == 1 for each in limits):
            united['enum'] = [value for each in limits for value in each['enum']]
        elif united.get(INT_OR_STRING):
            self._unite_scalars(united, schemas, limits, path)
        elif all(limits):
            united['anyOf'] = limits
        return united

    def _unite_scalars(
        self, united: Schema, schemas: list[Schema], limits: list[Schema], path: tuple[str, ...]
    ) -> None:
        # One schema can have limits for numbers and for strings: each kind of limit ignores values of other types.
        for schema, each in zip(schemas, limits, strict=True):
            if each.keys() & {'enum', 'anyOf', 'allOf'} or united.keys() & each.keys():
                raise self._error(path, f"a union of {_name_types(schemas)} with values or limits", "one of the types")
            if schema.get('type') == 'string' or not schema.get('type'):
                united.update({key: value for key, value in each.items() if key in _TEXTUAL})
            united.update({key: value for key, value in each.items() if key in _NUMERIC})

    def _join(self, schemas: Sequence[Schema], path: tuple[str, ...]) -> Schema:
        """Return a schema without validations that permits the values of all these schemas."""
        if all(each == schemas[0] for each in schemas):
            return _without_validations(schemas[0])
        kinds = {'int-or-string' if each.get(INT_OR_STRING) else str(each.get('type')) for each in schemas}
        if kinds <= {'integer', 'string', 'int-or-string'} and len(kinds) > 1:
            return {INT_OR_STRING: True}
        if kinds == {'integer', 'number'}:
            return {'type': 'number'}
        if len(kinds) != 1:
            raise self._error(path, f"a union of {_name_types(schemas)}", "one of the types, or typing.Any")
        first = _without_validations(schemas[0])
        if any(each.get(PRESERVE) for each in schemas):
            first[PRESERVE] = True
        if first.get('type') == 'array':
            first['items'] = self._join_fields([each['items'] for each in schemas], (*path, '*'))
        elif first.get('type') == 'object':
            self._join_objects(first, schemas, path)
        return first

    def _join_objects(self, united: Schema, schemas: Sequence[Schema], path: tuple[str, ...]) -> None:
        named = [each.get('properties') for each in schemas]
        if any(named):
            if any('additionalProperties' in each for each in schemas):
                raise self._error(path, "a union of a class and a dict", "only one of them")
            keys = dict.fromkeys(key for each in named for key in each or ())
            united['properties'] = {
                key: self._join_fields(
                    [each[key] for each in named if each and key in each],
                    (*path, key),
                    everywhere=all(each and key in each for each in named),
                )
                for key in keys
            }
        elif any('additionalProperties' in each for each in schemas):
            values = [each['additionalProperties'] for each in schemas if 'additionalProperties' in each]
            united['additionalProperties'] = self._join_fields(values, (*path, '*'))

    def _join_fields(self, schemas: Sequence[Schema], path: tuple[str, ...], *, everywhere: bool = True) -> Schema:
        field = {**schemas[0]} if len(schemas) == 1 else self._join(schemas, path)
        # Drop defaults that not all alternatives have: the API server would set them in objects of all alternatives.
        defaults = [each.get('default') for each in schemas]
        if not everywhere or any(each != defaults[0] for each in defaults):
            field.pop('default', None)
        if not everywhere:
            field = _without_validations(field)
        if any(each.get('nullable') for each in schemas):
            field['nullable'] = True
        return field

    # Messages.

    def _name(self, path: tuple[str, ...]) -> str:
        return '.'.join([self._model, *path])

    def _error(self, path: tuple[str, ...], what: str, remedy: str) -> ModelError:
        return ModelError(f"{self._name(path)} is {what}, which the schema of a CRD cannot express. Use {remedy}.")


_TYPES: Mapping[type[Any], str] = {str: 'string', bool: 'boolean', int: 'integer', float: 'number'}


def _escape(text: str) -> str:
    """Return a pattern for the literal text, with escapes that RE2 supports, unlike some of `re.escape`."""
    return re.sub(r'([][\\.+*?()|{}^$])', r'\\\1', text)


def _is_any(schema: Schema) -> bool:
    return bool(schema.get(PRESERVE)) and 'type' not in schema


def _name_types(schemas: Iterable[Schema]) -> str:
    return ' and '.join(dict.fromkeys('int or str' if each.get(INT_OR_STRING) else each['type'] for each in schemas))


def _find_validations(schema: Schema) -> Schema:
    """Return only the parts of a structural schema that are permitted inside of ``anyOf``."""
    found: Schema = {key: schema[key] for key in _VALIDATIONS if key in schema}
    properties = schema.get('properties') or {}
    if nested := {key: limits for key, each in properties.items() if (limits := _find_validations(each))}:
        found['properties'] = nested
    if 'items' in schema and (items := _find_validations(schema['items'])):
        found['items'] = items
    return found


def _without_validations(schema: Schema) -> Schema:
    """Return a structural schema without the parts that are permitted inside of ``anyOf``."""
    kept = {key: value for key, value in schema.items() if key not in _VALIDATIONS}
    if 'properties' in kept:
        kept['properties'] = {key: _without_validations(each) for key, each in kept['properties'].items()}
    if 'items' in kept:
        kept['items'] = _without_validations(kept['items'])
    return kept
