"""The files with the tokens of running operators: who can read them, and when they are there."""

import os
import stat
import subprocess
import sys

import pytest

from kopf._cogs.helpers.runfiles import RunFile, RunFileError, find_files, get_folder, written

FILE = RunFile(os.getpid(), 'http://127.0.0.1:1234', 'secret')


def test_the_file_exists_while_the_operator_runs(tmp_path):
    folder = str(tmp_path / 'new' / 'folder')
    with written(FILE, folder) as path:
        assert find_files(folder) == [FILE] and path.parent == get_folder(folder)
    assert find_files(folder) == [] and not path.exists()


@pytest.mark.skipif(os.name != 'posix', reason="other systems have other permissions")
def test_only_the_user_can_read_the_file(tmp_path):
    with written(FILE, str(tmp_path / 'kopf')) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != 'posix', reason="other systems have other permissions")
def test_folders_that_others_can_write_to_are_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(RunFileError, match="other users can write to"):
        with written(FILE, str(tmp_path)):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != 'posix', reason="other systems have other links")
def test_links_to_other_folders_are_refused(tmp_path):
    (tmp_path / 'real').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'real')
    with pytest.raises(RunFileError, match="other users can write to"):
        with written(FILE, str(tmp_path / 'link')):
            pass


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RunFileError, match=r"cannot be written to .*settings\.inspecting\.folder"):
        with written(FILE, str(tmp_path / 'file' / 'folder')):
            pass


def test_a_file_of_a_killed_process_is_replaced(tmp_path):
    tmp_path.chmod(0o700)
    with written(FILE, str(tmp_path)):
        with written(FILE._replace(token='new'), str(tmp_path)):
            assert find_files(str(tmp_path)) == [FILE._replace(token='new')]


def test_files_of_dead_processes_and_other_files_are_left_out(tmp_path):
    tmp_path.chmod(0o700)
    process = subprocess.Popen([sys.executable, '-c', ''])
    process.wait()
    (tmp_path / 'other.json').write_text('nonsense')
    (tmp_path / 'list.json').write_text('[]')
    with written(FILE._replace(pid=process.pid), str(tmp_path)):
        assert find_files(str(tmp_path)) == []


def test_the_folder_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path))
    assert get_folder() == tmp_path / 'kopf'
    monkeypatch.delenv('XDG_RUNTIME_DIR')
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    assert get_folder().parent == tmp_path and get_folder().name.startswith('kopf-')
