"""The rules of handlers whose resources are known: what the framework does for them, and no more."""

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.role_rules import Rule, list_general_rules, list_handler_rules, merge_rules

PODS = Resource('', 'v1', 'pods', namespaced=True, subresources=frozenset({'status'}))
NODES = Resource('', 'v1', 'nodes', namespaced=False)


def list_rules(declare, resource=PODS):
    registry = kopf.OperatorRegistry()
    declare(registry)
    [handler] = registry.iter_resource_handlers()
    return list(list_handler_rules(handler, lambda selector, where: [resource]))


@pytest.mark.parametrize(
    'fn, verbs',
    [
        (lambda **_: None, ('get', 'list', 'watch')),
        (lambda name, **_: None, ('get', 'list', 'watch')),
        (lambda patch, **_: None, ('get', 'list', 'watch', 'patch')),
        (lambda conditions: None, ('get', 'list', 'watch', 'patch')),
    ],
)
def test_handlers_of_events_write_only_if_they_name_an_argument_for_it(fn, verbs):
    rules = list_rules(lambda registry: kopf.on.event('pods', registry=registry)(fn))
    assert rules[0] == Rule('', 'pods', verbs)
    assert [rule.resource for rule in rules[1:]] == (['pods/status'] if 'patch' in verbs else [])


def test_indices_never_write():
    rules = list_rules(lambda registry: kopf.index('pods', registry=registry)(lambda patch, **_: None))
    assert rules == [Rule('', 'pods', ('get', 'list', 'watch'))]


def test_rules_of_cluster_scoped_resources_are_for_the_cluster():
    rules = list_rules(lambda registry: kopf.on.create('nodes', registry=registry)(lambda **_: None), NODES)
    assert rules == [Rule('', 'nodes', ('get', 'list', 'watch', 'patch'), clusterwide=True)]


def test_only_operators_of_some_namespaces_watch_the_namespaces():
    rules = [list_general_rules(clusterwide=clusterwide) for clusterwide in (True, False)]
    assert ['namespaces' in [rule.resource for rule in each] for each in rules] == [False, True]


@pytest.mark.parametrize('elected', [True, False])
def test_only_members_that_share_the_objects_delete_leases(elected):
    known = ('create', 'get', 'list', 'watch', 'update')
    found = {}
    for sharded in (True, False):
        rules = list_general_rules(clusterwide=True, elected=elected, sharded=sharded, posting=False, scanning=False)
        found[sharded] = [(rule.resource, rule.verbs) for rule in rules]
    assert found == {True: [('leases', (*known, 'delete'))], False: [('leases', known)] if elected else []}


def test_what_is_switched_off_needs_no_rules():
    assert list(list_general_rules(clusterwide=False, posting=False, scanning=False)) == []


def test_rules_of_one_resource_are_merged_unless_they_are_for_different_names():
    merged = merge_rules(
        [
            Rule('g', 'a', ('patch', 'get')),
            Rule('g', 'b', ('get',), names=('x',)),
            Rule('g', 'a', ('list', 'get'), clusterwide=True),
            Rule('g', 'b', ('get',), names=('y',)),
        ]
    )
    assert merged == [
        Rule('g', 'a', ('get', 'list', 'patch'), clusterwide=True),
        Rule('g', 'b', ('get',), names=('x',)),
        Rule('g', 'b', ('get',), names=('y',)),
    ]
