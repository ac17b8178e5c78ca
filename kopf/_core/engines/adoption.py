"""
Adoption of children: the owner reference, labels, and annotations that link an applied object to its owner.

A child in the namespace of its owner has an owner reference, so the garbage collector of the cluster deletes it with
the owner. Such a reference must not point to another namespace, or from a cluster-scoped object into a namespace.
Children of this kind have an annotation instead, and the operator deletes them: they are *remote* children.

All children have a label with the uid of the owner, by which the operator lists them. Why do remote children need the
annotation, too? Kubernetes copies the labels of a Service to its EndpointSlices, so these would look like children. It
does not copy the annotations.
"""

import base64
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from kopf._cogs.clients import api
from kopf._cogs.helpers import thirdparty
from kopf._cogs.structs.bodies import Body, build_owner_reference
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import PermanentError

GroupKind = tuple[str, str | None]
"""The API group and the kind of objects, in any version."""

OWNER_LABEL: Final = 'kopf.dev/owner-uid'
"""The label of children: the uid of their owner."""

PRUNED_LABEL: Final = 'kopf.dev/pruned-by'
"""The label of children that are deleted when they are not applied any more: the name of the operator."""

OWNER_ANNOTATION: Final = 'kopf.dev/owner'
"""The annotation of remote children: the resource, the namespace and the name of their owner."""

HANDLER_ANNOTATION: Final = 'kopf.dev/handler'
"""The annotation of children that can be pruned: the id of the handler that has applied them."""

KEEP_ANNOTATION: Final = 'kopf.dev/keep'
"""The annotation by which users exclude a child from pruning."""


class ChildError(PermanentError):
    """Raised if the operator cannot apply a child. Retries would fail, unless the code or an object is changed."""

    message_code = 'child-error'


class ObjectError(PermanentError):
    """Raised if what is given to `kopf.apply` or to `children.apply` is no object with a kind and a name."""

    message_code = 'object-error'


class ChildKey(NamedTuple):
    """The identity of a child, which is also known before the child is created and has a uid."""

    resource: Resource
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {f'{self.namespace}/' if self.namespace else ''}{self.name}"


class Adopter(NamedTuple):
    """The object that adopts children, with the operator and the handler that apply them."""

    body: Body
    resource: Resource
    operator: str
    """The name of the operator: the value of `PRUNED_LABEL`."""
    handler: str | None
    """The id of the first handler with this function, if it prunes its children; otherwise ``None``."""

    def is_near(self, key: ChildKey) -> bool:
        """Check whether the child can have an owner reference to the object."""
        return self.body.metadata.namespace in (None, key.namespace)


def check_object(obj: Any, call: str = 'children.apply') -> dict[str, Any]:
    """
    Return a copy of the object that a user has given, with JSON types only.

    Args:
        obj: the object: a dict, or an instance of a class of another client library.
        call: the name of the function that the user has called, for messages.

    Raises:
        ObjectError: if it is not an object, or an identifying field is missing.
    """
    raw = thirdparty.convert(obj)
    if not isinstance(raw, Mapping):
        raise ObjectError(f"{call}() takes an object as a dict, not {type(obj).__name__}: convert it to a dict.")
    try:
        copied: dict[str, Any] = api.simplify(raw)
    except (TypeError, ValueError) as error:
        raise ObjectError(f"{call}() takes only values that JSON can express: {error}") from error
    metadata = copied.get('metadata')
    if metadata is not None and not isinstance(metadata, dict):
        raise ObjectError(f"{call}(): metadata must be a dict, not {metadata!r}.")
    metadata = copied['metadata'] = metadata or {}
    for name, values in (('apiVersion', copied), ('kind', copied), ('name', metadata)):
        value = values.get(name)
        if not isinstance(value, str) or not value:
            field = f"metadata.{name}" if values is metadata else name
            title = f"the {copied['kind']}" if name == 'name' else f"the object {metadata.get('name')!r}"
            remedy = " It cannot be generated: make it from the name of the owner." if name == 'name' else ""
            raise ObjectError(f"{call}(): {field} must be a non-empty string, not {value!r}, in {title}.{remedy}")
    return copied


