"""The conversions in generated CRDs, and the warnings about missing ones."""

import dataclasses
from typing import Any

import pytest

import kopf
from kopf._kits.definitions.crd_conversions import Service, add_conversions, find_gaps
from kopf._kits.definitions.crd_documents import make_crds


@dataclasses.dataclass
class OldSpec:
    at: str


@dataclasses.dataclass
class NewSpec:
    hour: int


@dataclasses.dataclass
class OldAlarm:
    spec: OldSpec


@dataclasses.dataclass
class Alarm:
    spec: NewSpec


@pytest.fixture
def registry():
    registry = kopf.OperatorRegistry()
    kopf.kind('example.com/v1', 'Alarm', registry=registry)(OldAlarm)
    kopf.kind('example.com/v2', registry=registry)(Alarm)
    return registry


def convert(registry, *names, **options):
    kopf.on.convert(*names, registry=registry, **options)(lambda **_: None)


def make(registry):
    return make_crds(registry.kinds, warn=print)


def get_client_config(registry, **options) -> Any:
    [crd] = add_conversions(make(registry), registry, **options)
    return crd['spec']['conversion']['webhook']['clientConfig']


@pytest.mark.parametrize('names', [[OldAlarm, Alarm], ['alarms'], ['example.com', 'alarms'], ['Alarm']])
def test_versions_with_handlers_get_a_webhook_at_an_address_that_never_resolves(registry, names):
    convert(registry, *names)
    assert get_client_config(registry) == {'url': 'https://operator-not-started.invalid/convert/alarms.example.com'}


def test_the_service_of_the_operator_is_called_if_it_is_known(registry):
    convert(registry, OldAlarm, Alarm)
    assert get_client_config(registry, service=Service('ops', 'clock')) == {
        'service': {'namespace': 'ops', 'name': 'clock', 'port': 443, 'path': '/convert/alarms.example.com'}
    }


def test_other_crds_are_left_alone(registry):
    crds = make(registry)
    assert add_conversions(crds, registry) == crds  # no handlers
    convert(registry, 'alarms')
    given = {'strategy': 'Webhook', 'webhook': {'clientConfig': {'url': 'https://x'}}}
    [crd] = crds
    own = {**crd, 'spec': {**crd['spec'], 'conversion': given}}
    single = {**crd, 'spec': {**crd['spec'], 'versions': crd['spec']['versions'][:1]}}
    assert add_conversions([own, single], registry) == [own, single]


def test_versions_that_differ_without_handlers_are_told_of(registry):
    [text] = find_gaps(make(registry), registry)
    assert text.startswith('alarms.example.com: the schemas of its versions differ, but there is no @kopf.on.convert')


def test_equal_versions_need_no_handlers():
    registry = kopf.OperatorRegistry()
    kopf.kind('example.com/v1', 'Alarm', registry=registry)(OldAlarm)
    same = dataclasses.make_dataclass('Same', [('spec', OldSpec)])
    kopf.kind('example.com/v2', 'Alarm', registry=registry)(same)
    assert not list(find_gaps(make(registry), registry))


def test_missing_directions_are_told_of(registry):
    convert(registry, OldAlarm, Alarm)
    [text] = find_gaps(make(registry), registry)
    assert text.startswith('alarms.example.com: no @kopf.on.convert converts from v2 to v1; ')
    convert(registry, Alarm, OldAlarm)
    assert not list(find_gaps(make(registry), registry))
