import itertools
import re
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kopf._cogs.structs.references import (
    CLUSTER_PEERINGS,
    CRDS,
    EVENTS,
    EVERYTHING,
    MUTATING_WEBHOOK,
    NAMESPACED_PEERINGS,
    PEERING_GROUPS,
    VALIDATING_WEBHOOK,
    Resource,
    Selector,
    match_namespace,
    select_peerings,
    select_specific_namespaces,
)

RESOURCES = {
    'pods': Resource(
        '', 'v1', 'pods', kind='Pod', singular='pod', shortcuts=frozenset({'po'}), categories=frozenset({'all'})
    ),
    'oldpods': Resource('', 'v1beta1', 'pods', kind='Pod', singular='pod', preferred=False),
    'podmetrics': Resource('metrics.k8s.io', 'v1beta1', 'pods', kind='PodMetrics', singular=''),
    'nodes': Resource('', 'v1', 'nodes', kind='Node', singular='node', shortcuts=frozenset({'no'})),
    'deployments': Resource(
        'apps', 'v1', 'deployments', kind='Deployment', singular='deployment', categories=frozenset({'all'})
    ),
    'olddeployments': Resource('apps', 'v1beta1', 'deployments', kind='Deployment', preferred=False),
    'exes-a': Resource('a.io', 'v1', 'exes', kind='Exe', singular='exe', shortcuts=frozenset({'x'})),
    'exes-b': Resource('b.io', 'v1', 'exes', kind='Exe', singular='exe', shortcuts=frozenset({'x'})),
    'exes-b2': Resource('b.io', 'v2', 'exes', kind='Exe', singular='exe', preferred=False),
    'events': Resource('', 'v1', 'events', kind='Event', singular='event', categories=frozenset({'all'})),
    'newevents': Resource('events.k8s.io', 'v1', 'events', kind='Event', singular='event'),
    'myevents': Resource('my.io', 'v1', 'events', kind='Event', singular='event'),
}


def select(selector: Selector) -> set[str]:
    found = selector.select(list(RESOURCES.values()))
    assert found == selector.select(frozenset(RESOURCES.values()))
    return {name for name, resource in RESOURCES.items() if resource in found}


# Resources


def test_resource_is_unpacked_to_what_urls_need():
    group, version, plural = Resource('apps', 'v1', 'deployments', kind='Deployment')
    assert (group, version, plural) == ('apps', 'v1', 'deployments')


@pytest.mark.parametrize(
    'resource, text',
    [
        (Resource('', 'v1', 'pods'), 'pods.v1'),
        (Resource('apps', 'v1', 'deployments'), 'deployments.v1.apps'),
    ],
)
def test_resource_is_shown_as_in_kubectl(resource, text):
    assert str(resource) == repr(resource) == text


def test_resources_are_equal_by_their_identity_but_not_the_same_with_other_verbs():
    readable = Resource('a.io', 'v1', 'exes', verbs=frozenset({'list'}))
    patchable = Resource('a.io', 'v1', 'exes', verbs=frozenset({'list', 'patch'}))
    assert readable == patchable
    assert {readable: 1}[patchable] == 1
    assert not readable.is_same(patchable)
    assert readable.is_same(Resource('a.io', 'v1', 'exes', verbs=frozenset({'list'})))
    assert readable != Resource('a.io', 'v2', 'exes', verbs=frozenset({'list'}))
    assert readable != 'exes.v1.a.io'


POD = Resource('', 'v1', 'pods', namespaced=True)
NODE = Resource('', 'v1', 'nodes', namespaced=False)
EXE = Resource('a.io', 'v1', 'exes', namespaced=True)


