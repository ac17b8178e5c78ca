"""What of an answer is compared: everything but what two servers cannot have in common.

Uids, versions, times, tokens, addresses and generated names are replaced by what they stand for: the uid of that
object, its second version, and so on; so it is still seen if an object got a version too many.
"""

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TIME = re.compile(r"\b(\d{4})-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|( \+0000 UTC))(?: m=\+[0-9.]+)?")
GENERATED = re.compile(r"\b(Bad_|gen[-.]+(?:[a-z0-9]+-)*x*)[bcdfghjklmnpqrstvwxz2456789]{5}\b")
ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+:\d{4,5}\b")
RECORDED = re.compile(r"(ResourceVersion in record )\(\d+\)")
SERVICE = re.compile(r"\b10\.0\.\d+\.\d+\b")
TOO_NEW = re.compile(r"(Too large resource version: )\d+(, current: )\d+")
TOO_OLD = re.compile(r"(too old resource version: )\d+( \()\d+\)")
NODE_PORT = re.compile(r":3(?:[01]\d{3}|2[0-6]\d{2}|27[0-5]\d|276[0-7])/")
AGE = re.compile(r"(\d+[smhd])+|<unknown>")
YEARS = {str(datetime.date.today().year + delta) for delta in (-1, 0, 1)}


class Names:
    """The names of one server's uids and versions in one episode."""

    def __init__(self, *, managed: bool) -> None:
        self._managed = managed
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def normal(self, value: Any) -> Any:
        """Return the value as both servers should have it."""
        match value:
            case dict():
                return self._object(value)
            case list():
                return [self.normal(item) for item in value]
            case str():
                return self._text(value)
        return value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        self._name_version(value)
        if value.get("kind") == "APIResourceList" and "resources" in value:  # Those of definitions come in no order.
            value = {**value, "resources": sorted(value["resources"], key=lambda item: str(item["name"]))}
        if value.get("kind") == "Status" and isinstance(details := value.get("details"), dict) and "causes" in details:
            value = self._sorted_causes(value)
        result = {}
        for key in sorted(value):
            item = value[key]
            if key == "managedFields" and not self._managed:
                continue
            if key == "resourceVersion" and isinstance(item, str) and item.isdigit():
                result[key] = self._versions.get(item, "<version>") if "uid" in value else "<version>"
            elif key == "continue" and item:
                result[key] = "<token>"
            elif key == "nodePort" and isinstance(item, int) and 30000 <= item < 33000:
                result[key] = "<port>"
            elif key == "cells" and isinstance(item, list):
                result[key] = [
                    "<age>" if isinstance(cell, str) and AGE.fullmatch(cell) else self.normal(cell) for cell in item
                ]
            else:
                result[self._text(key)] = self.normal(item)
        return result

    def _sorted_causes(self, status: dict[str, Any]) -> dict[str, Any]:
        """Sort the causes, which come in the order of a map of Go: in none. Quoted objects are compared as such."""
        causes = [
            {**cause, "message": self._text(self._requoted(str(cause.get("message"))))}
            for cause in status["details"]["causes"]
        ]
        causes.sort(key=json.dumps)
        head, bracket, _ = str(status.get("message")).partition(" is invalid: ")
        message = head + bracket + "(see the causes)" if bracket else status.get("message")
        return {**status, "message": message, "details": {**status["details"], "causes": causes}}

    def _requoted(self, message: str) -> str:
        head, mark, rest = message.partition('Invalid value: "{')
        if not mark:
            return message
        try:
            text, end = json.JSONDecoder().raw_decode('"{' + rest)
            quoted = json.dumps(self.normal(_without_managers(json.loads(text))), sort_keys=True)
        except ValueError:
            return message
        tail = f'"{{{rest}'[end:]
        return f"{head}Invalid value: {quoted}{tail}"

    def _name_version(self, meta: dict[str, Any]) -> None:
        uid, version = meta.get("uid"), meta.get("resourceVersion")
        if isinstance(uid, str) and UID.fullmatch(uid) and isinstance(meta.get("name"), str) and len(meta) > 2:
            self._uids.setdefault(uid, f"<uid of {meta['name']}>")
        if isinstance(uid, str) and isinstance(version, str) and UID.fullmatch(uid) and version not in self._versions:
            self._counts[uid] = self._counts.get(uid, 0) + 1
            self._versions[version] = f"<version {self._counts[uid]}>"

    def _text(self, text: str) -> str:
        text = UID.sub(lambda found: self._uids.get(found[0], "<uid>"), text)
        text = TIME.sub(_time, text)
        text = GENERATED.sub(r"\1<5>", text)
        text = ADDRESS.sub("<address>", text)
        text = SERVICE.sub("<ip>", text)
        text = NODE_PORT.sub(":<port>/", text)
        text = TOO_NEW.sub(r"\1<version>\2<version>", text)
        text = TOO_OLD.sub(r"\1<version>\2<version>)", text)
        text = RECORDED.sub(r"\1(<version>)", text)
        if "ersion" in text:
            text = re.sub(r"\b\d+\b", lambda found: self._versions.get(found[0], found[0]), text)
        return text


def _without_managers(body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
        body["metadata"].pop("managedFields", None)
    return body


def _time(found: re.Match[str]) -> str:
    if found[1] not in YEARS:
        return found[0]
    return "<microtime>" if found[2] else "<time>"


def decoded(text: str, content_type: str) -> Any:
    """Return the body of an answer: JSON, YAML, the lines of a watch, or text."""
    if content_type.startswith("application/yaml"):
        return yaml.load(text, yaml.BaseLoader)
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        events = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text
    return [event for event in events if not _is_idle_bookmark(event)]


def _is_idle_bookmark(event: Any) -> bool:
    return isinstance(event, dict) and event.get("type") == "BOOKMARK" and "annotations" not in json.dumps(event)


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where two values differ, with what is there in both; ``...`` stands for nothing at all."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key, ...), other.get(key, ...), f"{path}.{key}" if path else key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif type(one) is not type(other) or one != other:
        yield path, one, other
