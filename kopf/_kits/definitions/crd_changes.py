"""
Changes of CRDs that break stored objects or clients: `find_breaking_changes`.

Stored objects must stay valid and keep their fields, and existing clients must still work. So a schema must not become
stricter, lose a field, or change a type; versions and names must stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._kits.definitions.schema_extensions import INT_OR_STRING, LIST_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE, RULES

_AT_LEAST = ('minimum', 'minLength', 'minItems', 'minProperties')
_AT_MOST = ('maximum', 'maxLength', 'maxItems', 'maxProperties')
_JUNCTORS = ('allOf', 'anyOf', 'oneOf', 'not')
_MISSING = object()


class BreakingChange(NamedTuple):
    """A change that breaks stored objects or clients."""

    place: str
    """The name of the CRD, the version, and the path of the field; the last two only if the change concerns them."""
    text: str
    """The change and its consequence: one sentence."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def find_breaking_changes(
    old: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
) -> Iterator[BreakingChange]:
    """
    Yield the changes between two sets of CRDs that break stored objects or clients.

    Args:
        old: the CRDs of the stored objects.
        new: the CRDs that will replace them.
    """
    known = {crd['metadata']['name']: crd for crd in new}
    for crd in old:
        name = crd['metadata']['name']
        if name not in known:
            yield BreakingChange(name, "the CRD is removed; the API server would delete its objects.")
        else:
            yield from _compare_crds(name, crd['spec'], known[name]['spec'])


