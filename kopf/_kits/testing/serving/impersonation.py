"""
Impersonation (``kubectl --as``): whether a user may act as another user, and with which groups.

Since Kubernetes 1.36, there are several verbs to allow it. The old verb ``impersonate`` permits everything that the
other user may do; the newer verbs are for one action. They are tried one after another, beginning with the last
successful one. If all fail, the first refusal is reported.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kopf._kits.testing.access import permissions, users
from kopf._kits.testing.access.permissions import Attributes, Authorizer
from kopf._kits.testing.access.users import User
from kopf._kits.testing.wire import names, statuses

AUTHENTICATION = 'authentication.k8s.io'
NODE = 'system:node:'


class Mode(NamedTuple):
    """One way to allow impersonation: the suffix of the verbs (empty for the old verb), and which users it is for."""

    suffix: str
    applies: Callable[[User], bool]


def _is_node(user: User) -> bool:
    return user.name.startswith(NODE) and not names.subdomain_problems(user.name.removeprefix(NODE))


def _is_account(user: User) -> bool:
    return users.split_account(user.name) is not None


def _is_bare(user: User) -> bool:
    return not (user.uid or user.groups or user.extra)


MODES = (
    Mode('arbitrary-node', lambda user: _is_bare(user) and _is_node(user)),
    Mode('serviceaccount', lambda user: _is_bare(user) and _is_account(user)),
    Mode('user-info', lambda user: not _is_node(user) and not _is_account(user)),
    Mode('', lambda user: True),
)


class Impersonation:
    """The checks of impersonation; it remembers the last successful mode of each user."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._successful: dict[str, Mode] = {}

    def act_as(self, user: User, headers: Mapping[str, str], attributes: Attributes) -> User:
        """Return the user that the headers name, or else the authenticated one; raise a 403 if that is not allowed."""
        wanted = users.find_impersonated(headers)
        if wanted is None:
            return user
        last = self._successful.get(user.name)
        modes = [*([last] if last is not None else ()), *(mode for mode in MODES if mode is not last)]
        refusals = []
        for mode in modes:
            if mode.applies(wanted):
                try:
                    self._check(mode, user, wanted, attributes)
                except statuses.Refusal as refusal:
                    refusals.append(refusal)
                    continue
                self._successful[user.name] = mode
                return _complete(wanted, node=bool(mode.suffix) and _is_node(wanted))
        raise refusals[0]

    def _check(self, mode: Mode, user: User, wanted: User, attributes: Attributes) -> None:
        verb, group = 'impersonate', ''
        if mode.suffix:
            verb, group = f'impersonate:{mode.suffix}', AUTHENTICATION
            # The newer verbs need two permissions: to act as this user at all, and to do it for this action.
            on = attributes._replace(verb=f'impersonate-on:{mode.suffix}:{attributes.verb}')
            permissions.check(self._authorizer, user, on)
        place = users.split_account(wanted.name)
        if place is not None:
            who = Attributes(verb, group, 'serviceaccounts', namespace=place[0], name=place[1])
        elif mode.suffix and _is_node(wanted):
            who = Attributes(verb, group, 'nodes', name=wanted.name.removeprefix(NODE))
        else:
            who = Attributes(verb, group, 'users', name=wanted.name)
        permissions.check(self._authorizer, user, who)
        if wanted.uid:
            permissions.check(self._authorizer, user, Attributes(verb, AUTHENTICATION, 'uids', name=wanted.uid))
        for name in wanted.groups:
            asked = Attributes(verb, group, 'groups', name=name)
            if mode.suffix and name == users.MASTERS:
                raise asked.forbidden(user, 'impersonating the system:masters group is not allowed')
            permissions.check(self._authorizer, user, asked)
        for key, values in wanted.extra.items():
            for value in values:
                asked = Attributes(verb, AUTHENTICATION, 'userextras', key, '', value)
                permissions.check(self._authorizer, user, asked)


def _complete(wanted: User, *, node: bool) -> User:
    """Return the user with the groups that follow from the user's name."""
    groups = wanted.groups
    if not groups and (place := users.split_account(wanted.name)) is not None:
        groups = users.account_groups(place[0])
    if node:
        groups = ('system:nodes',)
    if wanted.name == users.ANONYMOUS.name:
        groups = _with(groups, users.UNAUTHENTICATED)
    elif users.UNAUTHENTICATED not in groups:
        groups = _with(groups, users.AUTHENTICATED)
    return dataclasses.replace(wanted, groups=groups)


def _with(groups: tuple[str, ...], group: str) -> tuple[str, ...]:
    return groups if group in groups else (*groups, group)
