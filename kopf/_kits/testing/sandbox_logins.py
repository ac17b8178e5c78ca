"""Logins of operators in this process to a sandbox: by environment variables, and by credentials."""

import contextlib
import os
from collections.abc import Iterator, Mapping

from kopf._cogs.structs.credentials import ConnectionInfo, KubeContext, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._kits.testing.sandbox import Sandbox


def make_vault(sandbox: Sandbox, *, token: str | None = None) -> Vault:
    """
    Return the credentials for the sandbox. They replace login handlers, which could lead to another cluster.

    Args:
        sandbox: the sandbox.
        token: the token of a user; by default, that of the kubeconfig.
    """

    def get_current() -> Mapping[HandlerId, KubeContext]:
        info = ConnectionInfo(
            server=sandbox.url, ca_data=sandbox.ca or None, token=token or sandbox.token, default_namespace='default'
        )
        return {HandlerId('sandbox'): info}

    async def authenticate() -> Mapping[HandlerId, KubeContext]:
        return get_current()

    vault = Vault(get_current())
    vault.authenticate = authenticate  # Why not forever? Tests can make the tokens of a sandbox expire.
    return vault


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set the variables for the time of the context; variables with the value None are removed."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
