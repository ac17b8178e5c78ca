"""The ways to log in that a kubeconfig can describe, each accepted or refused by a real API server."""

import json
import os
import pathlib
import sys
import textwrap

import pytest
from kubeapi import wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "01-minimal" / "example.py"


@pytest.fixture
def config(cluster):
    """Return the contents of the kubeconfig of a control plane whose users are known: one of our own."""
    if cluster.external:
        pytest.skip("the users of the cluster of KUBECONFIG are not known")
    return json.loads(pathlib.Path(cluster.kubeconfig).read_text())


@pytest.fixture
def write(tmp_path):
    """Write a kubeconfig, return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return str(path)

    return write


@pytest.fixture
def assert_works(run_operator, kubeapi, namespace):
    """Check that an operator with this KUBECONFIG handles an object, and ends well."""

    def check(kubeconfig):
        operator = run_operator(EXAMPLE, kubeconfig=kubeconfig)
        kubeapi.apply(ROOT / "examples" / "obj.yaml", namespace)
        operator.wait_output(r"Creation is processed: 1 succeeded; 0 failed\.")
        assert operator.stop()[0] == 0

    return check


def ended(operator):
    """Return the exit code of an operator that ends by itself."""
    return wait(lambda: (operator.process.poll(),) if operator.process.poll() is not None else None, "its end")[0]


def test_a_client_certificate_logs_in(cluster, config, assert_works):
    assert_works(str(pathlib.Path(cluster.kubeconfig).parent / "kubeconfig-cert"))


def test_token_in_a_file(config, write, assert_works, tmp_path):
    (tmp_path / "token").write_text("admin\n")
    config["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    assert_works(write("config", config))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_an_exec_plugin_logs_in(config, write, assert_works, tmp_path, version):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        textwrap.dedent("""
        import json, os
        info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
        print(json.dumps({
            "apiVersion": info["apiVersion"],
            "kind": "ExecCredential",
            "status": {"token": os.environ["GIVEN"]},
        }))
    """)
    )
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": sys.executable,
            "args": [str(plugin)],
            "env": [{"name": "GIVEN", "value": "admin"}],
            "interactiveMode": "Never",
        }
    }
    assert_works(write("config", config))


def test_a_kubeconfig_of_several_files_logs_in(config, write, assert_works):
    header = {"apiVersion": "v1", "kind": "Config"}
    parts = [
        write("users", {**header, "users": config["users"]}),
        write("others", {**header, "clusters": config["clusters"], "contexts": config["contexts"]}),
        write("current", {**header, "current-context": config["current-context"]}),
    ]
    assert_works(os.pathsep.join(parts))


def test_refused_credentials_end_the_operator(config, write, run_operator):
    config["users"][0]["user"] = {"token": "wrong"}
    operator = run_operator(EXAMPLE, kubeconfig=write("config", config))
    assert ended(operator) == 1
    assert "Unauthorized" in operator.output
    assert "Traceback" not in operator.output


def test_nothing_to_log_in_with(config, run_operator, tmp_path):
    operator = run_operator(EXAMPLE, kubeconfig="", HOME=str(tmp_path))
    assert ended(operator) == 1
    assert "kubeconfig" in operator.output
    assert "service account" in operator.output
    assert "Traceback" not in operator.output
