"""The reviews of an operator's own permissions, in a cluster with RBAC."""

import asyncio
import dataclasses
import json
import re
import urllib.request

import pytest
import yaml
from operatorworld import in_virtual_time, new_world
from ports import free_port

import kopf
from kopf._core.intents.role_rules import Rule
from kopf._core.reactor import permission_reviews
from kopf._core.reactor.permission_reviews import PermissionsError, Question, explain_missing, list_questions

ACCOUNT = 'system:serviceaccount:default:robot'
RBAC = 'rbac.authorization.k8s.io'
RULES = [
    {'apiGroups': [''], 'resources': ['events'], 'verbs': ['create', 'patch']},
    {'apiGroups': ['apiextensions.k8s.io'], 'resources': ['customresourcedefinitions'], 'verbs': ['list', 'watch']},
    {'apiGroups': ['kopf.dev'], 'resources': ['kopfexamples'], 'verbs': ['get', 'list', 'watch', 'patch']},
]
NAMESPACES = {'apiGroups': [''], 'resources': ['namespaces'], 'verbs': ['list', 'watch']}


@pytest.fixture
def guarded(monkeypatch):
    """Yield a world where the operator has only the permissions that the test grants."""
    with new_world(virtual_time=True, rbac=True) as world:
        monkeypatch.setenv('KUBECONFIG', str(world.sandbox.kubeconfig_for(ACCOUNT)))
        world.settings.posting.enabled = True
        yield world


async def grant(world, rules, namespace=None, name='robot'):
    kind = 'ClusterRole' if namespace is None else 'Role'
    meta = {'name': name} if namespace is None else {'name': name, 'namespace': namespace}
    api = f'{RBAC}/v1'
    subject = {'kind': 'ServiceAccount', 'name': 'robot', 'namespace': 'default'}
    await world.aio.apply({'apiVersion': api, 'kind': kind, 'metadata': meta, 'rules': list(rules)})
    role = {'apiGroup': RBAC, 'kind': kind, 'name': name}
    await world.aio.apply(
        {'apiVersion': api, 'kind': f'{kind}Binding', 'metadata': meta, 'roleRef': role, 'subjects': [subject]}
    )


def list_reviews(world):
    return [request for request in world.sandbox.requests if request.group == 'authorization.k8s.io']


def list_warnings(world):
    return [text for text in world.log.texts if text.startswith("A permission of the operator is missing")]


def declare(world):
    return kopf.on.reconcile('kopfexamples', registry=world.registry)(lambda **_: world.note('fn', None))


# What is asked for, and what is said.


@pytest.mark.parametrize(
    'rule',
    [
        {'verbs': ['patch'], 'apiGroups': ['g'], 'resources': ['things/status']},
        {'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']},
        {'verbs': ['get', 'patch'], 'apiGroups': ['', 'g'], 'resources': ['*/status']},
        {'verbs': ['patch'], 'apiGroups': ['g'], 'resources': ['things/status'], 'resourceNames': ['x', 'y']},
    ],
)
def test_rules_cover_what_they_name(rule):
    assert Question('patch', 'g', 'things/status', 'x').is_covered(rule)


@pytest.mark.parametrize(
    'rule',
    [
        {'verbs': ['get'], 'apiGroups': ['g'], 'resources': ['things']},
        {'verbs': ['patch'], 'apiGroups': ['h'], 'resources': ['things']},
        {'verbs': ['patch'], 'apiGroups': ['g'], 'resources': ['things/status', '*/status']},
        {'verbs': ['patch'], 'apiGroups': ['g'], 'resources': ['things'], 'resourceNames': ['y']},
        {'verbs': ['patch'], 'nonResourceURLs': ['*']},
        {},
    ],
)
def test_rules_cover_nothing_else(rule):
    assert not Question('patch', 'g', 'things', 'x').is_covered(rule)
    assert not Question('patch', 'g', 'things').is_covered(rule)


def test_rules_of_the_cluster_are_asked_for_once_and_others_in_each_namespace():
    rules = [Rule('', 'nodes', ('get',), clusterwide=True), Rule('', 'pods', ('get', 'list'))]
    assert list(list_questions(rules, {'b', 'a'})) == [
        Question('get', '', 'nodes'),
        Question('get', '', 'pods', namespace='a'),
        Question('list', '', 'pods', namespace='a'),
        Question('get', '', 'pods', namespace='b'),
        Question('list', '', 'pods', namespace='b'),
    ]


def test_the_texts_have_the_missing_verbs_as_yaml_in_one_line():
    rule = Rule('', 'pods', ('get', 'list', 'patch'))
    questions = [question for question in list_questions([rule], {None}) if question.verb != 'get']
    questions.append(Question('get', 'g', 'crds', 'x'))
    first, second = explain_missing(questions)
    assert first == 'a ClusterRole: - {apiGroups: [""], resources: ["pods"], verbs: ["list", "patch"]}'
    [pasted] = yaml.safe_load(second.partition(': ')[2])
    assert pasted == {'apiGroups': ['g'], 'resources': ['crds'], 'resourceNames': ['x'], 'verbs': ['get']}


