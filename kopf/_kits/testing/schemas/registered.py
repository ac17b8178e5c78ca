"""
The kinds that a real server knows by itself, and what it says of an object of another kind than was expected.
"""

from kopf._kits.testing.kinds import recordings
from kopf._kits.testing.kinds.kinds import Kind

SCHEME = 'pkg/runtime/scheme.go:111'

#: The groups that are served by servers of their own inside of a real one.
_APART = ('apiextensions.k8s.io', 'apiregistration.k8s.io')
#: What there is in all versions of all groups.
_EVERYWHERE = frozenset(
    {
        'Status',
        'APIVersions',
        'APIGroup',
        'APIGroupList',
        'APIResourceList',
        'WatchEvent',
        'ListOptions',
        'GetOptions',
        'DeleteOptions',
        'CreateOptions',
        'UpdateOptions',
        'PatchOptions',
    }
)


def is_known(api_version: str, name: str, wanted: Kind) -> bool:
    """Whether the server that has the wanted kind knows what such an object consists of."""
    group, _, version = api_version.rpartition('/')
    apart = [each if each in _APART else '' for each in (group, wanted.group)]
    if apart[0] != apart[1]:
        return False
    known = recordings.newest()
    return known.name_of(group, version, name) is not None or (
        name in _EVERYWHERE and known.has_version(group, version)
    )


def complaint(api_version: str, name: str, wanted: Kind) -> str:
    """Why an object of some kind cannot be one of the wanted kind."""
    if is_known(api_version, name, wanted):
        version = api_version.rpartition('/')[2]
        return f'converting ({version}.{name}) to ({wanted.package}.{wanted.name}): unknown conversion'
    return f'no kind "{name}" is registered for version "{api_version}" in scheme "{SCHEME}"'
