"""
The rules of volumes, and of their mounts and devices in containers.

The messages, the order and the paths of errors are those of a real server, including its bugs: in some errors of
mounts, the path does not have the number of the mount.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

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

Volumes: TypeAlias = dict[str, Fields]

_ORDER = (
    'emptyDir',
    'hostPath',
    'gitRepo',
    'gcePersistentDisk',
    'awsElasticBlockStore',
    'secret',
    'nfs',
    'iscsi',
    'glusterfs',
    'flocker',
    'persistentVolumeClaim',
    'rbd',
    'cinder',
    'cephfs',
    'quobyte',
    'downwardAPI',
    'fc',
    'configMap',
    'azureFile',
    'vsphereVolume',
    'photonPersistentDisk',
    'portworxVolume',
    'azureDisk',
    'storageos',
    'projected',
    'scaleIO',
    'csi',
    'ephemeral',
    'image',
)
"""The most common sources of volumes, in the order in which the server checks them."""

_REQUIRED = {'hostPath': 'path', 'secret': 'secretName', 'persistentVolumeClaim': 'claimName', 'configMap': 'name'}
"""The one field of each source that the server requires."""

_PROPAGATIONS = ('Bidirectional', 'HostToContainer', 'None')


def claimed_volumes(claims: Sequence[Fields], volumes: Sequence[Fields]) -> Sequence[Fields]:
    """Return the volumes of a StatefulSet's pods; volumes of its claims replace others with the same names."""
    claimed = {
        name: {'name': name, 'persistentVolumeClaim': {'claimName': name}}
        for claim in claims
        for name in [(claim.get('metadata') or {}).get('name') or '']
    }
    return [*claimed.values(), *(volume for volume in volumes if volume.get('name') not in claimed)]


def volume_problems(volumes: Sequence[Fields], place: str, known: Volumes) -> Iterator[Cause]:
    """Yield all errors of the volumes of a pod; add those that containers can mount to ``known``."""
    for index, volume in enumerate(volumes):
        where, name = f'{place}[{index}]', volume.get('name') or ''
        causes = [*_source_problems(volume, where), *label_problems(name, f'{where}.name', known)]
        if not causes:
            known[name] = volume
        yield from causes


def _source_problems(volume: Fields, place: str) -> Iterator[Cause]:
    sources = sorted(
        (key for key in volume if key != 'name'), key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER)
    )
    for number, key in enumerate(sources):
        if number:
            yield value_forbidden(f'{place}.{key}', 'may not specify more than 1 volume type')
        elif (field := _REQUIRED.get(key)) is not None and not volume[key].get(field):
            yield value_required(f'{place}.{key}.{field}')


def label_problems(name: str, place: str, seen: Container[Any]) -> Iterator[Cause]:
    """Yield all errors of the name of a volume or of a container."""
    if not name:
        yield value_required(place)
        return
    for problem in names.label_problems(name):
        yield value_invalid(place, text(name), problem)
    if name in seen:
        yield Cause(place, 'FieldValueDuplicate', f'Duplicate value: {text(name)}')


def mount_problems(container: Fields, place: str, volumes: Volumes) -> Iterator[Cause]:
    """Yield all errors of the mounts and devices of a container."""
    mounts, devices = list(maps(container.get('volumeMounts'))), list(maps(container.get('volumeDevices')))
    privileged = bool((container.get('securityContext') or {}).get('privileged'))
    paths: set[Any] = set()
    for index, mount in enumerate(mounts):
        where, path = f'{place}.volumeMounts[{index}]', mount.get('mountPath') or ''
        if not mount.get('name'):
            yield value_required(f'{where}.name')
        if mount.get('name') not in volumes:
            yield _not_found(mount, where)
        if not path:
            yield value_required(f'{where}.mountPath')
        if path in paths:
            yield value_invalid(f'{where}.mountPath', text(path), 'must be unique')
        paths.add(path)
        yield from _overlaps(mount, 'mountPath', where, devices, 'devicePath', 'volumeDevices')
        yield from _option_problems(mount, f'{place}.volumeMounts', where, privileged=privileged)
    taken: dict[str, set[Any]] = {'name': set(), 'devicePath': set()}
    for index, device in enumerate(devices):
        where = f'{place}.volumeDevices[{index}]'
        yield from _device_problems(device, where, volumes, taken)
        yield from _overlaps(device, 'devicePath', where, mounts, 'mountPath', 'volumeMounts')


def _device_problems(
    device: Fields,
    place: str,
    volumes: Volumes,
    taken: Mapping[str, set[Any]],
) -> Iterator[Cause]:
    name, path = device.get('name') or '', device.get('devicePath') or ''
    volume = volumes.get(name)
    if not name:
        yield value_required(f'{place}.name')
    if name in taken['name']:
        yield value_invalid(f'{place}.name', text(name), 'must be unique')
    if volume is None:
        yield _not_found(device, place)
    elif 'persistentVolumeClaim' not in volume and 'ephemeral' not in volume:
        yield value_invalid(
            f'{place}.name',
            text(name),
            'can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode',
        )
    if not path:
        yield value_required(f'{place}.devicePath')
    if path in taken['devicePath']:
        yield value_invalid(f'{place}.devicePath', text(path), 'must be unique')
    if '..' in path.split('/'):
        yield value_invalid(f'{place}.devicePath', text(path), "can not contain backsteps ('..')")
    else:
        taken['devicePath'].add(path)
    if name:
        taken['name'].add(name)


def _not_found(user: Fields, place: str) -> Cause:
    return Cause(f'{place}.name', 'FieldValueNotFound', f"Not found: {text(user.get('name') or '')}")


def _overlaps(
    user: Fields,
    field: str,
    place: str,
    others: Sequence[Fields],
    their_field: str,
    where: str,
) -> Iterator[Cause]:
    name, path = user.get('name') or '', user.get(field) or ''
    if any((other.get('name') or '') == name for other in others):
        yield value_invalid(f'{place}.name', text(name), f'must not already exist in {where}')
    if any((other.get(their_field) or '') == path for other in others):
        yield value_invalid(f'{place}.{field}', text(path), f'must not already exist as a path in {where}')


def _option_problems(mount: Fields, place: str, where: str, *, privileged: bool) -> Iterator[Cause]:
    for key in ('subPath', 'subPathExpr'):
        path = mount.get(key) or ''
        if key == 'subPathExpr' and path and mount.get('subPath'):
            yield value_invalid(f'{where}.{key}', text(path), 'subPathExpr and subPath are mutually exclusive')
        if path.startswith('/'):
            yield value_invalid(f'{place}.{key}', text(path), 'must be a relative path')
        if '..' in path.split('/'):
            yield value_invalid(f'{place}.{key}', text(path), "must not contain '..'")
    propagation = mount.get('mountPropagation')
    if propagation is not None and propagation not in _PROPAGATIONS:
        yield value_unsupported(f'{place}.mountPropagation', text(propagation), map(text, _PROPAGATIONS))
    if propagation == 'Bidirectional' and not privileged:
        yield value_forbidden(
            f'{place}.mountPropagation', 'Bidirectional mount propagation is available only to privileged containers'
        )
    if mount.get('recursiveReadOnly') not in (None, 'Disabled') and not mount.get('readOnly'):
        yield value_forbidden(f'{place}.recursiveReadOnly', 'may only be specified when readOnly is true')
