"""
Record the roles that every cluster has, and who has them, for the sandbox: kopf/_kits/testing/data/rbac.json.gz.

They are read with kubectl from a real control plane, a new one, since whoever administers it may change them::

    KUBECONFIG=... python scripts/record_rbac.py
"""

import gzip
import json
import pathlib
import subprocess

TARGET = pathlib.Path(__file__).parent.parent / 'kopf/_kits/testing/data/rbac.json.gz'
COMMAND = [
    'kubectl',
    'get',
    'clusterroles,clusterrolebindings,roles,rolebindings',
    '--all-namespaces',
    '--selector=kubernetes.io/bootstrapping=rbac-defaults',
    '--output=json',
]
CHANGING = ('uid', 'resourceVersion', 'creationTimestamp', 'managedFields')


def main() -> None:
    """Read the roles and write the data."""
    items = json.loads(subprocess.run(COMMAND, check=True, capture_output=True).stdout)['items']
    for item in items:
        for key in CHANGING:
            item['metadata'].pop(key, None)
        if 'aggregationRule' in item:
            item['rules'] = None  # The controller fills them in, sooner or later.
    text = json.dumps(items, separators=(',', ':'), sort_keys=True).encode()
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f'{len(items)} objects, {TARGET.stat().st_size} bytes: {TARGET}')


if __name__ == '__main__':
    main()
