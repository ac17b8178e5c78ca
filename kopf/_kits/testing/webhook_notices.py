"""
``kopf run`` in the process of an operator under test, which tells the test whether to wait for webhooks.

A test cannot know from the requests of an operator whether it will register webhooks: the watches begin at the same
time, and most operators have no webhooks. Only the operator itself knows it, after its startup handlers.
"""

import importlib
import json
import pathlib
import sys
import threading

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._core.intents.registries import OperatorRegistry, get_default_registry


def has_registered_webhooks(registry: OperatorRegistry, settings: OperatorSettings) -> bool:
    """Check whether the operator writes the configurations of its webhooks; valid after the startup handlers."""
    return settings.admission.managed is not None and any(registry.webhooks)


def main(file: str, *arguments: str) -> None:
    """Run the command line with these arguments; write to the file, as JSON, whether it will register webhooks."""
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')
    settings, started = OperatorSettings(), threading.Event()

    def write() -> None:
        started.wait()
        pathlib.Path(file).write_text(json.dumps(has_registered_webhooks(get_default_registry(), settings)))

    threading.Thread(target=write, name='webhook-notice', daemon=True).start()
    sys.argv[1:] = arguments
    cli.launch(cli.CLIControls(settings=settings, ready_flag=started))


if __name__ == '__main__':
    main(*sys.argv[1:])
