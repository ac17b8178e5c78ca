"""
Objects from files, texts and dicts: what users give to the sandbox to begin with.
"""
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

#: A file or a folder with YAML or JSON files, a text of YAML (with at least one line break), or an object as such.
Source = str | Path | Mapping[str, Any]


class ManifestError(ValueError):
    """Something cannot be read as objects; the message says what, where, and why."""


def each(sources: Iterable[Source] | Source) -> Iterable[Source]:
    """One source or several, as several."""
    return [sources] if isinstance(sources, (str, Path, Mapping)) else sources


def read(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects of a source, each with where it comes from; lists are taken apart."""
    if isinstance(source, Mapping):
        yield from _unpack('object', dict(source))
    elif isinstance(source, str) and '\n' in source:
        yield from _parse('text', source)
    else:
        path = Path(source)
        files = sorted(path.glob('*.y*ml')) + sorted(path.glob('*.json')) if path.is_dir() else [path]
        for file in files:
            try:
                text = file.read_text()
            except OSError as error:
                raise ManifestError(f'{file}: cannot be read: {error.strerror}') from error
            yield from _parse(str(file), text)


def _parse(place: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import yaml
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise ManifestError(f'{place}: not YAML: {error}') from error
    for number, document in enumerate(documents, 1):
        yield from _unpack(place if len(documents) == 1 else f'{place}, document {number}', document)


def _unpack(place: str, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict):
        raise ManifestError(f'{place}: not a Kubernetes object, which has fields')
    for field in ('apiVersion', 'kind'):
        if not isinstance(document.get(field), str) or not document[field]:
            raise ManifestError(f'{place}: not a Kubernetes object: {field} is not there, or not a text')
    if document['kind'] == 'List':
        items = document.get('items') or []
        if not isinstance(items, list):
            raise ManifestError(f'{place}: List: items is not a list')
        for number, item in enumerate(items):
            yield from _unpack(f'{place}, items[{number}]', item)
    else:
        yield place, document
