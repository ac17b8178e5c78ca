"""
Authorization: either all users may do everything, or the roles and bindings of the cluster decide (RBAC).

Each request is described by its `Attributes` before anything is looked up, so that a refusal does not disclose what
exists. With RBAC, the rules of a user are cached until any role or binding changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kopf._kits.testing.access import users
from kopf._kits.testing.access.users import User
from kopf._kits.testing.data import unpack
from kopf._kits.testing.kinds.storage import Change, Storage, Table
from kopf._kits.testing.wire import statuses

GROUP = 'rbac.authorization.k8s.io'
PLURALS = {
    'ClusterRole': 'clusterroles',
    'ClusterRoleBinding': 'clusterrolebindings',
    'Role': 'roles',
    'RoleBinding': 'rolebindings',
}

SAFE = {'X-Content-Type-Options': 'nosniff'}
"""The headers of refusals that prevent browsers from guessing another content type."""
OPEN_PATHS = frozenset({'/healthz', '/livez', '/readyz', '/version'})
"""The paths that unauthenticated users may read without RBAC. With RBAC, roles decide about all but `HEALTH_PATHS`."""
HEALTH_PATHS = frozenset({'/healthz', '/livez', '/readyz'})

Rule = Mapping[str, Any]


class Attributes(NamedTuple):
    """The action that a user requests: a verb with a resource, or with a path that is not a resource."""

    verb: str
    group: str = ''
    resource: str = ''
    subresource: str = ''
    namespace: str = ''
    name: str = ''
    path: str = ''

    @property
    def combined(self) -> str:
        """The resource with its subresource, as in rules: ``pods/status``."""
        return f'{self.resource}/{self.subresource}' if self.subresource else self.resource

    def forbidden(self, user: User, reason: str = '') -> statuses.Refusal:
        """Return the error 403: this user may not perform this action."""
        why = f': {reason}' if reason else ''
        if not self.resource:
            message = f'forbidden: User "{user.name}" cannot {self.verb} path "{self.path}"{why}'
            return statuses.Refusal(403, 'Forbidden', message, {}, headers=SAFE)
        scope = f'in the namespace "{self.namespace}"' if self.namespace else 'at the cluster scope'
        refusal = statuses.forbidden(
            self.group,
            self.resource,
            self.name,
            f'User "{user.name}" cannot {self.verb} resource "{self.combined}" '
            f'in API group "{self.group}" {scope}{why}',
        )
        refusal.headers.update(SAFE)
        return refusal


class Decision(NamedTuple):
    """The decision about an action; the reason names the rule that allows it, or the errors of bindings."""

    allowed: bool
    reason: str = ''


class Authorizer(Protocol):
    """Decides whether requests are allowed."""

    def decide(self, user: User, attributes: Attributes) -> Decision:
        """Decide whether the user may perform the action."""

    def rules(self, user: User, namespace: str) -> tuple[Sequence[Rule], str]:
        """Return all rules for the user in the namespace, and errors, such as bindings to absent roles."""


def check(authorizer: Authorizer, user: User, attributes: Attributes) -> None:
    """Raise the error 403 if the user may not perform the action."""
    decision = authorizer.decide(user, attributes)
    if not decision.allowed:
        raise attributes.forbidden(user, decision.reason)


class AllowAll:
    """Allows everything to all authenticated users."""

    def decide(self, user: User, attributes: Attributes) -> Decision:
        """See `Authorizer`."""
        return Decision(user.name != users.ANONYMOUS.name or attributes.path.rstrip('/') in OPEN_PATHS)

    def rules(self, user: User, namespace: str) -> tuple[Sequence[Rule], str]:
        """See `Authorizer`."""
        return (
            {'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']},
            {'verbs': ['*'], 'nonResourceURLs': ['*']},
        ), ''


class Granted(NamedTuple):
    """One rule that applies to a user, and the binding that has granted it."""

    rule: Rule
    source: str


class Rbac:
    """Decides by the roles and bindings in the storage; members of ``system:masters`` may do everything."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._granted: dict[tuple[str, tuple[str, ...], str], tuple[list[Granted], list[str]]] = {}
        storage.observers.append(self._observe)

    def decide(self, user: User, attributes: Attributes) -> Decision:
        """See `Authorizer`."""
        if users.MASTERS in user.groups or attributes.path in HEALTH_PATHS:
            return Decision(True)
        granted, errors = self._granted_to(user, attributes.namespace)
        for rule, source in granted:
            if allows(rule, attributes):
                return Decision(True, f'RBAC: allowed by {source}')
        return Decision(False, f'RBAC: {_together(errors)}' if errors else '')

    def rules(self, user: User, namespace: str) -> tuple[Sequence[Rule], str]:
        """See `Authorizer`."""
        granted, errors = self._granted_to(user, namespace)
        return [rule for rule, _ in granted], _together(errors)

    def role_rules(self, reference: Mapping[str, str], namespace: str) -> list[Rule] | None:
        """Return the rules of the role that a binding names; None if the role does not exist."""
        kind, name = reference.get('kind', ''), reference.get('name', '')
        if kind not in ('Role', 'ClusterRole'):
            return None
        table = self._storage.table(GROUP, PLURALS[kind])
        record = table.get(namespace if kind == 'Role' else '', name)
        return (record.body().get('rules') or []) if record is not None else None

    def _observe(self, table: Table, change: Change) -> None:
        # Why forget the rules of all users? The users of a role are not easily found, and changes of roles are rare.
        if table.name.group == GROUP:
            self._granted.clear()

    def _granted_to(self, user: User, namespace: str) -> tuple[list[Granted], list[str]]:
        # Why not the name of the user alone? With impersonation, a user can have other groups in each request.
        key = user.name, user.groups, namespace
        if key not in self._granted:
            found: list[Granted] = []
            errors: list[str] = []
            for binding, subject in self._bindings(user, namespace):
                reference = binding['roleRef']
                own = binding['metadata'].get('namespace', '')
                rules = self.role_rules(reference, own)
                if rules is None:
                    word = statuses.qualified(GROUP, reference['kind'].lower())
                    errors.append(f'{word} "{reference["name"]}" not found')
                    continue
                source = _describe(binding, reference, subject, own)
                found += [Granted(rule, source) for rule in rules]
            self._granted[key] = found, errors
        return self._granted[key]

    def _bindings(self, user: User, namespace: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, str]]]:
        """Yield the bindings that apply to a user: those of the whole cluster, then those of the namespace."""
        records = list(self._storage.table(GROUP, 'clusterrolebindings').records())
        if namespace:
            records += self._storage.table(GROUP, 'rolebindings').records(namespace)
        for record in records:
            binding = record.body()
            for subject in binding.get('subjects') or ():
                if _is_subject(user, subject, record.namespace):
                    yield binding, subject
                    break  # other matching subjects would only repeat the rules


