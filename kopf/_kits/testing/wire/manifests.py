"""Reading of manifests: the objects that users load into the sandbox at its start, from files, texts and dicts."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from kopf._kits.yaml_texts import load_yaml

Source = str | Path | Mapping[str, Any]
"""A file or folder with YAML or JSON files, a text of YAML (with at least one line break), or an object as a dict."""


class ManifestError(ValueError):
    """Raised when a source cannot be read as objects; the message has the place and the reason."""

    __module__ = 'kopf.testing'  # tracebacks show this name, which users import


def each(sources: Iterable[Source] | Source) -> Iterable[Source]:
    """Return one source or several as an iterable."""
    return [sources] if isinstance(sources, (str, Path, Mapping)) else sources


def read(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all objects of a source, each with its place in the source; lists are split into their items."""
    if isinstance(source, Mapping):
        yield from _unpack('object', dict(source))
    elif isinstance(source, str) and '\n' in source:
        yield from _parse('text', source)
    else:
        path = Path(source)
        files = sorted(path.glob('*.y*ml')) + sorted(path.glob('*.json')) if path.is_dir() else [path]
        for file in files:
            try:
                text = file.read_text(encoding='utf-8')
            except OSError as error:
                raise ManifestError(f'{file}: cannot be read: {error.strerror}') from None
            except UnicodeDecodeError:
                raise ManifestError(f'{file}: not a text in UTF-8') from None
            yield from _parse(str(file), text)


def _parse(place: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import yaml

    try:
        documents = list(load_yaml(text))
    except yaml.YAMLError as error:
        raise ManifestError(f'{place}: not YAML: {error}') from error
    for number, document in enumerate(documents, 1):
        name = place if len(documents) == 1 else f'{place}, document {number}'
        yield from _unpack(name, _as_json(name, document))


def _as_json(place: str, document: Any) -> Any:
    """Return a YAML document as JSON: dates and numeric keys become strings, as in kubectl; other types are refused."""
    try:
        return orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as error:
        raise ManifestError(f'{place}: cannot be converted to JSON: {error}') from error


def _unpack(place: str, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict):
        raise ManifestError(f'{place}: not a Kubernetes object: it has no fields')
    for field in ('apiVersion', 'kind'):
        if not isinstance(document.get(field), str) or not document[field]:
            raise ManifestError(f'{place}: not a Kubernetes object: {field} is missing or not a string')
    if not isinstance(document.get('metadata', {}), dict):
        raise ManifestError(f'{place}: {document["kind"]}: metadata is not an object')
    if document['kind'] == 'List':
        items = document.get('items') or []
        if not isinstance(items, list):
            raise ManifestError(f'{place}: List: items is not a list')
        for number, item in enumerate(items):
            yield from _unpack(f'{place}, items[{number}]', item)
    else:
        yield place, document
