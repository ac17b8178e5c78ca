"""
Hierarchies of objects: handlers link the created children to the handled object, with its labels, names, etc.

All functions change the given objects in place, before they are sent to the API; they send nothing themselves. They
take one object or any iterable of objects, also nested: dicts and other mutable mappings, objects of pykube-ng and of
kr8s, models of kubernetes, kubernetes_asyncio, and lightkube. Existing values are not changed unless ``forced``.
Specified in the documentation's "Create objects that belong to others".
"""

import enum
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias, cast

from kopf._cogs.helpers import thirdparty
from kopf._cogs.helpers.thirdparty import Fields
from kopf._cogs.structs.bodies import Body, build_owner_reference
from kopf._cogs.structs.dicts import FieldPath, FieldSpec, parse_field
from kopf._core.actions.execution import cause_var

K8sObject: TypeAlias = (
    MutableMapping[Any, Any]
    | thirdparty.PykubeObject
    | thirdparty.Kr8sObject
    | thirdparty.KubernetesModel
    | thirdparty.LightkubeModel
)
K8sObjects: TypeAlias = K8sObject | Iterable[K8sObject]
Nested: TypeAlias = str | Iterable[FieldSpec] | None


class _Unset(enum.Enum):
    UNSET = enum.auto()


def adopt(
    objs: K8sObjects,
    owner: Body | None = None,
    *,
    forced: bool = False,
    strict: bool = False,
    nested: Nested = None,
) -> None:
    """
    Make the objects children of the owner: by an owner reference, its name, namespace, and labels.

    Args:
        objs: the objects: one object, or any iterable of objects.
        owner: the owner's body; by default, that of the object being handled.
        forced: replace the name, the namespace, and the labels that the children have already.
        strict: use the owner's name as it is, not as a prefix of a generated name.
        nested: fields with the templates of other objects, which are labelled too.

    Raises:
        LookupError: if there is no owner given and none being handled, or the owner has no name.
        TypeError: if some of the objects are of an unknown kind.
    """
    owner = _get_owner(owner)
    objs = _collect(objs)
    append_owner_reference(objs, owner)
    harmonize_naming(objs, _get_meta(owner, 'name'), forced=forced, strict=strict)
    _put_namespace(objs, _get_meta(owner, 'namespace'), forced=forced)
    label(objs, _get_meta(owner, 'labels') or {}, forced=forced, nested=nested)


def append_owner_reference(
    objs: K8sObjects,
    owner: Body | None = None,
    *,
    controller: bool | None = True,
    block_owner_deletion: bool | None = True,
) -> None:
    """
    Add a reference to the owner, so that the objects are deleted with it; an existing one is not changed.

    Args:
        objs: the objects: one object, or any iterable of objects.
        owner: the owner's body; by default, that of the object being handled.
        controller: whether the owner is the managing controller of the objects; ``None`` omits the field.
        block_owner_deletion: whether the objects block the owner's foreground deletion; ``None`` omits the field.

    Raises:
        LookupError: if there is no owner given and none being handled.
        TypeError: if some of the objects are of an unknown kind.
    """
    owner = _get_owner(owner)
    reference = build_owner_reference(owner, controller=controller, block_owner_deletion=block_owner_deletion)
    for meta in _iter_metadata(objs):
        references = meta.get('ownerReferences') or ()
        # Why not compare the names? A reference can be that of a deleted owner with the same name.
        if not any(_get_uid(item) == reference.get('uid') for item in references):
            added = meta.make_item('ownerReferences', cast(dict[str, Any], reference.copy()))
            meta.set('ownerReferences', [*references, added])


def remove_owner_reference(objs: K8sObjects, owner: Body | None = None) -> None:
    """
    Remove the reference to the owner, if there is any.

    Args:
        objs: the objects: one object, or any iterable of objects.
        owner: the owner's body; by default, that of the object being handled.

    Raises:
        LookupError: if there is no owner given and none being handled, or the owner has no uid.
        TypeError: if some of the objects are of an unknown kind.
    """
    uid = _get_meta(_get_owner(owner), 'uid')
    if uid is None:
        raise LookupError("The owner has no metadata.uid: there can be no references to it.")
    for meta in _iter_metadata(objs):
        references = meta.get('ownerReferences') or ()
        meta.set('ownerReferences', [item for item in references if _get_uid(item) != uid])


def label(
    objs: K8sObjects,
    labels: Mapping[str, str | None] | None | _Unset = _Unset.UNSET,
    *,
    forced: bool = False,
    nested: Nested = None,
    force: bool | None = None,
) -> None:
    """
    Add the labels to the objects.

    Args:
        objs: the objects: one object, or any iterable of objects.
        labels: the labels; by default, those of the object being handled.
        forced: replace the values of the labels that are there already.
        nested: fields with the templates of other objects, which are labelled too; the absent ones are skipped.
        force: the former name of ``forced``; deprecated.

    Raises:
        LookupError: if there are no labels given and no object is being handled.
        TypeError: if some of the objects are of an unknown kind.
    """
    if force is not None:
        warnings.warn("kopf.label(force=…) is deprecated: use forced=….", DeprecationWarning, stacklevel=2)
        forced = force
    if labels is None or isinstance(labels, _Unset):
        labels = _get_meta(_get_owner(None), 'labels') or {}
    for key, value in labels.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"The value of the label {key!r} must be a string, not {value!r}: use str().")
    paths = _parse_nested(nested)
    for fields in list(_walk(objs)):
        for target in (fields, *_iter_nested(fields, paths)):
            # Set them item by item, in place, because the labels can belong to a model of another library.
            present = thirdparty.access(_make_metadata(target).make('labels'))
            for key, value in labels.items():
                if present is not None and (forced or present.get(key) is None):
                    present.set(key, value)


