"""
``kopf run`` in the process of an operator under test.

It tells the test when its webhooks and conversions are registered, and applies the CRDs of declared kinds as another
user.

A test cannot know from the requests of an operator whether it will register webhooks or conversions: the watches begin
at the same time, and most operators have none. Nor whether a watch of namespaces is for handlers, or for the framework.
Only the operator itself knows it, after its startup handlers.
"""

import importlib
import json
import pathlib
import sys
import threading

from kopf._cogs.aiokits.flags import ServingThreadEvent
from kopf._cogs.structs.credentials import ConnectionInfo, Vault
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Resource
from kopf._core.intents.registries import OperatorRegistry, get_default_registry

OWN_RESOURCES = (
    Resource('', 'v1', 'namespaces', 'Namespace', 'namespace', frozenset({'ns'})),
    Resource(
        'apiextensions.k8s.io',
        'v1',
        'customresourcedefinitions',
        'CustomResourceDefinition',
        'customresourcedefinition',
        frozenset({'crd', 'crds'}),
    ),
    Resource('kopf.dev', 'v1', 'kopfpeerings', 'KopfPeering', 'kopfpeering'),
    Resource('kopf.dev', 'v1', 'clusterkopfpeerings', 'ClusterKopfPeering', 'clusterkopfpeering'),
)
"""The resources that the framework itself watches, before the resources of the handlers."""


_OTHER_RESOURCE = Resource('other.invalid', 'v1', 'others', 'Other', 'other')


def has_endpoints(registry: OperatorRegistry) -> bool:
    """Check whether the API server calls the operator for admission or conversion; valid after the startup handlers."""
    return any(registry.webhooks) or any(registry.conversions)


def handles_own_resources(registry: OperatorRegistry) -> bool:
    """Check whether all handlers are for resources that the framework watches, too."""
    selectors = list(registry.iter_selectors())
    if any(selector.check(_OTHER_RESOURCE) for selector in selectors):
        return False  # they are for all resources
    return bool(selectors) and all(any(map(selector.check, OWN_RESOURCES)) for selector in selectors)


def main(file: str, *arguments: str) -> None:
    """
    Run the command line with these arguments.

    Args:
        file: a JSON file with the credentials to apply CRDs with. When the operator serves, this function replaces
            them with the answers of the functions above.
        arguments: the arguments of the command line.
    """
    # Imported by its name at run time, as the layers do not allow the kits to import the command line.
    cli = importlib.import_module('kopf.cli')
    started = ServingThreadEvent()
    login = json.loads(pathlib.Path(file).read_text())['provisioner']
    vault = None if login is None else Vault({HandlerId('sandbox'): ConnectionInfo(**login)})

    def write() -> None:
        started.wait()
        registry = get_default_registry()
        answers = {check.__name__: check(registry) for check in (has_endpoints, handles_own_resources)}
        pathlib.Path(file).write_text(json.dumps(answers))

    threading.Thread(target=write, name='webhook-notice', daemon=True).start()
    sys.argv[1:] = arguments
    cli.launch(cli.CLIControls(ready_flag=started, provisioning_vault=vault))


if __name__ == '__main__':
    main(*sys.argv[1:])
