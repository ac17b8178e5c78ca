"""``kopf manifests``: what is made of handlers and options, as a stream, for kustomize, and for Helm."""

import pathlib
import re

import pytest
import yaml
from click.testing import CliRunner

from kopf._kits.packaging.manifest_commands import guess_name
from kopf._kits.testing.wire import clientyaml
from kopf._kits.yaml_texts import load_yaml
from kopf.cli import main

APP = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    size: int = 1

@kopf.kind('example.com/v1')
@dataclasses.dataclass
class App:
    spec: Spec

@kopf.on.create(App)
def created(**_): pass
"""
WEBHOOK = "\n@kopf.on.validate(App)\ndef check(**_): pass\n"


@pytest.fixture
def app(tmp_path):
    path = tmp_path / 'shop.py'
    path.write_text(APP)
    return path


@pytest.fixture
def make(app):
    def make(*options, path=None):
        arguments = ['manifests', str(path or app), '--image', 'r.example.com:5000/shop:1.0', *options]
        return CliRunner().invoke(main, arguments)

    return make


def read(result):
    assert result.exit_code == 0, result.output
    return {(each['kind'], each['metadata'].get('namespace')): each for each in yaml.safe_load_all(result.stdout)}


def find_command(objects):
    [command] = [
        each['spec']['template']['spec']['containers'][0]['command']
        for each in objects.values()
        if each['kind'] == 'Deployment'
    ]
    return command


def test_a_small_operator_has_these_objects(make):
    objects = read(make('--in', 'ops'))
    assert list(objects) == [
        ('CustomResourceDefinition', None),
        ('ServiceAccount', 'ops'),
        ('ClusterRole', None),
        ('ClusterRoleBinding', None),
        ('Deployment', 'ops'),
        ('NetworkPolicy', 'ops'),
    ]
    assert {each['metadata']['name'] for each in objects.values()} == {'apps.example.com', 'shop'}


def test_pods_conform_to_the_restricted_standard(make):
    pod = read(make())['Deployment', 'default']['spec']['template']['spec']
    [container] = pod['containers']
    assert pod['securityContext']['runAsNonRoot'] is True
    assert pod['securityContext']['seccompProfile'] == {'type': 'RuntimeDefault'}
    assert container['securityContext'] == {
        'allowPrivilegeEscalation': False,
        'readOnlyRootFilesystem': True,
        'capabilities': {'drop': ['ALL']},
    }
    assert container['command'] == [
        'kopf',
        'run',
        '--all-namespaces',
        '--standalone',
        '--liveness=http://0.0.0.0:8080/healthz',
        '/app/shop.py',
    ]


def test_one_replica_is_recreated_and_several_elect_a_leader(make):
    alone, several = read(make()), read(make('--replicas', '2'))
    assert alone['Deployment', 'default']['spec']['strategy'] == {'type': 'Recreate'}
    assert ('PodDisruptionBudget', 'default') not in alone
    assert several['Deployment', 'default']['spec']['strategy'] == {'type': 'RollingUpdate'}
    assert several['PodDisruptionBudget', 'default']['spec']['minAvailable'] == 1
    command = several['Deployment', 'default']['spec']['template']['spec']['containers'][0]['command']
    assert '--leader-election' in command
    assert '--lease=shop' in command  # another operator in the namespace has another one
    assert not any(part.startswith('--lease') for part in find_command(alone))
    leases = {'apiGroups': ['coordination.k8s.io'], 'resources': ['leases']}
    assert several['Role', 'default']['rules'] == [
        {**leases, 'verbs': ['create']},
        {**leases, 'resourceNames': ['shop'], 'verbs': ['get', 'list', 'watch', 'update']},
    ]


@pytest.mark.parametrize('replicas', ['1', '3'])
def test_replicas_with_shards_share_the_objects(make, replicas):
    sharded = read(make('--shards', 'auto', '--replicas', replicas))
    spec = sharded['Deployment', 'default']['spec']
    command = spec['template']['spec']['containers'][0]['command']
    assert '--shards=auto' in command and '--leader-election' not in command
    assert '--lease=shop-shards' in command
    assert spec['strategy'] == {'type': 'RollingUpdate'}
    assert (('PodDisruptionBudget', 'default') in sharded) == (replicas != '1')
    [rule] = sharded['Role', 'default']['rules']
    assert rule['resources'] == ['leases'] and 'delete' in rule['verbs']


def test_names_that_are_too_long_for_the_leases_of_shards_are_refused(make, caplog):
    assert make('--shards', 'auto', '--name', 45 * 'a').exit_code == 0
    result = make('--shards', 'auto', '--name', 46 * 'a')
    assert result.exit_code == 1 and 'it can have 45 characters' in caplog.text
    assert make('--replicas', '2', '--name', 63 * 'a').exit_code == 0


def test_an_operator_of_namespaces_has_roles_there_and_for_the_cluster_only_what_concerns_it(make):
    objects = read(make('-n', 'a', '-n', 'b'))
    resources = [rule['resources'] for rule in objects['ClusterRole', None]['rules']]
    assert resources == [['customresourcedefinitions'], ['namespaces']]
    for namespace in ('a', 'b'):
        assert [rule['resources'] for rule in objects['Role', namespace]['rules']] == [['events'], ['apps']]
        assert objects['RoleBinding', namespace]['subjects'][0]['namespace'] == 'default'
    command = objects['Deployment', 'default']['spec']['template']['spec']['containers'][0]['command']
    assert command[2:4] == ['--namespace=a', '--namespace=b']


def test_operators_of_namespaces_that_notice_nothing_new_need_no_cluster_role(make):
    result = make('-n', 'a', '--no-scanning')
    assert not {'ClusterRole', 'ClusterRoleBinding'} & {kind for kind, _ in read(result)}
    assert '--no-scanning' in find_command(read(result))
    everywhere = read(make('--no-scanning'))['ClusterRole', None]
    assert [rule['resources'] for rule in everywhere['rules']] == [['events'], ['apps']]


def test_cluster_roles_of_operators_of_namespaces_say_what_they_are_for(make, app, tmp_path):
    noticed = (
        "#   customresourcedefinitions, namespaces: to notice new kinds and namespaces; not needed with --no-scanning\n"
    )
    assert f"# No role of a namespace can grant these:\n{noticed}apiVersion:" in make('-n', 'a').stdout
    assert 'No role of a namespace' not in make('-n', 'a', '--no-scanning').stdout + make().stdout
    app.write_text(APP + WEBHOOK + "\nkopf.on.event('nodes')(lambda **_: None)\n")
    make('-n', 'a', '--kustomize', str(tmp_path / 'base'), '--helm', str(tmp_path / 'chart'), '--no-scanning')
    for path in (tmp_path / 'base' / 'rbac.yaml', tmp_path / 'chart' / 'templates' / 'rbac.yaml'):
        text = path.read_text()
        assert "#   nodes: handled resources that are in no namespace\n" in text
        assert "webhookconfigurations: to register the webhooks\n" in text
        assert "--no-scanning" not in text


def test_webhooks_have_a_service_and_may_keep_their_certificates(make, app):
    app.write_text(APP + WEBHOOK)
    objects = read(make('-n', 'default'))
    assert objects['Service', 'default']['spec']['ports'] == [
        {'name': 'webhooks', 'port': 443, 'targetPort': 'webhooks'}
    ]
    assert ['secrets'] in [rule['resources'] for rule in objects['Role', 'default']['rules']]
    assert {'protocol': 'TCP', 'port': 9443} in objects['NetworkPolicy', 'default']['spec']['ingress'][0]['ports']


PEERING_FILE = pathlib.Path(__file__).parents[3] / 'peering.yaml'


def test_operators_with_a_peering_have_its_kind_and_the_rules_for_it(make):
    result = make('--peering', 'ours')
    objects = list(yaml.safe_load_all(result.stdout))
    assert objects[1] == list(yaml.safe_load_all(PEERING_FILE.read_text()))[0]
    assert '--peering=ours' in find_command(read(result)) and '--standalone' not in find_command(read(result))
    rules = [rule for rule in read(result)['ClusterRole', None]['rules'] if rule['apiGroups'] == ['kopf.dev']]
    assert rules == [
        {'apiGroups': ['kopf.dev'], 'resources': ['clusterkopfpeerings'], 'verbs': ['list', 'watch']},
        {
            'apiGroups': ['kopf.dev'],
            'resources': ['clusterkopfpeerings'],
            'resourceNames': ['ours'],
            'verbs': ['patch'],
        },
    ]
    assert '"kind": "ClusterKopfPeering", "metadata": {"name": "ours"}}\' | kubectl apply -f -' in result.stderr


def test_operators_of_namespaces_have_a_peering_in_each(make):
    result = make('--peering', 'ours', '-n', 'a', '-n', 'b')
    objects = list(yaml.safe_load_all(result.stdout))
    assert objects[1] == list(yaml.safe_load_all(PEERING_FILE.read_text()))[1]
    for namespace in ('a', 'b'):
        assert ['kopfpeerings'] in [rule['resources'] for rule in read(result)['Role', namespace]['rules']]
        assert f'"metadata": {{"name": "ours", "namespace": "{namespace}"}}' in result.stderr
    assert [rule['resources'] for rule in read(result)['ClusterRole', None]['rules']] == [
        ['customresourcedefinitions'],
        ['namespaces'],
    ]


def test_operators_can_be_inspected_and_make_traces(make):
    assert not {'--inspect', '--tracing'} & {*find_command(read(make()))}
    assert {'--inspect', '--tracing'} <= {*find_command(read(make('--inspect', '--tracing')))}


def test_the_packages_that_traces_need_in_the_image_are_named_beside_the_manifests(make):
    assert 'opentelemetry' not in make().stderr
    told = make('--tracing').stderr
    assert "The image needs the extra 'tracing'" in told and 'opentelemetry-exporter-otlp-proto-http' in told


def test_the_namespace_that_must_exist_is_named_beside_the_manifests(make, tmp_path):
    assert make().stderr == ''
    assert 'must exist' not in make('--helm', str(tmp_path / 'chart'), '--in', 'ops').stderr
    told = make('--in', 'ops')
    assert told.stderr == "The namespace must exist: kubectl create namespace ops\n"
    assert 'Namespace' not in {kind for kind, _ in read(told)}


def test_metrics_have_a_service_monitor(make):
    objects = read(make('--monitoring'))
    assert objects['ServiceMonitor', 'default']['spec']['endpoints'] == [{'port': 'metrics'}]
    assert objects['Service', 'default']['metadata']['labels'] == {'app.kubernetes.io/name': 'shop'}
    command = objects['Deployment', 'default']['spec']['template']['spec']['containers'][0]['command']
    assert '--metrics=http://0.0.0.0:9090/metrics' in command


def test_metrics_are_served_without_the_prometheus_operator(make):
    plain, monitored = read(make('--metrics')), read(make('--monitoring'))
    assert plain == {key: each for key, each in monitored.items() if key != ('ServiceMonitor', 'default')}
    assert plain['Service', 'default']['spec']['ports'] == [{'name': 'metrics', 'port': 9090, 'targetPort': 'metrics'}]


def test_variables_come_from_options_secrets_and_config_maps(make):
    objects = read(make('--env', 'URL=http://a/?b=$(c)', '--env-from', 'secret/db', '--env-from', 'configmap/etc.d'))
    [container] = objects['Deployment', 'default']['spec']['template']['spec']['containers']
    assert container['env'] == [{'name': 'URL', 'value': 'http://a/?b=$$(c)'}]
    assert container['envFrom'] == [{'secretRef': {'name': 'db'}}, {'configMapRef': {'name': 'etc.d'}}]


def test_operators_without_variables_have_no_fields_for_them(make):
    [container] = read(make())['Deployment', 'default']['spec']['template']['spec']['containers']
    assert 'env' not in container and 'envFrom' not in container


def test_variables_are_values_of_charts(make, tmp_path):
    make('--helm', str(tmp_path), '--env', 'A=1', '--env-from', 'secret/db')
    values = yaml.safe_load((tmp_path / 'values.yaml').read_text())
    assert values['env'] == [{'name': 'A', 'value': '1'}]
    assert values['envFrom'] == [{'secretRef': {'name': 'db'}}]
    text = (tmp_path / 'templates' / 'deployment.yaml').read_text()
    assert (text.count('env:'), text.count('envFrom:')) == (1, 1)
    assert 'secretRef' not in text


def test_variables_are_strings_for_kubectl(make):
    [deployment] = [
        each for each in load_yaml(make('--env', 'A=y', '--env', 'y=12e45').stdout) if each['kind'] == 'Deployment'
    ]
    [container] = deployment['spec']['template']['spec']['containers']
    assert container['env'] == [{'name': 'A', 'value': 'y'}, {'name': 'y', 'value': '12e45'}]


def test_images_that_look_like_numbers_are_values_of_charts_too(make, tmp_path):
    make('--helm', str(tmp_path), '--image', '1e3')
    text = (tmp_path / 'templates' / 'deployment.yaml').read_text()
    assert 'image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"' in text
    assert clientyaml.load((tmp_path / 'values.yaml').read_bytes())['image'] == {'repository': '1e3', 'tag': 'latest'}


def test_equal_operators_have_equal_manifests(make):
    assert make('--replicas', '2').stdout == make('--replicas', '2').stdout


def test_folders_for_kustomize_list_their_files(make, tmp_path):
    assert make('--kustomize', str(tmp_path / 'deploy'), '--in', 'ops').stdout == ''
    kustomization = yaml.safe_load((tmp_path / 'deploy' / 'kustomization.yaml').read_text())
    assert kustomization['resources'] == ['crds.yaml', 'deployment.yaml', 'networkpolicy.yaml', 'rbac.yaml']
    assert all((tmp_path / 'deploy' / name).exists() for name in kustomization['resources'])


def test_charts_have_values_for_what_differs_between_clusters(make, tmp_path):
    make('--helm', str(tmp_path / 'chart'), '--replicas', '2')
    values = yaml.safe_load((tmp_path / 'chart' / 'values.yaml').read_text())
    assert values['image'] == {'repository': 'r.example.com:5000/shop', 'tag': '1.0'}
    assert values['replicas'] == 2
    text = (tmp_path / 'chart' / 'templates' / 'deployment.yaml').read_text()
    rendered = re.sub(r'\{\{- toYaml .Values.resources \| nindent \d+ \}\}', '{}', text)
    assert values['env'] == values['envFrom'] == []
    for name in ('env', 'envFrom'):
        rendered = re.sub(
            rf'\{{\{{- toYaml .Values.{name} \| nindent 10 \}}\}}', f'\n{" " * 10}- name: {name}', rendered
        )
    rendered = re.sub(r'\{\{ .Values.image.(\w+) \}\}', lambda match: values['image'][match[1]], rendered)
    rendered = rendered.replace('{{ .Values.replicas }}', '2').replace('{{ .Release.Namespace | quote }}', '"ops"')
    assert '{{' not in rendered
    deployment = yaml.safe_load(rendered)
    assert deployment['metadata']['namespace'] == 'ops'
    assert deployment['spec']['replicas'] == 2
    [container] = deployment['spec']['template']['spec']['containers']
    assert (container['image'], container['resources']) == ('r.example.com:5000/shop:1.0', {})
    assert (container['env'], container['envFrom']) == ([{'name': 'env'}], [{'name': 'envFrom'}])
    assert yaml.safe_load((tmp_path / 'chart' / 'crds' / 'crds.yaml').read_text())['kind'] == 'CustomResourceDefinition'
    roles = (tmp_path / 'chart' / 'templates' / 'rbac.yaml').read_text()
    assert 'namespace: {{ .Release.Namespace | quote }}' in roles


def test_roles_in_other_namespaces_than_the_own_one_stay_there(make, tmp_path):
    make('--helm', str(tmp_path / 'chart'), '--kustomize', str(tmp_path / 'base'), '-n', 'default', '-n', 'on')
    roles = (tmp_path / 'chart' / 'templates' / 'rbac.yaml').read_text()
    documents = list(yaml.safe_load_all(re.sub(r'\{\{ .Release.Namespace \| quote \}\}', 'released', roles)))
    assert [each['metadata']['namespace'] for each in documents if each['kind'] == 'Role'] == ['released', 'on']
    assert {subject['namespace'] for each in documents if 'subjects' in each for subject in each['subjects']} == {
        'released'
    }
    deployment = (tmp_path / 'chart' / 'templates' / 'deployment.yaml').read_text()
    assert '- --namespace={{ .Release.Namespace }}\n' in deployment and '- --namespace=on\n' in deployment
    assert 'namespace' not in yaml.safe_load((tmp_path / 'base' / 'kustomization.yaml').read_text())


@pytest.mark.parametrize(
    'options, is_refused', [([], True), (['--replicas', '2'], False), (['--shards', 'auto'], False)]
)
def test_charts_refuse_replicas_that_would_handle_the_same_objects(make, tmp_path, options, is_refused):
    make('--helm', str(tmp_path / 'chart'), *options)
    text = (tmp_path / 'chart' / 'templates' / 'deployment.yaml').read_text()
    assert ('{{- if gt (int .Values.replicas) 1 }}\n{{- fail "Several replicas need' in text) == is_refused


@pytest.mark.parametrize(
    'options, message',
    [
        (['--name', 'My_App'], "--name: 'My_App' cannot be the name of objects"),
        (['--in', 'Ops'], "--in: 'Ops' cannot be the name of a namespace"),
        (['--peering', 'Ours'], "--peering: 'Ours' cannot be the name of a peering object"),
        (['--peering', 'ours', '--shards', 'auto'], "--peering: peers pause each other"),
        (['--image', ''], "--image: it is empty"),
        (['-n', 'team-*'], "--namespace: 'team-*' is a pattern, and roles are for named namespaces"),
        (['--env', 'A'], "--env: 'A' is not of the form NAME=VALUE"),
        (['--env', '1=2'], "--env: '1=2' is not of the form NAME=VALUE"),
        (['--env-from', 'db'], "--env-from: 'db' is not of the form secret/NAME or configmap/NAME"),
        (['--env-from', 'secret/'], "--env-from: 'secret/' is not of the form secret/NAME or configmap/NAME"),
        (['--kustomize', '/proc/nowhere'], 'The manifests cannot be written to /proc/nowhere'),
    ],
)
def test_wrong_options_are_told_of(make, caplog, options, message):
    assert make(*options).exit_code == 1
    assert message in caplog.text


def test_files_without_handlers_are_told_of(make, tmp_path, caplog):
    path = tmp_path / 'empty.py'
    path.write_text('')
    assert make(path=path).exit_code == 1
    assert 'There are no handlers in these files' in caplog.text


@pytest.mark.parametrize(
    'source, name',
    [
        ('shop.py', 'shop'),
        ('My_Shop.py', 'my-shop'),
        ('some/22-shop/app.py', 'shop'),
        ('shop.handlers', 'operator'),
        ('company.shop', 'shop'),
    ],
)
def test_names_are_guessed_from_files(source, name, tmp_path, monkeypatch):
    tmp_path.joinpath('operator').mkdir()
    monkeypatch.chdir(tmp_path / 'operator')
    assert guess_name([source]) == name


OTHERS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: others, kind: Other}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
"""


def test_conversions_call_the_service_of_the_operator(make, app, tmp_path):
    app.write_text(APP + "\nkopf.on.convert('others')(lambda **_: None)\n")
    crd = tmp_path / 'crd.yaml'
    crd.write_text(OTHERS)
    result = make('--in', 'ops', '--crd', str(crd))
    found = {
        each['metadata']['name']: each for each in yaml.safe_load_all(result.stdout) if 'names' in each.get('spec', {})
    }
    assert 'conversion' not in found['apps.example.com']['spec']
    config = found['others.example.com']['spec']['conversion']['webhook']['clientConfig']
    service = read(result)['Service', 'ops']
    assert config['service'] == {
        'namespace': 'ops',
        'name': service['metadata']['name'],
        'port': 443,
        'path': '/convert/others.example.com',
    }
    assert 'caBundle' not in config  # the operator adds it, and applying the manifest again does not remove it
