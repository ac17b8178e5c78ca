"""Workers that are forks: what they run, what is reported of it, and how they end."""

import os
import re
import textwrap

import pytest
from forkserver import run_process, start_process
from kubeapi import wait

FOLDER = os.path.dirname(__file__)

CONFTEST = """
import os, pathlib, pytest

print('collected by', os.getpid())

@pytest.fixture(scope="session")
def opened(tmp_path_factory):
    notes = pathlib.Path(os.environ['NOTES'])
    with notes.open('a') as file:
        file.write(f'open {os.getpid()}\\n')
    yield tmp_path_factory.getbasetemp()
    with notes.open('a') as file:
        file.write(f'close {os.getpid()}\\n')

@pytest.fixture(scope="module")
def pid():
    return os.getpid()
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Write test files; return the command that runs them in two workers."""
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    names = ["looptime_plugin", "hypothesispytest", "anyio", "xdist", "cacheprovider"]
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in names))
    (tmp_path / "conftest.py").write_text(CONFTEST)

    def write(*texts):
        for number, text in enumerate(texts):
            (tmp_path / f"test_{number}.py").write_text("import os, pytest, time\n" + textwrap.dedent(text))
        (tmp_path / "run.py").write_text(f"import pytest, sys\nsys.path.append({FOLDER!r})\nsys.exit(pytest.main())")
        return ["python", "run.py", "-p", "forkedworkers", "--forks", "2"]

    return write