def allows(rule: Rule, attributes: Attributes) -> bool:
    """Check whether the rule allows the action."""
    if not _has(rule.get('verbs'), attributes.verb):
        return False
    if not attributes.resource:
        return any(_covers_path(path, attributes.path) for path in rule.get('nonResourceURLs') or ())
    names = rule.get('resourceNames')
    if not _has(rule.get('apiGroups'), attributes.group) or (names and attributes.name not in names):
        return False
    resources = rule.get('resources') or ()
    return (
        '*' in resources
        or attributes.combined in resources
        or (bool(attributes.subresource) and f'*/{attributes.subresource}' in resources)
    )


def recorded() -> list[dict[str, Any]]:
    """Return the roles and bindings that every cluster has from the beginning."""
    items: list[dict[str, Any]] = unpack('rbac.json.gz')
    return items


def _has(words: Sequence[str] | None, word: str) -> bool:
    return words is not None and ('*' in words or word in words)


def _covers_path(pattern: str, path: str) -> bool:
    return pattern in ('*', path) or (pattern.endswith('*') and path.startswith(pattern.rstrip('*')))


def _is_subject(user: User, subject: Mapping[str, str], namespace: str) -> bool:
    match subject.get('kind'):
        case 'User':
            return user.name == subject.get('name')
        case 'Group':
            return subject.get('name') in user.groups
        case 'ServiceAccount':
            place = subject.get('namespace') or namespace
            return bool(place) and user.name == f'system:serviceaccount:{place}:{subject.get("name")}'
    return False


def _describe(
    binding: Mapping[str, Any],
    reference: Mapping[str, str],
    subject: Mapping[str, str],
    namespace: str,
) -> str:
    name = (
        f'{subject["name"]}/{subject.get("namespace") or namespace}'
        if subject['kind'] == 'ServiceAccount'
        else subject['name']
    )
    word, own = (
        ('RoleBinding', f'{binding["metadata"]["name"]}/{namespace}')
        if namespace
        else ('ClusterRoleBinding', binding['metadata']['name'])
    )
    return f'{word} "{own}" of {reference["kind"]} "{reference["name"]}" to {subject["kind"]} "{name}"'


def _together(errors: Sequence[str]) -> str:
    """Return the errors as one text, joined as Go does it."""
    several = list(dict.fromkeys(errors))
    return several[0] if len(several) == 1 else f'[{", ".join(several)}]' if several else ''
