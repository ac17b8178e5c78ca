"""The client of `kopf top`: which operator it asks, and how it shows the answer."""

import json
import os
import re
import socket

import pytest
from click.testing import CliRunner

from kopf._cogs.helpers.runfiles import RunFile, written
from kopf._kits.top import TopError, fetch, find_operator, format_place, format_table, format_time, render
from kopf.cli import main

PLACE = {'file': '/app/main.py', 'line': 12, 'function': 'create', 'code': 'with LOCK:'}
OBJECT = {'resource': 'kopfexamples.kopf.dev', 'namespace': 'default', 'name': 'obj', 'uid': 'uid'}
CALL = {
    'handler': 'create',
    'kind': 'Handler',
    'reason': 'create',
    'retry': 2,
    'seconds': 75.2,
    'blocking': False,
    'stopping': None,
    'thread': 'kopf-handlers-0',
    'place': PLACE,
    'stack': [PLACE | {'line': 5, 'code': 'fn()'}, PLACE],
    'object': OBJECT,
}
FACTS = {
    'version': '1.2',
    'pid': 123,
    'seconds': 3700,
    'paused': False,
    'loop': {'lag': 0.0002, 'blocked': False, 'by': None},
    'running': [CALL],
    'waiting': [
        OBJECT
        | {'seconds': 12, 'why': 'retry', 'handlers': [{'handler': 'fn', 'retry': 1, 'message': "no"}], 'error': None},
        OBJECT
        | {'seconds': None, 'why': 'timer', 'handlers': [{'handler': 't', 'retry': 0, 'message': None}], 'error': None},
        OBJECT
        | {
            'seconds': None,
            'why': 'unready',
            'handlers': [{'handler': 'r', 'retry': 0, 'message': "the child is not ready"}],
            'error': None,
        },
        OBJECT
        | {'seconds': None, 'why': 'limit', 'handlers': [{'handler': 'r', 'retry': 0, 'message': None}], 'error': None},
    ],
    'waiting_total': 5,
    'watches': [
        {
            'resource': 'kopfexamples.kopf.dev',
            'namespace': 'default',
            'state': 'streaming',
            'paused': True,
            'objects': 3,
            'silent': 1.25,
            'failure': None,
        }
    ],
    'objects': {'kopfexamples.kopf.dev': {'resting': 2, 'handling': 1, 'queued': 0}},
}


def test_the_answer_is_shown_as_text():
    assert render(FACTS).splitlines() == [
        "kopf 1.2, pid 123, up 1h1m",
        "Event loop: responds in 0.2 ms",
        "",
        "RUNNING: 1",
        "  1m15s  Handler create  kopfexamples.kopf.dev default/obj  /app/main.py:12 in create: with LOCK:  "
        "attempt 3, in thread kopf-handlers-0",
        "",
        "WAITING: 5, of which 1 are not shown",
        "  12s       retry 1  fn  kopfexamples.kopf.dev default/obj  no",
        "  a change  timer    t   kopfexamples.kopf.dev default/obj",
        "  a change  unready  r   kopfexamples.kopf.dev default/obj  the child is not ready",
        "  a slot    limit    r   kopfexamples.kopf.dev default/obj",
        "",
        "WATCHES: 1",
        "  kopfexamples.kopf.dev in default  streaming, paused  3 objects  silent 1.2s",
        "",
        "OBJECTS",
        "  kopfexamples.kopf.dev  2 resting, 1 handling",
    ]


def test_messages_break_neither_lines_nor_terminals():
    waiting = FACTS['waiting'][0] | {'error': "first\nsecond \x1b]0;owned\x07 \u202etext é"}
    lines = render(FACTS | {'waiting': [waiting]}).splitlines()
    assert lines[7].endswith("default/obj  first second  ]0;owned   text é") and lines[8] == ""


def test_stacks_are_shown_on_request():
    lines = render(FACTS, stacks=True).splitlines()
    assert lines[5:7] == ["      /app/main.py:5 in create: fn()", "      /app/main.py:12 in create: with LOCK:"]


