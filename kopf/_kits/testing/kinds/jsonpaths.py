"""JSONPath over decoded objects: the subset that printer columns and scales use."""

import re
from collections.abc import Iterator, Mapping
from typing import Any


def find(body: Any, path: str) -> Iterator[Any]:
    """
    Yield the values at a path of an object.

    Paths consist of steps such as ``.a.b``, ``['a']``, ``[0]``, ``[*]``, ``[?(@.type=="Ready")]``.
    """
    nodes = [body]
    for field, quoted, index, filter in _PATH.findall(path.strip('{}')):
        name = field or quoted
        nodes = [found for node in nodes for found in _step(node, name, index, filter)]
    return iter(nodes)


_PATH = re.compile(r"""\.([\w\-\\/]+)|\[['"](.*?)['"]\]|\[(-?\d+|\*)\]|\[\?\((.*?)\)\]""")
_FILTER = re.compile(r"""\s*@((?:\.[\w\-]+)+)\s*(==|!=)\s*['"]?(.*?)['"]?\s*""")


def _step(node: Any, name: str, index: str, filter: str) -> Iterator[Any]:
    if name:
        if isinstance(node, Mapping) and name.replace('\\', '') in node:
            yield node[name.replace('\\', '')]
    elif index == '*':
        yield from node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    elif index:
        if isinstance(node, list) and -len(node) <= int(index) < len(node):
            yield node[int(index)]
    elif (match := _FILTER.fullmatch(filter)) is not None and isinstance(node, list):
        for item in node:
            values = [str(value) for value in find(item, match[1])]
            if (match[3] in values) is (match[2] == '=='):
                yield item
