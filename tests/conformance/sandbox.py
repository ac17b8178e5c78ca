#!/usr/bin/env python3
"""The sandbox in place of tests/cluster: the same users and files, until SIGTERM. Usage: sandbox.py DIR PORT

It is run by an interpreter that has the sandbox, i.e. our package: conformance.py needs none, and compares any.
"""

import json
import pathlib
import signal
import sys

from kopf.testing import Sandbox


def main():
    directory, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Sandbox(port=port, kubeconfig=directory / 'kubeconfig', audit=directory / 'audit.log') as sandbox:
        for name in ('admin', 'operator'):
            sandbox.issue_token(name, ['system:masters'], token=name)
        sandbox.issue_token('limited', token='limited')
        (directory / 'ca.crt').write_bytes(sandbox.ca)
        config = json.loads((directory / 'kubeconfig').read_text())
        config['users'][0]['user'] = {'token': 'operator'}
        config['clusters'][0]['cluster'] = {'server': sandbox.url, 'certificate-authority': str(directory / 'ca.crt')}
        (directory / 'kubeconfig-operator').write_text(json.dumps(config))
        (directory / 'url').write_text(sandbox.url)
        signal.pause()


if __name__ == '__main__':
    main()