def harmonize_naming(
    objs: K8sObjects,
    name: str | None = None,
    *,
    forced: bool = False,
    strict: bool = False,
) -> None:
    """
    Set the names of the objects that have none.

    Args:
        objs: the objects: one object, or any iterable of objects.
        name: the name; by default, that of the object being handled.
        forced: replace the names, and the prefixes of generated names, that are there already.
        strict: use the name as it is; otherwise, it is a prefix, and the API adds a random suffix.

    Raises:
        LookupError: if there is no name given, and no named object is being handled.
        TypeError: if some of the objects are of an unknown kind.
    """
    if name is None:
        name = _get_meta(_get_owner(None), 'name') if cause_var.get(None) is not None else None
    if name is None:
        raise LookupError("No name is given, and no object with a name is being handled: pass name=….")
    for meta in _iter_metadata(objs):
        if forced or (meta.get('name') is None and meta.get('generateName') is None):
            # Set only one of them: the API server ignores the prefix if there is a name.
            meta.remove('generateName' if strict else 'name')
            meta.set(*(('name', name) if strict else ('generateName', f'{name}-')))


def adjust_namespace(objs: K8sObjects, namespace: str | None = None, *, forced: bool = False) -> None:
    """
    Set the namespaces of the objects that have none.

    Args:
        objs: the objects: one object, or any iterable of objects.
        namespace: the namespace; by default, that of the object being handled.
        forced: replace the namespaces that are there already.

    Raises:
        LookupError: if there is no namespace given and no object is being handled.
        TypeError: if some of the objects are of an unknown kind.
    """
    if namespace is None:
        namespace = _get_meta(_get_owner(None), 'namespace')
    _put_namespace(objs, namespace, forced=forced)


def _put_namespace(objs: K8sObjects, namespace: str | None, *, forced: bool) -> None:
    for meta in _iter_metadata(objs):
        if forced or meta.get('namespace') is None:
            meta.set('namespace', namespace)


def _get_owner(owner: Body | None) -> Body:
    if owner is not None:
        if not isinstance(owner, Mapping):
            raise TypeError(f"The owner must be a body, or another mapping of that form, not {owner!r}.")
        return owner
    body: Body | None = getattr(cause_var.get(None), 'body', None)
    if body is None:
        raise LookupError("No object is being handled: the owner must be given explicitly.")
    return body


def _get_meta(owner: Mapping[str, Any], field: str) -> Any:
    return (owner.get('metadata') or {}).get(field)


def _get_uid(reference: object) -> Any:
    fields = thirdparty.access(reference)
    return None if fields is None else fields.get('uid')


def _collect(objs: K8sObjects) -> K8sObjects:
    """Collect the objects of an iterator, which can be iterated only once."""
    return list(objs) if isinstance(objs, Iterator) else objs


def _walk(objs: Any) -> Iterator[Fields]:
    """Yield all the objects, which can be nested in iterables."""
    if objs is None:
        return
    fields = thirdparty.access(objs)
    if fields is not None:
        yield fields
    elif isinstance(objs, Iterable) and not isinstance(objs, str | bytes | Mapping):
        for obj in objs:
            yield from _walk(obj)
    else:
        raise TypeError(f"Objects of this type are not supported: {type(objs)}. Convert them to dicts.")


def _iter_metadata(objs: K8sObjects) -> Iterator[Fields]:
    for fields in _walk(objs):
        yield _make_metadata(fields)


def _make_metadata(fields: Fields) -> Fields:
    meta = thirdparty.access(fields.make('metadata'))
    if meta is None:
        raise TypeError(f"The metadata of an object must be a mapping, not {fields.get('metadata')!r}.")
    return meta


def _parse_nested(nested: Nested) -> list[FieldPath]:
    specs = [nested] if nested is None or isinstance(nested, str) else nested
    return [path for path in map(parse_field, specs) if path]


def _iter_nested(fields: Fields, paths: Iterable[FieldPath]) -> Iterator[Fields]:
    """Yield the structures in these fields, except for absent ones; several if a field has a list of them."""
    for path in paths:
        target: Any = fields
        value: Any = None
        for name in path:
            if target is None:
                raise TypeError(f"There can be no field {name!r} in {value!r}: it is not a structure.")
            value = target.get(name)
            if value is None:
                break
            target = thirdparty.access(value)
        yield from _walk(value)
