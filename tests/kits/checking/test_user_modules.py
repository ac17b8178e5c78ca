"""Modules of the operator's author: those with handlers are imported anew, the others stay."""

import importlib
import sys

import pytest

from kopf import OperatorRegistry
from kopf._core.intents.registries import set_default_registry
from kopf._kits.checking.user_modules import UserModules

MODULES = {
    "handlers_xyz.py": "import kopf\nimport cloud_xyz\n\n@kopf.on.create('webs')\ndef fn(**_): pass\n",
    "importing_xyz.py": "from handlers_xyz import fn\n",
    "cloud_xyz.py": "servers = []\n",
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import the modules as an operator does; return the modules and the number of the handlers."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    names = [name.removesuffix(".py") for name in MODULES]

    def load(modules):
        registry = OperatorRegistry()
        set_default_registry(registry)
        with modules.loading(registry):
            loaded = {name: importlib.import_module(name) for name in names}
        return loaded, len(list(registry.iter_handlers()))

    yield load
    set_default_registry(None)
    for name in names:
        sys.modules.pop(name, None)


def test_modules_with_handlers_and_those_that_import_them_are_imported_anew(load):
    modules = UserModules()
    first, count = load(modules)
    second, again = load(modules)
    assert (count, again) == (1, 1)
    assert first["handlers_xyz"] is not second["handlers_xyz"]
    assert first["importing_xyz"] is not second["importing_xyz"]
    assert first["cloud_xyz"] is second["cloud_xyz"]


def test_modules_that_were_imported_before_stay(load):
    first, _ = load(UserModules())
    second, again = load(UserModules())
    assert first == second and again == 0


def test_modules_of_others_are_told(load):
    sys.modules.pop("this", None)
    modules = UserModules()
    with modules.loading(OperatorRegistry()):
        import this  # noqa: F401
    assert modules.foreign == ["this"]
