"""
The writes of the operator's user in a course: each write of the scenario is reported to the course.

Disturbances can begin at these writes. Writes that disturbances make are not reported.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from kopf._kits.checking.end_states import is_bookkeeping
from kopf._kits.testing.kinds.kinds import Bodies, Body
from kopf._kits.testing.sandbox import Sandbox
from kopf._kits.testing.wire.manifests import Source, read
from kopf._kits.testing.wire.statuses import Refusal

T = TypeVar('T')

ObjectEdit = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns the object as its user would write it after an edit."""

WAIT = 3600.0
"""The minimal timeout of waits in scenarios (in seconds): disturbances delay the expected states."""

_is_unrecorded: ContextVar[bool] = ContextVar('_is_unrecorded', default=False)


class Host(Protocol):
    """The operations of a course that its user needs."""

    def settle(self) -> bool:
        """Wait until the operator is at rest."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Record a write of the user, which is to be made within the context."""

    def note_created(self, body: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
        """Record an object that the user has created; or merge what the user has given into the recorded one."""

    def note_edited(self, body: Mapping[str, Any], edit: ObjectEdit | None) -> None:
        """Record an edit of an object; None if creating the object again cannot repeat the edit."""


class RecordedWrites:
    """
    Reports each write of the user to the course.

    Args:
        host: the course.
        pause: called before a refused write is retried.
    """

    def __init__(self, host: Host, pause: Callable[[], None]) -> None:
        self._host = host
        self._pause = pause

    def settle(self) -> None:
        """Wait until the operator is at rest."""
        self._host.settle()

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Do not report the writes in this context."""
        token = _is_unrecorded.set(True)
        try:
            yield
        finally:
            _is_unrecorded.reset(token)

    def write(self, text: str, write: Callable[[], T]) -> T:
        """Make a write of the user; retry it while the operator's webhooks are unavailable."""
        if _is_unrecorded.get():
            return write()
        try:
            with self._host.step(text), self.unrecorded():
                return write()
        except Refusal as error:
            if error.code < 500:
                raise
            self._pause()
            with self.unrecorded():
                return write()

    def create(self, text: str, write: Callable[[], Body]) -> Body:
        """Create an object, and record it as one of the user's objects."""
        body = self.write(text, write)
        if not _is_unrecorded.get():
            self._host.note_created(body)
        return body

    def apply(self, text: str, write: Callable[[], Bodies], source: Source) -> Bodies:
        """Apply objects, and record them as the user's objects."""
        bodies = self.write(text, write)
        if not _is_unrecorded.get():
            for body, (_, given) in zip(bodies, read(source), strict=True):
                self._host.note_created(body, given)
        return bodies

    def edit(self, text: str, write: Callable[[], Body], edit: ObjectEdit | None) -> Body:
        """Edit an object, and record the edit."""
        body = self.write(text, write)
        if not _is_unrecorded.get():
            self._host.note_edited(body, edit)
        return body


class CourseSandbox(Sandbox):
    """
    The sandbox of a course, as its scenario gets it.

    Args:
        writes: reports the writes to the course.
        wait: the minimal timeout of waits (in seconds).
        options: the options of the sandbox.
    """

    def __init__(self, writes: RecordedWrites, *, wait: float = WAIT, **options: Any) -> None:
        super().__init__(**options)
        self.writes = writes
        self._wait = wait

    def create(self, what: Any, name: str | None = None, *, namespace: str | None = None, **fields: Any) -> Body:
        """Create an object, and record it as one of the user's objects."""
        kind = what if isinstance(what, str) else what.get('kind')
        create = super().create
        return self.writes.create(
            f'create {kind} {name or get_name(what)}', lambda: create(what, name, namespace=namespace, **fields)
        )

    def apply(self, source: Source) -> Bodies:
        """Apply objects, and record them as the user's objects."""
        apply = super().apply
        return self.writes.apply(f'apply {get_name(source)}', lambda: apply(source), source)

    def patch(self, resource: str, name: str, patch: Any, **options: Any) -> Body:
        """Edit an object."""
        send = super().patch
        edit = make_edit(patch, options.get('subresource', ''))
        return self.writes.edit(f'patch {resource} {name}', lambda: send(resource, name, patch, **options), edit)

    def replace(self, body: Mapping[str, Any], **options: Any) -> Body:
        """Replace an object."""
        replace = super().replace
        edit = None if options.get('subresource') else lambda _: clean(body)
        return self.writes.edit(f'replace {body.get("kind")} {get_name(body)}', lambda: replace(body, **options), edit)

    def delete(self, resource: str, name: str, **options: Any) -> None:
        """Delete an object."""
        delete = super().delete
        self.writes.write(f'delete {resource} {name}', lambda: delete(resource, name, **options))

    def wait_for(self, *args: Any, timeout: float = 0, **options: Any) -> Body:
        """Wait for a state, with a longer timeout than in ordinary tests."""
        return super().wait_for(*args, timeout=max(timeout, self._wait), **options)

    def wait_gone(self, *args: Any, timeout: float = 0, **options: Any) -> None:
        """Wait for the absence of an object, with a longer timeout than in ordinary tests."""
        super().wait_gone(*args, timeout=max(timeout, self._wait), **options)

    def rest(self, *, quiet: float = 0, timeout: float = 0) -> None:
        """Wait until the operator is at rest, except for periodic writes."""
        self.writes.settle()


def make_edit(patch: Any, subresource: str) -> ObjectEdit | None:
    """Return the edit that a patch of an object makes; None for the status and other subresources."""
    if subresource or (isinstance(patch, Mapping) and 'status' in patch):
        return None
    # A JSON patch can also refer to what the operator has written. Only the spec of its result is used.
    return functools.partial(merge, patch=patch) if isinstance(patch, Mapping) else lambda body: body


def merge(body: Any, patch: Any) -> Any:
    """Return the value after the application of a JSON merge patch."""
    merged = dict(body) if isinstance(body, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def clean(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object as its user would create it again: without its status and its bookkeeping annotations."""
    kept = ('name', 'namespace', 'labels', 'annotations', 'ownerReferences', 'generateName')
    metadata = {key: body['metadata'][key] for key in kept if key in body['metadata']}
    annotations = metadata.get('annotations') or {}
    metadata['annotations'] = {key: value for key, value in annotations.items() if not is_bookkeeping(key)}
    return {**{key: value for key, value in body.items() if key != 'status'}, 'metadata': metadata}


def get_name(source: Any) -> str:
    """Return the name of an object, or the beginning of another source of objects."""
    if isinstance(source, Mapping):
        return str((source.get('metadata') or {}).get('name', ''))
    return str(source).partition('\n')[0]
