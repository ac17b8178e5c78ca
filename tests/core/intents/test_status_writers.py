"""Warnings about fields of the status that an assigned model takes from other handlers."""

import pytest

HEAD = """
import dataclasses, kopf

@dataclasses.dataclass
class Spec:
    replicas: int = 1

@dataclasses.dataclass
class Status:
    ready: int | None = None
    inventories: int | None = None
    note: str | None = None

@kopf.kind('example.com/v1', 'WebApp')
@dataclasses.dataclass
class WebApp:
    spec: Spec
    status: Status | None = None
"""
WARNING = "which 'take_inventory' has set: an assigned model replaces all fields of its class"


@pytest.fixture
def run(kopf_operator, tmp_path, forked_operators):
    """Return a function that runs an operator with these handlers of the kind."""

    def run_operator(handlers):
        path = tmp_path / 'app.py'
        path.write_text(HEAD + handlers)
        return kopf_operator(path)

    return run_operator


@pytest.mark.kopf_sandbox(virtual_time=True)
def test_a_model_that_removes_a_field_of_another_handler_is_reported_once(kopf_sandbox, run):
    with run("""
@kopf.on.reconcile(WebApp)
async def reconcile(spec, patch, **_):
    patch.status = Status(ready=spec.replicas)

@kopf.timer(WebApp, interval=10)
async def take_inventory(patch, **_):
    patch.status['inventories'] = 1
""") as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 1})
        for replicas in (2, 3, 4):
            kopf_sandbox.wait_for('webapps', 'a', lambda body: (body.get('status') or {}).get('inventories') == 1)
            kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': replicas}})
            kopf_sandbox.wait_for('webapps', 'a', lambda body, n=replicas: body['status'].get('ready') == n)
    assert operator.output.count(f"Reconciler 'reconcile' removes status.inventories, {WARNING}") == 1
    assert "Assign single fields instead: patch.status['ready'] = ... [status-removed]" in operator.output


@pytest.mark.kopf_sandbox(virtual_time=True)
def test_a_field_that_was_set_in_the_same_patch_is_reported(kopf_sandbox, run):
    with run("""
@kopf.on.create(WebApp)
def take_inventory(patch, **_):
    patch.status['inventories'] = 1

@kopf.on.create(WebApp)
async def reconcile(spec, patch, **_):
    patch.status = Status(ready=spec.replicas)
""") as operator:
        kopf_sandbox.create('webapps', 'a', spec={})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: (body.get('status') or {}).get('ready') == 1)
    assert f"removes status.inventories, {WARNING}" in operator.output


@pytest.mark.kopf_sandbox(virtual_time=True)
def test_models_that_remove_the_fields_of_each_other_are_reported(kopf_sandbox, run):
    with run("""
@kopf.on.event(WebApp, when=lambda spec, **_: spec['replicas'] % 2 == 0)
def even(spec, patch, **_):
    patch.status = Status(ready=spec.replicas)

@kopf.on.event(WebApp, when=lambda spec, **_: spec['replicas'] % 2 == 1)
def take_inventory(spec, patch, **_):
    patch.status = Status(inventories=spec.replicas)
""") as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 1})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: (body.get('status') or {}).get('inventories') == 1)
        kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': 2}})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: body['status'].get('ready') == 2)
        assert 'removes status' not in operator.output
        kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': 3}})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: body['status'].get('inventories') == 3)
    assert "removes status.ready, which 'even' has set" in operator.output


@pytest.mark.kopf_sandbox(virtual_time=True)
def test_fields_are_removed_silently_where_that_is_meant(kopf_sandbox, run):
    with run("""
@kopf.on.create(WebApp)
def create(spec, patch, **_):
    patch.status = Status(ready=0, note='begun')

@kopf.on.create(WebApp)
@kopf.on.update(WebApp, field='spec.replicas', value=2)
def scale(spec, patch, **_):
    patch.status['inventories'] = spec.replicas

@kopf.on.update(WebApp, field='spec.replicas', value=3)
def finish(spec, patch, **_):
    patch.status = Status(ready=spec.replicas, inventories=3)

@kopf.on.update(WebApp, field='spec.replicas', value=4)
def clear(spec, patch, **_):
    patch.status['ready'] = 4
    patch.status['inventories'] = None
""") as operator:
        kopf_sandbox.create('webapps', 'a', spec={'replicas': 1})
        kopf_sandbox.wait_for('webapps', 'a', lambda body: (body.get('status') or {}).get('inventories') == 1)
        for replicas, status in [(3, {'ready': 3, 'inventories': 3}), (4, {'ready': 4})]:
            kopf_sandbox.patch('webapps', 'a', {'spec': {'replicas': replicas}})
            kopf_sandbox.wait_for('webapps', 'a', lambda body, status=status: body['status'] == status)
    assert 'removes status' not in operator.output
