"""
Where scenarios run: a real control plane, or a sandbox of our package, prepared with what all of them share.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.api import Api, AuditLog, free_port, wait

HERE = pathlib.Path(__file__).resolve().parent.parent


CLUSTER_SCRIPT = HERE.parent / 'cluster' / 'cluster'


SANDBOX_SCRIPT = HERE / 'sandbox.py'


SANDBOX_PYTHON = HERE.parent.parent / '.venv' / 'bin' / 'python'


DEFAULT_GROUP = 'kopf.dev'
PREFIX = 'conf-'


@contextlib.contextmanager
def real_cluster(directory: str | pathlib.Path, port: int) -> Iterator['Lab']:
    """Yield the control plane of ../cluster: started if it is down, and left running for the next time."""
    subprocess.run(
        [CLUSTER_SCRIPT, 'up', str(directory)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, 'CLUSTER_PORT': str(port)},
    )
    yield Lab(directory, port)


@contextlib.contextmanager
def sandbox(python: str | pathlib.Path) -> Iterator['Lab']:
    """Yield a sandbox of our package, which the interpreter has: started, and stopped in the end."""
    with tempfile.TemporaryDirectory(prefix='conformance-sandbox-') as directory:
        url, log = pathlib.Path(directory, 'url'), pathlib.Path(directory, 'log')
        with log.open('wb') as output:
            # In a session of its own: Ctrl-C must not take it away before the scenarios are cleaned up.
            server = subprocess.Popen(
                [str(python), str(SANDBOX_SCRIPT), directory, str(free_port())],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            with contextlib.suppress(TimeoutError):
                wait(lambda: url.exists() and url.stat().st_size or server.poll() is not None, 60, 'the sandbox')
            if not url.exists():
                sys.exit(f'the sandbox does not start with {python}:\n{log.read_text(errors="replace")}')
            yield Lab(directory, int(url.read_text().rpartition(':')[2]))
        finally:
            server.terminate()
            server.wait()


class Lab:
    """The control plane that is up: prepares what all scenarios share."""

    def __init__(self, directory: str | pathlib.Path, port: int) -> None:
        self.directory, self.port = pathlib.Path(directory), port
        self.api = Api(port, 'admin')
        self.audit = AuditLog(self.directory / 'audit.log')
        self.kubeconfig = json.loads((self.directory / 'kubeconfig-operator').read_text())
        self.certificate = self.directory / 'webhook.crt'
        self.private_key = self.directory / 'webhook.key'
        if not self.certificate.exists():
            subprocess.run(
                [
                    'openssl',
                    'req',
                    '-x509',
                    '-newkey',
                    'rsa:2048',
                    '-nodes',
                    '-days',
                    '30',
                    '-subj',
                    '/CN=localhost',
                    '-addext',
                    'subjectAltName=DNS:localhost,IP:127.0.0.1',
                    '-keyout',
                    self.private_key,
                    '-out',
                    self.certificate,
                ],
                check=True,
                stderr=subprocess.DEVNULL,
            )
        self.api.request(
            'POST',
            '/apis/rbac.authorization.k8s.io/v1/clusterrolebindings',
            {
                'metadata': {'name': 'conformance-operators'},
                'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'ClusterRole', 'name': 'cluster-admin'},
                'subjects': [
                    {'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'Group', 'name': 'system:serviceaccounts'}
                ],
            },
            ok=[409],
        )
        self.install(
            [
                crd('kopfexamples', 'KopfExample', group=DEFAULT_GROUP, short_names=['kex'], categories=['kopfall']),
                crd('kopfstatuses', 'KopfStatus', group=DEFAULT_GROUP, status_subresource=True),
                crd('kopfpeerings', 'KopfPeering', group=DEFAULT_GROUP),
                crd('clusterkopfpeerings', 'ClusterKopfPeering', group=DEFAULT_GROUP, scope='Cluster'),
            ]
        )

    def close(self) -> None:
        """Take the rights back that were given to all service accounts: other tests use the control plane, too."""
        self.api.request(
            'DELETE', '/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/conformance-operators', ok=[404]
        )

    def install(self, crds: Iterable[Any]) -> None:
        """Create the CRDs and wait until each version is served."""
        for item in crds:
            self.api.request('POST', '/apis/apiextensions.k8s.io/v1/customresourcedefinitions', item, ok=[409])
        for item in crds:
            spec = item['spec']
            for version in spec['versions']:
                if version['served']:
                    self._wait_until_served(spec['group'], version['name'], spec['names']['plural'])

    def _wait_until_served(self, group: str, version: str, plural: str) -> None:
        path = f'/apis/{group}/{version}'
        wait(lambda: 'items' in self.api.request('GET', f'{path}/{plural}', ok=[404]), 30, f'the CRD {path}/{plural}')
        wait(
            lambda: plural in [r['name'] for r in self.api.request('GET', path, ok=[404]).get('resources', [])],
            30,
            f'the discovery of {path}/{plural}',
        )


def crd(
    plural: str,
    kind: str,
    *,
    group: str = '__GROUP__',
    versions: Sequence[str] = ('v1',),
    scope: str = 'Namespaced',
    short_names: Iterable[str] = (),
    categories: Iterable[str] = (),
    status_subresource: bool = False,
    singular: str | None = None,
    storage: str | None = None,
    schema: Any = None,
) -> dict[str, Any]:
    """Describe a CRD whose objects keep any field (unless a schema is given)."""
    schema = schema or {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.{group}'},
        'spec': {
            'group': group,
            'scope': scope,
            'names': {
                'plural': plural,
                'kind': kind,
                'singular': singular or kind.lower(),
                'shortNames': list(short_names),
                'categories': list(categories),
            },
            'versions': [
                {
                    'name': version,
                    'served': True,
                    'storage': version == (storage or versions[0]),
                    'schema': {'openAPIV3Schema': schema},
                    **({'subresources': {'status': {}}} if status_subresource else {}),
                }
                for version in versions
            ],
        },
    }