@pytest.mark.parametrize(
    'resource, kwargs, url',
    [
        (POD, {}, '/api/v1/pods'),
        (POD, {'namespace': 'ns'}, '/api/v1/namespaces/ns/pods'),
        (POD, {'namespace': 'ns', 'name': 'n'}, '/api/v1/namespaces/ns/pods/n'),
        (POD, {'namespace': 'ns', 'name': 'n', 'subresource': 'status'}, '/api/v1/namespaces/ns/pods/n/status'),
        (NODE, {}, '/api/v1/nodes'),
        (NODE, {'name': 'n'}, '/api/v1/nodes/n'),
        (NODE, {'name': 'system:a#b'}, '/api/v1/nodes/system:a%23b'),
        (EXE, {'namespace': 'ns'}, '/apis/a.io/v1/namespaces/ns/exes'),
        (EXE, {'server': 'https://host:1234'}, 'https://host:1234/apis/a.io/v1/exes'),
        (EXE, {'server': 'https://host:1234/'}, 'https://host:1234/apis/a.io/v1/exes'),
        (EXE, {'server': 'https://host/sub'}, 'https://host/sub/apis/a.io/v1/exes'),
        (EXE, {'params': {}}, '/apis/a.io/v1/exes'),
        (EXE, {'params': {'a': 'b c&d', 'watch': 'true'}}, '/apis/a.io/v1/exes?a=b+c%26d&watch=true'),
    ],
)
def test_urls_are_those_of_the_api(resource, kwargs, url):
    assert resource.get_url(**kwargs) == url


@pytest.mark.parametrize(
    'resource, kwargs, reason',
    [
        (NODE, {'namespace': 'ns'}, 'not namespaced'),
        (NODE, {'namespace': 'ns', 'name': 'n'}, 'not namespaced'),
        (POD, {'name': 'n'}, 'no namespace'),
        (POD, {'subresource': 'status'}, 'no name'),
        (POD, {'namespace': 'ns', 'subresource': 'status'}, 'no name'),
    ],
)
def test_impossible_urls_are_refused(resource, kwargs, reason):
    with pytest.raises(ValueError, match=reason):
        resource.get_url(**kwargs)


# Selectors


@pytest.mark.parametrize(
    'args, found',
    [
        # Only names.
        (('pods',), {'pods'}),  # but not the metrics
        (('pod',), {'pods'}),
        (('Pod',), {'pods'}),
        (('po',), {'pods'}),
        (('PodMetrics',), {'podmetrics'}),
        (('deployments',), {'deployments'}),
        (('unknown',), set()),
        (('all',), set()),
        # Groups and versions.
        (('v1', 'pods'), {'pods'}),
        (('', 'v1', 'pods'), {'pods'}),
        (('', 'pods'), {'pods'}),
        (('', 'v1beta1', 'pods'), {'oldpods'}),
        (('metrics.k8s.io', 'pods'), {'podmetrics'}),
        (('metrics.k8s.io/v1beta1', 'pods'), {'podmetrics'}),
        (('metrics.k8s.io', 'v1beta1', 'pods'), {'podmetrics'}),
        (('apps', 'deployments'), {'deployments'}),
        (('apps', 'Deployment'), {'deployments'}),
        (('apps/v1', 'deployments'), {'deployments'}),
        (('apps/v1beta1', 'deployments'), {'olddeployments'}),
        (('apps', 'v2', 'deployments'), set()),
        (('v1', 'deployments'), set()),
        (('v1beta1', 'pods'), set()),
        # As in kubectl.
        (('pods.v1',), {'pods'}),
        (('pods.metrics.k8s.io',), {'podmetrics'}),
        (('pods.v1beta1.metrics.k8s.io',), {'podmetrics'}),
        (('deployments.apps',), {'deployments'}),
        (('deployments.v1',), {'deployments'}),
        (('deployments.v1.apps',), {'deployments'}),
        (('deployments.v1beta1.apps',), {'olddeployments'}),
        (('exe.v2.b.io',), {'exes-b2'}),
        # Ambiguities are left to the caller.
        (('exes',), {'exes-a', 'exes-b'}),
        (('x',), {'exes-a', 'exes-b'}),
        # Events by their name.
        (('events',), {'events'}),
        (('v1', 'events'), {'events'}),
        (('events.k8s.io', 'events'), {'newevents'}),
    ],
)
def test_specific_selectors_select_by_name(args, found):
    selector = Selector(*args)
    assert selector.is_specific
    assert select(selector) == found


