"""Which objects are triggered by an object of another resource: by its owner references, or by a function."""

import dataclasses
import logging

import pytest

import kopf
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.packed_objects import ParsedCache
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.engines.owned_objects import OwnedObjects
from kopf._core.engines.relations import Relations
from kopf._core.intents.causes import ResourceCause

PODS = Resource('', 'v1', 'pods', kind='Pod', namespaced=True)


def pod(version=1, owners=(), **labels):
    metadata = {'name': 'pod', 'namespace': 'ns', 'uid': 'p', 'resourceVersion': str(version), 'labels': labels}
    return {'metadata': {**metadata, 'ownerReferences': [{'uid': uid} for uid in owners]}}


class Scene:
    """The relations of a handler to pods, with the states of one pod."""

    def __init__(self, *, objects=None, **options):
        registry = kopf.OperatorRegistry()
        kopf.on.reconcile('kopfexamples', id='fn', registry=registry, **options)(lambda **_: None)
        (self.handler,) = registry.reconciling.get_all_handlers()
        self.relations = Relations(self.handler, *self.handler.sources, objects)
        self.causes = 0

    def note(self, raw):
        return set(self.relations.note('p', raw, lambda: self.make_cause(raw)))

    def remove(self, raw):
        return set(self.relations.remove('p', raw, lambda: self.make_cause(raw)))

    def make_cause(self, raw):
        self.causes += 1
        return ResourceCause(
            logger=logging.getLogger('kopf.test'),
            memo=None,
            indices={},
            resource=PODS,
            body=Body(raw),
            patch=Patch(),
        )


def by_label(labels, namespace, **_):
    return [(namespace, labels['of'])] if 'of' in labels else None


def test_owners_are_found_by_their_uids():
    scene = Scene(owns=['pods'])
    assert scene.note(pod(owners=['a', 'b'])) == {'a', 'b'}
    assert scene.relations.is_known('p')
    assert not scene.causes


def test_objects_without_owners_are_not_remembered():
    scene = Scene(owns=['pods'])
    assert scene.note(pod()) == set()
    assert not scene.relations.is_known('p')


def test_children_of_all_kinds_of_the_handler_are_remembered_and_those_of_other_kinds_are_not():
    scene = Scene(owns=['pods'], objects=OwnedObjects('kopf-operator', ParsedCache()))
    for plural, kind in ('apples', 'Apple'), ('pears', 'Pear'):
        scene.relations.note_owner(Resource('example.dev', 'v1', plural, kind=kind, namespaced=True))
    raw = pod()
    raw['metadata']['ownerReferences'] = [
        {'apiVersion': 'example.dev/v1', 'kind': kind, 'uid': kind} for kind in ('Apple', 'Pear', 'Plum')
    ]
    assert scene.note(raw) == {'Apple', 'Pear'}
    assert set(scene.relations.get_keys('p')) == {'Apple', 'Pear'}


def test_children_must_be_listed_again_when_a_kind_of_owners_is_found_late():
    relations = Scene(owns=['pods'], objects=OwnedObjects('kopf-operator', ParsedCache())).relations
    apples, pears = (Resource('example.dev', 'v1', plural, kind=plural, namespaced=True) for plural in ('a', 'p'))
    relations.note_owner(apples)
    relations.note_owner(pears)
    assert not relations.is_outdated  # the children are not listed yet
    relations.note('p', pod(), lambda: None)
    relations.note_owner(pears)
    assert not relations.is_outdated
    relations.note_owner(Resource('example.dev', 'v1', 'x', kind='x', namespaced=True))
    assert relations.is_outdated
    relations.note_relisting()
    assert not relations.is_outdated


def test_late_owners_of_known_children_are_found_when_these_are_listed_again():
    scene = Scene(owns=['pods'], objects=OwnedObjects('kopf-operator', ParsedCache()))
    raw = pod()
    raw['metadata']['ownerReferences'] = [
        {'apiVersion': 'example.dev/v1', 'kind': kind, 'uid': kind} for kind in ('Early', 'Late')
    ]
    scene.relations.note_owner(Resource('example.dev', 'v1', 'earlies', kind='Early', namespaced=True))
    assert scene.note(raw) == {'Early'}
    scene.relations.note_owner(Resource('example.dev', 'v1', 'lates', kind='Late', namespaced=True))
    assert scene.note(raw) == {'Late'}
    assert set(scene.relations.get_keys('p')) == {'Early', 'Late'}
    assert scene.note(raw) == set()