def find_key(desired: Mapping[str, Any], resource: Resource, owner: Body) -> ChildKey:
    """
    Return the key of the child. By default, the namespace is that of the owner.

    Raises:
        ChildError: if a namespace is missing, or is given for a cluster-scoped child.
    """
    metadata = desired['metadata']
    namespace, name = metadata.get('namespace'), metadata['name']
    if not resource.namespaced:
        if namespace is not None:
            raise ChildError(
                f"children.apply(): {resource} {name} is cluster-scoped, so it cannot be in the namespace "
                f"{namespace!r}: remove metadata.namespace."
            )
        return ChildKey(resource, None, name)
    namespace = owner.metadata.namespace if namespace is None else namespace
    if not isinstance(namespace, str) or not namespace:
        raise ChildError(
            f"children.apply(): {resource} {name} needs metadata.namespace, as its owner is cluster-scoped."
        )
    return ChildKey(resource, namespace, name)


def adopt(desired: Mapping[str, Any], key: ChildKey, adopter: Adopter) -> dict[str, Any]:
    """Return the object with the metadata that makes it a child: the labels, and the owner reference or annotations."""
    owner = adopter.body.metadata
    # Users apply objects that they have read from the API server, which refuses to apply these two fields.
    given = {name: value for name, value in desired['metadata'].items() if name not in ('managedFields', 'uid')}
    metadata = {**given, 'name': key.name}
    if key.namespace is not None:
        metadata['namespace'] = key.namespace
    labels = {OWNER_LABEL: owner.uid}
    annotations = {}
    if adopter.handler is not None:
        labels[PRUNED_LABEL] = adopter.operator
        annotations[HANDLER_ANNOTATION] = adopter.handler
    if adopter.is_near(key):
        references = [each for each in given.get('ownerReferences') or () if each.get('uid') != owner.uid]
        metadata['ownerReferences'] = [*references, build_owner_reference(adopter.body)]
    else:
        place = f'{owner.namespace}/' if owner.namespace else ''
        annotations[OWNER_ANNOTATION] = f'{adopter.resource}/{place}{owner.name}'
    metadata['labels'] = {**(given.get('labels') or {}), **labels}
    if annotations or given.get('annotations'):
        metadata['annotations'] = {**(given.get('annotations') or {}), **annotations}
    return {**encode_strings(desired), 'metadata': metadata}


def make_orphaning() -> Patch:
    """Return the patch that removes what links a remote child to its owner."""
    labels = dict.fromkeys([OWNER_LABEL, PRUNED_LABEL])
    annotations = dict.fromkeys([OWNER_ANNOTATION, HANDLER_ANNOTATION])
    return Patch({'metadata': {'labels': labels, 'annotations': annotations}})


def encode_strings(desired: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    Return the secret with its ``stringData`` moved to its ``data``; return any other object unchanged.

    The API server does the same, but it records only ``stringData`` as the field of the manager. So another client
    could change the stored values without a trace in the managed fields.
    """
    given = desired.get('stringData')
    if (desired['apiVersion'], desired['kind']) != ('v1', 'Secret') or not isinstance(given, Mapping):
        return desired
    if not all(isinstance(value, str) for value in given.values()):
        return desired  # the API server will explain the mistake
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
    rest = {key: value for key, value in desired.items() if key != 'stringData'}
    return {**rest, 'data': {**(desired.get('data') or {}), **encoded}}


def find_owners(raw: Mapping[str, Any], kinds: Collection[GroupKind] | None = None) -> frozenset[str]:
    """
    Return the uids of the owners: from the owner references and, if the object is a remote child, from the label.

    Args:
        raw: the object.
        kinds: the kinds of the owners to return, in any version; by default, all owners are returned.
    """
    metadata = raw['metadata']
    references = metadata.get('ownerReferences') or ()
    uids = [each.get('uid', '') for each in references if kinds is None or _get_kind(each) in kinds]
    if OWNER_ANNOTATION in (metadata.get('annotations') or ()):
        uids += [uid for uid in [(metadata.get('labels') or {}).get(OWNER_LABEL)] if uid]
    return frozenset(uids)


def _get_kind(reference: Mapping[str, Any]) -> GroupKind:
    group, _, _ = str(reference.get('apiVersion')).rpartition('/')
    return group, reference.get('kind')


def find_handler(raw: Mapping[str, Any], operator: str) -> str | None:
    """Return the id of the handler that has applied the object; ``None`` if this operator must not prune it."""
    metadata = raw['metadata']
    labels, annotations = metadata.get('labels') or {}, metadata.get('annotations') or {}
    if labels.get(PRUNED_LABEL) != operator or annotations.get(KEEP_ANNOTATION) == 'true':
        return None
    return None if metadata.get('deletionTimestamp') is not None else annotations.get(HANDLER_ANNOTATION, '')
