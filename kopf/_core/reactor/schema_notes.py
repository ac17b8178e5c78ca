"""What checks of the schemas of custom resources have found, until the operator serves the resources."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.structs.references import Resource


class SchemaNotes(ABC):
    """The messages about all CRDs; subclasses check one version, and log the messages about served resources."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], dict[str, Sequence[str]]] = {}  # by group and plural, then by version
        self._reported: dict[Resource, Sequence[str]] = {}

    def note(self, name: str, raw: Mapping[str, Any]) -> None:
        """Check the newest state of the CRD; an empty mapping if it is deleted."""
        plural, _, group = name.partition('.')
        self._texts.pop((group, plural), None)
        try:
            if raw and not raw['spec'].get('preserveUnknownFields'):
                found = {version['name']: self.check(raw, version) for version in raw['spec']['versions']}
                self._texts[group, plural] = {version: texts for version, texts in found.items() if texts}
        except (AttributeError, KeyError, TypeError):
            pass  # the CRD is malformed, so the API server does not serve it either

    @abstractmethod
    def check(self, raw: Mapping[str, Any], version: Mapping[str, Any]) -> Sequence[str]:
        """Return the messages about one version. The CRD itself is not kept, because CRDs can be large."""

    def take_new(self, resource: Resource, *, concerned: bool = True) -> Sequence[str]:
        """
        Return the messages about the resource that the last call has not covered.

        Args:
            resource: the served resource.
            concerned: whether the resource has handlers that the messages matter for; otherwise, there are none.
        """
        known = self._reported.get(resource, ())
        texts = self._texts.get((resource.group, resource.plural), {}).get(resource.version, ()) if concerned else ()
        self._reported[resource] = texts
        return [text for text in texts if text not in known]
