"""``kopf crd``, and ``kopf run`` with declared kinds, as commands."""

import pytest
import yaml
from click.testing import CliRunner

from kopf._kits.yaml_texts import load_yaml
from kopf.cli import main

APP = """
import pydantic, kopf

class Spec(pydantic.BaseModel):
    size: int = SIZE

@kopf.kind('example.com/v1')
class WebApp(pydantic.BaseModel):
    spec: Spec
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def invoke():
    return lambda *args: CliRunner().invoke(main, ['crd', *args])


def test_crds_are_printed_as_yaml(write, invoke):
    result = invoke(write('app1.py', APP.replace('SIZE', '1')))
    assert result.exit_code == 0
    [crd] = yaml.safe_load_all(result.stdout)
    assert crd['metadata']['name'] == 'webapps.example.com'


def test_fields_keep_their_names_when_kubectl_reads_them(write, invoke):
    result = invoke(write('app1.py', APP.replace('size: int = SIZE', 'x: int; y: int; n: str = "1e3"')))
    [crd] = load_yaml(result.stdout)
    spec = crd['spec']['versions'][0]['schema']['openAPIV3Schema']['properties']['spec']
    assert (spec['required'], spec['properties']['n']['default']) == (['x', 'y'], '1e3')


def test_the_check_finds_breaking_changes_and_exits_with_1(write, invoke):
    former = write('crd.yaml', invoke(write('app2.py', APP.replace('SIZE', '1'))).stdout)
    assert invoke(write('app3.py', APP.replace('SIZE', '1')), '--check', former).exit_code == 0
    result = invoke(write('app4.py', APP.replace('SIZE', '2')), '--check', former)
    assert result.exit_code == 1
    assert result.stdout == (
        'webapps.example.com/v1 .spec.size: the default changes from 1 to 2; '
        'objects without the field change their meaning.\n'
    )


def test_the_check_needs_crds(write, invoke, caplog):
    app = write('app5.py', APP.replace('SIZE', '1'))
    result = invoke(app, '--check', write('other.yaml', 'kind: Pod\nmetadata: {name: a}'))
    assert result.exit_code == 1
    assert "--check: It is not a CRD: Pod 'a'" in caplog.text


def test_files_without_former_crds_are_told_of(write, invoke, caplog):
    app = write('app7.py', APP.replace('SIZE', '1'))
    assert invoke(app, '--check', write('empty.yaml', '')).exit_code == 1
    assert 'empty.yaml, so nothing can be compared' in caplog.text


def test_files_without_kinds_are_told_of(write, invoke, caplog):
    assert invoke(write('empty.py', '')).exit_code == 1
    assert 'There are no kinds in these files' in caplog.text


def test_a_class_that_cannot_be_a_crd_is_told_of_in_one_line(write, invoke, caplog):
    app = write('app6.py', APP.replace('size: int = SIZE', 'size: int | list[int]'))
    assert invoke(app).exit_code == 1
    assert 'WebApp.spec.size is a union of integer and array' in caplog.text
    assert 'Traceback' not in caplog.text


VERSIONS = (
    APP.replace('SIZE', '1')
    + """
@kopf.kind('example.com/v2', 'WebApp')
class NewApp(pydantic.BaseModel):
    spec: Spec
    more: int = 0
"""
)
CONVERSION = """
@kopf.on.convert(WebApp, NewApp)
def upgrade(obj, **_): pass
"""


def test_conversions_are_in_the_crd_and_their_gaps_are_told_of(write, invoke):
    result = invoke(write('app7.py', VERSIONS + CONVERSION))
    [crd] = yaml.safe_load_all(result.stdout)
    assert crd['spec']['conversion']['strategy'] == 'Webhook'
    assert 'Warning: webapps.example.com: no @kopf.on.convert converts from v2 to v1' in result.stderr
    assert 'its versions differ' in invoke(write('app8.py', VERSIONS)).stderr


def test_the_service_for_conversions_can_be_named(write, invoke, caplog):
    app = write('app9.py', VERSIONS + CONVERSION)
    [crd] = yaml.safe_load_all(invoke(app, '--service', 'ops/clock').stdout)
    service = crd['spec']['conversion']['webhook']['clientConfig']['service']
    assert (service['namespace'], service['name']) == ('ops', 'clock')
    assert invoke(app, '--service', 'clock').exit_code == 1
    assert "--service: 'clock' must be a namespace and a name" in caplog.text


def test_misspelt_fields_of_rules_are_told_of(write, invoke):
    rules = "rules=['self.spec.siez > 0'])"
    result = invoke(
        write('app10.py', APP.replace('SIZE', '1').replace("'example.com/v1')", f"'example.com/v1', {rules}"))
    )
    assert result.exit_code == 0
    assert "'self.spec.siez', but the class WebApp has no such field. Did you mean 'spec.size'?" in result.stderr
