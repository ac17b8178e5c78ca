"""Users with their groups, their tokens and certificates, and impersonation."""

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from kopf._kits.testing.wire import statuses

MASTERS = 'system:masters'
AUTHENTICATED, UNAUTHENTICATED = 'system:authenticated', 'system:unauthenticated'
CREDENTIAL = 'authentication.kubernetes.io/credential-id'


@dataclasses.dataclass(frozen=True)
class User:
    """A user of the API; only service accounts and impersonated users have a ``uid`` and ``extra``."""

    name: str = 'sandbox'
    groups: tuple[str, ...] = (MASTERS, AUTHENTICATED)
    uid: str = ''
    extra: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def as_info(self) -> dict[str, Any]:
        """Return the ``UserInfo`` in reviews."""
        info = {'username': self.name, 'uid': self.uid, 'groups': list(self.groups), 'extra': dict(self.extra)}
        return {key: value for key, value in info.items() if value}


ANONYMOUS = User('system:anonymous', (UNAUTHENTICATED,))


def service_account(namespace: str, name: str, uid: str = '') -> User:
    """Return the user of a service account."""
    return User(f'system:serviceaccount:{namespace}:{name}', account_groups(namespace), uid)


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of the service accounts of a namespace."""
    return ('system:serviceaccounts', f'system:serviceaccounts:{namespace}', AUTHENTICATED)


def split_account(name: str) -> tuple[str, str] | None:
    """Return the namespace and name of a service account from the name of its user; None for all other users."""
    parts = name.removeprefix('system:serviceaccount:').split(':')
    return (parts[0], parts[1]) if name.startswith('system:serviceaccount:') and len(parts) == 2 else None


class Tokens:
    """The tokens that have been issued; some of them expire."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[User, float | None]] = {}

    def issue(self, user: User, token: str = '', seconds: float | None = None) -> str:
        """Issue a token for the user and return it; by default, it is random and does not expire."""
        token = token or secrets.token_urlsafe(24)
        self._tokens[token] = user, None if seconds is None else time.time() + seconds
        return token

    def lookup(self, token: str) -> User | None:
        """Return the user, or None if the token is not known or has expired."""
        user, until = self._tokens.get(token, (None, None))
        return user if until is None or time.time() < until else None

    def clear(self) -> None:
        """Forget all tokens."""
        self._tokens.clear()


def authenticate(
    headers: Mapping[str, str],
    certificate: Mapping[str, Any] | None,
    lookup: Callable[[str], User | None],
) -> User:
    """Return the user who sends a request; raise a 401 if the credentials are not known."""
    scheme, _, token = headers.get('authorization', '').partition(' ')
    if scheme.lower() == 'bearer':
        user = lookup(token.strip())
        if user is None:
            raise statuses.unauthorized()
        return user
    return _read_certificate(certificate) if certificate else ANONYMOUS


def _read_certificate(certificate: Mapping[str, Any]) -> User:
    pairs = [pair for group in certificate.get('subject', ()) for pair in group]
    name = next((value for key, value in pairs if key == 'commonName'), '')
    groups = tuple(value for key, value in pairs if key == 'organizationName')
    return User(name, (*groups, AUTHENTICATED))


def find_impersonated(headers: Mapping[str, str]) -> User | None:
    """Return the user that the headers ask to impersonate, if any; raise a 400 if they do not name one."""
    name, uid = headers.get('impersonate-user', ''), headers.get('impersonate-uid', '')
    groups = tuple(filter(None, headers.get('impersonate-group', '').split('\n')))
    prefix = 'impersonate-extra-'
    extra = {
        unquote(key.removeprefix(prefix)): tuple(value.split('\n'))
        for key, value in headers.items()
        if key.startswith(prefix)
    }
    # Why not ignore them? A client that loses the name would act with its own rights, which can be more.
    if not name and (uid or groups or extra):
        listed = f'[]string{{{", ".join(quoted(group) for group in groups)}}}' if groups else '[]string(nil)'
        extras = ', '.join(
            f'{quoted(key)}:[]string{{{", ".join(map(quoted, values))}}}' for key, values in extra.items()
        )
        mapping = f'map[string][]string{{{extras}}}' if extra else 'map[string][]string(nil)'
        raise statuses.bad_request(
            f'requested &user.DefaultInfo{{Name:"", UID:"{uid}", Groups:{listed}, '
            f'Extra:{mapping}}} without impersonating a user name'
        )
    return User(name, groups, uid, extra) if name else None


def quoted(text: str) -> str:
    """Return a text in quotes, as Go writes it."""
    escaped = text.replace('\\', '\\\\').replace('"', '\\"')
    return f'"{escaped}"'
