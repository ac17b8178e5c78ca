"""
The most frequently violated rules of pods and of their templates.

They cover typical mistakes in manifests written by hand: omitted fields, unknown values, invalid names, dangling
references. The errors have the order of a real server if that is deterministic.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kopf._kits.testing.objects import podparts, volumes
from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire.statuses import (
    Cause,
    text,
    value_forbidden,
    value_invalid,
    value_required,
    value_unsupported,
)

PROTOCOLS = ('SCTP', 'TCP', 'UDP')


def template_problems(spec: Fields, place: str, claims: Sequence[Fields] = ()) -> Iterator[Cause]:
    """Yield all known errors of the specification in a template of pods, with these claims."""
    if claims:
        spec = {**spec, 'volumes': volumes.claimed_volumes(claims, list(maps(spec.get('volumes'))))}
    yield from problems(spec, place)
    if spec.get('ephemeralContainers'):
        yield value_forbidden(f'{place}.ephemeralContainers', 'ephemeral containers not allowed in pod template')


def problems(spec: Fields, place: str) -> Iterator[Cause]:
    """Yield all known errors of the specification of a pod."""
    usable: volumes.Volumes = {}
    yield from volumes.volume_problems(list(maps(spec.get('volumes'))), f'{place}.volumes', usable)
    if not spec.get('containers'):
        yield value_required(f'{place}.containers')
    seen: set[Any] = set()
    for key in ('containers', 'initContainers'):
        for index, container in enumerate(maps(spec.get(key))):
            yield from _container(container, f'{place}.{key}[{index}]', seen, usable)
    yield from podparts.of_pod(spec, place)
    yield from one_of(spec, 'restartPolicy', place, ('Always', 'OnFailure', 'Never'))
    yield from one_of(spec, 'dnsPolicy', place, ('ClusterFirstWithHostNet', 'ClusterFirst', 'Default', 'None'))
    seconds = spec.get('activeDeadlineSeconds')
    if seconds is not None and not 1 <= seconds <= 2147483647:
        yield value_invalid(
            f'{place}.activeDeadlineSeconds', str(seconds), 'must be between 1 and 2147483647, inclusive'
        )


def one_of(body: Fields, key: str, place: str, words: Iterable[str]) -> Iterator[Cause]:
    """Yield an error if the field has a value that is none of the words."""
    value = body.get(key)
    if value is not None and value not in words:
        yield value_unsupported(f'{place}.{key}', text(value), map(text, words))


def _container(container: Fields, place: str, seen: set[Any], usable: volumes.Volumes) -> Iterator[Cause]:
    name = container.get('name') or ''
    yield from volumes.label_problems(name, f'{place}.name', seen)
    seen.add(name)
    if not container.get('image'):
        yield value_required(f'{place}.image')
    for index, port in enumerate(maps(container.get('ports'))):
        where = f'{place}.ports[{index}]'
        if not (number := port.get('containerPort') or 0):
            yield value_required(f'{where}.containerPort')
        elif not 1 <= number <= 65535:
            yield value_invalid(f'{where}.containerPort', str(number), podparts.PORTS)
        yield from one_of(port, 'protocol', where, PROTOCOLS)
    for index, variable in enumerate(maps(container.get('env'))):
        where = f'{place}.env[{index}].name'
        if not (name := variable.get('name') or ''):
            yield value_required(where)
        elif '=' in name or not name.isascii() or not name.isprintable():
            yield value_invalid(
                where,
                text(name),
                'a valid environment variable name must consist only of printable ASCII characters other than \'=\'',
            )
    yield from podparts.of_container(container, place)
    yield from volumes.mount_problems(container, place, usable)
    yield from one_of(container, 'imagePullPolicy', place, ('Always', 'IfNotPresent', 'Never'))
