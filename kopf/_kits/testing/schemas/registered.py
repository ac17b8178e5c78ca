"""The kinds that are compiled into a real server, and its messages about objects of an unexpected kind."""

from kopf._kits.testing.kinds import recordings
from kopf._kits.testing.kinds.kinds import Kind

SCHEME = 'pkg/runtime/scheme.go:111'

_APART = ('apiextensions.k8s.io', 'apiregistration.k8s.io')
"""The groups that a real server delegates to other servers in the same process."""
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
"""The kinds that are present in all versions of all groups."""


def is_known(api_version: str, name: str, wanted: Kind) -> bool:
    """Check whether the server that serves the wanted kind also knows the kind with this name and API version."""
    group, _, version = api_version.rpartition('/')
    apart = [each if each in _APART else '' for each in (group, wanted.group)]
    if apart[0] != apart[1]:
        return False
    known = recordings.newest()
    return known.name_of(group, version, name) is not None or (
        name in _EVERYWHERE and known.has_version(group, version)
    )


def complaint(api_version: str, name: str, wanted: Kind) -> str:
    """Return the error about an object of this kind in a place where an object of the wanted kind is expected."""
    if is_known(api_version, name, wanted):
        version = api_version.rpartition('/')[2]
        return f'converting ({version}.{name}) to ({wanted.package}.{wanted.name}): unknown conversion'
    return f'no kind "{name}" is registered for version "{api_version}" in scheme "{SCHEME}"'