def test_former_owners_are_triggered_together_with_new_ones():
    scene = Scene(owns=['pods'])
    scene.note(pod(1, owners=['a']))
    assert scene.note(pod(2, owners=['b'])) == {'a', 'b'}
    assert scene.note(pod(3)) == {'b'}
    assert not scene.relations.is_known('p')


def test_a_version_that_is_listed_again_triggers_no_owners():
    scene = Scene(owns=['pods'])
    scene.note(pod(1, owners=['a']))
    assert scene.note(pod(1, owners=['a'])) == set()
    assert scene.note(pod(2, owners=['a'])) == {'a'}


@kopf.kind('example.com/v1', 'Pod', registry=kopf.OperatorRegistry())
@dataclasses.dataclass
class Model:
    spec: dict[str, str]


def test_functions_get_objects_of_the_class_that_names_their_resource():
    scene = Scene(watches={Model: lambda obj, spec, namespace, **_: [(namespace, obj.spec['of'] + spec['of'])]})
    assert scene.note(pod() | {'spec': {'of': 'a'}}) == {('ns', 'aa')}


def test_objects_that_do_not_conform_to_the_class_are_logged_and_trigger_their_former_dependents(caplog):
    scene = Scene(watches={Model: lambda spec, **_: [('', spec['of'])]})
    scene.note(pod(1) | {'spec': {'of': 'a'}})
    assert scene.note(pod(2) | {'spec': {'of': 1}}) == {(None, 'a')}
    assert "does not conform to the class Model: " in caplog.text


def test_deleted_objects_trigger_their_last_owners_once():
    scene = Scene(owns=['pods'])
    scene.note(pod(1, owners=['a']))
    assert set(scene.relations.forget('p')) == {'a'}
    assert set(scene.relations.forget('p')) == set()


def test_functions_return_namespaces_and_names():
    scene = Scene(watches={'pods': by_label})
    assert scene.note(pod(1, of='x')) == {('ns', 'x')}
    assert scene.note(pod(2, of='y')) == {('ns', 'x'), ('ns', 'y')}
    assert scene.note(pod(3)) == {('ns', 'y')}


def test_objects_of_the_cluster_have_no_namespace():
    scene = Scene(watches={'pods': lambda **_: [('', 'x'), [None, 'y']]})
    assert scene.note(pod()) == {(None, 'x'), (None, 'y')}


@pytest.mark.parametrize('result', ['name', ['name'], [('ns', 'x', 'y')], [('ns', None)], [(1, 'x')]])
def test_other_results_are_explained(result, caplog):
    scene = Scene(watches={'pods': lambda **_: result})
    assert scene.note(pod()) == set()
    assert "must return a list of pairs of a namespace and a name" in caplog.text


def test_failing_functions_keep_the_former_result_and_are_reported_once(caplog):
    scene = Scene(watches={'pods': lambda labels, namespace, **_: [(namespace, labels['of'])]})
    scene.note(pod(1, of='x'))
    assert scene.note(pod(2)) == {('ns', 'x')}
    assert scene.note(pod(3)) == {('ns', 'x')}
    assert caplog.text.count("watches= of reconciler 'fn'") == 1 and "KeyError: 'of'" in caplog.text
    assert scene.note(pod(4, of='y')) == {('ns', 'x'), ('ns', 'y')}
    scene.note(pod(5))
    assert caplog.text.count("watches= of reconciler 'fn'") == 2


def test_functions_are_called_for_deleted_objects_too_as_their_results_can_have_changed():
    keys = [('ns', 'x')]
    scene = Scene(watches={'pods': lambda **_: keys})
    assert scene.note(pod(1)) == {('ns', 'x')}
    keys = [('ns', 'y')]
    assert scene.remove(pod(2)) == {('ns', 'x'), ('ns', 'y')}
    keys = []
    assert scene.remove(pod(3)) == set()


def test_functions_that_fail_for_an_unseen_deletion_are_not_reported(caplog):
    scene = Scene(watches={'pods': lambda labels, namespace, **_: [(namespace, labels['of'])]})
    scene.note(pod(1, of='x'))
    assert scene.remove({'metadata': {'name': 'pod', 'namespace': 'ns', 'uid': 'p'}}) == {('ns', 'x')}
    assert not caplog.text
    scene.note(pod(2, of='x'))
    assert scene.remove(pod(3)) == {('ns', 'x')}
    assert "KeyError: 'of'" in caplog.text
