"""The name of this machine as people would recognise it, for the identities of operators.

A machine has many names, and the easiest to get are often the worst: ``localhost``, an IP address, a reverse record
such as ``1.0.0.127.in-addr.arpa``. Inside of a cluster the plain host name is the name of the pod: good enough.
"""
import ipaddress
import socket


def get_descriptive_hostname() -> str:
    """Return the most telling name of this host: the fully qualified one if it is a real one, else the plain one."""
    candidates = [socket.getfqdn(), socket.gethostname()]
    return next((name for name in candidates if _is_telling(name)), candidates[-1]) or 'localhost'


def _is_telling(name: str) -> bool:
    if not name or name.startswith('localhost') or name.endswith(('.arpa', '.local')):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False
