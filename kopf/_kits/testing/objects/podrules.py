"""
The rules of pods and of their templates that are broken most often.

They are those that people break when they write manifests by hand: what is required, what is one of a few words, what
is a name, what refers to nothing. The order of complaints is that of a real server, as far as it has one.
"""
from collections.abc import Iterable, Iterator
from typing import Any

from kopf._kits.testing.objects import podparts
from kopf._kits.testing.objects.podspecs import Fields, maps
from kopf._kits.testing.wire import names
from kopf._kits.testing.wire.statuses import (
    Cause,
    text,
    value_forbidden,
    value_invalid,
    value_required,
    value_unsupported,
)

PROTOCOLS = ('SCTP', 'TCP', 'UDP')
#: The most common sources of volumes, in the order in which they are looked at.
SOURCES = ('emptyDir', 'hostPath', 'gitRepo', 'gcePersistentDisk', 'awsElasticBlockStore', 'secret', 'nfs', 'iscsi',
           'glusterfs', 'flocker', 'persistentVolumeClaim', 'rbd', 'cinder', 'cephfs', 'quobyte', 'downwardAPI', 'fc',
           'configMap', 'azureFile', 'vsphereVolume', 'photonPersistentDisk', 'portworxVolume', 'azureDisk',
           'storageos', 'projected', 'scaleIO', 'csi', 'ephemeral', 'image')


def problems(spec: Fields, place: str) -> Iterator[Cause]:
    """Everything that is known to be wrong with the specification of a pod."""
    volumes: set[Any] = set()
    for index, volume in enumerate(maps(spec.get('volumes'))):
        yield from _volume(volume, f'{place}.volumes[{index}]', volumes)
    if not spec.get('containers'):
        yield value_required(f'{place}.containers')
    seen: set[Any] = set()
    for key in ('containers', 'initContainers'):
        for index, container in enumerate(maps(spec.get(key))):
            yield from _container(container, f'{place}.{key}[{index}]', seen, volumes)
    yield from podparts.of_pod(spec, place)
    yield from one_of(spec, 'restartPolicy', place, ('Always', 'OnFailure', 'Never'))
    yield from one_of(spec, 'dnsPolicy', place, ('ClusterFirstWithHostNet', 'ClusterFirst', 'Default', 'None'))
    seconds = spec.get('activeDeadlineSeconds')
    if seconds is not None and not 1 <= seconds <= 2147483647:
        yield value_invalid(f'{place}.activeDeadlineSeconds', str(seconds),
                            'must be between 1 and 2147483647, inclusive')


def one_of(body: Fields, key: str, place: str, words: Iterable[str]) -> Iterator[Cause]:
    """A complaint if the field has a value that is none of the words."""
    value = body.get(key)
    if value is not None and value not in words:
        yield value_unsupported(f'{place}.{key}', text(value), map(text, words))


def _volume(volume: Fields, place: str, seen: set[Any]) -> Iterator[Cause]:
    name = volume.get('name') or ''
    yield from _label(name, f'{place}.name', seen)
    seen.add(name)
    yield from podparts.of_volume(volume, place)
    sources = [key for key in volume if key != 'name']
    for key in sorted(sources, key=lambda key: SOURCES.index(key) if key in SOURCES else len(SOURCES))[1:]:
        yield value_forbidden(f'{place}.{key}', 'may not specify more than 1 volume type')


def _container(container: Fields, place: str, seen: set[Any], volumes: set[Any]) -> Iterator[Cause]:
    name = container.get('name') or ''
    yield from _label(name, f'{place}.name', seen)
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
            yield value_invalid(where, text(name), 'a valid environment variable name must consist only of printable '
                                                   "ASCII characters other than '='")
    yield from podparts.of_container(container, place)
    yield from _mounts(container, place, volumes)
    yield from one_of(container, 'imagePullPolicy', place, ('Always', 'IfNotPresent', 'Never'))


def _mounts(container: Fields, where: str, volumes: set[Any]) -> Iterator[Cause]:
    for index, mount in enumerate(maps(container.get('volumeMounts'))):
        place = f'{where}.volumeMounts[{index}]'
        if not (name := mount.get('name')):
            yield value_required(f'{place}.name')
        if name not in volumes:
            yield Cause(f'{place}.name', 'FieldValueNotFound', f'Not found: {text(name or "")}')
        if not mount.get('mountPath'):
            yield value_required(f'{place}.mountPath')


def _label(name: str, place: str, seen: Iterable[Any]) -> Iterator[Cause]:
    if not name:
        yield value_required(place)
        return
    for problem in names.label_problems(name):
        yield value_invalid(place, text(name), problem)
    if name in seen:
        yield Cause(place, 'FieldValueDuplicate', f'Duplicate value: {text(name)}')
