"""The generated deployments at work: with the generated roles and command, in a sandbox that checks permissions."""

import json
import re
import shlex

import pytest
import yaml
from click.testing import CliRunner

import kopf.testing
from kopf.cli import main

APP = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = 1

@dataclasses.dataclass
class Status:
    size: int | None = None

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class App:
    spec: Spec
    status: Status | None = None

@kopf.on.create(App)
def created(spec, patch, **_):
    patch.status['size'] = spec.size
"""
ACCOUNT = 'system:serviceaccount:default:shop'


@pytest.fixture
def deployed(kopf_sandbox, kopf_operator, tmp_path, forked_operators):
    """Return a function that applies the manifests with these options, and runs their command as their account."""

    def deploy(*options):
        path = tmp_path / 'shop.py'
        path.write_text(APP)
        made = CliRunner().invoke(main, ['manifests', str(path), '--image', 'shop:1', *options])
        assert made.exit_code == 0, made.output
        kopf_sandbox.apply(made.stdout)
        for line in made.stderr.splitlines():
            if (match := re.search(r'echo (.+) \| kubectl apply -f -', line)) is not None:
                kopf_sandbox.apply(json.loads(*shlex.split(match[1])))
        [deployment] = [each for each in yaml.safe_load_all(made.stdout) if each['kind'] == 'Deployment']
        [container] = deployment['spec']['template']['spec']['containers']
        arguments = [
            each for each in container['command'][2:] if not each.startswith(('--liveness', '--metrics', '/app'))
        ]
        return kopf_operator(*arguments, path, env={'KUBECONFIG': str(kopf_sandbox.kubeconfig_for(ACCOUNT))})

    return deploy


def check_work(sandbox, operator):
    sandbox.create('apps', 'one', spec={'size': 2})
    sandbox.wait_for('apps', 'one', lambda body: (body.get('status') or {}).get('size') == 2)
    assert not re.search(r'(?i)forbidden|permission of the operator is missing', operator.output)


@pytest.mark.parametrize(
    'scope, resource', [([], 'clusterkopfpeerings'), (['-n', 'default'], 'kopfpeerings')], ids=['cluster', 'namespace']
)
@pytest.mark.kopf_sandbox(rbac=True)
def test_operators_with_a_peering_have_a_record_there(kopf_sandbox, deployed, scope, resource):
    with deployed('--peering', 'ours', *scope) as operator:
        check_work(kopf_sandbox, operator)
        kopf_sandbox.wait_for(resource, 'ours', lambda body: len(body['status']) == 1)
    assert 'peering' not in operator.output


@pytest.mark.kopf_sandbox(rbac=True)
def test_operators_of_namespaces_that_notice_nothing_new_work_without_cluster_roles(kopf_sandbox, deployed):
    with deployed('--no-scanning', '-n', 'default') as operator:
        check_work(kopf_sandbox, operator)
    assert not kopf_sandbox.list('clusterroles') or 'shop' not in [
        each['metadata']['name'] for each in kopf_sandbox.list('clusterroles')
    ]


@pytest.mark.kopf_sandbox(rbac=True)
def test_an_inspected_operator_is_shown_by_the_command_that_runs_beside_it(
    kopf_sandbox, deployed, monkeypatch, tmp_path
):
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path))
    with deployed('--inspect') as operator:
        check_work(kopf_sandbox, operator)
        shown = CliRunner().invoke(main, ['top'])
    assert 'apps.example.com' in shown.output


@pytest.mark.kopf_sandbox(rbac=True)
def test_replicas_may_use_their_own_lease_and_no_other(kopf_sandbox, deployed):
    with deployed('--replicas', '2') as operator:
        check_work(kopf_sandbox, operator)
        kopf_sandbox.wait_for('leases', 'shop', lambda body: body['spec'].get('holderIdentity'))
    failure = pytest.raises(kopf.testing.OperatorFailed, match=r"The Lease 'other' in 'default' is not permitted")
    with failure, deployed('--replicas', '2', '--name', 'other'):
        pass