def test_namespaces_with_the_same_missing_rule_share_a_text():
    rules = [Rule('', 'pods', ('get',))]
    [one] = explain_missing(list(list_questions(rules, {'x'})))
    [two] = explain_missing(list(list_questions(rules, {'x', 'y'})))
    [many] = explain_missing(list(list_questions(rules, {f'n{number}' for number in range(9)})))
    assert one.startswith("a Role in the namespace 'x': -")
    assert two.startswith("Roles in the namespaces 'x', 'y': -")
    assert many.startswith("Roles in the namespaces 'n0', 'n1', 'n2', 'n3', 5 others: -")


# Operators.


@pytest.mark.parametrize('left_out', range(len(RULES)))
def test_each_missing_rule_is_named_with_its_yaml(guarded, left_out):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, [rule for number, rule in enumerate(RULES) if number != left_out])
        async with world.operator(clusterwide=True):
            await world.until_logged("A permission of the operator is missing")

    run(world=guarded)
    [text] = list_warnings(guarded)
    yaml_text = re.fullmatch(r".* Add this rule to a ClusterRole: (- .*)", text)[1]
    assert yaml.safe_load(yaml_text) == [RULES[left_out]]


def test_nothing_is_said_if_nothing_is_missing(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, RULES)
        async with world.operator(clusterwide=True):
            await world.create()
            await world.until_called('fn')
            await asyncio.sleep(1)

    run(world=guarded)
    assert not list_warnings(guarded)
    assert len(list_reviews(guarded)) == 1 + sum(len(rule['verbs']) for rule in RULES)  # the first is for everything


def test_one_request_is_enough_for_administrators(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, [{'apiGroups': ['*'], 'resources': ['*'], 'verbs': ['*']}])
        async with world.operator(clusterwide=True):
            await asyncio.sleep(1)

    run(world=guarded)
    [review] = list_reviews(guarded)
    assert review.resource == 'selfsubjectaccessreviews' and not list_warnings(guarded)


def test_one_request_tells_of_all_rules_in_a_namespace(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, [NAMESPACES, RULES[1]])
        await grant(world, [RULES[0]], namespace='default')
        async with world.operator(namespaces=['default']):
            await world.until_logged("A permission of the operator is missing")

    run(world=guarded)
    [text] = list_warnings(guarded)
    assert "a Role in the namespace 'default': - " in text and 'kopfexamples' in text
    resources = [request.resource for request in list_reviews(guarded)]
    assert resources.count('selfsubjectrulesreviews') == 1
    assert resources.count('selfsubjectaccessreviews') == 1 + 4


def test_namespaces_that_appear_later_are_reviewed_too(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, [NAMESPACES, RULES[1]])
        async with world.operator(namespaces=['team-*']):
            await asyncio.sleep(1)
            assert not list_warnings(world)
            await world.aio.create({'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': 'team-a'}})
            await world.until_logged("a Role in the namespace 'team-a'")

    run(world=guarded)


def test_rules_that_are_granted_later_are_not_missing_any_more(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, RULES[:-1])
        async with world.operator(clusterwide=True):
            await world.until_logged("A permission of the operator is missing")
            await asyncio.sleep(200)
            await grant(world, RULES)
            await world.until_logged("The operator has all the permissions now that it was missing")
            reviews = len(list_reviews(world))
            await asyncio.sleep(200)
            assert len(list_reviews(world)) == reviews

    run(world=guarded)
    assert len(list_warnings(guarded)) == 1


def test_an_operator_that_requires_its_permissions_ends_without_handling_anything(guarded):
    async def run(world):
        declare(world)
        await world.create()
        await grant(world, RULES[1:-1], name='robot')
        world.settings.scanning.permissions = 'require'
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True, clusterwide=True)

    with pytest.raises(PermissionsError) as caught:
        guarded.sandbox.run(run(guarded))
    text = str(caught.value)
    assert '\n' not in text and text.count(' - {') == 2 and '"events"' in text and '"kopfexamples"' in text
    assert not guarded.calls and not list_warnings(guarded)


def test_an_operator_that_has_all_required_permissions_works(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, RULES)
        world.settings.scanning.permissions = 'require'
        async with world.operator(clusterwide=True):
            await world.create()
            await world.until_called('fn')

    run(world=guarded)


def test_failed_reviews_are_told_once_and_tried_again(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, RULES[:-1])
        world.sandbox.faults.error(500, resource='selfsubjectaccessreviews', times=3)
        async with world.operator(clusterwide=True):
            await asyncio.sleep(200)
            await world.until_logged("A permission of the operator is missing")

    run(world=guarded)
    assert sum("cannot be reviewed; trying again" in text for text in guarded.log.texts) == 1


