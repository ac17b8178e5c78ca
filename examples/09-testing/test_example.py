from pathlib import Path

HERE = Path(__file__).parent


def test_changes_are_seen(kopf_sandbox, kopf_operator):
    kopf_sandbox.apply(HERE.parent / 'crd.yaml')
    kopf_sandbox.apply(HERE.parent / 'obj.yaml')
    with kopf_operator(HERE / 'example.py'):
        kopf_sandbox.wait_for('kex', 'kopf-example-1', lambda obj: obj.get('status') == {'seen': 'value'})
        kopf_sandbox.patch('kex', 'kopf-example-1', {'spec': {'field': 'other'}})
        kopf_sandbox.wait_for('kex', 'kopf-example-1', lambda obj: obj['status'] == {'seen': 'other'})
