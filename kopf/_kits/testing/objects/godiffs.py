"""
Differences of specifications in error messages, as a real API server formats them.

The server compares Go structures line by line. So the fields have their names in Go.
"""

import json
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


def of_claims(old: Fields, new: Fields) -> str:
    """Return the difference between two specifications of a PersistentVolumeClaim."""
    return _difference(_claim(old), _claim(new))


def _claim(spec: Fields) -> Fields:
    resources = spec.get('resources') or {}
    return {
        'AccessModes': spec.get('accessModes'),
        'Selector': spec.get('selector'),
        'Resources': {'Limits': resources.get('limits'), 'Requests': resources.get('requests')},
        'VolumeName': spec.get('volumeName', ''),
        'StorageClassName': spec.get('storageClassName'),
        'VolumeMode': spec.get('volumeMode'),
        'DataSource': _reference(spec.get('dataSource')),
        'DataSourceRef': _reference(spec.get('dataSourceRef'), 'namespace'),
        'VolumeAttributesClassName': spec.get('volumeAttributesClassName'),
    }


def _reference(value: Fields | None, *more: str) -> Fields | None:
    if value is None:
        return None
    return {
        'APIGroup': value.get('apiGroup'),
        'Kind': value.get('kind', ''),
        'Name': value.get('name', ''),
        **{key.capitalize(): value.get(key) for key in more},
    }


def _difference(old: Fields, new: Fields) -> str:
    import difflib

    before, after = (json.dumps(each, indent=1).splitlines(keepends=True) for each in (old, new))
    _, _, *lines = difflib.unified_diff(before, after)
    return ''.join(line if line.endswith('\n') else f'{line}\n' for line in lines)
