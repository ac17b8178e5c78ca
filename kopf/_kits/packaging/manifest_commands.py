"""The command ``kopf manifests``."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import click

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._core.actions.execution import PermanentError
from kopf._core.intents.registries import OperatorRegistry
from kopf._kits.definitions.crd_commands import dump_yaml, make_declared_crds
from kopf._kits.definitions.crd_conversions import Service, add_conversions
from kopf._kits.packaging.deployment_manifests import Options, make_manifests
from kopf._kits.packaging.manifest_folders import write_chart, write_kustomization
from kopf._kits.provisioning import read_crds

_NAME = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')  # of Services; other objects may begin with digits, too


def print_manifests(
    registry: OperatorRegistry,
    options: Options,
    *,
    crds: Sequence[str] = (),
    kustomize: str | None = None,
    helm: str | None = None,
) -> None:
    """
    Print the manifests of the operator, or write them to a folder.

    Args:
        registry: the handlers.
        options: the options of the deployment.
        crds: files or folders with CRDs that are not declared as classes.
        kustomize: the folder for kustomize.
        helm: the folder for a chart for Helm.

    Raises:
        ExplainedError: if there are no handlers, a name is wrong, or something cannot be read or written.
        ModelError: if a class cannot be expressed in a CRD.
    """
    if not any(registry.iter_handlers()):
        raise ExplainedError("There are no handlers in these files, so there is nothing to deploy.")
    if not _NAME.fullmatch(options.name) or len(options.name) > 63:
        raise ExplainedError(
            f"--name: {options.name!r} cannot be the name of objects: use lower-case letters, digits, and dashes."
        )
    for namespace in options.namespaces:
        if not _NAME.fullmatch(namespace):
            raise ExplainedError(
                f"--namespace: {namespace!r} is a pattern, and roles are for named namespaces. "
                f"Name them, or use --all-namespaces."
            )
    try:
        given: list[dict[str, Any]] = list(read_crds(crds))
    except PermanentError as error:
        raise ExplainedError(f"--crd: {error}") from error
    service = Service(options.namespace, options.name)
    all_crds = [
        *make_declared_crds(registry, service=service),
        *add_conversions(given, registry, service=service),
    ]
    objects = [*all_crds, *make_manifests(registry, all_crds, options)]
    if kustomize is not None:
        write_kustomization(pathlib.Path(kustomize), objects, namespace=options.namespace)
    if helm is not None:
        write_chart(pathlib.Path(helm), objects, name=options.name, image=options.image)
    if kustomize is None and helm is None:
        click.echo(dump_yaml(objects), nl=False)
    else:
        click.echo(f"Written to {' and '.join(filter(None, [kustomize, helm]))}.", err=True)


def guess_name(sources: Sequence[str]) -> str:
    """Return a name for the operator from its first file, or from the folder of a file with a general name."""
    path = pathlib.Path(sources[0] if sources else 'operator')
    stem = path.stem if path.suffix == '.py' else path.name.rpartition('.')[2]
    if stem in ('app', 'main', 'handlers', 'operator', 'example', '__init__'):
        stem = path.resolve().parent.name or stem
    return re.sub(r'[^a-z0-9]+', '-', stem.lower()).lstrip('-0123456789').rstrip('-') or 'operator'
