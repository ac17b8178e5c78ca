"""
Record the columns of tables of built-in kinds from a real control plane: kopf/_kits/testing/data/tables.json.gz.

What the cells say is written in ``tables.py``; only the names, types, and descriptions of columns are recorded::

    tests/cluster/cluster up /tmp/plane
    python scripts/record_tables.py /tmp/plane/kubeconfig
"""

import gzip
import json
import pathlib
import ssl
import sys
import urllib.request

import yaml

from kopf._kits.testing.kinds.kinds import BUILTINS

TARGET = pathlib.Path(__file__).parent.parent / 'kopf/_kits/testing/data/tables.json.gz'
TABLE = 'application/json;as=Table;v=v1;g=meta.k8s.io'


def resources() -> list[tuple[str, str]]:
    """The paths of all built-in kinds that are stored, with their names as ``plural.group``."""
    found, group, version = [], '', ''
    for line in filter(None, BUILTINS.splitlines()):
        if not line.startswith(' '):
            group, _, version = line.rpartition('/')
        elif not line.endswith(' review'):
            plural = line.split()[0]
            base = f'/apis/{group}/{version}' if group else f'/api/{version}'
            found.append((f'{base}/{plural}', f'{plural}.{group}/{version}'))
    return found


def main(path: str) -> None:
    """Ask for an empty table of each kind."""
    config = yaml.safe_load(pathlib.Path(path).read_text())
    server, token = config['clusters'][0]['cluster']['server'], config['users'][0]['user']['token']
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tables = {}
    for place, name in resources():
        request = urllib.request.Request(server + place, headers={'Accept': TABLE, 'Authorization': f'Bearer {token}'})
        with urllib.request.urlopen(request, context=context) as response:
            tables[name] = json.load(response)['columnDefinitions']
    text = json.dumps(tables, sort_keys=True, separators=(',', ':')).encode()
    TARGET.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f'{len(tables)} kinds, {TARGET.stat().st_size} bytes')


if __name__ == '__main__':
    main(sys.argv[1])
