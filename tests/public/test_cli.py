"""The command line: exit codes, what is said, and what reaches the operator."""

import asyncio
import contextvars
import json
import logging
import re
import subprocess
import sys
import textwrap

import click
import pytest
from click.testing import CliRunner

import kopf._core.reactor.running
from kopf._cogs.structs.credentials import LoginError
from kopf._core.actions.execution import Outcome
from kopf._core.actions.loggers import LogFormat
from kopf._core.engines.activities import ActivityError
from kopf._core.intents.causes import Activity
from kopf._core.intents.registries import OperatorRegistry, get_default_registry
from kopf.cli import CLIControls, LogFormatParamType, main


@pytest.fixture(autouse=True)
def _restored_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    loggers = [logging.getLogger(), logging.getLogger('asyncio'), logging.getLogger('aiohttp')]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture()
def operator(monkeypatch):
    """Instead of the operator: remembers how it was run, and can fail."""

    class Operator:
        error = None
        kwargs = None

        def run(self, **kwargs):
            self.kwargs = kwargs
            self.loop_state = (kwargs['loop'].is_closed(), kwargs['loop'].get_debug())
            self.registry = get_default_registry()
            if self.error is not None:
                raise self.error

    operator = Operator()
    monkeypatch.setattr(kopf._core.reactor.running, 'run', operator.run)
    return operator


@pytest.fixture()
def invoke():
    def invoke(*args, **kwargs):
        if get_default_registry() is process_registry:
            # What is loaded must not become handlers of other tests.
            kopf.set_default_registry(OperatorRegistry())
        return CliRunner().invoke(main, args, prog_name='kopf', **kwargs)

    process_registry = get_default_registry()
    return lambda *args, **kwargs: contextvars.copy_context().run(invoke, *args, **kwargs)


@pytest.fixture()
def handlers(tmp_path):
    tmp_path.joinpath('handlers.py').write_text("import kopf\n@kopf.on.event('kopfexamples')\ndef fn(**_): pass\n")
    return 'handlers.py'


def test_the_help_lists_the_commands(invoke):
    result = invoke('--help')
    assert result.exit_code == 0
    assert 'run ' in result.output


def test_the_help_of_run_lists_its_options(invoke):
    result = invoke('run', '--help')
    assert result.exit_code == 0
    for option in [
        '--verbose',
        '--debug',
        '--quiet',
        '--log-format',
        '--log-refkey',
        '--log-prefix',
        '--no-log-prefix',
        '--all-namespaces',
        '--namespace',
        '--standalone',
        '--dev',
        '--liveness',
        '--peering',
        '--priority',
        '--module',
    ]:
        assert option in result.output


def test_the_version_names_the_upstream_one(invoke):
    result = invoke('--version')
    assert result.exit_code == 0
    assert re.match(r'kopf, version 1\.\d+\.\d+ \(.*compatible with upstream kopf 1\.45\.2\)$', result.output)


@pytest.mark.parametrize(
    'args, hint',
    [
        (['nonsense'], 'nonsense'),
        (['run', '--nonsense'], '--nonsense'),
        (['run', '-A', '-n', 'x'], '--all-namespaces'),
        (['run', '-n', ''], "No namespace can be named ''"),
        (['handlers.py', '-A'], "No such command 'handlers.py'. Did you mean: kopf run handlers.py -A"),
        (['run', '-n', 'team-.*'], "In patterns, * stands for any characters: --namespace='team-*'."),
        (['run', '-n', 'Team_X'], "No namespace can be named 'Team_X'"),
        (['run', '--log-format=xml'], 'xml'),
        (['run', '-p', 'high'], 'high'),
        (['run', '--monitoring'], "No such option --monitoring. Did you mean --metrics?"),
        (['run', '--livenes=x'], "--liveness"),
        (['manifests', '--prometheus'], "No such option --prometheus. Did you mean --metrics or --monitoring?"),
        (['manifests', '--output'], "Did you mean --helm or --kustomize?"),
    ],
)
def test_wrong_usage_is_explained(invoke, operator, args, hint):
    result = invoke(*args)
    assert result.exit_code == 2
    assert hint in result.output
    assert operator.kwargs is None


def test_options_have_their_defaults(invoke, operator, handlers):
    assert invoke('run', handlers).exit_code == 0
    loop = operator.kwargs.pop('loop')
    assert loop.is_closed()
    assert operator.loop_state == (False, False)
    assert operator.kwargs.pop('registry') is operator.registry
    assert operator.kwargs == {
        'settings': None,
        'vault': None,
        'ready_flag': None,
        'stop_flag': None,
        'namespaces': (),
        'clusterwide': False,
        'standalone': None,
        'priority': None,
        'peering_name': None,
        'leader_election': None,
        'shards': None,
        'lease_name': None,
        'liveness_endpoint': None,
        'metrics_endpoint': None,
        'inspect': False,
        'scanning': None,
        'tracing': False,
    }


