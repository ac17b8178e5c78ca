"""``kopf run --processes``: several processes of one operator, which are supervised, probed and measured as one."""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from forkserver import run_process, start_process
from kubeapi import KubeApi

pytestmark = pytest.mark.timeout(120)

CRD = pathlib.Path(__file__).parents[2] / 'examples' / 'crd.yaml'
APP = """
import os
import kopf

@kopf.on.probe(id='process')
def process(**_):
    return os.getpid()
"""


class Group:
    """The supervisor of two processes on a sandbox, with the lines that they have printed."""

    def __init__(self, app: pathlib.Path, *arguments: object) -> None:
        command = ['kopf', 'run', '--sandbox', '--shards=auto', '--processes=2', '--standalone']
        environment = {name: text for name, text in os.environ.items() if name != 'PYTHONUNBUFFERED'}
        reading, writing = os.pipe()
        with os.fdopen(writing, 'wb') as stdout:
            self.process = start_process([*command, *map(str, arguments), app], stdout=stdout, env=environment)
        self.stdout = os.fdopen(reading)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(iter(self.stdout.readline, '')), daemon=True)
        self._reader.start()

    def wait(self) -> int:
        """Wait until all processes have ended, and return the exit code."""
        code = self.process.wait(60)
        self._reader.join(30)  # until the last process has closed the pipe
        assert not self._reader.is_alive(), "a process is left"
        return code

    @property
    def output(self) -> str:
        return ''.join(self.lines)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs an operator with this code in two processes."""
    with contextlib.ExitStack() as stack:

        def start(code: str, *arguments: object) -> Group:
            app = tmp_path / 'app.py'
            app.write_text(code)
            group = Group(app, *arguments)
            stack.callback(group.stdout.close)
            stack.callback(group.wait)
            stack.callback(group.process.terminate)
            return group

        yield start


def find_port() -> int:
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        return sock.getsockname()[1]


@pytest.fixture
def url():
    return f'http://127.0.0.1:{find_port()}'


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(check):
    deadline = time.monotonic() + 60
    while not (result := check()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return result


def get_pids(url: str) -> dict[str, int]:
    """Return the ids of the processes by their numbers when all of them are ready."""
    wait_for(lambda: fetch(f'{url}/readyz')[0] == 200)
    code, text = fetch(f'{url}/healthz')
    assert code == 200, text
    return {number: results['process'] for number, results in json.loads(text).items()}


@pytest.mark.long
def test_the_probes_and_metrics_are_those_of_all_processes(run, url):
    run(APP, '--liveness', f'{url}/healthz', '--metrics', f'{url}/metrics')
    pids = get_pids(url)
    assert len({*pids.values()}) == 2 and {*pids} == {'1', '2'}
    code, text = fetch(f'{url}/metrics')
    assert code == 200
    processes = collections.Counter(re.findall(r'^process_start_time_seconds\{process="(\d)"\}', text, re.MULTILINE))
    assert processes == {'1': 1, '2': 1}
    assert text.count('# TYPE process_start_time_seconds ') == 1


@pytest.mark.long
def test_a_failing_probe_of_one_process_is_a_failure_of_all(run, url, tmp_path):
    code = f"""
import kopf
try:
    open({str(tmp_path / 'first')!r}, 'x').close()
    is_first = True
except FileExistsError:
    is_first = False

@kopf.on.probe(id='disk')
def disk(**_):
    if is_first:
        raise kopf.PermanentError("no disk")
    return 'fine'
"""
    run(code, '--liveness', f'{url}/healthz')
    wait_for(lambda: fetch(f'{url}/readyz')[0] == 200)
    code, text = fetch(f'{url}/healthz')
    assert code == 503
    assert "no disk" in text and "fine" in text


@pytest.mark.long
def test_each_object_is_handled_by_one_of_the_processes(run, url, monkeypatch):
    code = (
        APP
        + """
@kopf.on.create('kopfexamples')
def create(name, **_):
    print(f'created {name} by {os.getpid()}', flush=True)
"""
    )
    names = [f'example-{number}' for number in range(40)]
    group = run(code, '--crd', CRD, '--liveness', f'{url}/healthz')
    pids = get_pids(url)
    wait_for(lambda: group.output.count('This member handles 128 buckets') == 2)
    monkeypatch.setenv('KUBECONFIG', re.search(r'export KUBECONFIG=(\S+)', group.output)[1])
    api = KubeApi()
    for name in names:
        api.apply({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': {'name': name}}, 'default')
    wait_for(lambda: group.output.count('created ') >= len(names))
    group.process.terminate()
    assert group.wait() == 0
    created = re.findall(r'created (\S+) by (\d+)', group.output)
    assert sorted(name for name, _ in created) == sorted(names)
    assert {int(pid) for _, pid in created} == {*pids.values()}


@pytest.mark.long
def test_a_killed_process_is_started_again_and_the_others_go_on(run, url):
    group = run(APP, '--liveness', f'{url}/healthz')
    pids = get_pids(url)
    os.kill(pids['2'], signal.SIGKILL)
    later = wait_for(lambda: (found := get_pids(url)).get('2') not in (pids['2'], None) and found)
    assert later['1'] == pids['1']
    assert "The process 2 has ended by SIGKILL. It is started again in 1 s." in group.output
    group.process.terminate()
    assert group.wait() == 0


@pytest.mark.long
def test_a_mistake_in_the_program_ends_all_processes_with_its_exit_code(run):
    group = run("raise ValueError('broken')")
    assert group.wait() == 1
    assert 'started again' not in group.output


@pytest.mark.long
def test_the_processes_share_the_port_of_their_webhooks(run, url):
    code = f"""
import kopf

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port={find_port()}, insecure=True)

@kopf.on.validate('kopfexamples')
def validate(**_):
    print('reviewed', flush=True)
"""
    group = run(code, '--liveness', f'{url}/healthz')
    wait_for(lambda: fetch(f'{url}/readyz')[0] == 200 or group.process.poll() is not None)
    assert group.process.poll() is None, group.output


def test_no_process_outlives_its_supervisor(run, url):
    group = run(APP, '--liveness', f'{url}/healthz')
    get_pids(url)
    group.process.kill()
    group.wait()


@pytest.mark.long
def test_the_second_signal_ends_stuck_processes(run, url):
    group = run(
        APP
        + """
@kopf.on.cleanup()
def cleanup(**_):
    print('stuck', flush=True)
    import time
    time.sleep(600)
""",
        '--liveness',
        f'{url}/healthz',
    )
    get_pids(url)
    group.process.send_signal(signal.SIGINT)
    wait_for(lambda: group.output.count('stuck') == 2)
    group.process.send_signal(signal.SIGINT)
    group.wait()


def test_equal_endpoints_are_refused(run, url):
    group = run(APP, '--liveness', f'{url}/same', '--metrics', f'{url}/same')
    assert group.wait() == 1
    assert "The endpoints of the probes and of the metrics are the same" in group.output


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--processes=2'], "--processes is for operators with --shards"),
        (['--processes=2', '--shards=auto', '--reload'], "Either --reload or --processes"),
        (['--processes=0'], "--processes"),
    ],
)
def test_wrong_options_are_refused(arguments, message):
    result = run_process(['kopf', 'run', *arguments, 'app.py'])
    assert result.returncode == 2
    assert message in result.stderr
