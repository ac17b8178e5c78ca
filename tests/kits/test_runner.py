"""Running of commands in the background of tests: what is known of them, during and after."""

import asyncio
import importlib
import logging
import sys
import threading

import pytest
from kinds import define

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

CRD = define('kopfexamples', 'KopfExample', group='kopf.dev')
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


def test_a_successful_run_has_an_exit_code_and_output(sandbox):
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


def test_settings_and_registry_are_taken_from_the_runner(sandbox):
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.persistence.finalizer = 'example.com/mine'

    @kopf.on.create('kopfexamples', registry=registry)
    def extra(**_):
        return 'extra'

    with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60, registry=registry, settings=settings):
        sandbox.create(KEX)
        body = sandbox.wait_for('kopfexamples', 'a', lambda body: len(body.get('status', {})) == 2)
    assert body['status'] == {
        'created': 'example.com/mine',
        'test_settings_and_registry_are_taken_from_the_runner.<locals>.extra': 'extra',
    }


@pytest.fixture
def package(sandbox, default_registry, tmp_path, monkeypatch):
    """Yield a module with handlers, not imported yet."""
    package = tmp_path / 'runner_package'
    package.mkdir()
    package.joinpath('__init__.py').touch()
    package.joinpath('handlers.py').write_text("import kopf\n@kopf.on.startup()\ndef of_module(): print('module')")
    tmp_path.joinpath('script.py').write_text(
        "import functools\nimport kopf\n"
        "def of_script(arg=1): print('script')\n"
        "kopf.on.startup()(of_script)\n"
        "kopf.on.startup()(functools.partial(of_script, arg=2))\n"
    )
    tmp_path.joinpath('main.py').write_text("from runner_package import handlers")
    monkeypatch.syspath_prepend(tmp_path)
    yield 'runner_package.handlers'
    for name in 'runner_package.handlers', 'runner_package':
        sys.modules.pop(name, None)


def run(*args, **options):
    with KopfRunner(['run', '-n', 'default', '--standalone', *args], timeout=60, **options) as runner:
        pass
    return sorted(runner.stdout.split())


def test_modules_are_run_by_each_runner(package):
    assert [run('-m', package) for _ in range(3)] == [['module']] * 3


def test_modules_that_are_imported_already_are_run(package):
    importlib.import_module(package)
    assert run('-m', package) == ['module']
    assert run('main.py') == ['module']


def test_modules_that_files_import_are_run_by_each_runner(package):
    assert [run('main.py') for _ in range(3)] == [['module']] * 3


def test_files_are_executed_anew_and_only_for_their_runner(package):
    assert [run('script.py') for _ in range(3)] == [['script', 'script']] * 3
    assert run('script.py', '-m', package) == ['module', 'script', 'script']
    assert run('-m', package) == ['module']


def test_handlers_of_the_test_are_run(package):
    kopf.on.startup()(lambda: print('test'))
    assert run('script.py') == ['script', 'script', 'test']


def test_modules_of_runners_at_the_same_time(package):
    with KopfRunner(['run', '-n', 'default', '--standalone', '-m', package], timeout=60) as first:
        with KopfRunner(['run', '-n', 'default', '--standalone', 'script.py', '-m', package], timeout=60) as second:
            pass
    assert 'module' in second.output and 'script' in second.output
    assert 'script' not in first.output


def test_a_given_registry_is_the_only_one(package, default_registry):
    kopf.on.startup()(lambda: print('test'))
    registry = kopf.OperatorRegistry()
    assert run('-m', package, registry=registry) == ['module']
    assert run('script.py', registry=registry) == ['module', 'script', 'script']
    assert len(default_registry.activities) == 1


def test_startup_handlers_that_are_retried_do_not_hold_the_block(sandbox, default_registry, monkeypatch):
    monkeypatch.setattr('kopf._kits.runner.ENTERING_PATIENCE', 0.1)
    entered = threading.Event()

    @kopf.on.startup()
    def start():
        if not entered.is_set():
            raise kopf.TemporaryError("Not yet.", delay=0.1)

    with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60) as runner:
        entered.set()
        sandbox.create(KEX)
        sandbox.wait_for('kopfexamples', 'a', is_handled)
    assert "Not yet." in runner.output


def test_the_block_is_entered_when_the_operator_serves(sandbox, default_registry, monkeypatch):
    monkeypatch.setattr('kopf._kits.runner.ENTERING_PATIENCE', 60)
    ready = threading.Event()
    kopf.on.startup()(lambda: ready.set())
    with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60):
        assert ready.is_set()


def test_the_block_is_entered_when_the_webhooks_are_registered(sandbox, default_registry, monkeypatch):
    monkeypatch.setattr('kopf._kits.runner.ENTERING_PATIENCE', 60)

    async def serve(fn):
        await asyncio.sleep(0.3)
        yield {'url': 'https://localhost:1'}
        await asyncio.Event().wait()

    settings = kopf.OperatorSettings()
    settings.admission.server, settings.admission.managed = serve, 'own.example.dev'
    kopf.on.validate('kopfexamples')(lambda **_: None)
    with KopfRunner(['run', '-n', 'default', 'handlers.py'], settings=settings, timeout=60):
        assert sandbox.get('validatingwebhookconfigurations', 'own.example.dev')['webhooks']


def test_failures_of_the_command_are_kept(sandbox):
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


def test_wrong_usage_ends_with_code_2(sandbox):
    with KopfRunner(['run', '--nonsense'], reraise=False, timeout=60) as runner:
        pass
    assert runner.exit_code == 2
    assert isinstance(runner.exception, SystemExit)
    assert '--nonsense' in runner.output


def test_wrong_usage_is_raised_with_the_words_of_the_command(sandbox):
    with pytest.raises(SystemExit) as error, KopfRunner(['--nonsense'], timeout=60):
        pass
    assert any('No such option' in note for note in error.value.__notes__)


def test_error_of_the_test(sandbox):
    with pytest.raises(ZeroDivisionError):
        with KopfRunner(['run', '-n', 'default', 'handlers.py'], timeout=60) as runner:
            raise ZeroDivisionError
    assert runner.exit_code == 0


def test_an_error_of_the_operator_has_that_of_the_block_as_its_cause(sandbox):
    with pytest.raises(FileNotFoundError) as caught:
        with KopfRunner(['run', '-n', 'default', 'absent.py'], timeout=60):
            raise ZeroDivisionError
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_operator_that_does_not_stop_is_an_error(sandbox, tmp_path):
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


def test_the_output_is_there_only_when_the_operator_has_ended():
    def operate(ready_flag, stop_flag):
        ready_flag.set()
        stop_flag.wait()

    runner = KopfRunner(operate, timeout=0.2)
    with pytest.raises(RuntimeError, match="use the runner in a `with` block"):
        _ = runner.output
    with runner, pytest.raises(RuntimeError, match="are there when the `with` block has ended"):
        _ = runner.output
    assert (runner.output, runner.exit_code) == ("", 0)


def test_runners_can_be_run_again(sandbox):
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
def test_embedded_operators_are_run_in_the_background(sandbox, registry, fn):
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


def test_failures_of_embedded_operators_are_raised(sandbox, registry):
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