@pytest.mark.parametrize(
    'args, found',
    [
        ((EVERYTHING,), {'pods', 'podmetrics', 'nodes', 'deployments', 'exes-a', 'exes-b', 'myevents'}),
        (('v1', EVERYTHING), {'pods', 'nodes'}),
        (('', EVERYTHING), {'pods', 'nodes'}),
        (('', 'v1', EVERYTHING), {'pods', 'nodes'}),
        (('apps', EVERYTHING), {'deployments'}),
        (('apps/v1beta1', EVERYTHING), {'olddeployments'}),
        (('apps', 'v1beta1', EVERYTHING), {'olddeployments'}),
        (('events.k8s.io', EVERYTHING), set()),
    ],
)
def test_selectors_of_everything_are_not_specific(args, found):
    selector = Selector(*args)
    assert not selector.is_specific
    assert select(selector) == found


@pytest.mark.parametrize(
    'kwargs, found',
    [
        ({'kind': 'Pod'}, {'pods'}),
        ({'kind': 'pods'}, set()),
        ({'plural': 'pods'}, {'pods'}),
        ({'singular': 'pod'}, {'pods'}),
        ({'shortcut': 'po'}, {'pods'}),
        ({'shortcut': 'pod'}, set()),
        ({'plural': 'pods', 'group': 'metrics.k8s.io'}, {'podmetrics'}),
        ({'plural': 'pods', 'group': '', 'version': 'v1beta1'}, {'oldpods'}),
        ({'plural': 'exes', 'version': 'v2'}, {'exes-b2'}),
    ],
)
def test_keywords_select_resources(kwargs, found):
    selector = Selector(**kwargs)
    assert selector.is_specific
    assert select(selector) == found


def test_keywords_in_addition_to_positionals():
    assert select(Selector('exes', group='b.io')) == {'exes-b'}
    assert select(Selector('exes', group='b.io', version='v2')) == {'exes-b2'}
    assert select(Selector('b.io', 'exes', version='v2')) == {'exes-b2'}
    assert select(Selector('exes.b.io', group='b.io')) == {'exes-b'}
    assert select(Selector(EVERYTHING, group='apps')) == {'deployments'}


def test_categories_are_unspecific_and_have_no_priorities():
    assert not Selector(category='all').is_specific
    assert select(Selector(category='all')) == {'pods', 'deployments', 'events'}
    assert select(Selector(category='all', group='apps')) == {'deployments'}


def test_callables_decide_on_versions_but_never_on_events():
    seen: list[Resource] = []

    def is_good(resource: Resource) -> Any:
        seen.append(resource)
        return 'yes' if resource.group in {'', 'apps', 'my.io'} else None

    assert not Selector(is_good).is_specific
    assert select(Selector(is_good)) == {'pods', 'oldpods', 'nodes', 'deployments', 'olddeployments', 'myevents'}
    assert RESOURCES['events'] not in seen
    assert select(Selector(is_good, group='apps', version='v1')) == {'deployments'}


@pytest.mark.parametrize(
    'args, kwargs, reason',
    [
        # Nothing is named.
        ((), {}, 'has no name'),
        ((None,), {}, 'has no name'),
        ((), {'group': 'apps'}, 'has no name'),
        ((), {'group': 'apps', 'version': 'v1'}, 'has no name'),
        # Too much is named.
        (('a', 'b', 'c', 'd'), {}, 'Too many'),
        ((), {'kind': 'Pod', 'plural': 'pods'}, "'Pod', 'pods'"),
        ((), {'kind': 'Pod', 'category': 'all'}, 'several names'),
        (('pods',), {'kind': 'Pod'}, 'several names'),
        ((EVERYTHING,), {'category': 'all'}, 'several names'),
        ((bool,), {'kind': 'Pod'}, 'several names'),
        # Contradictions.
        (('apps', 'deployments'), {'group': 'batch'}, "'apps' and 'batch'"),
        (('v1', 'pods'), {'version': 'v2'}, "'v1' and 'v2'"),
        (('v1', 'pods'), {'group': 'apps'}, 'specified twice'),
        (('pods.v1',), {'version': 'v2'}, 'specified twice'),
        # What can never match.
        (('',), {}, 'empty'),
        (('.apps',), {}, 'empty'),
        (('apps/v1', ''), {}, 'empty'),
        ((), {'plural': ''}, 'empty'),
        (('apps', '', 'deployments'), {}, 'empty'),
        (('apps/', 'deployments'), {}, 'empty'),
        (('apps/v1',), {}, 'No resource can be named'),
        (('apps', 'deployments.apps'), {}, 'No resource can be named'),
        (('a/b/c', 'pods'), {}, 'slashes'),
        (('a', 'b/c', 'pods'), {}, 'slashes'),
        (('pods',), {'group': 'apps/v1'}, 'slashes'),
        # Wrong types and places.
        ((123,), {}, 'got 123'),
        ((123, 'pods'), {}, 'must be strings'),
        (('pods',), {'group': 123}, 'must be a string'),
        ((), {'kind': EVERYTHING}, 'kind= must be a string'),
        ((), {'category': EVERYTHING}, 'category= must be a string'),
        ((EVERYTHING, 'pods'), {}, 'the last positional'),
        ((EVERYTHING, EVERYTHING), {}, 'the last positional'),
        (('apps', bool), {}, 'the only positional'),
        ((bool, 'pods'), {}, 'the only positional'),
    ],
)
def test_mistakes_are_noticed_at_once(args, kwargs, reason):
    with pytest.raises(TypeError, match=reason):
        Selector(*args, **kwargs)


