"""The sandbox in the place of a control plane: the same users, the same files, so that tests need not know."""

import json
import pathlib
import tempfile

from kopf.testing import Sandbox


class SandboxPlane:
    """A running sandbox, as a context manager: see `controlplane.ControlPlane`, also for its parameter."""

    external = False

    def __init__(self, *, sharding: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kopf-e2e-", ignore_cleanup_errors=True)
        self.kubeconfig = str(pathlib.Path(self._folder.name, "kubeconfig"))
        self._sandbox = Sandbox(kubeconfig=self.kubeconfig, sharding=sharding)

    def __enter__(self) -> "SandboxPlane":
        self._sandbox.__enter__()
        self._sandbox.issue_token("admin", ["system:masters"], token="admin")
        pair = self._sandbox.client_certificate("admin-by-cert")
        config = json.loads(pathlib.Path(self.kubeconfig).read_text())
        paths = {"client-certificate": pair.certificate, "client-key": pair.key}
        for name, content in paths.items():
            pathlib.Path(self._folder.name, name).write_bytes(content)
        config["users"][0]["user"] = {name: f"{self._folder.name}/{name}" for name in paths}
        pathlib.Path(self._folder.name, "kubeconfig-cert").write_text(json.dumps(config))
        return self

    def rotate(self) -> float:
        """Refuse all tokens, and break off all watches; the kubeconfig gets a new token. Returns when to do it next."""
        self._sandbox.faults.expire_tokens()
        self._sandbox.faults.drop_watches()
        return 12.0

    def __exit__(self, *_: object) -> None:
        self._sandbox.__exit__(None, None, None)
        self._folder.cleanup()