@pytest.fixture
def run(command, tmp_path):
    """Run tests of these files; return the exit code and the output."""

    def run(*texts, options=()):
        done = run_process([*command(*texts), *options], cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    return run


def test_each_file_runs_in_one_worker_with_fixtures_of_its_own(run, tmp_path):
    text = """
        @pytest.mark.parametrize("number", range(3))
        def test_it(number, pid, opened):
            assert os.getpid() == pid != os.getppid()
            (opened / "file").touch()
            time.sleep(0.1)  # so that the other worker has its share
    """
    code, output = run(text, text, text, text)
    assert code == 0, output
    assert re.search(r"\b12 passed in ", output)
    assert "test_0.py" not in output
    notes = (tmp_path / "notes").read_text().split()
    assert sorted(notes[::2]) == ["close", "close", "open", "open"] and len(set(notes[1::2])) == 2


def test_workers_without_files_take_tests_of_others(run, tmp_path):
    # The first test lasts until another worker has run the last one. The second one stays where the first one runs.
    code, output = run(
        """
        LAST = os.path.join(os.path.dirname(__file__), "last")

        @pytest.mark.parametrize("number", range(7))
        def test_it(number, pid, opened):
            assert pid == os.getpid()
            if number == 6:
                open(LAST, "x").close()
            deadline = time.monotonic() + 30
            while number == 0 and not os.path.exists(LAST):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        """,
        "def test_other(): pass",
    )
    assert code == 0, output
    assert re.search(r"\b8 passed in ", output)
    notes = (tmp_path / "notes").read_text().split()
    assert sorted(notes[::2]) == ["close", "close", "open", "open"] and len(set(notes[1::2])) == 2


def test_files_stay_whole_on_request(run, tmp_path):
    # The first test lasts until the other worker has ended, which has nothing else to do. That one waits for the first
    # test: otherwise, it could have both files.
    code, output = run(
        """
        NOTES = os.environ["NOTES"]

        @pytest.mark.parametrize("number", range(7))
        def test_it(number):
            open(NOTES + "-begun", "x" if number == 0 else "a").close()
            deadline = time.monotonic() + 30
            while number == 0 and not (os.path.exists(NOTES) and "close" in open(NOTES).read()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with open(NOTES, "a") as file:
                file.write(f"test {os.getpid()}\\n")
        """,
        """
        def test_other(opened):
            deadline = time.monotonic() + 30
            while not os.path.exists(os.environ["NOTES"] + "-begun"):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        """,
        options=["--whole-files"],
    )
    assert code == 0, output
    assert re.search(r"\b8 passed in ", output)
    notes = (tmp_path / "notes").read_text().split()
    assert notes[::2] == ["open", "close", *["test"] * 7] and len(set(notes[5::2])) == 1


def test_some_workers_begin_with_the_last_files(run):
    marker = """
        import pathlib
        ENDED = pathlib.Path(__file__).parent / "ended"
    """
    code, output = run(
        f"""{marker}
        def test_waiting():
            deadline = time.monotonic() + 30
            while not ENDED.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        """,
        f"""{marker}
        def test_in_the_middle(): assert ENDED.exists()
        """,
        f"""{marker}
        def test_computing(): ENDED.touch()
        """,
    )
    assert code == 0, output


def test_all_results_are_reported_with_what_was_printed(run):
    code, output = run(
        """
        import warnings

        def test_good():
            print("not shown")
            warnings.warn("deprecated")

        def test_bad():
            print("shown")
            assert 1 == 2

        def test_skipped():
            pytest.skip("why")
        """,
        """
        tries = []

        def test_flaky():
            tries.append(1)
            assert len(tries) == 2

        @pytest.fixture
        def broken():
            1 / 0

        def test_error(broken):
            pass
        """,
        options=["--reruns", "1", "-v", "-W", "always"],
    )
    assert code == 1, output
    assert "2 failed" not in output and "1 failed, 2 passed, 1 skipped, 1 warning, 1 error" in output
    assert "assert 1 == 2" in output and "ZeroDivisionError" in output and "UserWarning: deprecated" in output
    assert re.search(r"Captured stdout call -+\nshown\n", output) and "not shown" not in output
    assert re.search(r"(?m)^\[fork \d\] .*PASSED .*test_0.py::test_good", output)


def test_the_process_of_a_test_may_end(run):
    code, output = run(
        """
        def test_first(): pass
        def test_killed(): os.kill(os.getpid(), 9)
        def test_last(): pass
        """,
        "def test_other(): pass",
    )
    assert code == 1, output
    assert "1 failed, 3 passed" in output
    assert "The process of the test has ended unexpectedly." in output and "test_0.py::test_killed" in output


@pytest.mark.long
def test_each_worker_has_a_server_of_commands_for_itself_which_is_a_fork_of_the_first_one(run, tmp_path):
    (tmp_path / "script.py").write_text("import os\nprint(os.getppid())")
    text = """
        def test_it(opened):
            import forkserver
            server = int(forkserver.run_process(["python", "script.py"]).stdout)
            with open(f"/proc/{server}/stat") as stat, open("servers", "a") as file:
                file.write(f"{server} {stat.read().rpartition(')')[2].split()[1]}\\n")
            deadline = time.monotonic() + 30
            while len(open("servers").readlines()) < 2:  # until the other worker has run the other test
                assert time.monotonic() < deadline
                time.sleep(0.01)
    """
    launching = "import forkserver, os\n\ndef pytest_configure():\n    forkserver.launch_server(os.environ)\n"
    with (tmp_path / "conftest.py").open("a") as file:
        file.write(launching)
    code, output = run(text, text)
    assert code == 0, output
    (one, parent), (other, same) = map(str.split, (tmp_path / "servers").read_text().splitlines())
    assert one != other and parent == same


def test_runs_end_at_the_first_failure_if_this_is_wanted(run):
    code, output = run("def test_bad(): assert 0", "def test_slow(): time.sleep(100)", options=["-x"])
    assert code == 1, output
    assert "1 failed in " in output and "stopping after 1 failures" in output


def test_runs_end_when_a_test_demands_it(run):
    code, output = run("def test_it(): pytest.exit('no cluster')", "def test_slow(): time.sleep(100)")
    assert code == 2, output
    assert "no cluster" in output


def test_failures_of_the_collection_are_left_to_pytest(run):
    code, output = run("1 / 0")
    assert code == 2, output
    assert "1 error during collection" in output


def test_workers_end_with_a_run_that_is_killed(command, tmp_path):
    text = "def test_it(): open('pid', 'w').write(f'{os.getpid()}.'); time.sleep(1)\ndef test_next(): time.sleep(100)"
    path = tmp_path / "pid"
    with open(tmp_path / "output", "wb") as file:
        process = start_process(command(text), cwd=tmp_path, stdout=file)
    try:
        wait(lambda: path.exists() and path.read_text().endswith("."), "the first test")
    finally:
        process.kill()
    worker = path.read_text()[:-1]
    wait(lambda: not os.path.exists(f"/proc/{worker}"), "the end of the worker")
