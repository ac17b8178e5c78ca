"""
Roles and bindings: their validation, the prevention of privilege escalation, and aggregated roles.

With RBAC, users cannot grant permissions that they do not have.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from kopf._kits.testing.access import users
from kopf._kits.testing.access.permissions import GROUP, Attributes, Rbac, Rule, check
from kopf._kits.testing.access.users import User
from kopf._kits.testing.kinds.kinds import Body, Kind
from kopf._kits.testing.wire import statuses
from kopf._kits.testing.wire.statuses import Cause

ROLES, BINDINGS = ('roles', 'clusterroles'), ('rolebindings', 'clusterrolebindings')
EVERYTHING: Sequence[Rule] = (
    {'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']},
    {'verbs': ['*'], 'nonResourceURLs': ['*']},
)


def complete(body: Body, kind: Kind) -> None:
    """Fill in the omitted fields of a role or a binding."""
    if kind.plural in ROLES:
        body['rules'] = body.get('rules') or None
        return
    reference = body.get('roleRef')
    if isinstance(reference, dict) and not reference.get('apiGroup'):
        reference['apiGroup'] = GROUP
    for subject in body.get('subjects') or ():
        if isinstance(subject, dict) and subject.get('kind') in ('User', 'Group') and not subject.get('apiGroup'):
            subject['apiGroup'] = GROUP


def problems(body: Body, kind: Kind) -> Iterator[Cause]:
    """Yield all errors of a role or a binding."""
    if kind.plural in ROLES:
        for index, rule in enumerate(body.get('rules') or ()):
            yield from _rule_problems(rule, f'rules[{index}]', namespaced=kind.namespaced)
        aggregation = body.get('aggregationRule')
        if aggregation is not None and not aggregation.get('clusterRoleSelectors'):
            yield statuses.value_required(
                'aggregationRule.clusterRoleSelectors',
                'at least one clusterRoleSelector required if aggregationRule is non-nil',
            )
        return
    reference = body.get('roleRef') or {}
    kinds = ('Role', 'ClusterRole') if kind.namespaced else ('ClusterRole',)
    if (group := reference.get('apiGroup') or GROUP) != GROUP:
        yield statuses.value_unsupported('roleRef.apiGroup', f'"{group}"', [f'"{GROUP}"'])
    if (word := reference.get('kind', '')) not in kinds:
        yield statuses.value_unsupported('roleRef.kind', f'"{word}"', [f'"{known}"' for known in kinds])
    if not reference.get('name'):
        yield statuses.value_required('roleRef.name')
    for index, subject in enumerate(body.get('subjects') or ()):
        yield from _subject_problems(subject, f'subjects[{index}]', namespaced=kind.namespaced)


def _rule_problems(rule: Rule, place: str, *, namespaced: bool) -> Iterator[Cause]:
    if not rule.get('verbs'):
        yield statuses.value_required(f'{place}.verbs', 'verbs must contain at least one value')
    if paths := rule.get('nonResourceURLs'):
        text = orjson.dumps(paths).decode()
        if namespaced:
            yield statuses.value_invalid(
                f'{place}.nonResourceURLs', text, 'namespaced rules cannot apply to non-resource URLs'
            )
        if rule.get('apiGroups') or rule.get('resources') or rule.get('resourceNames'):
            yield statuses.value_invalid(
                f'{place}.nonResourceURLs', text, 'rules cannot apply to both regular resources and non-resource URLs'
            )
        return
    if not rule.get('apiGroups'):
        yield statuses.value_required(f'{place}.apiGroups', 'resource rules must supply at least one api group')
    if not rule.get('resources'):
        yield statuses.value_required(f'{place}.resources', 'resource rules must supply at least one resource')


def _subject_problems(subject: Mapping[str, str], place: str, *, namespaced: bool) -> Iterator[Cause]:
    if not subject.get('name'):
        yield statuses.value_required(f'{place}.name')
    match subject.get('kind', ''):
        case 'ServiceAccount':
            if not namespaced and not subject.get('namespace'):
                yield statuses.value_required(f'{place}.namespace')
        case 'User' | 'Group':
            if (group := subject.get('apiGroup') or GROUP) != GROUP:
                yield statuses.value_unsupported(f'{place}.apiGroup', f'"{group}"', [f'"{GROUP}"'])
        case other:
            yield statuses.value_unsupported(f'{place}.kind', f'"{other}"', ['"ServiceAccount"', '"User"', '"Group"'])


def change_problems(body: Body, old: Body, kind: Kind) -> Iterator[Cause]:
    """Yield the errors of a change of a binding: its role is immutable."""
    new = body.get('roleRef') or {}
    if kind.plural in BINDINGS and new != (old.get('roleRef') or {}):
        text = orjson.dumps(
            {'APIGroup': new.get('apiGroup', ''), 'Kind': new.get('kind', ''), 'Name': new.get('name', '')}
        ).decode()
        yield statuses.value_invalid('roleRef', text, 'cannot change roleRef')


class Guard:
    """Checks whether users may write roles and bindings, or create objects by updates and applies."""

    def __init__(self, rbac: Rbac) -> None:
        self._rbac = rbac

    def check(self, kind: Kind, namespace: str, body: Body, old: Body | None, user: User) -> None:
        """Refuse (403) to grant permissions that the user does not have."""
        # Permit writes that grant nothing new: otherwise, users without these permissions could not even edit the
        # labels.
        if kind.group != GROUP or users.MASTERS in user.groups or (old is not None and _is_same(body, old)):
            return
        name = body['metadata'].get('name', '')
        if kind.plural in ROLES:
            wanted = Attributes('escalate', GROUP, kind.plural, '', namespace, name if old is not None else '')
            if self._rbac.decide(user, wanted).allowed:
                return
            self._check_rules(kind, namespace, name, body.get('rules') or (), user)
            selectors = [(version or {}).get('aggregationRule') or {} for version in (body, old)]
            if any(item.get('clusterRoleSelectors') for item in selectors):
                self._check_rules(
                    kind,
                    namespace,
                    name,
                    EVERYTHING,
                    user,
                    'must have cluster-admin privileges to use the aggregationRule',
                )
            return
        reference = body.get('roleRef') or {}
        plural = {'Role': 'roles', 'ClusterRole': 'clusterroles'}.get(reference.get('kind', ''), '')
        wanted = Attributes('bind', reference.get('apiGroup', ''), plural, '', namespace, reference.get('name', ''))
        if plural and self._rbac.decide(user, wanted).allowed:
            return
        rules = self._rbac.role_rules(reference, namespace)
        if rules is None:
            raise statuses.not_found(GROUP, kind.plural, reference.get('name', ''))
        self._check_rules(kind, namespace, name, rules, user)

    def check_creation(self, kind: Kind, namespace: str, name: str, user: User) -> None:
        """Refuse (403) to create an object by an update or apply if the user may not create it."""
        check(self._rbac, user, Attributes('create', kind.group, kind.plural, '', namespace, name))

    def _check_rules(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        rules: Iterable[Rule],
        user: User,
        why: str = '',
    ) -> None:
        held, errors = self._rbac.rules(user, namespace)
        missing = [rule for rule in _atoms(rules) if not any(_covers(own, rule) for own in held)]
        if not missing:
            return
        if not why:
            groups = ' '.join(users.quoted(group) for group in user.groups)
            listed = '\n'.join(sorted(set(_compact(missing))))
            why = (
                f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
                f'\n{listed}' + (f'; resolution errors: [{errors}]' if errors else '')
            )
        raise statuses.forbidden(GROUP, kind.plural, name, why)


def _is_same(body: Body, old: Body) -> bool:
    """Check whether both objects are equal except for the fields that the garbage collector changes."""

    def rest(version: Body) -> dict[str, Any]:
        meta = {
            key: value
            for key, value in version['metadata'].items()
            if key not in ('ownerReferences', 'finalizers', 'managedFields')
        }
        return {**version, 'metadata': meta}

    return rest(body) == rest(old)


def _atoms(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield the rules split into atoms: rules for one verb and one resource or path."""
    for rule in rules:
        for group in rule.get('apiGroups') or ():
            for resource in rule.get('resources') or ():
                for verb in rule.get('verbs') or ():
                    atom = {'apiGroups': [group], 'resources': [resource], 'verbs': [verb]}
                    names = rule.get('resourceNames')
                    yield from ({**atom, 'resourceNames': [name]} for name in names) if names else (atom,)
        for path in rule.get('nonResourceURLs') or ():
            for verb in rule.get('verbs') or ():
                yield {'nonResourceURLs': [path], 'verbs': [verb]}


