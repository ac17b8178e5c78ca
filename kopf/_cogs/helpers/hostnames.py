"""
The name of this machine that people recognise, for the identities of operators.

A machine has many names, and the first ones found are often useless: ``localhost``, an IP address, a reverse record
such as ``1.0.0.127.in-addr.arpa``. Inside a cluster, the plain host name is the name of the pod, which is good enough.

The choice is the same as upstream's: ``kopf resume`` of one package must find the peering record that ``kopf freeze``
of the other package has created.
"""

import ipaddress
import socket

_SUFFIXES = ('.local', '.localdomain')
"""The suffixes of machines in networks without a domain name of their own; they are cut off."""


def get_descriptive_hostname() -> str:
    """Return the most descriptive name of this host: the first with a domain, else the first, else the plain one."""
    hostname = socket.gethostname()
    try:
        name, aliases, addresses = socket.gethostbyaddr(hostname)
    # Names that no DNS server knows, and host names with parts that are too long for the encoding of names.
    except (OSError, UnicodeError):
        names = []
    else:
        names = [candidate for candidate in [name, *aliases, *addresses] if _is_telling(candidate)]
    chosen = next((name for name in names if '.' in name), names[0] if names else hostname)
    while chosen.endswith(_SUFFIXES):
        chosen = chosen.rpartition('.')[0]
    return chosen or 'localhost'


def _is_telling(name: str) -> bool:
    if not name or name == 'localhost' or name.endswith('.arpa'):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False