def test_equal_selectors_are_interchangeable():
    assert Selector('v1', 'pods') == Selector('', 'v1', 'pods') == Selector('pods', group='', version='v1')
    assert len({Selector('v1', 'pods'), Selector('', 'v1', 'pods')}) == 1
    assert Selector('pods') != Selector('pod')
    assert Selector('pods') != Selector(plural='pods')


def test_selectors_show_what_is_known():
    assert repr(Selector('pods')) == "Selector(any_name='pods')"
    assert repr(Selector('v1', 'pods')) == "Selector(group='', version='v1', any_name='pods')"
    assert repr(Selector(group='apps', kind='Deployment')) == "Selector(group='apps', kind='Deployment')"


def test_selectors_are_immutable():
    with pytest.raises(AttributeError):
        Selector('pods').group = 'apps'  # type: ignore[misc]


names = st.from_regex(r'[a-z]{1,5}', fullmatch=True)
groups = st.from_regex(r'[a-z]{2,5}(\.[a-z]{2,3}){0,2}', fullmatch=True).filter(lambda group: group != 'v1')
versions = st.from_regex(r'v[1-9]((alpha|beta)[1-9])?', fullmatch=True)


@hypothesis.given(group=groups, version=versions, name=names)
def test_all_notations_are_the_same(group, version, name):
    selectors = {
        Selector(group, version, name),
        Selector(f'{group}/{version}', name),
        Selector(f'{name}.{version}.{group}'),
        Selector(name, group=group, version=version),
        Selector(group, name, version=version),
    }
    assert len(selectors) == 1
    assert Selector(group, name) == Selector(f'{name}.{group}') == Selector(name, group=group)
    assert Selector(f'{name}.{version}') == Selector(name, version=version)


@hypothesis.given(group=groups, version=versions, names=st.lists(names, min_size=5, max_size=5, unique=True))
def test_every_name_selects_the_resource_and_its_group_and_version_do_not_prevent_this(group, version, names):
    kind, plural, singular, short, alien = names
    resource = Resource(group, version, plural, kind=kind, singular=singular, shortcuts=frozenset({short}))
    hypothesis.assume(plural != 'events')
    for args in itertools.chain.from_iterable([(name,), (group, name), (group, version, name)] for name in names):
        assert Selector(*args).check(resource) is (args[-1] != alien)
    for args in [(EVERYTHING,), (group, EVERYTHING), (group, version, EVERYTHING), (lambda resource: True,)]:
        assert Selector(*args).check(resource)
    assert not Selector(f'{group}x', plural).check(resource)
    assert not Selector(group, f'{version}x', plural).check(resource)


