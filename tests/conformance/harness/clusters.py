"""
What the ``drive()`` of a scenario works with: a namespace of its own, its objects, its operators.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import string
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from harness.api import MERGE_PATCH, ApiError, free_port, wait
from harness.labs import DEFAULT_GROUP, PREFIX, Lab
from harness.masks import Mask
from harness.operators import Operator

if TYPE_CHECKING:
    from harness.scenarios import Scenario


# Resources known without asking; others are written as PLURAL.VERSION.GROUP.
KNOWN = {
    'pods': ('', 'v1', True),
    'configmaps': ('', 'v1', True),
    'secrets': ('', 'v1', True),
    'services': ('', 'v1', True),
    'events': ('', 'v1', True),
    'namespaces': ('', 'v1', False),
    'serviceaccounts': ('', 'v1', True),
    'jobs': ('batch', 'v1', True),
    'deployments': ('apps', 'v1', True),
    'replicasets': ('apps', 'v1', True),
    'customresourcedefinitions': ('apiextensions.k8s.io', 'v1', False),
    'clusterrolebindings': ('rbac.authorization.k8s.io', 'v1', False),
    'mutatingwebhookconfigurations': ('admissionregistration.k8s.io', 'v1', False),
    'validatingwebhookconfigurations': ('admissionregistration.k8s.io', 'v1', False),
    'kopfexamples': (DEFAULT_GROUP, 'v1', True),
    'kopfstatuses': (DEFAULT_GROUP, 'v1', True),
    'kopfpeerings': (DEFAULT_GROUP, 'v1', True),
    'clusterkopfpeerings': (DEFAULT_GROUP, 'v1', False),
}


class Cluster:
    """What a scenario's drive() works with: its namespace, its objects, its operator."""

    def __init__(self, lab: Lab, scenario: 'Scenario', python: str | pathlib.Path, folder: str | pathlib.Path) -> None:
        suffix = ''.join(random.choices(string.ascii_lowercase, k=6))
        self.lab, self.api, self.scenario, self.python = lab, lab.api, scenario, python
        self.ns, self.group = f'{PREFIX}{suffix}', f'{suffix}.conf.test'
        self.user = f'system:serviceaccount:{self.ns}:operator'
        self.folder = pathlib.Path(folder) / f'{scenario.name}-{suffix}'
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.journal_file = self.folder / 'journal.jsonl'
        self.named: list[tuple[str, str, Any]] = []
        self.facts: list[Any] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.extra_namespaces: list[str] = []
        self.operators: list[Operator] = []
        self.started, self.epoch, self.skipped_requests = time.monotonic(), 0.0, 0

    def set_up(self) -> None:
        shutil.copy(pathlib.Path(__file__).with_name('journal.py'), self.folder)
        self.create_namespace(self.ns)
        self.api.request('POST', f'/api/v1/namespaces/{self.ns}/serviceaccounts', {'metadata': {'name': 'operator'}})
        token = self.api.request('POST', f'/api/v1/namespaces/{self.ns}/serviceaccounts/operator/token', {'spec': {}})[
            'status'
        ]['token']
        config = json.loads(json.dumps(self.lab.kubeconfig))
        config['users'][0]['user'] = {'token': token}
        (self.folder / 'kubeconfig').write_text(json.dumps(config))
        self.lab.install([json.loads(self.fill(json.dumps(item))) for item in self.scenario.crds])
        self.operator = self.another_operator('main', self.scenario.source, self.scenario.args, self.scenario.script)

    def another_operator(self, name: str, source: str, args: Iterable[str] = (), script: bool = False) -> Operator:
        """One more operator process in the same namespace, not started yet."""
        self.operators.append(Operator(self, name, source, list(args), script))
        return self.operators[-1]

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(('KOPF_', 'KUBE', 'PYTHON')) and key != 'POD_ID'
        }
        return {
            **clean,
            'HOME': str(self.folder),
            'PYTHONPATH': str(self.folder),
            'PYTHONDONTWRITEBYTECODE': '1',
            'KUBECONFIG': str(self.folder / 'kubeconfig'),
            'JOURNAL': str(self.journal_file),
            'SCENARIO_NAMESPACE': self.ns,
            'SCENARIO_GROUP': self.group,
            **{key: self.fill(value) for key, value in extra.items()},
        }

    def fill(self, text: str) -> str:
        """Replace the placeholders that scenario texts may have."""
        for key, value in {
            '__NS__': self.ns,
            '__GROUP__': self.group,
            '__PORT__': str(self.port),
            '__CERT__': str(self.lab.certificate),
            '__KEY__': str(self.lab.private_key),
            '__DIR__': str(self.folder),
        }.items():
            text = text.replace(key, value)
        return text

    # objects

    def path(self, resource: str, name: str | None = None, ns: str | bool | None = None) -> str:
        """Return the URL path of an object or a list. Resource: a known plural or PLURAL.VERSION.GROUP."""
        plural, *rest = self.fill(resource).split('.', 2)
        if rest:
            version, group, namespaced = rest[0], rest[1], ns is not False
        else:
            group, version, namespaced = KNOWN[plural]
        path = f'/apis/{group}/{version}' if group else f'/api/{version}'
        if namespaced:
            path += f'/namespaces/{ns or self.ns}'
        return f'{path}/{plural}' + (f'/{name}' if name else '')

    def create(
        self,
        resource: str,
        name: str,
        body: Any = None,
        *,
        ns: str | bool | None = None,
        labels: Any = None,
        annotations: Any = None,
        finalizers: Any = None,
        **fields: Any,
    ) -> Any:
        """Create an object and name it for the final state; fields are its top-level keys, such as spec."""
        plural, *rest = self.fill(resource).split('.', 2)
        group, version = (rest[1], rest[0]) if rest else KNOWN[plural][:2]
        kinds = {
            'kopfexamples': 'KopfExample',
            'kopfstatuses': 'KopfStatus',
            'configmaps': 'ConfigMap',
            'pods': 'Pod',
            'kopfpeerings': 'KopfPeering',
            'clusterkopfpeerings': 'ClusterKopfPeering',
            'secrets': 'Secret',
            'services': 'Service',
            'jobs': 'Job',
            'deployments': 'Deployment',
            'replicasets': 'ReplicaSet',
        }
        kind = next(
            (item['spec']['names']['kind'] for item in self.scenario.crds if item['spec']['names']['plural'] == plural),
            kinds.get(plural, plural),
        )
        metadata = {'name': name, 'labels': labels, 'annotations': annotations, 'finalizers': finalizers}
        if plural == 'pods':
            fields.setdefault('spec', {'containers': [{'name': 'main', 'image': 'none'}]})
        full = {
            'apiVersion': f'{group}/{version}' if group else version,
            'kind': kind,
            'metadata': {key: value for key, value in metadata.items() if value is not None},
            **fields,
            **(body or {}),
        }
        self.name_object(resource, name, ns)
        return self.api.request('POST', self.path(resource, ns=ns), json.loads(self.fill(json.dumps(full))))

    def name_object(self, resource: str, name: str, ns: str | bool | None = None) -> None:
        """Include the object's state at the end into the trace."""
        if (resource, name, ns) not in self.named:
            self.named.append((resource, name, ns))

    def patch(
        self,
        resource: str,
        name: str,
        patch: Any,
        *,
        ns: str | bool | None = None,
        subresource: str | None = None,
        json_patch: bool = False,
    ) -> Any:
        path = self.path(resource, name, ns) + (f'/{subresource}' if subresource else '')
        return self.api.request('PATCH', path, patch, 'application/json-patch+json' if json_patch else MERGE_PATCH)

    def replace(self, resource: str, name: str, body: Any, *, ns: str | bool | None = None) -> Any:
        return self.api.request('PUT', self.path(resource, name, ns), body)

    def delete(self, resource: str, name: str, *, ns: str | bool | None = None) -> Any:
        return self.api.request('DELETE', self.path(resource, name, ns), ok=[404])

    def get(self, resource: str, name: str, *, ns: str | bool | None = None) -> Any:
        """Return the object, or None if there is none."""
        data = self.api.request('GET', self.path(resource, name, ns), ok=[404])
        return None if data.get('kind') == 'Status' else data

    def items(self, resource: str, *, ns: str | bool | None = None) -> list[Any]:
        return list(self.api.request('GET', self.path(resource, ns=ns), ok=[404]).get('items', []))

    def become(self, user: str) -> None:
        """Let the operators act as another user of the cluster, such as "limited" (the token is the name)."""
        config = json.loads((self.folder / 'kubeconfig').read_text())
        config['users'][0]['user'] = {'token': user}
        (self.folder / 'kubeconfig').write_text(json.dumps(config))
        self.user, self.skipped_requests = user, len(self.lab.audit.of(user))

    def create_namespace(self, name: str) -> Any:
        self.extra_namespaces.append(name)
        return self.api.request('POST', '/api/v1/namespaces', {'metadata': {'name': name}})

    def install(self, *crds: Any) -> None:
        """Create CRDs now (those of CRDS are created before the scenario starts)."""
        self.scenario.crds.extend(item for item in crds if item not in self.scenario.crds)
        self.lab.install([json.loads(self.fill(json.dumps(item))) for item in crds])

    def uninstall(self, plural: str) -> Any:
        return self.delete('customresourcedefinitions', f'{plural}.{self.group}')

    # observations

    def notes(self, event: str | None = None, **facts: Any) -> list[dict[str, Any]]:
        """Return the journal's notes of this event with these facts, as far as written."""
        lines = self.journal_file.read_text().splitlines() if self.journal_file.exists() else []
        notes = [json.loads(line) for line in lines]
        return [
            note
            for note in notes
            if event in (None, note['event']) and all(note['facts'].get(key) == value for key, value in facts.items())
        ]

    def requests(self) -> list[dict[str, Any]]:
        """All requests of this scenario's operators so far, from the audit log."""
        return self.lab.audit.of(self.user)[self.skipped_requests :]

    def writes(self) -> list[dict[str, Any]]:
        return [
            entry
            for entry in self.requests()
            if entry['verb'] in ('create', 'update', 'patch', 'delete')
            and entry.get('objectRef', {}).get('resource') != 'events'
        ]

    def wait_until(self, predicate: Callable[[], Any], timeout: float = 40, what: str = 'a condition') -> Any:
        return wait(predicate, timeout, what)

    def wait_note(self, event: str | None, count: int = 1, timeout: float = 40, **facts: Any) -> Any:
        """Wait until the journal has this many notes of the event; return the last of them."""
        what = f'{count} notes {event!r} {facts or ""}'
        return wait(lambda: len(self.notes(event, **facts)) >= count and self.notes(event, **facts)[-1], timeout, what)

    def wait_gone(self, resource: str, name: str, *, ns: str | bool | None = None, timeout: float = 40) -> Any:
        return wait(lambda: self.get(resource, name, ns=ns) is None, timeout, f'{resource}/{name} to be gone')

    def wait_handled(
        self,
        resource: str,
        name: str,
        *,
        ns: str | bool | None = None,
        prefix: str = 'kopf.zalando.org',
        timeout: float = 40,
        **spec: Any,
    ) -> Any:
        """Wait until the last handled configuration has these fields of the spec and no progress is left."""

        def handled() -> bool:
            annotations = (self.get(resource, name, ns=ns) or {'metadata': {}})['metadata'].get('annotations', {})
            stored = json.loads(annotations.get(f'{prefix}/last-handled-configuration', 'null'))
            others = [
                key
                for key in annotations
                if key.startswith(f'{prefix}/')
                and key not in (f'{prefix}/last-handled-configuration', f'{prefix}/kopf-managed')
            ]
            return (
                stored is not None
                and not others
                and all(stored.get('spec', {}).get(key) == value for key, value in spec.items())
            )

        return wait(handled, timeout, f'{resource}/{name} to be handled with {spec}')

    def settle(self, seconds: float = 0.7, timeout: float = 40) -> None:
        """Wait until there is neither a note nor a write by the operator for so many seconds."""
        deadline, since, seen = time.monotonic() + timeout, time.monotonic(), None
        while time.monotonic() < deadline:
            now = (len(self.notes()), len(self.writes()))
            if now != seen:
                since, seen = time.monotonic(), now
            if time.monotonic() - since >= seconds:
                return
            time.sleep(0.05)
        raise TimeoutError(f'no {seconds:g} s of silence within {timeout} s')

    def fact(self, label: str, value: Any) -> Any:
        """Put something that the scenario has seen into the trace."""
        self.facts.append([label, value])
        return value

    def fact_object(self, label: str, resource: str, name: str, *parts: str, ns: str | bool | None = None) -> Any:
        """Put an object's present state (or only some top-level or metadata parts) into the trace."""
        state = Mask(self).object(self.get(resource, name, ns=ns))
        if parts and state is not None:
            state = {part: state[part] if part in state else state['metadata'].get(part) for part in parts}
        return self.fact(label, state)

    def attempt(self, label: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do an API request that may be refused; put the outcome into the trace."""
        try:
            action(*args, **kwargs)
            return self.fact(label, 'accepted')
        except ApiError as error:
            return self.fact(label, f'{error.status} {error.message}')

    # the end

    def tear_down(self, keep: bool = False) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        groups = {
            (f'{plural}.{version}.{group}' if group == DEFAULT_GROUP else plural)
            for plural, (group, version, _) in KNOWN.items()
            if group == DEFAULT_GROUP and plural.startswith('kopf')
        }
        resources = groups | {'pods', 'configmaps', 'secrets', 'jobs'} | {resource for resource, _, _ in self.named}
        for kind in ('mutating', 'validating'):
            for item in self.items(f'{kind}webhookconfigurations'):
                if self.ns in item['metadata']['name'] or self.group in json.dumps(item.get('webhooks', '')):
                    self.delete(f'{kind}webhookconfigurations', item['metadata']['name'])
        for resource in sorted(resources):
            scopes = {ns for _, _, ns in self.named if ns is False} | set(self.extra_namespaces)
            for ns in scopes:
                if resource in KNOWN and not KNOWN[resource][2]:
                    continue
                for item in self.items(resource, ns=ns):
                    if item['metadata'].get('finalizers'):
                        with contextlib.suppress(ApiError):
                            self.patch(resource, item['metadata']['name'], {'metadata': {'finalizers': None}}, ns=ns)
        for resource, name, ns in self.named:
            if ns is False or (resource in KNOWN and not KNOWN[resource][2]):
                with contextlib.suppress(ApiError):
                    self.delete(resource, name, ns=ns)
        for item in self.scenario.crds:
            self.delete('customresourcedefinitions', self.fill(item['metadata']['name']))
        for ns in self.extra_namespaces:
            self.delete('namespaces', ns)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
