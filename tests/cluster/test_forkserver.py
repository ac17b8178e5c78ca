"""Forked commands are processes of their own, and behave as if they had been started by themselves."""

import os
import signal
import subprocess
import sys

import pytest
from forkserver import AsyncProcess, ForkedProcess, get_server, run_process, split_command, start_process
from kubeapi import wait

FOLDER = os.path.dirname(__file__)
SCRIPT = """
import os, signal, sys
if 'wait' in sys.argv:
    print('ready', flush=True)
    signal.pause()
print(sys.argv[1:], os.getcwd(), os.environ['WORD'], __name__)
print('to stderr', file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def waiting(script):
    """Start a command that waits for a signal."""
    reading, writing = os.pipe()
    with open(reading) as output:
        with open(writing, "wb") as file:
            process = start_process(["python", "script.py", "wait"], cwd=script, stdout=file)
        assert output.readline() == "ready\n"
        yield process
        process.kill()
        process.wait(10)


def test_a_command_has_its_own_arguments_folder_environment_and_exit_code(script):
    done = run_process(["python", "script.py", "3"], cwd=script, env={**os.environ, "WORD": "own"})
    assert done.returncode == 3
    assert done.stdout == f"['3'] {script.resolve()} own __main__\n"
    assert done.stderr == "to stderr\n"


def test_a_command_is_a_fork_in_a_session_of_its_own(waiting):
    assert isinstance(waiting, ForkedProcess)
    assert os.getsid(waiting.pid) == waiting.pid


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_command_and_is_its_exit_code(waiting, sig):
    assert waiting.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0)
    waiting.send_signal(sig)
    assert waiting.wait(10) == waiting.poll() == waiting.returncode == -sig


def test_ctrl_c_is_an_exception_in_a_command(waiting):
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(10) == -signal.SIGINT  # as of an interpreter that is ended by KeyboardInterrupt


def test_a_signal_to_an_ended_command_is_ignored(waiting):
    waiting.kill()
    waiting.wait(10)
    waiting.terminate()


def test_an_environment_for_another_interpreter_gets_a_new_one(script):
    env = {**os.environ, "WORD": "own", "PYTHONDEVMODE": "1"}
    with open(script / "output", "wb") as file:
        process = start_process(["python", "script.py", "0"], cwd=script, env=env, stdout=file)
    assert process.wait(30) == 0
    assert isinstance(process, subprocess.Popen)
    assert "to stderr" in (script / "output").read_text()


async def test_the_output_of_a_command_is_read_by_a_coroutine(script):
    env = {**os.environ, "WORD": "own", "PYTHONUNBUFFERED": "1"}
    process = await AsyncProcess.start(["python", "script.py", "4"], cwd=script, env=env)
    assert (await process.stdout.readline()).startswith(b"['4'] ")
    assert await process.communicate() == (b"to stderr\n", None)
    assert process.returncode == 4


def test_kopf_runs_as_the_command_line():
    done = run_process(["kopf", "run", "--no-such-option"])
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: kopf run ")


def test_modules_run_as_programs(script):
    done = run_process(["python", "-m", "script", "3"], cwd=script, env={**os.environ, "WORD": "own"})
    assert (done.returncode, done.stdout) == (3, f"['3'] {script.resolve()} own __main__\n")


def test_both_streams_are_merged_as_on_a_terminal(script):
    done = run_process(["python", "script.py", "3"], cwd=script, env={**os.environ, "WORD": "own"}, is_merged=True)
    assert "to stderr\n" in done.stdout and "['3'] " in done.stdout
    assert done.stderr == ""


def test_commands_do_not_outlive_the_tests_even_if_these_are_killed(script):
    code = "import forkserver, os, sys; process = forkserver.start_process(['python', 'script.py', 'wait'], "
    code += "stdout=sys.stdout); print(process.pid, flush=True); os.kill(os.getpid(), 9)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))}
    # The pipe is at its end when no process has it as its output any more.
    done = subprocess.run([sys.executable, "-c", code], cwd=script, env=env, stdout=subprocess.PIPE, timeout=60)
    pid = next(int(word) for word in done.stdout.split() if word.isdigit())
    wait(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the command")


ENDINGS = {
    "sys.exit('a text')": (1, "a text\n"),
    "sys.exit(True)": (1, ""),
    "1 / 0": (1, "ZeroDivisionError: division by zero\n"),
    "sys.exit()": (0, ""),
    "sys.exit(259)": (3, ""),
}


@pytest.mark.parametrize("code", ENDINGS)
def test_a_command_ends_as_an_interpreter_does(tmp_path, code):
    text = "import atexit, sys, threading, time\natexit.register(print, 'exit')\n"
    text += "threading.Thread(target=lambda: [time.sleep(0.01), print('thread')]).start()\n"
    (tmp_path / "script.py").write_text(text + code)
    done = run_process(["python", "script.py"], cwd=tmp_path)
    expected, error = ENDINGS[code]
    assert (done.returncode, done.stdout) == (expected, "thread\nexit\n")
    assert done.stderr.endswith(error) and bool(done.stderr) == bool(error)


def test_a_command_ends_with_warnings_of_what_it_has_forgotten(tmp_path):
    (tmp_path / "script.py").write_text("async def fn(): pass\ncycle = [fn()]\ncycle.append(cycle)\ndel cycle")
    assert "RuntimeWarning: coroutine 'fn' was never awaited" in run_process(["python", tmp_path / "script.py"]).stderr


def test_a_server_can_have_further_ones_which_end_with_all_that_they_have_started(script):
    server = get_server().split()
    reading, writing = os.pipe()
    with open(reading) as output:
        with open(writing, "wb") as file:
            fds = {"stdout": file.fileno(), "stderr": file.fileno()}
            process = server.start(["python", "script.py", "wait"], env=os.environ, cwd=str(script), **fds)
        assert output.readline() == "ready\n"
        server.close()
        assert process.wait(10) == -signal.SIGKILL
    assert run_process(["kopf", "--version"]).returncode == 0  # the first one goes on


def test_all_commands_of_a_process_have_one_server():
    assert get_server() is get_server()


@pytest.mark.parametrize(
    "line, words",
    [
        ("kopf run -A 'a b.py'", ["kopf", "run", "-A", "a b.py"]),
        ("python main.py x", ["python", "main.py", "x"]),
        ("python -m kopf run", None),
        ("kubectl get pods", None),
        ("kopf run $FILE", None),
        ("kopf run x.py | cat", None),
        ("kopf run ~/x.py", None),
    ],
)
def test_commands_without_shell_syntax_can_be_forked(line, words):
    assert split_command(line) == words
