"""One request, as it is meant for both servers, and what is remembered of the answers of each.

What differs between the servers (versions, uids, tokens) is not in the requests themselves: a `Ref` stands in its
place, and is replaced by what that server has said before.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any


class Memory:
    """What one server has said so far in one episode."""

    def __init__(self) -> None:
        self.versions: dict[str, list[str]] = {}
        self.token = ""
        self.list_version = "1"
        self._objects: dict[str, Any] = {}

    def current(self, path: str) -> Any:
        """Return the last body seen at the path; a dummy if there was none."""
        return copy.deepcopy(self._objects.get(path) or {"metadata": {"name": path.rpartition("/")[2]}})

    def version(self, path: str, age: int = 0) -> str:
        """Return the version of the object, or one from before."""
        known = self.versions.get(path) or ["1"]
        return known[max(0, len(known) - 1 - age)]

    def uid(self, path: str) -> str:
        return str(self.current(path)["metadata"].get("uid", "00000000-0000-0000-0000-000000000000"))

    def learn(self, path: str, body: Any) -> None:
        """Remember an object that was an answer, or the version and the token of a list."""
        meta = body.get("metadata")
        if not isinstance(meta, dict):
            return
        if "items" in body or "rows" in body:
            self.token = meta.get("continue") or self.token
            self.list_version = meta.get("resourceVersion") or self.list_version
        elif isinstance(version := meta.get("resourceVersion"), str) and meta.get("uid"):
            if body.get("kind") not in ("Scale", "PartialObjectMetadata"):
                self._objects[path] = body
            known = self.versions.setdefault(path, [])
            if version not in known:
                known.append(version)


@dataclasses.dataclass(frozen=True)
class Ref:
    """A value that each server gives itself."""

    read: Callable[[Memory], Any]


def resolve(value: Any, memory: Memory) -> Any:
    """Return the value with all references replaced."""
    match value:
        case Ref():
            return value.read(memory)
        case dict():
            return {key: resolve(item, memory) for key, item in value.items()}
        case list():
            return [resolve(item, memory) for item in value]
        case tuple():
            return tuple(resolve(item, memory) for item in value)
    return value


@dataclasses.dataclass
class Step:
    """One request. ``until`` makes it be repeated until the answer's status is that one."""

    label: str
    method: str
    path: str
    params: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    body: Any = None
    type: str = "application/json"
    accept: str = "application/json"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    target: str = ""
    """The path of the object that is written or read, without its subresource."""
    until: int = 0
    compared: bool = True
    shallow: bool = False
    """Whether the body is too much of the server's own to be compared."""

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.params)
        return f"{self.method} {self.path}{'?' if query else ''}{query}"
