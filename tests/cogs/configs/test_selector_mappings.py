import pytest

from kopf._cogs.configs.selector_mappings import SelectorMapping
from kopf._cogs.structs.references import EVERYTHING, Resource, Selector

PODS = Resource('', 'v1', 'pods', kind='Pod', singular='pod')
DEPLOYMENTS = Resource('apps', 'v1', 'deployments', kind='Deployment')
EVENTS = Resource('', 'v1', 'events', kind='Event')


def is_pod(resource: Resource) -> bool:
    return resource.plural == 'pods'


def test_all_notations_of_resources():
    mapping: SelectorMapping[int] = SelectorMapping()
    mapping['pods'] = 1
    mapping['v1', 'pods'] = 2
    mapping['apps', 'v1', 'deployments'] = 3
    mapping[EVERYTHING] = 4
    mapping['apps/v1', EVERYTHING] = 5
    mapping[is_pod] = 6
    mapping[Selector(kind='Pod')] = 7
    assert dict(mapping) == {
        Selector('pods'): 1,
        Selector('v1', 'pods'): 2,
        Selector('apps', 'v1', 'deployments'): 3,
        Selector(EVERYTHING): 4,
        Selector('apps/v1', EVERYTHING): 5,
        Selector(is_pod): 6,
        Selector(kind='Pod'): 7,
    }
    assert mapping.collect(PODS) == [1, 2, 4, 6, 7]
    assert mapping.collect(DEPLOYMENTS) == [3, 4, 5]
    assert mapping.collect(EVENTS) == []


def test_selectors_are_kept_in_a_mapping():
    mapping = SelectorMapping({'pods': 'a'})
    assert mapping['pods'] == 'a'
    assert 'pods' in mapping
    assert ('v1', 'pods') not in mapping
    assert mapping.get('pod') is None
    mapping['pods'] = 'b'
    assert mapping.collect(PODS) == ['b']
    assert len(mapping) == 1
    assert mapping == {Selector('pods'): 'b'}
    del mapping['pods']
    assert not mapping
    with pytest.raises(KeyError):
        mapping['pods']
    with pytest.raises(KeyError):
        del mapping['pods']


def test_values_are_collected_as_they_are():
    mapping = SelectorMapping({'pods': None, 'pod': ['x', 'y']})
    assert mapping.collect(PODS) == [None, ['x', 'y']]


@pytest.mark.parametrize('key', [123, None, (), ('a', 'b', 'c', 'd'), '', (EVERYTHING, 'pods')])
def test_mistakes_are_noticed_at_once(key):
    mapping = SelectorMapping({})
    with pytest.raises(TypeError):
        mapping[key] = 1
    with pytest.raises(TypeError):
        mapping[key]
    with pytest.raises(TypeError):
        assert key in mapping


def test_mappings_are_shown_with_their_selectors():
    assert repr(SelectorMapping()) == 'SelectorMapping({})'
    assert repr(SelectorMapping({'pods': 'a=b'})) == "SelectorMapping({Selector(any_name='pods'): 'a=b'})"