@pytest.mark.parametrize(
    'selector, group, version, plural',
    [
        (EVENTS, '', 'v1', 'events'),
        (CRDS, 'apiextensions.k8s.io', 'v1', 'customresourcedefinitions'),
        (MUTATING_WEBHOOK, 'admissionregistration.k8s.io', 'v1', 'mutatingwebhookconfigurations'),
        (VALIDATING_WEBHOOK, 'admissionregistration.k8s.io', 'v1', 'validatingwebhookconfigurations'),
        (CLUSTER_PEERINGS[0], 'kopf.dev', 'v1', 'clusterkopfpeerings'),
        (CLUSTER_PEERINGS[1], 'zalando.org', 'v1', 'clusterkopfpeerings'),
        (NAMESPACED_PEERINGS[0], 'kopf.dev', 'v1', 'kopfpeerings'),
        (NAMESPACED_PEERINGS[1], 'zalando.org', 'v1', 'kopfpeerings'),
    ],
)
def test_what_the_framework_needs_itself(selector, group, version, plural):
    assert selector.is_specific
    assert selector.check(Resource(group, version, plural))


# Namespaces


@pytest.mark.parametrize(
    'pattern, matching, others',
    [
        ('a', {'a'}, {'', 'ab', 'b', 'A'}),
        ('a*', {'a', 'ab', 'abc'}, {'', 'ba'}),
        ('a?', {'ab'}, {'a', 'abc'}),
        ('*', {'', 'a', 'abc'}, set()),
        ('!a', {'', 'ab', 'b'}, {'a'}),
        ('!a*', {'', 'b'}, {'a', 'ab'}),
        ('!*', set(), {'', 'a'}),
        ('!*,a', {'a'}, {'b'}),
        ('!a,a', {'a', 'b'}, set()),
        ('a,!a', set(), {'a', 'b'}),
        ('a,b', {'a'}, {'b'}),  # as the first one is decisive
        ('a*,!ab*,abc', {'a', 'ac', 'abc'}, {'ab', 'abd', 'b'}),
        (' a* , !ab ', {'a', 'abc'}, {'ab'}),
        (
            'myapp-*,!*-pr-*,*-pr-123',
            {'myapp-live', 'myapp-pr-123'},
            {'myapp-pr-456', 'otherapp-live', 'otherapp-pr-123'},
        ),
        (re.compile('a.*'), {'a', 'ab'}, {'ba', ''}),
        (re.compile('a'), {'a'}, {'ab', 'ba'}),
    ],
)
def test_namespaces_are_matched_by_patterns(pattern, matching, others):
    assert {name for name in matching | others if match_namespace(name, pattern)} == matching


namespaces = st.from_regex(r'[ab]{1,3}', fullmatch=True)
globs = st.from_regex(r'[ab*?]{1,3}', fullmatch=True)


@hypothesis.given(name=namespaces, glob=globs, others=st.lists(st.from_regex(r'!?[ab*?]{1,3}', fullmatch=True)))
def test_globs_follow_their_rules(name, glob, others):
    matches_first = match_namespace(name, glob)
    assert match_namespace(name, '!' + glob) is not matches_first

    relevant = [other for other in others if match_namespace(name, other.lstrip('!'))]
    expected = matches_first and (not relevant or not relevant[-1].startswith('!'))
    assert match_namespace(name, ','.join([glob, *others])) is expected

    negated = '!' + glob
    implied = ["*", negated, *others]
    assert match_namespace(name, ",".join([negated, *others])) is match_namespace(name, ",".join(implied))


@hypothesis.given(namespaces)
def test_specific_namespaces_match_only_themselves(name):
    assert select_specific_namespaces([name]) == {name}
    assert match_namespace(name, name)
    assert not match_namespace(name + 'x', name)


def test_only_specific_namespaces_are_selected():
    patterns = ['a', 'b-c', 'x*', 'y?', '!z', 'd,e', re.compile('f'), 'a']
    assert select_specific_namespaces(patterns) == {'a', 'b-c'}
    assert select_specific_namespaces([]) == frozenset()


def test_peerings_are_selected_by_scope_and_age():
    old = Resource('zalando.org', 'v1', 'kopfpeerings', namespaced=True)
    new = Resource('kopf.dev', 'v1', 'kopfpeerings', namespaced=True)
    cluster = Resource('kopf.dev', 'v1', 'clusterkopfpeerings', namespaced=False)
    assert {resource.group for resource in (old, new, cluster)} == PEERING_GROUPS
    assert select_peerings([old, new, cluster], clusterwide=False) == new
    assert select_peerings([old, new, cluster], clusterwide=True) == cluster
    assert select_peerings([old], clusterwide=False) == old
    assert select_peerings([old], clusterwide=True) is None
