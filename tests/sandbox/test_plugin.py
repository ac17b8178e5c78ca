"""The plugin for pytest as users get it: by its entry point, in a run of their own."""
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # each of them starts a pytest of its own

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "09-testing"


@pytest.fixture(autouse=True)
def _only_our_plugin(monkeypatch):
    # Users do not have this one, which warns of itself on Python 3.13.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:looptime_plugin")


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest on a file with this text; return its exit code and its output."""
    def run(text, *args):
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args], cwd=tmp_path,
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr
    return run


def test_the_example():
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "4 passed in " in done.stdout


def test_nothing_is_loaded_for_those_who_do_not_use_it(run_pytest):
    code, output = run_pytest("""
        import sys

        def test_it():
            assert "kopf._kits.testing.plugin" in sys.modules
            assert "kopf._kits.testing.sandbox" not in sys.modules
    """)
    assert code == 0, output


def test_nothing_heavy_is_imported():
    code = "import sys, kopf._kits.testing.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"aiohttp", "click", "cryptography", "yaml"} & set(done.stdout.split())


def test_asynchronous_tests(run_pytest):
    code, output = run_pytest("""
        import os

        async def test_it(kopf_sandbox):
            assert os.environ["KUBECONFIG"] == str(kopf_sandbox.kubeconfig)
            await kopf_sandbox.aio.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}})
            assert len(await kopf_sandbox.aio.list("configmaps")) == 1
    """, "-o", "asyncio_mode=auto")
    assert code == 0, output


def test_it_can_be_switched_off(run_pytest):
    code, output = run_pytest("def test_it(kopf_sandbox): pass", "-p", "no:kopf")
    assert code == 1
    assert "fixture 'kopf_sandbox' not found" in output
