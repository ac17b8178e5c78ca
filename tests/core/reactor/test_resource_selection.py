"""Selecting resources: which of the discovered ones are served, and what is reported about the others."""

import dataclasses

import pytest

import kopf
from kopf._cogs.structs.references import Resource
from kopf._core.intents.registries import OperatorRegistry
from kopf._core.reactor import resource_selection
from kopf._core.reactor.resource_selection import Absences, Definitions, ResourceProblems, get_groups, resolve_tables

VERBS = frozenset({'list', 'watch', 'patch'})
KEX = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', singular='kopfexample', verbs=VERBS)
V2 = dataclasses.replace(KEX, version='v2')
OTHER = dataclasses.replace(KEX, group='other.dev')


@pytest.fixture
def registry():
    return OperatorRegistry()


def declare(registry, decorator, *args, **options):
    @decorator(*args, registry=registry, **options)
    def fn(**_): ...


def make_crd(*versions, established=True, **served):
    return {
        'spec': {
            'versions': [{'name': version, 'served': served.get(version, True)} for version in versions],
        },
        'status': {'conditions': [{'type': 'Established', 'status': str(established)}]},
    }


def test_selected_resources_get_tables_with_their_handlers(registry):
    declare(registry, kopf.on.create, 'kopfexamples')
    tables, problems = resolve_tables(registry, [KEX])
    assert [handler.fn.__name__ for handler in tables[KEX].changing] == ['fn']
    assert problems == ResourceProblems()


def test_unresolved_selectors_are_reported_with_the_closest_names(registry, caplog):
    declare(registry, kopf.on.create, 'kopfexampels')
    tables, problems = resolve_tables(registry, [KEX])
    problems.log(ResourceProblems())
    assert not tables
    assert "Unresolved resources cannot be served" in caplog.text
    assert "Did you mean 'kopfexamples'?" in caplog.text


def test_specific_selectors_that_match_several_groups_are_not_served(registry, caplog):
    declare(registry, kopf.on.create, 'kopfexamples')
    tables, problems = resolve_tables(registry, [KEX, OTHER])
    problems.log(ResourceProblems())
    assert not tables and "Ambiguous resources will not be served" in caplog.text


@pytest.mark.parametrize(
    'decorator, verb, text',
    [
        (kopf.on.create, 'watch', "Non-watchable resources will not be served"),
        (kopf.on.create, 'patch', "Non-patchable resources will not be served"),
        (kopf.on.event, 'patch', None),
    ],
    ids=['unwatchable', 'unpatchable', 'unpatchable but only watched'],
)
def test_resources_are_served_only_with_the_verbs_that_their_handlers_need(registry, caplog, decorator, verb, text):
    resource = dataclasses.replace(KEX, verbs=VERBS - {verb})
    declare(registry, decorator, 'kopfexamples')
    tables, problems = resolve_tables(registry, [resource])
    problems.log(ResourceProblems())
    assert bool(tables) is (text is None) and (text or '') in caplog.text


def test_the_same_complaints_are_logged_once(registry, caplog):
    declare(registry, kopf.on.create, 'missing')
    _, problems = resolve_tables(registry, [KEX])
    problems.log(problems)
    assert not caplog.text


def test_failed_groups_are_reported_only_if_resources_can_be_missing_because_of_them(registry):
    declare(registry, kopf.on.create, 'kopf.dev', 'v1', 'missing')
    declare(registry, kopf.on.create, 'others.dev', 'v1', kopf.EVERYTHING)
    _, problems = resolve_tables(registry, [KEX, OTHER])
    failed = {'kopf.dev', 'other.dev', 'others.dev', 'unrelated.dev'}
    selectors = list(registry.iter_selectors())
    assert problems.with_failed_groups(failed, set(), selectors).failed_groups == {'kopf.dev', 'others.dev'}
    assert problems.with_failed_groups(failed, {OTHER}, []).failed_groups == {'other.dev'}


def test_groups_are_known_if_all_handlers_name_them(registry):
    declare(registry, kopf.on.create, 'kopf.dev', 'v1', 'kopfexamples')
    assert get_groups(registry) == {'kopf.dev'}
    declare(registry, kopf.on.create, 'kopfexamples')
    assert get_groups(registry) is None


def test_the_discovery_is_compared_with_the_known_definitions():
    definitions = Definitions()
    assert definitions.compare([], None)
    definitions.note('kopfexamples.kopf.dev', make_crd('v1', 'v2'))
    assert not definitions.compare([KEX], None)
    assert definitions.compare([KEX, V2], None)
    assert definitions.compare([], {'other.dev'})
    assert definitions.is_served(KEX) and definitions.is_served(OTHER) is None


@pytest.mark.parametrize('crd', [make_crd('v1', established=False), {'spec': {}}], ids=['not established', 'malformed'])
def test_definitions_that_are_not_established_are_not_waited_for(crd):
    definitions = Definitions()
    definitions.note('kopfexamples.kopf.dev', make_crd('v1'))
    definitions.note('kopfexamples.kopf.dev', crd)
    assert definitions.compare([], None) and definitions.is_served(KEX) is None


def test_a_deleted_definition_is_forgotten_when_its_resource_is_gone():
    definitions = Definitions()
    definitions.note('kopfexamples.kopf.dev', make_crd('v1'))
    definitions.note('kopfexamples.kopf.dev', {})
    assert not definitions.compare([KEX], None)
    assert definitions.is_served(KEX) is False
    assert definitions.compare([], None)
    assert definitions.is_served(KEX) is None


def test_a_missing_resource_is_served_as_long_as_its_definition_serves_it(caplog):
    definitions = Definitions()
    definitions.note('kopfexamples.kopf.dev', make_crd('v1', 'v2'))
    absences = Absences(definitions)
    assert absences.fill([V2, OTHER], known=[KEX, V2, OTHER]) == {KEX, V2, OTHER}
    assert absences and "missing in the discovery" in caplog.text
    definitions.note('kopfexamples.kopf.dev', make_crd('v1', 'v2', v1=False))
    assert absences.fill([V2, OTHER], known=[KEX, V2, OTHER]) == {V2, OTHER}
    assert not absences


def test_a_missing_resource_without_a_definition_is_served_for_a_short_time(monkeypatch):
    absences = Absences(Definitions())
    assert absences.fill([], known=[KEX]) == {KEX}
    monkeypatch.setattr(resource_selection, 'CONFIRMATION_TIME', 0)
    assert absences.fill([], known=[KEX]) == set()
