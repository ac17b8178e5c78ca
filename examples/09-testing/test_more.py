"""More ways to test an operator: without an API, in the process of the test, and with an API that fails."""

import runpy
from pathlib import Path

import pytest

import kopf
from kopf.testing import KopfRunner

HERE = Path(__file__).parent


@pytest.fixture
def filled(kopf_sandbox):
    """A sandbox with the kind and the object in it."""
    kopf_sandbox.apply(HERE.parent / 'crd.yaml')
    kopf_sandbox.apply(HERE.parent / 'obj.yaml')
    return kopf_sandbox


def test_a_handler_is_a_function():
    # In a project that is a package: from my_operator.handlers import remember
    remember = runpy.run_path(str(HERE / 'example.py'))['remember']
    patch = kopf.Patch()
    remember(spec={'field': 'value'}, patch=patch)
    assert patch == {'status': {'seen': 'value'}}


def test_in_this_process(filled):
    # A thread instead of a process: it can be debugged, and its exit code, output and errors are at hand.
    with KopfRunner(['run', '--all-namespaces', str(HERE / 'example.py')], timeout=10) as runner:
        filled.wait_for('kex', 'kopf-example-1', lambda obj: obj.get('status') == {'seen': 'value'})
    assert runner.exit_code == 0
    assert "Handler 'remember' succeeded." in runner.output


def test_nothing_is_missed_when_connections_break(filled, kopf_operator):
    with kopf_operator(HERE / 'example.py'):
        filled.wait_for('kex', 'kopf-example-1', lambda obj: obj.get('status') == {'seen': 'value'})
        filled.faults.refuse_connections(0.3)  # seconds; see docs/howto/sandbox.rst for what else can go wrong
        filled.faults.drop_watches()
        filled.patch('kex', 'kopf-example-1', {'spec': {'field': 'other'}})
        filled.wait_for('kex', 'kopf-example-1', lambda obj: obj['status'] == {'seen': 'other'})