def _covers(held: Rule, atom: Rule) -> bool:
    if not {'*', *atom['verbs']} & set(held.get('verbs') or ()):
        return False
    if paths := atom.get('nonResourceURLs'):
        return any(
            path in ('*', paths[0]) or (path.endswith('*') and paths[0].startswith(path[:-1]))
            for path in held.get('nonResourceURLs') or ()
        )
    (resource,), names = atom['resources'], held.get('resourceNames')
    allowed = {'*', resource, *([f'*/{resource.partition("/")[2]}'] if '/' in resource else ())}
    return bool(
        {'*', *atom['apiGroups']} & set(held.get('apiGroups') or ())
        and allowed & set(held['resources'])
        and (not names or set(atom.get('resourceNames') or [None]) <= set(names))
    )


def _compact(atoms: Iterable[Rule]) -> Iterator[str]:
    """Yield the texts of the atoms; the verbs of the same resource are joined."""
    together: dict[str, dict[str, Any]] = {}
    for atom in atoms:
        key = orjson.dumps({**atom, 'verbs': []}).decode()
        if 'nonResourceURLs' in atom:
            key += atom['verbs'][0]
        found = together.setdefault(key, {**atom, 'verbs': []})
        found['verbs'] = [*found['verbs'], *atom['verbs']]
    parts = (
        ('APIGroups', 'apiGroups'),
        ('Resources', 'resources'),
        ('NonResourceURLs', 'nonResourceURLs'),
        ('ResourceNames', 'resourceNames'),
        ('Verbs', 'verbs'),
    )
    for rule in together.values():
        texts = [f'{word}:[{" ".join(users.quoted(item) for item in rule[key])}]' for word, key in parts if key in rule]
        yield f'{{{", ".join(texts)}}}'


def aggregated(body: Body, others: Iterable[Body]) -> list[Rule]:
    """Return the rules of an aggregated role: those of the roles that it selects, in the order of their names."""
    rules: list[Rule] = []
    for selector in body['aggregationRule'].get('clusterRoleSelectors') or ():
        for other in others:
            name, labels = other['metadata']['name'], other['metadata'].get('labels') or {}
            if name != body['metadata']['name'] and _selects(selector, labels):
                rules += [rule for rule in other.get('rules') or () if rule not in rules]
    return rules


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for key, value in (selector.get('matchLabels') or {}).items():
        if labels.get(key) != value:
            return False
    for item in selector.get('matchExpressions') or ():
        value, values = labels.get(item.get('key', '')), item.get('values') or ()
        match item.get('operator'):
            case 'In' if value not in values:
                return False
            case 'NotIn' if value in values:
                return False
            case 'Exists' if value is None:
                return False
            case 'DoesNotExist' if value is not None:
                return False
    return True
