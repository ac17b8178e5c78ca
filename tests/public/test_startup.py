"""What a new process does before its operator is of use: imports only what this operator needs, and few requests."""

import os
import re
import subprocess
import sys
import textwrap
import threading

import pytest
from kinds import define

from kopf.testing import Operator, Sandbox

CRD = define('kopfexamples', 'KopfExample', group='kopf.dev')
OBJECT = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': 'x'}}
HANDLERS = """
import sys
import kopf

@kopf.on.login()
def login(**kwargs):  # whatever client libraries are installed besides
    return kopf.login_with_kubeconfig(**kwargs)

@kopf.on.event('kopf.dev', 'v1', 'kopfexamples')
def seen(**_):
    print('MODULES:', *sys.modules, 'END', flush=True)
"""
EXTRAS = {  # of those operators only that have something for them to do
    'kopf._core.engines.admission',
    'kopf._core.engines.webhook_configurations',
    'kopf._core.reactor.webhook_runtime',
    'kopf._core.engines.conversion_reviews',
    'kopf._core.engines.conversion_strategies',
    'kopf._core.engines.webhook_registration',
    'kopf._core.engines.peering_member',
    'kopf._core.engines.peering',
    'kopf._core.engines.leases',
    'kopf._core.engines.lease_candidate',
    'kopf._core.reactor.election_coordinator',
    'kopf._core.engines.assignments',
    'kopf._core.engines.buckets',
    'kopf._core.engines.shard_leases',
    'kopf._core.engines.shard_group',
    'kopf._core.engines.shard_command',
    'kopf._core.reactor.shard_sinks',
    'kopf._core.reactor.sharding_coordinator',
    'kopf._core.engines.levels',
    'kopf._core.engines.planning',
    'kopf._core.engines.relations',
    'kopf._core.engines.verdicts',
    'kopf._core.reactor.leveling',
    'kopf._core.reactor.condition_schemas',
    'kopf._core.reactor.condition_writer',
    'kopf._core.reactor.permission_reviews',
    'kopf._core.reactor.field_schemas',
    'kopf._core.intents.field_checks',
    'kopf._core.intents.role_rules',
    'kopf._cogs.structs.conditions',
    'kopf._core.reactor.seen_states',
    'kopf._core.engines.probing',
    'kopf._core.engines.metrics',
    'kopf._core.engines.tracing',
    'kopf._core.engines.trace_exports',
    'opentelemetry',
    'kopf._core.engines.inspecting',
    'kopf._core.engines.running_calls',
    'kopf._core.engines.stacks',
    'kopf._core.engines.inspector_page',
    'kopf._core.engines.live_updates',
    'kopf._core.engines.recorders',
    'kopf._core.engines.timelines',
    'kopf._core.reactor.inspection',
    'kopf._cogs.helpers.runfiles',
    'kopf._core.engines.status_server',
    'kopf._core.reactor.census',
    'kopf._core.reactor.status_runtime',
    'kopf._cogs.structs.meters',
    'prometheus_client',
    'kopf._cogs.clients.execplugins',
    'kopf._kits',
    'cryptography',
    'pythonjsonlogger',
    'kopf._core.actions.jsonlogs',
    'yaml',  # the kubeconfig of the sandbox is JSON
}


@pytest.fixture
def handlers(tmp_path):
    path = tmp_path / 'handlers.py'
    path.write_text(HANDLERS)
    return path