def test_a_blocked_loop_is_shown_with_the_handler():
    loop = {'lag': 65, 'blocked': True, 'by': "Handler 'create' in main.py, line 5"}
    call = CALL | {'blocking': True, 'stopping': 'DONE'}
    lines = render(FACTS | {'loop': loop, 'running': [call], 'paused': True}).splitlines()
    assert lines[0].endswith("; paused, as another operator works")
    assert lines[1] == "Event loop: BLOCKED for 1m5s by Handler 'create' in main.py, line 5"
    assert "BLOCKS THE LOOP, does not stop (DONE)" in lines[4]


@pytest.mark.parametrize(
    'seconds, text',
    [(0, '0.0s'), (9.94, '9.9s'), (12.4, '12s'), (60, '1m0s'), (3725, '1h2m'), (86400 * 2 + 3600 * 5, '2d5h')],
)
def test_times_have_two_units_at_most(seconds, text):
    assert format_time(seconds) == text


def test_places_are_relative_to_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert format_place(PLACE | {'file': str(tmp_path / 'main.py')}) == 'main.py:12 in create: with LOCK:'
    assert format_place(PLACE | {'code': ''}) == '/app/main.py:12 in create'
    assert format_place(None) == '?'


def test_tables_are_aligned():
    assert list(format_table([['a', 'bbb', ''], ['aa', 'b', 'c']])) == ['  a   bbb', '  aa  b    c']
    assert list(format_table([])) == []


def test_the_only_operator_is_asked(tmp_path):
    tmp_path.chmod(0o700)
    file = RunFile(os.getpid(), 'http://127.0.0.1:1', 'secret')
    with written(file, str(tmp_path)):
        assert find_operator(folder=str(tmp_path)) == file
        assert find_operator(folder=str(tmp_path), pid=os.getpid(), token='other') == file._replace(token='other')


def test_without_operators_the_remedy_is_named(tmp_path):
    with pytest.raises(TopError, match=r"No operator of this user .* kopf run --inspect"):
        find_operator(folder=str(tmp_path))
    with pytest.raises(TopError, match=r"No operator with the pid 1 "):
        find_operator(folder=str(tmp_path), pid=1)


def test_of_several_operators_one_must_be_chosen(tmp_path):
    tmp_path.chmod(0o700)
    files = [RunFile(pid, f'http://127.0.0.1:{pid}', 'secret') for pid in (os.getpid(), os.getppid())]
    with written(files[0], str(tmp_path)), written(files[1], str(tmp_path)):
        with pytest.raises(TopError, match=r"several operators: choose one by --pid: \d+, \d+"):
            find_operator(folder=str(tmp_path))
        assert find_operator(folder=str(tmp_path), pid=os.getppid()) == files[1]


def test_a_forwarded_port_needs_the_token():
    assert find_operator(url='http://localhost:1/', token='x') == RunFile(0, 'http://localhost:1', 'x')
    with pytest.raises(TopError, match="--token"):
        find_operator(url='http://localhost:1/')


def test_an_operator_that_does_not_respond_is_named(unused_tcp_port):
    url = f'http://127.0.0.1:{unused_tcp_port}'
    with pytest.raises(TopError, match=f"The operator at {url} does not respond"):
        fetch(RunFile(1, url, 'x'), limit=1)


def test_a_server_that_is_no_operator_is_named():
    with socket.create_server(('127.0.0.1', 0)) as server:
        import threading

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(9999)
                connection.sendall(b'HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TopError, match=r"has refused the request \(404\): no"):
            fetch(RunFile(1, f'http://127.0.0.1:{server.getsockname()[1]}', 'x'), limit=1)
        thread.join()


@pytest.mark.usefixtures('forked_operators')
def test_the_command_asks_a_running_operator(kopf_sandbox, kopf_operator, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path))
    path = tmp_path / 'main.py'
    path.write_text("import kopf\n\n@kopf.on.event('pods')\ndef fn(**_): pass\n")
    with kopf_operator(path, '--inspect', '--verbose') as operator:
        operator.wait_for_output("can be inspected")
        result = CliRunner().invoke(main, ['top'])
        assert result.exit_code == 0 and 'RUNNING: 0' in result.output
        result = CliRunner().invoke(main, ['top', '--json', '--limit', '5'])
        assert json.loads(result.output)['running'] == []
        (printed,) = re.findall(r'The inspector is at (http\S+)', operator.output)
        assert CliRunner().invoke(main, ['top', '--link']).output == f'{printed}\n'
    result = CliRunner().invoke(main, ['top'])
    assert result.exit_code == 1
