"""What happens to the operators of a soak: everything that changes in a cluster, all at once, each at its own pace.

A trouble is a function that does one thing once; `soak.py` repeats it in a thread of its own. What must be handled in
the end is written down in the `World`. What is random follows from the seed and the name of the trouble, so that the
same seed brings the same troubles, though not at the very same moments.
"""

import collections
import dataclasses
import itertools
import json
import pathlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kubeapi import ApiError, KubeApi, Object, wait
from verdict import is_handled

GROUP = 'soak.example.com'
PREFIX = 'soak-'
STEADY = 'Steady'
STEADY_NAMESPACES = ('soak-a', 'soak-b', 'soak-c')
PATIENCE = 60
"""How long (in seconds) something may take to be handled: there are pauses and retries on the way."""


@dataclasses.dataclass
class World:
    """The cluster, and what is to be remembered of it."""

    api: KubeApi
    seed: str
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    deleted: dict[str, str] = dataclasses.field(default_factory=dict)
    """The names by uids of the objects that had our finalizer when they were deleted."""
    values: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    """Every value is set once in a soak, so that it tells which change has been handled."""

    def chances(self, name: str) -> random.Random:
        return random.Random(f'{self.seed} {name}')

    def make(self, kind: str, namespace: str, name: str, *, version: str = 'v1', daemon: bool = False) -> Object:
        return self.api.request(
            'POST',
            self.api.path(f'{GROUP}/{version}', kind, namespace),
            {
                'apiVersion': f'{GROUP}/{version}',
                'kind': kind,
                'spec': {'value': next(self.values)},
                'metadata': {'name': name, 'labels': {'daemon': 'yes'} if daemon else {}},
            },
        )

    def edit(self, kind: str, namespace: str, name: str, *, version: str = 'v1') -> None:
        self.api.patch(f'{GROUP}/{version}', kind, namespace, name, {'spec': {'value': next(self.values)}})

    def remove(self, kind: str, namespace: str, name: str) -> None:
        body = self.api.request('DELETE', self.api.path(f'{GROUP}/v1', kind, namespace, name))
        self.expect_deletion(body)
        wait(lambda: self.api.get(f'{GROUP}/v1', kind, namespace, name) is None, f'{name} to be gone', timeout=PATIENCE)

    def expect_deletion(self, body: Object) -> None:
        if body.get('metadata', {}).get('finalizers'):
            self.deleted[body['metadata']['uid']] = body['metadata']['name']

    def bodies(self, kind: str, namespaces: tuple[str, ...], *, version: str = 'v1') -> list[Object]:
        return [body for namespace in namespaces for body in self.api.items(f'{GROUP}/{version}', kind, namespace)]

    def wait_handled(self, kind: str, *namespaces: str, version: str = 'v1', timeout: float = PATIENCE) -> list[Object]:
        def all_are_handled() -> list[Object]:
            bodies = self.bodies(kind, namespaces, version=version)
            return bodies if all(map(is_handled, bodies)) else []

        return wait(all_are_handled, f'{kind} in {", ".join(namespaces)} to be handled', timeout=timeout)


def make_crd(kind: str, versions: dict[str, bool]) -> Object:
    """Return a kind of the operators' category, with its versions (served or not). The first one is stored."""
    plural = kind.lower() + 's'
    schema = {'openAPIV3Schema': {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}
    return {
        'apiVersion': 'apiextensions.k8s.io/v1',
        'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.{GROUP}'},
        'spec': {
            'group': GROUP,
            'scope': 'Namespaced',
            'names': {'plural': plural, 'kind': kind, 'categories': ['soaks']},
            'versions': [
                {'name': name, 'served': served, 'storage': number == 0, 'schema': schema}
                for number, (name, served) in enumerate(versions.items())
            ],
        },
    }


def editing(world: World, objects: int, pace: float) -> Callable[[], float]:
    """Edit any of the steady objects; sometimes several times at once, sometimes replace it by a new one."""
    chances = world.chances('editing')
    place = {f'obj-{number}': STEADY_NAMESPACES[number % len(STEADY_NAMESPACES)] for number in range(objects)}
    for number, (name, namespace) in enumerate(place.items()):
        world.make(STEADY, namespace, name, daemon=not number % 10)

    def edit() -> float:
        name = chances.choice(list(place))
        for _ in range(chances.choice([1, 1, 1, 2, 5])):
            world.edit(STEADY, place[name], name)
            world.counts['edits'] += 1
        return chances.uniform(0, 2 * pace)

    return edit


def replacing(world: World, objects: int) -> Callable[[], float]:
    """Delete an object, and make another one of the same name. They are not those that are edited."""
    chances = world.chances('replacing')

    def replace() -> float:
        name, namespace = f'other-{chances.randrange(objects)}', chances.choice(STEADY_NAMESPACES)
        if world.api.get(f'{GROUP}/v1', STEADY, namespace, name) is not None:
            world.remove(STEADY, namespace, name)
            world.counts['deletions'] += 1
        world.make(STEADY, namespace, name, daemon=chances.random() < 0.2)
        return chances.uniform(0, 2)

    return replace


