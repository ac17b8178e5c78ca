"""Manifests as a stream of YAML, as a folder for kustomize, or as a chart for Helm."""

import pathlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.helpers.versions import version
from kopf._kits.definitions.crd_commands import dump_yaml

_FILES = {
    'CustomResourceDefinition': 'crds',
    **dict.fromkeys(('ServiceAccount', 'ClusterRole', 'ClusterRoleBinding', 'Role', 'RoleBinding'), 'rbac'),
}
"""The names of files for several kinds of objects; others are in files with the names of their kinds."""

_HEAD = "# Made by `kopf manifests`: rather change the operator and make them anew than edit them.\n"


def write_kustomization(folder: pathlib.Path, objects: Collection[Mapping[str, Any]], *, namespace: str) -> None:
    """
    Write a folder that ``kubectl apply -k`` and kustomize accept, with a file for each kind of objects.

    Raises:
        ExplainedError: if the folder cannot be written.
    """
    files = _name_files(objects)
    kustomization = {
        'apiVersion': 'kustomize.config.k8s.io/v1beta1',
        'kind': 'Kustomization',
        'namespace': namespace,
        'resources': sorted(files),
    }
    texts = {name: _HEAD + dump_yaml(each) for name, each in files.items()}
    _write(folder, {**texts, 'kustomization.yaml': _HEAD + dump_yaml([kustomization])})


def write_chart(folder: pathlib.Path, objects: Collection[Mapping[str, Any]], *, name: str, image: str) -> None:
    """
    Write a chart for Helm: the CRDs as they are, the other objects with the values that differ between clusters.

    Raises:
        ExplainedError: if the folder cannot be written.
    """
    crds = [each for each in objects if each['kind'] == 'CustomResourceDefinition']
    others = [each for each in objects if each not in crds]
    deployment = next(each for each in others if each['kind'] == 'Deployment')
    repository, tag = _split_image(image)
    values = {
        'image': {'repository': repository, 'tag': tag},
        'replicas': deployment['spec']['replicas'],
        'resources': deployment['spec']['template']['spec']['containers'][0]['resources'],
    }
    chart = {
        'apiVersion': 'v2',
        'name': name,
        'description': f'The operator {name}.',
        'type': 'application',
        'version': '0.1.0',
        'appVersion': tag,
        'annotations': {'kopf.dev/version': version},
    }
    files = {
        f'templates/{key}': _HEAD + _make_template(dump_yaml(each), image) for key, each in _name_files(others).items()
    }
    files |= {f'crds/{key}': _HEAD + dump_yaml(each) for key, each in _name_files(crds).items()}
    _write(folder, {**files, 'Chart.yaml': dump_yaml([chart]), 'values.yaml': dump_yaml([values])})


def _make_template(text: str, image: str) -> str:
    """Put the values of a chart into the text of manifests."""
    text = text.replace('{{', '{{ "{{" }}')
    text = re.sub(r'(?m)^( +)namespace: .*$', r'\1namespace: {{ .Release.Namespace }}', text)
    text = text.replace(f'image: {image}\n', 'image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"\n')
    text = re.sub(r'(?m)^  replicas: \d+$', '  replicas: {{ .Values.replicas }}', text)
    resources = r'(?m)^( +)resources:\n(?:\1 +(?:requests|limits):\n(?:\1  +\w+: .*\n)+)+'
    return re.sub(resources, _put_resources, text)


def _put_resources(match: re.Match[str]) -> str:
    indent = match[1]
    return f'{indent}resources: {{{{- toYaml .Values.resources | nindent {len(indent) + 2} }}}}\n'


def _split_image(image: str) -> tuple[str, str]:
    head, _, tail = image.rpartition(':')
    return (head, tail) if head and '/' not in tail else (image, 'latest')


def _name_files(objects: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    files: dict[str, list[Mapping[str, Any]]] = {}
    for each in objects:
        name = _FILES.get(each['kind'], each['kind'].lower())
        files.setdefault(f'{name}.yaml', []).append(each)
    return files


def _write(folder: pathlib.Path, texts: Mapping[str, str]) -> None:
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise ExplainedError(f"The manifests cannot be written to {folder}: {error}") from error
