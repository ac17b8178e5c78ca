"""New projects: what ``kopf init`` writes, and that it passes its own test."""

import json
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kopf.cli import main


@pytest.fixture
def init(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, ['init', *args])


def test_a_project_has_the_names_that_are_made_from_its_folder(init, tmp_path):
    result = init('web-shop-operator', '--group', 'shop.example.org')
    assert result.exit_code == 0, result.output
    folder = tmp_path / 'web-shop-operator'
    app = folder.joinpath('app.py').read_text()
    assert 'class WebShop:' in app
    assert '"shop.example.org/v1"' in app
    assert 'create("webshops", "mine"' in folder.joinpath('test_app.py').read_text()
    texts = ''.join(path.read_text() for path in folder.iterdir())
    assert not any(word in texts for word in ('KIND', 'NAME', 'GROUP', 'PLURAL', 'SINGULAR', 'VERSION'))
    assert 'cd web-shop-operator' in result.output


class Distribution:
    """The installed package, with the place that it was installed from."""

    def __init__(self, source):
        self.source = source

    def read_text(self, name):
        assert name == 'direct_url.json'
        return self.source and json.dumps({'url': self.source.as_uri()})


@pytest.mark.parametrize(
    'name, line',
    [
        ('check out', "  pip wheel --no-deps --wheel-dir . '{}'\n"),
        ('kopf-1.46.0.whl', '  pip download --no-deps --dest . {}\n'),
        ('gone', ''),
        (None, ''),
    ],
)
def test_the_first_steps_get_the_package_from_where_it_was_installed(init, tmp_path, monkeypatch, name, line):
    tmp_path.joinpath('check out').mkdir()
    tmp_path.joinpath('kopf-1.46.0.whl').touch()
    source = name and tmp_path / name
    monkeypatch.setattr('importlib.metadata.distribution', lambda _: Distribution(source))
    assert f'  cd shop\n{line.format(source)}  pip install -r requirements.txt' in init('shop').output
    assert (
        '\n# pip wheel --no-deps --wheel-dir path/to/shop .\n' in tmp_path.joinpath('shop/requirements.txt').read_text()
    )


def test_a_plural_name_can_be_given(init, tmp_path):
    assert init('garage', '--kind', 'Ox', '--plural', 'oxen').exit_code == 0
    folder = tmp_path / 'garage'
    assert '    "example.com/v1",\n    plural="oxen",\n' in folder.joinpath('app.py').read_text()
    assert 'create("oxen", "mine"' in folder.joinpath('test_app.py').read_text()
    init('shelves', '--kind', 'Bookshelf')
    assert 'plural' not in tmp_path.joinpath('shelves', 'app.py').read_text()
    assert 'create("bookshelves", "mine"' in tmp_path.joinpath('shelves', 'test_app.py').read_text()


@pytest.mark.long
def test_a_project_passes_its_tests_and_the_checks_of_types_at_once(init, tmp_path):
    # Such as a checkout that the project is in: its settings are not for the project, and need plugins of its own.
    settings = '[tool.pytest.ini_options]\naddopts = ["--strict-config"]\nsetting_of_a_plugin = "yes"\n'
    tmp_path.joinpath('pyproject.toml').write_text(settings)
    init('shop-operator')
    folder = tmp_path / 'shop-operator'
    for command in (
        ['pytest', '-q', '-p', 'no:cacheprovider', 'test_app.py'],
        ['mypy', '--strict', 'app.py'],
        ['ruff', 'check', '--isolated', '.'],
        ['ruff', 'format', '--isolated', '--check', '--line-length', '120', '.'],
    ):
        done = subprocess.run([sys.executable, '-m', *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_folders_with_files_are_left_alone(init, tmp_path, caplog):
    tmp_path.joinpath('shop').mkdir()
    tmp_path.joinpath('shop', 'app.py').write_text('mine')
    assert init('shop').exit_code == 1
    assert 'shop exists already and is not empty' in caplog.text
    assert tmp_path.joinpath('shop', 'app.py').read_text() == 'mine'


@pytest.mark.parametrize(
    'args, message',
    [
        (['shop', '--group', 'example'], "--group: 'example' is not a domain with a dot"),
        (['shop', '--kind', 'shop'], "'shop' cannot be the name of a kind. Name one in CamelCase by --kind"),
        (['shop', '--plural', 'Shops'], "--plural: 'Shops' cannot be a plural name"),
        (['123'], "'' cannot be the name of a kind"),
        (['none'], "'None' cannot be the name of a kind"),
        (['shop', '--kind', 'S' * 61], f"'{'S' * 61}' cannot be the name of a kind"),
    ],
)
def test_wrong_names_are_told_of(init, caplog, args, message):
    assert init(*args).exit_code == 1
    assert message in caplog.text
    assert not pathlib.Path('shop').exists()
