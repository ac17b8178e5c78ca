"""Roles of what was requested: which requests need what, and how the role reads."""

import pytest
import yaml

from kopf._kits.packaging.observed_roles import find_needed, make_role, write_role
from kopf._kits.testing.serving.faults import SeenRequest


def seen(verb, resource, group='', subresource='', status=200):
    request = SeenRequest('GET', '/', {}, '', '')
    request.verb, request.resource, request.group = verb, resource, group
    request.subresource, request.status = subresource, status
    return request


def test_requests_need_their_verbs():
    requests = [seen('get', 'pods'), seen('patch', 'pods', subresource='status'), seen('delete', 'jobs', 'batch')]
    assert find_needed(requests) == {('', 'pods', 'get'), ('', 'pods/status', 'patch'), ('batch', 'jobs', 'delete')}


@pytest.mark.parametrize('verb', ['list', 'watch'])
def test_reading_needs_lists_and_watches(verb):
    assert find_needed([seen(verb, 'pods')]) == {('', 'pods', 'list'), ('', 'pods', 'watch')}


def test_an_apply_that_creates_needs_both_permissions():
    assert find_needed([seen('patch', 'pods', status=201)]) == {('', 'pods', 'patch'), ('', 'pods', 'create')}


def test_the_discovery_and_reviews_of_oneself_need_nothing():
    assert find_needed([seen('get', ''), seen('create', 'selfsubjectaccessreviews', 'authorization.k8s.io')]) == set()


def test_resources_of_a_group_with_equal_verbs_share_a_rule(tmp_path):
    needed = {
        ('apps', 'b', 'watch'),
        ('apps', 'a', 'list'),
        ('apps', 'a', 'watch'),
        ('apps', 'b', 'list'),
        ('', 'c', 'get'),
    }
    role = make_role(needed, 'shop')
    assert role['rules'] == [
        {'apiGroups': [''], 'resources': ['c'], 'verbs': ['get']},
        {'apiGroups': ['apps'], 'resources': ['a', 'b'], 'verbs': ['list', 'watch']},
    ]
    write_role(tmp_path / 'shop.yaml', needed)
    assert yaml.safe_load((tmp_path / 'shop.yaml').read_text()) == role