def namespacing(world: World) -> Callable[[], float]:
    """Make a namespace with objects, and delete it with all that is in it; the next one often has the same name."""
    chances = world.chances('namespacing')

    def come_and_go() -> float:
        namespace = f'{PREFIX}{chances.choice("xyz")}'
        world.api.apply({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': namespace}})
        if chances.random() < 0.5:
            join(world.api, namespace)
        for number in range(chances.randrange(1, 5)):
            world.make(STEADY, namespace, f'guest-{number}', daemon=not number)
        for body in world.wait_handled(STEADY, namespace):
            world.expect_deletion(body)
        world.api.delete('v1', 'Namespace', None, namespace)
        wait(
            lambda: world.api.get('v1', 'Namespace', None, namespace) is None,
            f'the namespace {namespace} to be gone',
            timeout=PATIENCE,
        )
        world.counts['namespaces'] += 1
        return chances.uniform(0, 5)

    return come_and_go


def defining(world: World) -> Callable[[], float]:
    """Make a kind with objects, let it get another version, and delete it with all its objects."""
    chances = world.chances('defining')
    numbers = itertools.count()

    def come_and_go() -> float:
        # The names come again, but not too soon: the API server itself needs a while to forget a kind.
        kind, namespace = f'Fleeting{next(numbers) % 7}', STEADY_NAMESPACES[0]
        world.api.apply(make_crd(kind, {'v1': True}))
        for number in range(chances.randrange(1, 5)):
            world.make(kind, namespace, f'{kind.lower()}-{number}', daemon=not number)
        world.wait_handled(kind, namespace)
        world.api.apply(make_crd(kind, {'v1': True, 'v2': True}))
        for body in world.bodies(kind, (namespace,), version='v2'):
            world.edit(kind, namespace, body['metadata']['name'], version='v2')
        world.wait_handled(kind, namespace, version='v2')
        if chances.random() < 0.5:
            world.api.apply(make_crd(kind, {'v1': False, 'v2': True}))
        for body in world.bodies(kind, (namespace,), version='v2'):
            world.expect_deletion(body)
        name = f'{kind.lower()}s.{GROUP}'
        world.api.delete('apiextensions.k8s.io/v1', 'CustomResourceDefinition', None, name)
        wait(
            lambda: world.api.get('apiextensions.k8s.io/v1', 'CustomResourceDefinition', None, name) is None,
            f'{name} to be gone',
            timeout=PATIENCE,
        )
        world.counts['kinds'] += 1
        return chances.uniform(0, 5)

    return come_and_go


def join(api: KubeApi, namespace: str) -> None:
    """Make the peering object where the operators of the namespace meet."""
    try:
        api.apply({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfPeering', 'metadata': {'name': 'soak'}}, namespace)
    except ApiError as error:
        if error.status not in (403, 404):  # the namespace is on its way out
            raise


class Rotation:
    """
    Credentials of the operators that are replaced while they are used. The old ones are refused soon.

    Tokens of service accounts can be bound to a secret, and do not outlive it: on a real cluster, this is the way to
    revoke them before they expire. The API server remembers what it has accepted for ten seconds.
    """

    def __init__(self, world: World, kubeconfig: pathlib.Path, target: pathlib.Path) -> None:
        self._world = world
        self._config = json.loads(kubeconfig.read_text())
        self._target = target
        self._chances = world.chances('rotation')
        self._bound = ''
        world.api.apply({'apiVersion': 'v1', 'kind': 'ServiceAccount', 'metadata': {'name': 'soak'}}, 'default')
        world.api.apply(
            {
                'apiVersion': 'rbac.authorization.k8s.io/v1',
                'kind': 'ClusterRoleBinding',
                'metadata': {'name': 'soak'},
                'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'ClusterRole', 'name': 'cluster-admin'},
                'subjects': [{'kind': 'ServiceAccount', 'name': 'soak', 'namespace': 'default'}],
            }
        )
        self.rotate()

    def rotate(self) -> None:
        api, previous = self._world.api, self._bound
        secret = api.request('POST', '/api/v1/namespaces/default/secrets', {'metadata': {'generateName': 'soak-'}})
        reference: dict[str, Any] = {'apiVersion': 'v1', 'kind': 'Secret'}
        reference |= {key: secret['metadata'][key] for key in ('name', 'uid')}
        answer = api.request(
            'POST',
            '/api/v1/namespaces/default/serviceaccounts/soak/token',
            {
                'apiVersion': 'authentication.k8s.io/v1',
                'kind': 'TokenRequest',
                'spec': {'expirationSeconds': 3600, 'boundObjectRef': reference},
            },
        )
        self._config['users'][0]['user'] = {'token': answer['status']['token']}
        temporary = self._target.with_suffix('.new')
        temporary.write_text(json.dumps(self._config))
        temporary.replace(self._target)
        self._bound = reference['name']
        if previous:
            api.delete('v1', 'Secret', 'default', previous)
            self._world.counts['rotations'] += 1

    def __call__(self) -> float:
        self.rotate()
        return self._chances.uniform(5, 25)

    def clean_up(self) -> None:
        """Remove the account with everything that it has."""
        api = self._world.api
        api.delete('v1', 'Secret', 'default', self._bound)
        api.delete('rbac.authorization.k8s.io/v1', 'ClusterRoleBinding', None, 'soak')
        api.delete('v1', 'ServiceAccount', 'default', 'soak')
