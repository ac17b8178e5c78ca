"""
``kopf run`` in the process of an operator under test.

It tells the test when its webhooks and conversions are registered, and applies the CRDs of declared kinds as another
user.

A test cannot know from the requests of an operator whether it will register webhooks or conversions: the watches begin
at the same time, and most operators have none. Only the operator itself knows it, after its startup handlers.
"""

import importlib
import json
import pathlib
import sys
import threading

from kopf._cogs.aiokits.flags import ServingThreadEvent
from kopf._cogs.structs.credentials import ConnectionInfo, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._core.intents.registries import OperatorRegistry, get_default_registry


def has_endpoints(registry: OperatorRegistry) -> bool:
    """Check whether the API server calls the operator for admission or conversion; valid after the startup handlers."""
    return any(registry.webhooks) or any(registry.conversions)


def main(file: str, *arguments: str) -> None:
    """
    Run the command line with these arguments.

    Args:
        file: a JSON file with the credentials to apply CRDs with. When the operator serves, this function replaces
            them with the answer whether the operator has webhooks or conversions.
        arguments: the arguments of the command line.
    """
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')
    started = ServingThreadEvent()
    login = json.loads(pathlib.Path(file).read_text())['provisioner']
    vault = None if login is None else Vault({HandlerId('sandbox'): ConnectionInfo(**login)})

    def write() -> None:
        started.wait()
        pathlib.Path(file).write_text(json.dumps({'has_endpoints': has_endpoints(get_default_registry())}))

    threading.Thread(target=write, name='webhook-notice', daemon=True).start()
    sys.argv[1:] = arguments
    cli.launch(cli.CLIControls(ready_flag=started, provisioning_vault=vault))


if __name__ == '__main__':
    main(*sys.argv[1:])
