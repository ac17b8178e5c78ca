"""Running of commands in the background of tests: what is known of them, during and after."""
import logging
import sys
import threading

import pytest

import kopf
from kopf.testing import KopfRunner, Sandbox

HANDLERS = """
import kopf

@kopf.on.startup()
def startup(settings, memo, **_):
    memo.finalizer = settings.persistence.finalizer

@kopf.on.create('kopfexamples')
def created(memo, **_):
    print("And here we are!")
    return memo.finalizer

@kopf.on.cleanup()
def cleanup(logger, **_):
    logger.info("Good bye!")
"""

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'kopfexamples.kopf.dev'},
    'spec': {
        'group': 'kopf.dev', 'scope': 'Namespaced', 'names': {'plural': 'kopfexamples', 'kind': 'KopfExample'},
        'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': {
            'openAPIV3Schema': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}],
    },
}
KEX = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'a'}, 'spec': {}}


@pytest.fixture(scope='module')
def shared_sandbox():
    with Sandbox(crds=[CRD]) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(shared_sandbox, monkeypatch, tmp_path):
    monkeypatch.setenv('KUBECONFIG', str(shared_sandbox.kubeconfig))
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath('handlers.py').write_text(HANDLERS)
    yield shared_sandbox
    for body in shared_sandbox.list('kopfexamples'):
        shared_sandbox.delete('kopfexamples', body['metadata']['name'])


def is_handled(body):
    return 'created' in body.get('status', {})


def test_successful_run(sandbox):
    with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60) as runner:
        sandbox.create(KEX)
        sandbox.wait_for('kopfexamples', 'a', is_handled)
        assert not runner.future.done()
    assert runner.exit_code == 0
    assert runner.exception is None
    assert runner.exc_info[0] is SystemExit
    assert runner.stdout == "And here we are!\n"
    assert runner.stdout_bytes == b"And here we are!\n"
    assert "Handler 'created' succeeded." in runner.stderr
    assert b"Handler 'created' succeeded." in runner.stderr_bytes
    assert "And here we are!" in runner.output
    assert "Good bye!" in runner.output
    assert runner.future.result().exit_code == 0


def test_settings_and_registry(sandbox):
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.persistence.finalizer = 'example.com/mine'

    @kopf.on.create('kopfexamples', registry=registry)
    def extra(**_):
        return 'extra'

    with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60, registry=registry, settings=settings):
        sandbox.create(KEX)
        body = sandbox.wait_for('kopfexamples', 'a', lambda body: len(body.get('status', {})) == 2)
    assert body['status'] == {'created': 'example.com/mine', 'test_settings_and_registry.<locals>.extra': 'extra'}


def test_failure(sandbox):
    with KopfRunner(['run', '-n', 'default', 'absent.py'], reraise=False, timeout=60) as runner:
        pass
    assert runner.exit_code == 1
    assert isinstance(runner.exception, FileNotFoundError)
    assert runner.exc_info[:2] == (FileNotFoundError, runner.exception)
    assert "absent.py" in runner.output


def test_failure_is_raised(sandbox):
    with pytest.raises(FileNotFoundError):
        with KopfRunner(['run', '-n', 'default', 'absent.py'], timeout=60):
            pass


def test_failure_in_the_users_code(sandbox, tmp_path):
    tmp_path.joinpath('broken.py').write_text("raise ValueError('from the file')")
    with pytest.raises(ValueError, match="from the file"):
        with KopfRunner(['run', '-n', 'default', 'broken.py'], timeout=60):
            pass


def test_wrong_usage(sandbox):
    with KopfRunner(['run', '--nonsense'], reraise=False, timeout=60) as runner:
        pass
    assert runner.exit_code == 2
    assert isinstance(runner.exception, SystemExit)
    assert '--nonsense' in runner.output


def test_error_of_the_test(sandbox):
    with pytest.raises(ZeroDivisionError):
        with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60) as runner:
            raise ZeroDivisionError
    assert runner.exit_code == 0


def test_errors_of_both(sandbox):
    with pytest.raises(FileNotFoundError) as caught:
        with KopfRunner(['run', '-n', 'default', 'absent.py'], timeout=60):
            raise ZeroDivisionError
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_operator_that_does_not_stop(sandbox, tmp_path):
    released = threading.Event()
    registry = kopf.OperatorRegistry()
    kopf.on.cleanup(registry=registry)(lambda **_: released.wait(20) and None)
    runner = KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=0.5, registry=registry)
    try:
        with pytest.raises(TimeoutError, match="in 0.5 seconds"):
            with runner:
                pass
    finally:
        released.set()
        runner.future.result(20)


def test_output_of_operators_that_still_run():
    def operate(ready_flag, stop_flag):
        ready_flag.set()
        stop_flag.wait()

    runner = KopfRunner(operate, timeout=0.2)
    with pytest.raises(RuntimeError, match="use the runner in a `with` block"):
        _ = runner.output
    with runner, pytest.raises(RuntimeError, match="are there when the `with` block has ended"):
        _ = runner.output
    assert (runner.output, runner.exit_code) == ("", 0)


def test_reuse(sandbox):
    runner = KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60)
    for _ in range(2):
        with runner:
            pass
        assert runner.exit_code == 0


def test_logging_is_restored(sandbox):
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with KopfRunner(['run', '-n', 'default', '--debug', 'handlers.py'], timeout=60):
        pass
    assert (root.handlers, root.level) == (handlers, level)


# Embedded operators.

@pytest.fixture
def registry():
    registry = kopf.OperatorRegistry()

    @kopf.on.create('kopfexamples', registry=registry)
    def created(**_):
        print("And here we are!")
        return 'embedded'

    return registry


async def operate(*namespaces, **kwargs):
    await kopf.operator(namespaces=namespaces, standalone=True, **kwargs)


def operate_synchronously(*namespaces, **kwargs):
    kopf.run(namespaces=namespaces, standalone=True, **kwargs)


@pytest.mark.parametrize('fn', [operate, operate_synchronously])
def test_embedded_operators(sandbox, registry, fn):
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = 'example.com/mine'
    kopf.daemon('kopfexamples', registry=registry)(lambda **_: None)
    with KopfRunner(fn, 'default', registry=registry, settings=settings, timeout=60) as runner:
        sandbox.create(KEX)
        body = sandbox.wait_for('kopfexamples', 'a', lambda body: body.get('status'))
        assert body['metadata']['finalizers'] == ['example.com/mine']
    assert (runner.exit_code, runner.exception) == (0, None)
    assert runner.stdout == "And here we are!\n"
    assert "succeeded." in runner.stderr


def test_embedded_operators_that_fail(sandbox, registry):
    @kopf.on.startup(registry=registry)
    def fail(**_):
        raise kopf.PermanentError("boo")

    with KopfRunner(kopf.operator, namespaces=['default'], registry=registry, reraise=False, timeout=60) as runner:
        pass
    assert runner.exit_code == 1
    assert "boo" in str(runner.exception)
    with pytest.raises(Exception, match="boo"):
        with KopfRunner(kopf.operator, namespaces=['default'], registry=registry, timeout=60):
            pass
