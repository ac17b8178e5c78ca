"""Logins of operators in this process to a sandbox: by the environment, and by credentials without login handlers."""

import contextlib
import os
from collections.abc import Iterator, Mapping

from kopf._cogs.structs.credentials import ConnectionInfo, KubeContext, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._kits.testing.sandbox import Sandbox


def make_vault(sandbox: Sandbox) -> Vault:
    """Return the credentials for the sandbox, for operators without login handlers: these could lead to a cluster."""

    def get_current() -> Mapping[HandlerId, KubeContext]:
        info = ConnectionInfo(
            server=sandbox.url, ca_data=sandbox.ca or None, token=sandbox.token, default_namespace='default'
        )
        return {HandlerId('sandbox'): info}

    async def authenticate() -> Mapping[HandlerId, KubeContext]:
        return get_current()

    vault = Vault(get_current())
    vault.authenticate = authenticate  # The tokens of a sandbox can be made to expire.
    return vault


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set the variables, or remove those that are None, for the time of the context."""
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
