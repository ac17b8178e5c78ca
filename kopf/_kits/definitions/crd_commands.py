"""The commands for declared kinds: ``kopf crd``, and ``kopf run --apply-crds``."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import click

from kopf._cogs.clients.api import ApiClient
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs.credentials import Vault
from kopf._core.actions.execution import PermanentError
from kopf._core.engines.conversion_strategies import NONE, is_placeholder
from kopf._core.intents.causes import Activity
from kopf._core.intents.declarations import declare_activity
from kopf._core.intents.field_checks import find_doubts_of_kinds
from kopf._core.intents.handlers import ActivityHandler
from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.definitions.crd_changes import find_breaking_changes
from kopf._kits.definitions.crd_conversions import Service, add_conversions, find_gaps
from kopf._kits.definitions.crd_documents import make_crds
from kopf._kits.provisioning import ensure_crds, ensure_crds_by, read_crds
from kopf._kits.yaml_texts import dump_yaml

_PLACEHOLDER_NOTE = (
    "Note: {}: the operator replaces the address in spec.conversion, which is a placeholder. If the operator has "
    "kopf.WebhookService(), name that Service by --service: otherwise, the API server refuses this CRD when it is "
    "applied again."
)

_NAME = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?')


def print_crds(registry: OperatorRegistry, *, former: str | None, service: str | None = None) -> int:
    """
    Print the CRDs of the declared kinds; or, with the file of former CRDs, the breaking changes since then.

    Args:
        registry: the kinds, and the handlers that convert their versions.
        former: the file or folder with the former CRDs.
        service: the Service of the operator for conversions, as ``namespace/name``.

    Returns:
        The exit code of the command: 1 if there are breaking changes, otherwise 0.

    Raises:
        ExplainedError: if there are no kinds, if the former CRDs cannot be read, or if the Service is malformed.
        ModelError: if a class cannot be expressed in a CRD.
    """
    if not registry.kinds:
        raise ExplainedError("There are no kinds in these files. Decorate a class with @kopf.kind('example.com/v1').")
    crds = make_declared_crds(registry, service=None if service is None else _parse_service(service))
    for doubt in find_doubts_of_kinds(registry):
        _warn(doubt)
    if former is None:
        click.echo(dump_yaml(crds), nl=False)
        for crd in crds:
            if is_placeholder(crd['spec'].get('conversion') or NONE) and service is None:
                click.echo(_PLACEHOLDER_NOTE.format(crd['metadata']['name']), err=True)
        return 0
    try:
        old = list(read_crds([former]))
    except PermanentError as error:
        raise ExplainedError(f"--check: {error}") from None
    if not old:
        raise ExplainedError(f"--check: there are no CRDs in {former}, so nothing can be compared.")
    changes = list(find_breaking_changes(old, crds))
    for change in changes:
        click.echo(str(change))
    if not changes:
        click.echo('There are no breaking changes.', err=True)
    return 1 if changes else 0


def _parse_service(text: str) -> Service:
    namespace, _, name = text.partition('/')
    if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise ExplainedError(f"--service: {text!r} must be a namespace and a name, such as default/shop-operator.")
    return Service(namespace, name)


def make_declared_crds(registry: OperatorRegistry, *, service: Service | None = None) -> list[dict[str, Any]]:
    """
    Return the CRDs of the declared kinds, and print warnings about them.

    Raises:
        ModelError: if a class cannot be expressed in a CRD.
    """
    crds = make_crds(registry.kinds, warn=_warn)
    for gap in find_gaps(crds, registry):
        _warn(gap)
    return add_conversions(crds, registry, service=service)


def _warn(text: str) -> None:
    click.echo(f'Warning: {text}', err=True)


def apply_at_start(registry: OperatorRegistry, *, vault: Vault | None = None) -> None:
    """
    Add a startup handler that creates or updates the CRDs of all kinds of the registry.

    Args:
        registry: the handlers and the kinds.
        vault: the credentials for that; by default, those of the operator.
    """
    crds = make_declared_crds(registry)

    async def apply_crds(**_: Any) -> None:
        if vault is None:
            await ensure_crds(crds)
        else:
            await _ensure_alone(vault, crds)

    options = {'registry': registry, 'id': 'apply_crds'}
    declare_activity(ActivityHandler, 'startup', (), options, activity=Activity.STARTUP)(apply_crds)


async def _ensure_alone(vault: Vault, crds: Collection[Mapping[str, Any]], timeout: float | None = 60) -> None:
    """Create or update the CRDs with a client of their own, which is closed when that is done."""

    async def ensure_later(crd: Mapping[str, Any]) -> None:
        await _ensure_alone(vault, [crd], None)

    async with ApiClient(vault, OperatorSettings()) as client:
        await ensure_crds_by(client, crds, timeout, ensure_later=ensure_later)
