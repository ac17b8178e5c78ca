"""The kinds and the objects through which operators pause each other, for the manifests of operators with a peering."""

from collections.abc import Iterator, Sequence
from typing import Any


def make_peering_crd(*, clusterwide: bool) -> dict[str, Any]:
    """Return the CRD of the peering objects, as in the file ``peering.yaml``."""
    kind = 'ClusterKopfPeering' if clusterwide else 'KopfPeering'
    singular = kind.lower()
    status = {
        'description': "One record an operator, by the operator's identity.",
        'type': 'object',
        'x-kubernetes-preserve-unknown-fields': True,
    }
    schema = {'openAPIV3Schema': {'type': 'object', 'properties': {'status': status}}}
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{singular}s.kopf.dev'},
        'spec': {
            'group': 'kopf.dev',
            'scope': 'Cluster' if clusterwide else 'Namespaced',
            'names': {'plural': f'{singular}s', 'singular': singular, 'kind': kind},
            'versions': [{'name': 'v1', 'served': True, 'storage': True, 'schema': schema}],
        },
    }


def make_peerings(name: str, namespaces: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the peering objects of these namespaces; the one of the whole cluster, if there are none."""
    if not namespaces:
        yield {'apiVersion': 'kopf.dev/v1', 'kind': 'ClusterKopfPeering', 'metadata': {'name': name}}
    for namespace in namespaces:
        yield {
            'apiVersion': 'kopf.dev/v1',
            'kind': 'KopfPeering',
            'metadata': {'name': name, 'namespace': namespace},
        }
