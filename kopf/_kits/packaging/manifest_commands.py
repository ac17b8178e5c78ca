"""The command ``kopf manifests``."""

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import click

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._core.actions.execution import PermanentError
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.reactor.sharding_coordinator import NAME_LIMIT
from kopf._kits.definitions.crd_commands import make_declared_crds
from kopf._kits.definitions.crd_conversions import Service, add_conversions
from kopf._kits.packaging.deployment_manifests import Options, make_manifests
from kopf._kits.packaging.manifest_folders import dump_manifests, write_chart, write_kustomization
from kopf._kits.packaging.peering_kinds import make_peering_crd, make_peerings
from kopf._kits.provisioning import read_crds

_LABEL = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?')
_NAME = re.compile(r'[a-z]([-a-z0-9]*[a-z0-9])?')  # of Services; other objects may begin with digits, too
_OBJECT = re.compile(r'[a-z0-9]([-.a-z0-9]*[a-z0-9])?')  # of Secrets and config maps
_VARIABLE = re.compile(r'[-._A-Za-z][-._A-Za-z0-9]*')

DEFAULT_NAMESPACE = 'default'
"""The namespace that each cluster has."""

_TRACING = (
    "The image needs the extra 'tracing' for --tracing, and, if OTEL_EXPORTER_OTLP_ENDPOINT is set, the package "
    "opentelemetry-exporter-otlp-proto-http."
)


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
    _check_names(options)
    try:
        given: list[dict[str, Any]] = list(read_crds(crds))
    except PermanentError as error:
        raise ExplainedError(f"--crd: {error}") from None
    service = Service(options.namespace, options.name)
    all_crds = [
        *make_declared_crds(registry, service=service),
        *add_conversions(given, registry, service=service),
    ]
    if options.peering is not None:
        all_crds.append(make_peering_crd(clusterwide=not options.namespaces))
    objects = [*all_crds, *make_manifests(registry, all_crds, options)]
    if kustomize is not None:
        write_kustomization(pathlib.Path(kustomize), objects, options)
    if helm is not None:
        write_chart(pathlib.Path(helm), objects, options)
    if kustomize is None and helm is None:
        click.echo(dump_manifests(objects, options), nl=False)
    else:
        click.echo(f"Written to {' and '.join(filter(None, [kustomize, helm]))}.", err=True)
    if options.peering is not None:
        click.echo(_explain_peering(options.peering, options.namespaces), err=True)
    if options.tracing:
        click.echo(_TRACING, err=True)
    if options.namespace != DEFAULT_NAMESPACE and helm is None:
        # Why is it not among the manifests? To delete these would delete all else in the namespace, too.
        click.echo(f"The namespace must exist: kubectl create namespace {options.namespace}", err=True)


def _explain_peering(name: str, namespaces: Sequence[str]) -> str:
    """
    Return the commands that create the peering objects.

    Why are these not among the manifests? ``kubectl apply`` refuses objects whose CRD is in the same file. Also,
    several operators can use the same object.
    """
    lines = ["The operator waits for its peering object. Create it when the CRD is there, and keep it:"]
    for peering in make_peerings(name, namespaces):
        lines.append(f"  echo '{json.dumps(peering)}' | kubectl apply -f -")
    return '\n'.join(lines)


def _check_names(options: Options) -> None:
    if not _NAME.fullmatch(options.name) or len(options.name) > 63:
        raise ExplainedError(
            f"--name: {options.name!r} cannot be the name of objects: use lower-case letters, digits, and dashes."
        )
    if options.sharded and len(options.lease) > NAME_LIMIT:
        raise ExplainedError(
            f"--name: with --shards, it can have {NAME_LIMIT - len(options.lease) + len(options.name)} characters, as "
            f"the Leases are named after it: {options.name!r}."
        )
    if options.peering is not None and not _OBJECT.fullmatch(options.peering):
        raise ExplainedError(f"--peering: {options.peering!r} cannot be the name of a peering object.")
    if options.peering is not None and options.sharded:
        raise ExplainedError("--peering: peers pause each other, while the members of --shards work together.")
    if not options.image.strip():
        raise ExplainedError("--image: it is empty. Name the image of the operator: registry.example.com/shop:1.0.")
    if not _LABEL.fullmatch(options.namespace):
        raise ExplainedError(f"--in: {options.namespace!r} cannot be the name of a namespace.")
    for namespace in options.namespaces:
        if not _LABEL.fullmatch(namespace):
            raise ExplainedError(
                f"--namespace: {namespace!r} is a pattern, and roles are for named namespaces. "
                f"Name them, or use --all-namespaces."
            )


def parse_variables(values: Sequence[str]) -> list[tuple[str, str]]:
    """
    Return the names and values of ``--env``.

    Raises:
        ExplainedError: if a value is not of the form ``NAME=VALUE``.
    """
    variables = []
    for given in values:
        name, sign, value = given.partition('=')
        if not sign or not _VARIABLE.fullmatch(name):
            raise ExplainedError(f"--env: {given!r} is not of the form NAME=VALUE, such as LOG_LEVEL=debug.")
        # In Kubernetes, $(NAME) in a value refers to another variable; the value is meant as it is.
        variables.append((name, value.replace('$(', '$$(')))
    return variables


def parse_sources(values: Sequence[str]) -> list[tuple[str, str]]:
    """
    Return the kinds and names of ``--env-from``.

    Raises:
        ExplainedError: if a value is not of the form ``secret/NAME`` or ``configmap/NAME``.
    """
    sources = []
    for given in values:
        kind, _, name = given.partition('/')
        if kind not in ('secret', 'configmap') or not _OBJECT.fullmatch(name):
            raise ExplainedError(f"--env-from: {given!r} is not of the form secret/NAME or configmap/NAME.")
        sources.append((kind, name))
    return sources


def guess_name(sources: Sequence[str]) -> str:
    """Return a name for the operator from its first file, or from the folder of a file with a general name."""
    path = pathlib.Path(sources[0] if sources else 'operator')
    stem = path.stem if path.suffix == '.py' else path.name.rpartition('.')[2]
    if stem in ('app', 'main', 'handlers', 'operator', 'example', '__init__'):
        stem = path.resolve().parent.name or stem
    return re.sub(r'[^a-z0-9]+', '-', stem.lower()).lstrip('-0123456789').rstrip('-') or 'operator'
