"""The commands for people who pause and resume operators: their options, and what becomes of them."""

import contextvars

import pytest
from click.testing import CliRunner

import kopf._core.reactor.running
from kopf._core.engines.peering import PeeringCommand, PeeringError, detect_own_id
from kopf.cli import CLIControls, main

FREEZE = ['freeze', '-P', 'mine', '-p', '5', '-t', '60']
RESUME = ['resume', '-P', 'mine']


@pytest.fixture
def operator(monkeypatch):
    """Instead of the operator: remembers how it was run, and can fail."""

    class Operator:
        error = None
        kwargs = None

        def run(self, **kwargs):
            self.kwargs = kwargs
            if self.error is not None:
                raise self.error

    operator = Operator()
    monkeypatch.setattr(kopf._core.reactor.running, 'run', operator.run)
    monkeypatch.setattr('kopf._core.actions.loggers.configure', lambda **_: None)
    return operator


@pytest.fixture
def invoke():
    return lambda *args, **kwargs: contextvars.copy_context().run(
        CliRunner().invoke, main, args, prog_name='kopf', **kwargs
    )


@pytest.mark.parametrize('command', ['freeze', 'resume'])
def test_the_help_lists_the_options(invoke, command):
    result = invoke(command, '--help')
    assert result.exit_code == 0
    for option in ['--verbose', '--log-format', '-n, --namespace', '-A, --all-namespaces', '-i, --id', '-P, --peering']:
        assert option in result.output
    for option in ['--dev', '-p, --priority', '-t, --lifetime', '-m, --message']:
        assert (option in result.output) == (command == 'freeze')


@pytest.mark.parametrize(
    'args, hint',
    [
        (['freeze'], '--peering'),
        (['freeze', '-p', '5', '-t', '60'], '--peering'),
        (['freeze', '-P', 'mine', '-t', '60'], '--priority'),
        (['freeze', '-P', 'mine', '-p', '5'], '--lifetime'),
        (['freeze', '-P', 'mine', '-p', '5', '-t', 'long'], 'long'),
        (['resume'], '--peering'),
        ([*FREEZE, '-A', '-n', 'x'], '--all-namespaces'),
        ([*RESUME, '-A', '-n', 'x'], '--all-namespaces'),
    ],
)
def test_wrong_usage_is_explained(invoke, operator, args, hint):
    result = invoke(*args)
    assert result.exit_code == 2
    assert hint in result.output
    assert operator.kwargs is None


@pytest.mark.parametrize(
    'args, expected',
    [
        (FREEZE, PeeringCommand(detect_own_id(manual=True), priority=5, lifetime=60)),
        ([*FREEZE, '-i', 'me', '-m', 'why'], PeeringCommand('me', priority=5, lifetime=60, message='why')),
        (['freeze', '-P', 'mine', '--dev', '-t', '60', '--id=me'], PeeringCommand('me', priority=666, lifetime=60)),
        ([*FREEZE, '--dev', '--id=me'], PeeringCommand('me', priority=5, lifetime=60)),
        (RESUME, PeeringCommand(detect_own_id(manual=True))),
        ([*RESUME, '--id=me'], PeeringCommand('me')),
    ],
)
def test_commands_get_their_peering_and_values(invoke, operator, args, expected):
    assert invoke(*args).exit_code == 0
    assert operator.kwargs['_command'] == expected
    assert operator.kwargs['peering_name'] == 'mine'


@pytest.mark.parametrize(
    'args, expected',
    [
        ([], {'clusterwide': False, 'namespaces': ()}),
        (['-A'], {'clusterwide': True, 'namespaces': ()}),
        (['-n', 'a', '-n', 'b*'], {'clusterwide': False, 'namespaces': ('a', 'b*')}),
    ],
)
@pytest.mark.parametrize('command', [FREEZE, RESUME], ids=['freeze', 'resume'])
def test_scopes_are_passed_to_the_operator(invoke, operator, command, args, expected):
    assert invoke(*command, *args).exit_code == 0
    assert operator.kwargs | expected == operator.kwargs


def test_controls_are_passed_to_the_operator(invoke, operator):
    controls = CLIControls(vault=object(), settings=object(), stop_flag=object(), ready_flag=object())
    assert invoke(*FREEZE, obj=controls).exit_code == 0
    for name in ['vault', 'settings', 'stop_flag', 'ready_flag']:
        assert operator.kwargs[name] is getattr(controls, name)


def test_failures_are_told_and_exit_with_1(invoke, operator, caplog):
    operator.error = PeeringError("No operator was told.")
    assert invoke(*FREEZE).exit_code == 1
    assert "No operator was told." in caplog.text


@pytest.mark.parametrize('url', ['https://localhost/', 'nonsense'])
def test_wrong_liveness_endpoints_are_refused(invoke, operator, url):
    result = invoke('run', '--liveness', url)
    assert result.exit_code == 2
    assert url in result.output and "liveness endpoint" in result.output
    result = invoke('run', '--metrics', url)
    assert result.exit_code == 2
    assert url in result.output and "metrics endpoint" in result.output
    assert operator.kwargs is None