def test_refusals_of_the_credentials_for_reviews_do_not_end_the_operator(guarded):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, RULES[:-1])
        world.sandbox.faults.error(401, resource='selfsubjectaccessreviews', times=None)
        async with world.operator(clusterwide=True):
            await world.until_logged("cannot be reviewed; trying again")
            world.sandbox.faults.clear()
            await asyncio.sleep(200)
            await world.until_logged("A permission of the operator is missing")

    run(world=guarded)


def test_malformed_reviews_do_not_end_the_operator(guarded, monkeypatch):
    @in_virtual_time
    async def run(world):
        declare(world)
        await grant(world, [*RULES, NAMESPACES])
        async with world.operator(clusterwide=True):
            await world.until_logged("cannot be reviewed; trying again: AttributeError('no rule')")
            await world.create()
            await world.until_called('fn', name=None)

    async def fail(*_):
        raise AttributeError('no rule')

    monkeypatch.setattr(permission_reviews.PermissionReviews, '_find_missing', fail)
    run(world=guarded)


def test_required_permissions_that_cannot_be_reviewed_end_the_operator(guarded):
    async def run(world):
        declare(world)
        world.settings.scanning.permissions = 'require'
        world.sandbox.faults.error(500, resource='selfsubjectaccessreviews', times=None)
        await grant(world, RULES)
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True, clusterwide=True)

    with pytest.raises(PermissionsError, match="cannot be reviewed, but"):
        guarded.sandbox.run(run(guarded))


def test_an_unknown_value_of_the_setting_ends_the_operator(guarded):
    async def run(world):
        world.settings.scanning.permissions = 'always'
        await kopf.operator(registry=world.registry, settings=world.settings, standalone=True, clusterwide=True)

    with pytest.raises(PermissionsError, match="must be 'warn', 'require', or 'off', not 'always'"):
        guarded.sandbox.run(run(guarded))


@dataclasses.dataclass
class Model:
    spec: dict[str, str]


@pytest.mark.parametrize(
    'mode, declared, is_reviewed',
    [
        (None, 'classic', False),
        (None, 'level', True),
        (None, 'kind', True),
        ('warn', 'classic', True),
        ('off', 'level', False),
    ],
)
def test_classic_operators_are_reviewed_only_if_it_is_set(guarded, mode, declared, is_reviewed):
    @in_virtual_time
    async def run(world):
        decorator = kopf.on.reconcile if declared == 'level' else kopf.on.event
        decorator('kopfexamples', registry=world.registry)(lambda **_: None)
        if declared == 'kind':
            kopf.kind('kopf.dev/v1', 'Other', registry=world.registry)(Model)
        world.settings.scanning.permissions = mode
        async with world.operator(clusterwide=True):
            await asyncio.sleep(1)

    run(world=guarded)
    assert bool(list_reviews(guarded)) is is_reviewed


def test_handlers_of_all_resources_are_not_reviewed(guarded):
    @in_virtual_time
    async def run(world):
        kopf.on.event(kopf.EVERYTHING, registry=world.registry)(lambda **_: None)
        world.settings.scanning.permissions = 'warn'
        async with world.operator(clusterwide=True):
            await world.until_logged("A permission of the operator is missing")

    run(world=guarded)
    assert all('"events"' in text or '"customresourcedefinitions"' in text for text in list_warnings(guarded))


async def test_readiness_names_what_is_missing_and_succeeds(monkeypatch):
    def ask(port):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{port}/readyz', timeout=60) as response:
                return response.status, json.loads(response.read())
        except OSError:  # it is not ready yet, or does not listen yet
            return None, {}

    with new_world(rbac=True) as world:
        monkeypatch.setenv('KUBECONFIG', str(world.sandbox.kubeconfig_for(ACCOUNT)))
        world.settings.posting.enabled = True
        declare(world)
        await grant(world, RULES[1:])
        port = free_port()
        async with world.operator(clusterwide=True, liveness_endpoint=f'http://127.0.0.1:{port}/healthz'):
            await world.until_logged("A permission of the operator is missing")
            async with asyncio.timeout(60):
                while (answer := await asyncio.to_thread(ask, port))[0] is None:
                    await asyncio.sleep(0.02)
        assert answer == (200, {'warnings': list_warnings(world)})


def test_the_permission_for_owner_references_is_not_missed(guarded):
    """Only an admission plugin needs it, and the operator cannot find out whether that is on."""
    child = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}}

    @kopf.on.reconcile('kopfexamples', owns=['configmaps'], registry=guarded.registry)
    async def fn(name, children, **_):
        await children.apply(child)
        guarded.note('fn', name)

    @in_virtual_time
    async def run(world):
        verbs = ['get', 'list', 'watch', 'create', 'patch', 'delete']
        await grant(world, [*RULES, {'apiGroups': [''], 'resources': ['configmaps'], 'verbs': verbs}])
        world.settings.scanning.permissions = 'require'
        async with world.operator(clusterwide=True):
            await world.create()
            await world.until_called('fn')

    run(world=guarded)
    assert not list_warnings(guarded)