@pytest.mark.parametrize(
    'args, expected',
    [
        (['-A'], {'clusterwide': True}),
        (['--all-namespaces'], {'clusterwide': True}),
        (['-n', 'a', '--namespace', 'b*,!c'], {'namespaces': ('a', 'b*,!c')}),
        (['--standalone'], {'standalone': True}),
        (['--dev'], {'priority': 666}),
        (['-p', '5'], {'priority': 5}),
        (['--priority=0', '--dev'], {'priority': 0}),
        (['-P', 'name'], {'peering_name': 'name'}),
        (['--peering=name'], {'peering_name': 'name'}),
        (['-L', 'http://:80/'], {'liveness_endpoint': 'http://:80/'}),
        (['--leader-election', '--lease=name'], {'leader_election': True, 'lease_name': 'name'}),
        (['--tracing'], {'tracing': True}),
        (['--inspect'], {'inspect': True}),
        (['--no-scanning'], {'scanning': False}),
        (['--metrics=http://:90/'], {'metrics_endpoint': 'http://:90/'}),
        (['--liveness=http://:80/'], {'liveness_endpoint': 'http://:80/'}),
    ],
)
def test_options_are_passed_to_the_operator(invoke, operator, handlers, args, expected):
    assert invoke('run', *args, handlers).exit_code == 0
    assert operator.kwargs | expected == operator.kwargs


@pytest.mark.parametrize(
    'name, value, expected',
    [
        ('ALL_NAMESPACES', '1', {'clusterwide': True}),
        ('CLUSTERWIDE', '1', {'clusterwide': True}),
        ('NAMESPACE', 'a b*', {'namespaces': ('a', 'b*')}),
        ('NAMESPACES', 'a b*', {'namespaces': ('a', 'b*')}),
        ('STANDALONE', 'true', {'standalone': True}),
        ('DEV', '1', {'priority': 666}),
        ('PRIORITY', '5', {'priority': 5}),
        ('PEERING', 'name', {'peering_name': 'name'}),
        ('PEERING_NAME', 'name', {'peering_name': 'name'}),
        ('LIVENESS', 'http://:80/', {'liveness_endpoint': 'http://:80/'}),
        ('SCANNING', 'no', {'scanning': False}),
        ('METRICS', 'http://:90/', {'metrics_endpoint': 'http://:90/'}),
        ('LIVENESS_ENDPOINT', 'http://:80/', {'liveness_endpoint': 'http://:80/'}),
        ('PRIORITY', '', {'priority': None}),
    ],
)
def test_options_from_the_environment(invoke, operator, handlers, name, value, expected):
    assert invoke('run', handlers, env={f'KOPF_RUN_{name}': value}).exit_code == 0
    assert operator.kwargs | expected == operator.kwargs


@pytest.mark.parametrize(
    'name, value, words',
    [
        ('VERBOSE', '1', ['a bit', 'usual', 'bad']),
        ('DEBUG', '1', ['a bit', 'usual', 'bad']),
        ('QUIET', '1', ['bad']),
        ('LOG_FORMAT', 'json', ['{"message": "usual"', '{"message": "bad"']),
        ('LOG_PREFIX', '0', ['usual', 'bad']),
        ('MODULE', 'other', ['usual', 'bad', 'of the other']),
    ],
)
def test_options_of_logging_and_modules_from_the_environment(invoke, operator, tmp_path, name, value, words):
    tmp_path.joinpath('one.py').write_text(
        "import kopf, logging; logging.debug('a bit'); logging.info('usual'); logging.warning('bad')\n"
        "kopf.on.event('kopfexamples')(lambda **_: None)"
    )
    tmp_path.joinpath('other.py').write_text("import logging; logging.warning('of the other')")
    environment = {'KOPF_RUN_LOG_FORMAT': 'plain', f'KOPF_RUN_{name}': value}
    result = invoke('run', 'one.py', env=environment)
    lines = [line for line in result.output.splitlines() if 'selector' not in line]
    assert [line.partition(',')[0] for line in lines] == words


def test_wrong_values_in_the_environment(invoke, operator, handlers):
    result = invoke('run', handlers, env={'KOPF_RUN_PRIORITY': 'high'})
    assert result.exit_code == 2
    assert operator.kwargs is None


def test_every_option_of_every_command_has_its_variable(invoke, operator, handlers):
    for name, command in main.commands.items():
        context = click.Context(command, auto_envvar_prefix=f'KOPF_{name.upper()}')
        for option in command.params:
            if isinstance(option, click.Option) and option.name != 'help':
                variable = f'KOPF_{name.upper()}_{option.opts[-1].strip("-").replace("-", "_").upper()}'
                with pytest.MonkeyPatch.context() as patching:
                    patching.setenv(variable, 'some')
                    assert option.resolve_envvar_value(context) == 'some', variable


@pytest.mark.parametrize('command', main.commands)
def test_helps_have_examples_and_explain_all_options(invoke, command):
    result = invoke(command, '--help')
    assert result.exit_code == 0
    assert f'  kopf {command} ' in result.output.partition('Example')[2]
    for option in main.commands[command].params:
        assert isinstance(option, click.Argument) or option.help, option