def test_operators_import_only_what_they_need(kopf_sandbox, handlers):
    kopf_sandbox.apply(CRD)
    kopf_sandbox.apply(OBJECT)
    # Why not the fixture `kopf_operator`? It starts the command by a module of the kits.
    command = [sys.executable, '-m', 'kopf', 'run', '--standalone', '--all-namespaces', str(handlers)]
    environ = {**os.environ, 'KUBECONFIG': str(kopf_sandbox.kubeconfig)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(60, process.kill)
        limit.start()
        modules = next((line.split()[1:-1] for line in process.stdout if line.startswith('MODULES:')), None)
        limit.cancel()
        process.kill()
    assert modules is not None and EXTRAS & set(modules) == set()


@pytest.mark.long
def test_operators_import_what_their_options_need(kopf_sandbox, kopf_operator, handlers):
    kopf_sandbox.apply(CRD)
    kopf_sandbox.apply(OBJECT)
    with kopf_operator(handlers, '--liveness', 'http://127.0.0.1:0/healthz') as operator:
        modules = operator.wait_for_output(r'^MODULES: (.*) END$')[1].split()
    assert 'kopf._core.engines.probing' in modules and 'kopf._core.engines.metrics' not in modules


@pytest.mark.parametrize(
    'arguments, expected',
    [
        (['--all-namespaces'], {'list /apis', 'watch customresourcedefinitions', 'watch kopfexamples'}),
        pytest.param(
            ['--namespace', 'default'],
            {'list /apis', 'watch customresourcedefinitions', 'watch namespaces', 'watch kopfexamples in default'},
            marks=pytest.mark.long,
        ),
        (
            ['--namespace', 'def*'],
            {'list /apis', 'watch customresourcedefinitions', 'watch namespaces', 'watch kopfexamples in default'},
        ),
    ],
)
def test_operators_are_ready_after_few_requests(kopf_sandbox, kopf_operator, handlers, arguments, expected):
    kopf_sandbox.apply(CRD)
    kopf_sandbox.apply(OBJECT)
    with kopf_operator(handlers, *arguments) as operator:
        operator.wait_for_output(' END$')
        seen = list(kopf_sandbox.requests)
    places = [
        f'{request.resource} in {request.namespace}' if request.namespace else request.resource or request.path
        for request in seen
    ]
    # Fewer, if the object was faster than the definitions that are watched besides it.
    assert {
        f'{"watch" if request.verb == "watch" else "list"} {place}' for request, place in zip(seen, places, strict=True)
    } <= expected
    assert len(seen) <= len(expected)


def test_the_import_of_the_package_is_light():
    code = "import kopf, sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    modules = set(result.stdout.split())
    others = {'aiohttp', 'click', 'httptools', 'kopf._core.reactor', 'uvloop'}
    assert (EXTRAS | others) & modules == set()
    assert not any(re.match(r'kopf\._cogs\.clients\.(sessions|logins|discovery)', name) for name in modules)


@pytest.mark.long
def test_the_sandbox_is_light():
    code = textwrap.dedent("""
        import re, sys, time
        from kopf.testing import Sandbox
        with Sandbox():
            seconds = time.process_time()
            memory = open('/proc/self/status').read() if sys.platform == 'linux' else 'VmHWM: 0 kB'
            print(seconds, int(re.search('VmHWM:.* ([0-9]+) kB', memory)[1]) / 1024, *sys.modules)
    """)
    base = "import asyncio, ssl, time; print(time.process_time())"
    cpu, base_cpu = [], []
    for _ in range(3):  # the least of them, since others need the processor too
        result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
        seconds, megabytes, *modules = result.stdout.split()
        cpu.append(float(seconds))
        result = subprocess.run([sys.executable, '-c', base], capture_output=True, text=True, check=True)
        base_cpu.append(float(result.stdout))
        if min(cpu) < 12 * min(base_cpu):
            break
    assert {'aiohttp', 'click', 'yaml', 'kopf._core.reactor', 'kopf._cogs.clients.sessions'} & set(modules) == set()
    assert float(megabytes) < 80
    assert min(cpu) < 12 * min(base_cpu)  # about 3 times; 6 if the modules are not compiled yet


def test_an_operator_without_logging_says_why_there_are_no_logs(tmp_path):
    def run(text):
        (tmp_path / 'handlers.py').write_text(f"import kopf\n{text}\nkopf.run(clusterwide=True)\n")
        env = {**os.environ, 'KUBECONFIG': str(tmp_path / 'nosuch')}
        command = [sys.executable, 'handlers.py']
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stderr

    text = "The logs are not shown, as there is no logging: call kopf.configure() before kopf.run()."
    assert text in run("")
    assert text not in run("kopf.configure()")


@pytest.mark.parametrize('level', ['1', '2'])
def test_operators_work_without_assertions_and_docstrings(tmp_path, level):
    handlers = tmp_path / 'handlers.py'
    handlers.write_text(
        textwrap.dedent("""
            import kopf

            @kopf.on.create('kopfexamples')
            def create(patch, **_):
                patch.status['state'] = 'created'

            @kopf.daemon('kopfexamples')
            async def daemon(stopped, **_):
                await stopped.wait()
        """)
    )
    with Sandbox(crds=[CRD]) as sandbox:
        with Operator(sandbox, handlers, env={'PYTHONOPTIMIZE': level}):
            sandbox.create('kopfexamples', 'obj')
            sandbox.wait_for('kopfexamples', 'obj', lambda body: body.get('status', {}).get('state') == 'created')
            sandbox.delete('kopfexamples', 'obj')
            sandbox.wait_gone('kopfexamples', 'obj')
