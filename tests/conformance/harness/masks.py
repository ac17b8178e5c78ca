"""
Masks: what differs from run to run is replaced by constant words.
"""

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from harness.labs import PREFIX

if TYPE_CHECKING:
    from harness.clusters import Cluster


class Mask:
    """Replaces what differs from run to run by constant words."""

    def __init__(self, cluster: 'Cluster') -> None:
        self.rules = [
            (re.compile(re.escape(cluster.ns)), 'NS'),
            (re.compile(re.escape(cluster.group)), 'GROUP'),
            (re.compile(re.escape(cluster.ns[len(PREFIX) :])), 'RAND'),
            (re.compile(re.escape(str(cluster.folder))), 'DIR'),
            *cluster.scenario.masks,
            (re.compile(r'[\w.-]+@[\w.-]+/\d{14}/\w{3}'), 'IDENTITY'),
            (re.compile(r'\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b'), 'UID'),
            (re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)?'), 'TIME'),
            (re.compile(r'(127\.0\.0\.1|localhost):\d+'), r'\1:PORT'),
            (re.compile(r' at 0x[0-9a-f]+'), ' at ADDRESS'),
        ]

    def text(self, value: str) -> str:
        for regex, replacement in self.rules:
            value = regex.sub(replacement, value)
        return value

    def any(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self.text(str(key)): self.any('RV' if key == 'resourceVersion' and item else item)
                for key, item in value.items()
                if key != 'managedFields'
            }
        if isinstance(value, list):
            return [self.any(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def progress(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a progress record without empty fields (to store None is a choice) and without a void message."""
        return {key: value for key, value in record.items() if value not in (None, [], 'None')}

    def annotations(self, annotations: Any) -> dict[str, Any]:
        """Parse the JSON in annotations; drop the dummy values that only provoke an event."""
        result = {}
        for key, value in annotations.items():
            if key.endswith('/touch-dummy'):
                continue
            with contextlib.suppress(ValueError, TypeError):
                parsed = json.loads(value)
                if isinstance(parsed, dict) and 'retries' in parsed:  # a progress record
                    parsed = self.progress(parsed)
                value = {'json': parsed} if isinstance(parsed, (dict, list)) else value
            result[key] = value
        return result

    def note(self, note: dict[str, Any]) -> Any:
        """Return a note of the journal; the items of a diff have no order, those of managed fields come by chance."""
        facts = self.any(note['facts'])
        for key, value in facts.items():
            if key.endswith('diff') and isinstance(value, list):
                kept = [item for item in value if "'managedFields'" not in str(item[1:2])]
                facts[key] = sorted(kept, key=lambda item: json.dumps(item, sort_keys=True))
        return {'event': note['event'], **facts}

    def object(self, body: Any) -> Any:
        """Return an object without the fields that the API server makes up."""
        if body is None:
            return None
        body = json.loads(json.dumps(body))
        meta = body.get('metadata', {})
        for key in (
            'uid',
            'resourceVersion',
            'creationTimestamp',
            'generation',
            'managedFields',
            'selfLink',
            'deletionGracePeriodSeconds',
        ):
            meta.pop(key, None)
        if 'annotations' in meta:
            meta['annotations'] = self.annotations(meta['annotations'])
            if not meta['annotations']:
                del meta['annotations']
        if 'finalizers' in meta:
            meta['finalizers'].sort()
        if isinstance(body.get('status'), dict) and isinstance(body['status'].get('kopf'), dict):
            body['status']['kopf'].pop('dummy', None)
            if not body['status']['kopf']:
                del body['status']['kopf']
        if body.get('kind') == 'Pod':
            body.pop('spec', None), body.pop('status', None)
        for webhook in body.get('webhooks') or ():
            webhook.get('clientConfig', {}).pop('caBundle', None)
        return self.any(body)
