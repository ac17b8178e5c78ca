"""
Record how Kubernetes writes its objects in protobuf, for the sandbox: kopf/_kits/testing/data/protobuf.json.gz.

The numbers and types of fields are in the ``generated.proto`` of each API version; their names in JSON, and whether a
zero says more than its absence, are in the tags of Go's structs next to it. Only those versions are taken that the
sandbox serves. With Go, the sources of the libraries are got and read by::

    go mod download k8s.io/api@v0.36.3 k8s.io/apimachinery@v0.36.3 k8s.io/apiextensions-apiserver@v0.36.3
    python scripts/record_protobuf.py $(go env GOMODCACHE)/k8s.io/*@v0.36.3
"""

import gzip
import json
import pathlib
import re
import sys

from kopf._kits.testing.kinds.kinds import BUILTINS

TARGET = pathlib.Path(__file__).parent.parent / 'kopf/_kits/testing/data/protobuf.json.gz'
LIBRARIES = (
    'apimachinery/pkg/api/resource',
    'apimachinery/pkg/apis/meta/v1',
    'apimachinery/pkg/runtime',
    'apimachinery/pkg/util/intstr',
    'apiextensions-apiserver/pkg/apis/apiextensions/v1',
)

MESSAGE = re.compile(r'^message (\w+) \{\n(.*?)^\}', re.M | re.S)
FIELD = re.compile(r'^  (optional|required|repeated|map<string, ([\w.]+)>) (?:(\.?[\w.]+) )?(\w+) = (\d+);', re.M)
STRUCT = re.compile(r'^type (\w+) struct \{\n(.*?)^\}', re.M | re.S)
TAGGED = re.compile(r'^\t(?:\w+[ \t]+)?([^\s`]+)[ \t]+`json:"([^"]*)"[^`]* protobuf:"\w+,(\d+),', re.M)


def folders(roots: list[pathlib.Path]) -> dict[str, pathlib.Path]:
    """The folders with API versions by the names of their packages, as they are shortened here."""
    found = {}
    served = {
        line.rpartition('/')[0].partition('.')[0] + '/' + line.rpartition('/')[2]
        for line in BUILTINS.splitlines()
        if line and not line.startswith(' ')
    }
    served = {'core' + name if name.startswith('/') else name for name in served}
    for root in roots:
        library = root.name.partition('@')[0]
        for path in root.rglob('generated.proto'):
            place = str(path.parent.relative_to(root))
            if f'{library}/{place}' in LIBRARIES or (library == 'api' and place in served):
                found[shorten(f'{library}.{place}'.replace('/', '.'))] = path.parent
    return found


def shorten(name: str) -> str:
    """The name of a package or a message without what all of them have in common."""
    name = name.removeprefix('.').removeprefix('k8s.io.').replace('apiextensions_apiserver', 'apiextensions-apiserver')
    for prefix in ('apimachinery.pkg.apis.', 'apimachinery.pkg.', 'apiextensions-apiserver.pkg.apis.', 'api.'):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def tags(folder: pathlib.Path) -> dict[tuple[str, str], tuple[str, str, bool]]:
    """By struct and number: the name in JSON, the type in Go, and whether zeros are left out."""
    found = {}
    for path in sorted(folder.glob('*.go')):
        if path.name.endswith(('_test.go', '.pb.go')):
            continue
        for struct, body in STRUCT.findall(path.read_text()):
            for type, json_tag, number in TAGGED.findall(body):
                name, *rest = json_tag.split(',')
                found[struct, number] = name, type, 'omitempty' in rest or 'omitzero' in rest
    return found


def messages(package: str, folder: pathlib.Path) -> dict[str, dict[str, str]]:
    """All messages of a package: ``name type shape`` by number, with an empty name for what is written inline."""
    known, found = tags(folder), {}
    for message, body in MESSAGE.findall((folder / 'generated.proto').read_text()):
        fields = {}
        for label, of_map, type, name, number in FIELD.findall(body):
            key, go, empty = known.get((message, number), (name, '', True))
            key = name if key == '-' else key
            shape = '{}' if of_map else '[]' if label == 'repeated' else '' if empty and not go.startswith('*') else '0'
            kind = of_map or type
            if '.' in kind:
                kind = shorten(kind)
            elif kind[0].isupper():
                kind = f'{package}.{kind}'
            fields[number] = f'{key} {kind} {shape}'.rstrip()
        found[f'{package}.{message}'] = fields
    return found


def main() -> None:
    """Read the sources whose folders are given, and write the data."""
    data: dict[str, dict[str, str]] = {}
    for package, folder in sorted(folders([pathlib.Path(name) for name in sys.argv[1:]]).items()):
        data.update(messages(package, folder))
    text = json.dumps(data, separators=(',', ':'), sort_keys=True).encode()
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f'{len(data)} messages, {TARGET.stat().st_size} bytes: {TARGET}')


if __name__ == '__main__':
    main()
