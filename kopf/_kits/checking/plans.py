"""
Plans: which disturbance happens in a course, and when. A plan can be written to a small file that people read and edit.

A plan identifies a request by its verb, its resource, and its number among the requests with this verb and resource.
Why not by its number among all requests? The plan would become invalid whenever other parts of the operator are
changed.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

CALL = 'call'
"""The verb by which plans refer to calls of external services, which are no requests to the API."""

ORDINALS = {1: 'first', 2: 'second', 3: 'third'}


class PlanError(ValueError):
    """Raised when a file is not a plan; the message has the reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A request of the operator at which a disturbance begins."""

    verb: str
    resource: str
    subresource: str = ''
    number: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """The verb and the resource: moments with the same key are distinguished by their numbers."""
        return self.verb, self.resource, self.subresource

    def __str__(self) -> str:
        what = f'{self.resource}/{self.subresource}' if self.subresource else self.resource
        if self.verb == CALL:
            return f'the {ORDINALS.get(self.number, f"{self.number}th")} call of {what}'
        ordinal = ORDINALS.get(self.number, f'{self.number}th')
        return f'the {ordinal} request to {self.verb} {what}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The identity of an object: its name, or its number among the objects with generated names."""

    resource: str
    namespace: str = ''
    name: str = ''
    number: int = 0

    def __str__(self) -> str:
        place = f'{self.namespace}/' if self.namespace else ''
        return f'{self.resource} {place}{self.name or f"#{self.number}"}'


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of an object by its user: a merge patch."""

    target: Target
    patch: Mapping[str, Any]

    def __str__(self) -> str:
        return ', '.join(f'{field} = {value}' for field, value in _iter_fields(self.patch))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """
    One disturbance at one point of the course.

    Without ``do``, there is no disturbance: the course has only the edits.
    """

    seed: int = 1
    do: str = ''
    """The disturbance: a name in `disturbances.ACTIONS`."""
    request: Moment | None = None
    """The request at which the disturbance begins."""
    when: str = 'before'
    """
    When it begins: ``before`` the request is executed, before the response (``unanswered``), or ``after`` that.

    For disturbances at rest, ``away`` means that the operator is killed before it, and restarted after it.
    """
    step: int | None = None
    """The number of the user's write before which the disturbance begins; 0: at rest, after all writes and edits."""
    target: Target | None = None
    """The object or the resource that the disturbance concerns."""
    status: int = 0
    """The HTTP status of the injected error."""
    times: int = 1
    """How many requests of this verb and resource fail, beginning with that one."""
    seconds: float = 0
    """The duration of the disturbance."""
    replicas: int = 1
    """The number of operators that run at the same time; the disturbance concerns the active one."""
    edits: tuple[Edit, ...] = ()
    """The edits that the user makes at rest, after the scenario."""
    fresh: bool = False
    """Whether the user creates the objects with the edits included, instead of editing them later."""
    restart: bool = False
    """Whether the operator is restarted at rest, which must not change anything."""
    without: tuple[int, ...] = ()
    """The numbers of the objects of ``--load`` that this course omits."""

    @property
    def is_disturbing(self) -> bool:
        """True if the plan has a disturbance besides the edits at rest."""
        return self.request is not None or self.step is not None

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Read a plan.

        Raises:
            PlanError: the file is not a plan.
        """
        import yaml

        try:
            data = yaml.safe_load(path.read_text(encoding='utf-8'))
            if not isinstance(data, Mapping):
                raise PlanError(f'{path}: not a plan of kopf check: it has no fields.')
            return cls.parse(data)
        except OSError as error:
            raise PlanError(f'{path}: cannot be read: {error.strerror}.') from None
        except PlanError:
            raise
        except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise PlanError(f'{path}: not a plan of kopf check: {error}') from None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Return the plan of a parsed file."""
        fields = dict(data)
        if 'request' in fields:
            fields['request'] = Moment(**fields['request'])
        if 'target' in fields:
            fields['target'] = Target(**fields['target'])
        fields['edits'] = tuple(Edit(Target(**item['target']), item['patch']) for item in fields.get('edits', ()))
        fields['without'] = tuple(fields.get('without', ()))
        return cls(**fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the plan for its file, without those that have their default values."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name == 'seed' or getattr(self, field.name) != field.default
        }
        for name in ('request', 'target'):
            if name in fields:
                fields[name] = _compact(fields[name])
        if self.edits:
            fields['edits'] = [{'target': _compact(edit.target), 'patch': edit.patch} for edit in self.edits]
        if self.without:
            fields['without'] = list(self.without)
        return fields

    def write(self, path: Path, comments: Iterable[str] = ()) -> None:
        """Write the plan to a file, with comments at its top."""
        import yaml

        text = ''.join(f'# {line}\n' for line in comments)
        path.write_text(text + yaml.safe_dump(self.as_dict(), sort_keys=False), encoding='utf-8')


def _compact(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    }


def _iter_fields(patch: Mapping[str, Any], prefix: str = '') -> Iterable[tuple[str, Any]]:
    for key, value in patch.items():
        if isinstance(value, Mapping) and value:
            yield from _iter_fields(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', 'nothing' if value is None else repr(value)
