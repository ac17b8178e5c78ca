"""
``kopf run`` in the process of an operator under test.

It tells the test whether to wait for webhooks, and applies the CRDs of declared kinds as another user.

A test cannot know from the requests of an operator whether it will register webhooks: the watches begin at the same
time, and most operators have no webhooks. Only the operator itself knows it, after its startup handlers.
"""

import importlib
import json
import pathlib
import sys
import threading

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import ConnectionInfo, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._core.intents.registries import OperatorRegistry, get_default_registry


def has_registered_webhooks(registry: OperatorRegistry, settings: OperatorSettings) -> bool:
    """Check whether the operator writes the configurations of its webhooks; valid after the startup handlers."""
    return settings.admission.managed is not None and any(registry.webhooks)


def main(file: str, *arguments: str) -> None:
    """
    Run the command line with these arguments.

    Args:
        file: a JSON file with the credentials to apply CRDs with. This function replaces them with the answer whether
            the operator will register webhooks.
        arguments: the arguments of the command line.
    """
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')
    settings, started = OperatorSettings(), threading.Event()
    login = json.loads(pathlib.Path(file).read_text())['provisioner']
    vault = None if login is None else Vault({HandlerId('sandbox'): ConnectionInfo(**login)})

    def write() -> None:
        started.wait()
        notice = {'has_webhooks': has_registered_webhooks(get_default_registry(), settings)}
        pathlib.Path(file).write_text(json.dumps(notice))

    threading.Thread(target=write, name='webhook-notice', daemon=True).start()
    sys.argv[1:] = arguments
    cli.launch(cli.CLIControls(settings=settings, ready_flag=started, provisioning_vault=vault))


if __name__ == '__main__':
    main(*sys.argv[1:])