def _compare_crds(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[BreakingChange]:
    if old.get('scope') != new.get('scope'):
        yield BreakingChange(
            name, f"the scope changes from {old.get('scope')} to {new.get('scope')}; the API server refuses that."
        )
    for key in ('kind', 'listKind', 'singular'):
        before, after = old['names'].get(key), new['names'].get(key)
        if before and after and before != after:
            yield BreakingChange(name, f"names.{key} changes from {before} to {after}; clients use the old name.")
    for key in ('shortNames', 'categories'):
        for lost in sorted(set(old['names'].get(key) or ()) - set(new['names'].get(key) or ())):
            yield BreakingChange(name, f"{lost!r} is removed from names.{key}; users and scripts can depend on it.")
    versions = {version['name']: version for version in new['versions']}
    for version in old['versions']:
        place = f"{name}/{version['name']}"
        if version['name'] not in versions:
            reason = "objects are stored in it" if version.get('storage') else "clients use it"
            if version.get('served') or version.get('storage'):
                yield BreakingChange(
                    place, f"the version is removed, but {reason}. Keep it; set served=False when no client uses it."
                )
        else:
            yield from _compare_versions(place, version, versions[version['name']])


def _compare_versions(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[BreakingChange]:
    if old.get('served') and not new.get('served'):
        yield BreakingChange(place, "the version is not served any more; clients that use it fail.")
    before, after = old.get('subresources') or {}, new.get('subresources') or {}
    for key in ('status', 'scale'):
        if key in before and key not in after:
            yield BreakingChange(place, f"the {key} subresource is removed; clients that use it fail.")
        elif key == 'status' and key in after and key not in before:
            yield BreakingChange(
                place, "the status subresource is added; clients that write the status with the object lose it."
            )
    for key, path in (before.get('scale') or {}).items():
        if 'scale' in after and after['scale'].get(key) != path:
            yield BreakingChange(place, f"{key} of the scale subresource changes; autoscalers use another field.")
    lost = {column['name'] for column in old.get('additionalPrinterColumns') or ()} - {
        column['name'] for column in new.get('additionalPrinterColumns') or ()
    }
    for column in sorted(lost):
        yield BreakingChange(place, f"the column {column!r} is removed; scripts that read it fail.")
    schemas = [each.get('schema', {}).get('openAPIV3Schema') or {} for each in (old, new)]
    yield from _compare_schemas(place, '', *schemas)


def _compare_schemas(
    place: str,
    path: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> Iterator[BreakingChange]:
    where = f"{place} {path}" if path else place
    types = [_name_type(schema) for schema in (old, new)]
    if types[0] != types[1] and not _accepts(types[1], types[0]):
        yield BreakingChange(where, f"the type changes from {types[0]} to {types[1]}; stored values are invalid.")
        return
    for text in (*_compare_values(old, new), *_compare_collections(old, new)):
        yield BreakingChange(where, text)
    yield from _compare_fields(place, path, old, new)
    if 'items' in old and 'items' in new:
        yield from _compare_schemas(place, f'{path}[]', old['items'], new['items'])
    if isinstance(before := old.get('additionalProperties'), Mapping):
        after = new.get('additionalProperties')
        if isinstance(after, Mapping):
            yield from _compare_schemas(place, f'{path}.*', before, after)
        elif not new.get(PRESERVE) and not after:
            yield BreakingChange(where, "arbitrary keys are not permitted any more; the API server drops stored ones.")


def _compare_fields(place: str, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[BreakingChange]:
    before, after = old.get('properties') or {}, new.get('properties') or {}
    open_ended = bool(new.get(PRESERVE) or new.get('additionalProperties'))
    for key, schema in before.items():
        if key in after:
            yield from _compare_schemas(place, f'{path}.{key}', schema, after[key])
        elif not open_ended:
            yield BreakingChange(f"{place} {path}.{key}", "the field is removed; the API server drops stored values.")
    required = set(old.get('required') or ())
    for key in new.get('required') or ():
        if key not in required and 'default' not in (after.get(key) or {}):
            yield BreakingChange(
                f"{place} {path}.{key}", "the field becomes required; objects without it are invalid. Add a default."
            )
    if old.get(PRESERVE) and not open_ended:
        yield BreakingChange(
            f"{place} {path}".rstrip(), "unknown fields are not preserved any more; the API server drops stored ones."
        )


def _lift_enum(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the enum at its top if it is the only branch of ``allOf``, as in nullable fields."""
    branches: Sequence[Mapping[str, Any]] = schema.get('allOf') or ()
    if 'enum' in schema or len(branches) != 1 or branches[0].keys() != {'enum'}:
        return schema
    return {**schema, 'allOf': None, 'enum': branches[0]['enum']}


def _compare_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    old, new = _lift_enum(old), _lift_enum(new)
    if old.get('nullable') and not new.get('nullable'):
        yield "null is not permitted any more; stored nulls are invalid."
    if 'enum' in new:
        permitted = [*new['enum'], *([None] if new.get('nullable') else [])]
        lost = [value for value in old.get('enum', ()) if value not in permitted]
        if 'enum' not in old:
            yield "the values are restricted by an enum; other stored values are invalid."
        elif lost:
            yield f"the values {', '.join(map(repr, lost))} are removed from the enum; stored ones are invalid."
    for names, is_stricter in ((_AT_LEAST, float.__gt__), (_AT_MOST, float.__lt__)):
        for name in names:
            if name in new and (name not in old or is_stricter(float(new[name]), float(old[name]))):
                yield f"{name} becomes {new[name]}, which was {old.get(name, 'absent')}; stored values can be invalid."
    for name, bound in (('exclusiveMinimum', 'minimum'), ('exclusiveMaximum', 'maximum')):
        if new.get(name) and not old.get(name) and new.get(bound) == old.get(bound):
            yield f"{bound} becomes exclusive; stored values can be invalid."
    if 'multipleOf' in new and ('multipleOf' not in old or old['multipleOf'] % new['multipleOf']):
        yield f"multipleOf becomes {new['multipleOf']}; stored values can be invalid."
    for name in ('pattern', 'format'):
        if new.get(name) and new.get(name) != old.get(name):
            yield f"the {name} becomes {new[name]!r}, which was {old.get(name, 'absent')!r}; values can be invalid."
    if 'default' in old and old['default'] != new.get('default', _MISSING):
        after = repr(new['default']) if 'default' in new else 'absent'
        yield f"the default changes from {old['default']!r} to {after}; objects without the field change their meaning."
    for name in _JUNCTORS:
        if new.get(name) and new.get(name) != old.get(name):
            yield f"{name} has changed; stored values can be invalid."
    rules = {rule['rule'] for rule in old.get(RULES) or ()}
    for rule in new.get(RULES) or ():
        if rule['rule'] not in rules:
            yield f"the rule {rule['rule']!r} is added; stored objects can be invalid."


def _compare_collections(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = old.get(LIST_TYPE) or 'atomic', new.get(LIST_TYPE) or 'atomic'
    if before != after:
        consequence = "duplicates are invalid" if before == 'atomic' else "several clients overwrite each other's items"
        yield f"{LIST_TYPE} changes from {before} to {after}; {consequence}."
    elif (old.get(LIST_KEYS) or []) != (new.get(LIST_KEYS) or []):
        yield f"{LIST_KEYS} change; applied items are merged in another way."
    if (old.get(MAP_TYPE) or 'granular') != (new.get(MAP_TYPE) or 'granular'):
        yield f"{MAP_TYPE} changes; applied fields are merged in another way."


def _name_type(schema: Mapping[str, Any]) -> str:
    return 'int-or-string' if schema.get(INT_OR_STRING) else str(schema.get('type') or 'any')


def _accepts(wider: str, narrower: str) -> bool:
    """Check whether all values of the narrower type are also valid for the wider one."""
    return (
        wider == 'any'
        or (wider == 'number' and narrower == 'integer')
        or (wider == 'int-or-string' and narrower in ('integer', 'string'))
    )