def test_programs_that_call_the_command_bring_their_handlers(invoke, operator, handlers):
    def call():
        kopf.set_default_registry(OperatorRegistry())
        kopf.on.create('kopfexamples')(of_the_program)
        return invoke('run', handlers)

    def of_the_program(**_):
        pass

    assert contextvars.copy_context().run(call).exit_code == 0
    ids = [handler.id for handler in operator.kwargs['registry'].iter_resource_handlers()]
    assert operator.kwargs['registry'] is operator.registry
    assert {id.rpartition('.')[2] for id in ids} == {'of_the_program', 'fn'}


def test_controls_are_passed_to_the_operator(invoke, operator, handlers):
    loop = asyncio.new_event_loop()
    try:
        controls = CLIControls(
            ready_flag=asyncio.Event(),
            stop_flag=asyncio.Event(),
            vault=object(),
            registry=OperatorRegistry(),
            settings=object(),
            loop=loop,
        )
        assert invoke('run', handlers, obj=controls).exit_code == 0
        assert operator.registry is controls.registry
        for name in ['ready_flag', 'stop_flag', 'vault', 'registry', 'settings', 'loop']:
            assert operator.kwargs[name] is getattr(controls, name)
        assert not loop.is_closed()
    finally:
        loop.close()


def test_files_and_modules_are_loaded_with_the_logging_configured(invoke, operator, tmp_path):
    for name in ['one', 'two_module']:
        tmp_path.joinpath(f'{name}.py').write_text(
            f"import kopf, logging; logging.info('hello from {name}')\nkopf.on.event('kopfexamples')(lambda **_: None)"
        )
    result = invoke('run', '--log-format=plain', '-m', 'two_module', 'one.py')
    assert result.output.splitlines() == ["hello from one", "hello from two_module"]


def test_asyncio_is_debugged_too(invoke, operator, handlers):
    invoke('run', '--verbose', handlers)
    assert operator.loop_state == (False, False)
    invoke('run', '--debug', handlers)
    assert operator.loop_state == (False, True)


@pytest.mark.parametrize(
    'args, words',
    [
        (['missing.py'], ['missing.py']),
        (['-m', 'missing_x'], ['missing_x']),
        (['broken.py'], ['ModuleNotFoundError', 'missing_x', 'broken.py:1']),
        (['syntax.py'], ['SyntaxError', 'def (:']),
    ],
)
def test_loading_errors_are_shown_without_internals(invoke, operator, tmp_path, args, words):
    tmp_path.joinpath('broken.py').write_text("import missing_x\n")
    tmp_path.joinpath('syntax.py').write_text("def (:\n")
    result = invoke('run', *args)
    assert result.exit_code == 1
    assert operator.kwargs is None
    for word in words:
        assert word in result.output
    assert 'kopf/' not in result.output
    assert 'importlib' not in result.output


def test_exit_codes_of_files(invoke, operator, tmp_path):
    tmp_path.joinpath('exiting.py').write_text("raise SystemExit(7)")
    assert invoke('run', 'exiting.py').exit_code == 7


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    'error, text',
    [
        (LoginError("Nothing to log in with."), "Nothing to log in with. [login-error]"),
        (ActivityError(Activity.STARTUP, {}), "The activity 'startup' has failed:  [activity-error]"),
        (chained(LoginError("No way."), ValueError("boo")), "No way. Caused by ValueError: boo [login-error]"),
        (chained(LoginError("No way: boo"), ValueError("boo")), "No way: boo [login-error]"),
    ],
)
def test_known_failures_are_short(invoke, operator, handlers, error, text):
    operator.error = error
    result = invoke('run', '--log-format=plain', handlers)
    assert result.exit_code == 1
    assert result.output.splitlines() == [text]
    assert result.exception.__cause__ is error
    assert operator.kwargs['loop'].is_closed()


def test_exit_codes_of_activities(invoke, operator, handlers):
    operator.error = ActivityError(Activity.STARTUP, {'fn': Outcome(final=True, exception=SystemExit(7))})
    assert invoke('run', handlers).exit_code == 7


def test_known_failures_have_tracebacks_when_debugged(invoke, operator, handlers):
    operator.error = LoginError("Nothing to log in with.")
    result = invoke('run', '--debug', handlers)
    assert result.exit_code == 1
    assert "Traceback" in result.output


def test_unknown_failures_have_tracebacks(invoke, operator, handlers):
    operator.error = ZeroDivisionError("boo")
    result = invoke('run', '--log-format=json', handlers)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    fields = json.loads(line)
    assert fields['severity'] == 'fatal'
    assert "boo" in fields['message']
    assert "ZeroDivisionError: boo" in fields['exc_info']


@pytest.mark.parametrize('value', ['json', 'JSON', 'Json', LogFormat.JSON])
def test_log_formats_are_converted_in_any_case(value):
    assert LogFormatParamType().convert(value, None, None) is LogFormat.JSON


def test_unknown_log_formats_are_refused():
    with pytest.raises(click.BadParameter):
        LogFormatParamType().convert('xml', None, None)


def test_the_help_does_not_wait_for_heavy_libraries():
    code = textwrap.dedent("""
        import sys
        import kopf.cli
        print(*(name for name in ['aiohttp', 'yaml', 'jsonpatch', 'uvloop'] if name in sys.modules))
    """)
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ''
