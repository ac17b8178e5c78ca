"""The webhooks in configuration objects: their names, rules, selectors, and addresses."""

import re
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.engines.webhook_configurations import (
    build_webhooks,
    get_aliases,
    inject_path,
    name_endpoints,
    normalize_name,
)

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)
CONFIG = kopf.WebhookClientConfig(url='https://host:1234/root', caBundle='Q0E=')


def build(registry: kopf.OperatorRegistry) -> Any:
    served = {
        handler: handler.selector.select([RESOURCE, PODS])  # type: ignore[union-attr]
        for handler in registry.webhooks
    }
    return build_webhooks(served, client_config=CONFIG, suffix='my.kopf.dev', endpoints=name_endpoints(served))


def declare(registry: kopf.OperatorRegistry, id: str, resource: str = 'kopfexamples', **options: Any) -> None:
    @kopf.on.validate(resource, id=id, registry=registry, **options)
    def handler(**_: Any) -> None:
        pass


def test_webhooks_have_defaults_for_all_fields(registry: kopf.OperatorRegistry) -> None:
    declare(registry, 'handler_id/sub')
    assert build(registry) == [
        {
            'name': 'handler-id.sub.my.kopf.dev',
            'sideEffects': 'None',
            'failurePolicy': 'Fail',
            'matchPolicy': 'Equivalent',
            'timeoutSeconds': 30,
            'admissionReviewVersions': ['v1', 'v1beta1'],
            'objectSelector': None,
            'rules': [
                {
                    'apiGroups': ['kopf.dev'],
                    'apiVersions': ['v1'],
                    'resources': ['kopfexamples'],
                    'operations': ['*'],
                    'scope': '*',
                }
            ],
            'clientConfig': {'url': 'https://host:1234/root/handler_id/sub', 'caBundle': 'Q0E='},
        }
    ]


@pytest.mark.parametrize(
    'options, expected',
    [
        ({'side_effects': True}, {'sideEffects': 'NoneOnDryRun'}),
        ({'side_effects': False}, {'sideEffects': 'None'}),
        ({'ignore_failures': True}, {'failurePolicy': 'Ignore'}),
        ({'ignore_failures': False}, {'failurePolicy': 'Fail'}),
        (
            {'labels': {'a': 'b', 'c': kopf.PRESENT, 'd': kopf.ABSENT, 'e': lambda value, **_: True}},
            {
                'objectSelector': {
                    'matchExpressions': [
                        {'key': 'a', 'operator': 'In', 'values': ['b']},
                        {'key': 'c', 'operator': 'Exists'},
                        {'key': 'd', 'operator': 'DoesNotExist'},
                    ]
                }
            },
        ),
        ({'labels': {'e': lambda value, **_: True}}, {'objectSelector': None}),
        ({'annotations': {'a': 'b'}}, {'objectSelector': None}),
    ],
)
def test_options_of_handlers_are_fields_of_webhooks(
    registry: kopf.OperatorRegistry, options: Any, expected: Any
) -> None:
    declare(registry, 'handler', **options)
    (webhook,) = build(registry)
    assert {key: webhook[key] for key in expected} == expected


@pytest.mark.parametrize(
    'options, operations, resource',
    [
        ({'operation': 'DELETE'}, ['DELETE'], 'kopfexamples'),
        ({'operations': ('CREATE', 'UPDATE')}, ['CREATE', 'UPDATE'], 'kopfexamples'),
        ({'subresource': 'status'}, ['*'], 'kopfexamples/status'),
        ({'subresource': '*'}, ['*'], 'kopfexamples/*'),
    ],
)
def test_rules_have_the_operations_and_the_subresource_of_the_handler(
    registry: kopf.OperatorRegistry, options: Any, operations: Any, resource: str
) -> None:
    declare(registry, 'handler', **options)
    ((rule,),) = [webhook['rules'] for webhook in build(registry)]
    assert (rule['operations'], rule['resources']) == (operations, [resource])


def test_several_resources_have_a_rule_each(registry: kopf.OperatorRegistry) -> None:
    @kopf.on.validate(lambda resource: True, id='handler', registry=registry)
    def handler(**_: Any) -> None:
        pass

    (webhook,) = build(registry)
    assert [rule['resources'] for rule in webhook['rules']] == [['pods'], ['kopfexamples']]


def test_handlers_without_resources_have_no_webhooks(registry: kopf.OperatorRegistry) -> None:
    declare(registry, 'handler', 'absent')
    assert build(registry) == []


def test_handlers_of_one_id_are_one_webhook_or_have_different_names(registry: kopf.OperatorRegistry) -> None:
    declare(registry, 'one', operation='CREATE')
    declare(registry, 'one', 'pods', operation='DELETE')
    declare(registry, 'one', operation='CREATE')
    declare(registry, 'one', ignore_failures=True)
    first, second = build(registry)
    assert [(rule['resources'], rule['operations']) for rule in first['rules']] == [
        (['kopfexamples'], ['CREATE']),
        (['pods'], ['DELETE']),
    ]
    assert (first['name'], second['name']) == ('one.my.kopf.dev', 'one-2.my.kopf.dev')
    assert first['clientConfig'] == second['clientConfig']


@pytest.mark.parametrize(
    'id, name',
    [
        ('handler', 'handler'),
        ('a_b', 'a-b'),
        ('a/b', 'a.b'),
        ('dir/name_x', 'dir.name-x'),
        ('fn/spec.field', 'fn.spec.field'),
        ('x:y z', 'x3ay20z'),
        ('<locals>', '3clocals3e'),
        ('ü', 'c3bc'),
        ('Handler', '48andler'),
        ('_private_', 'private'),
        ('/a//b/', 'a.b'),
    ],
)
def test_ids_are_converted_to_names(id: str, name: str) -> None:
    assert normalize_name(id, 'my.kopf.dev') == f'{name}.my.kopf.dev'


@hypothesis.given(st.text(st.characters(exclude_categories=['Cs']), min_size=1))
def test_names_are_acceptable_for_the_api(id: str) -> None:
    name = normalize_name(id, 'my.kopf.dev')
    assert re.fullmatch(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*', name)


@pytest.mark.parametrize(
    'config, expected',
    [
        ({'url': 'https://host'}, {'url': 'https://host/a_b/c%20d'}),
        ({'url': 'https://host/'}, {'url': 'https://host/a_b/c%20d'}),
        ({'url': 'https://host/path'}, {'url': 'https://host/path/a_b/c%20d'}),
        ({'service': {'name': 'x'}}, {'service': {'name': 'x', 'path': '/a-b/c20d'}}),
        ({'service': {'name': 'x', 'path': None}}, {'service': {'name': 'x', 'path': '/a-b/c20d'}}),
        ({'service': {'name': 'x', 'path': '/path/'}}, {'service': {'name': 'x', 'path': '/path/a-b/c20d'}}),
        ({'caBundle': None, 'url': None, 'service': None}, {'caBundle': None, 'url': None, 'service': None}),
    ],
)
def test_paths_are_added_to_the_address(config: Any, expected: Any) -> None:
    original = repr(config)
    assert inject_path(config, 'a_b/c d') == expected
    assert repr(config) == original
    if 'service' in config and config['service']:
        assert expected['service']['path'].removeprefix('/path').lstrip('/') in get_aliases('a_b/c d')


def test_no_path_for_no_address() -> None:
    assert inject_path(kopf.WebhookClientConfig(), 'handler') == {}
